"""Fields of the shared memory that change during a run, and their way between nodes.

The ranks of a node share memory with a relay of that node. The relay of the simulator's node keeps an equal area, the
*mirror*, for the engine (``sim/engine/relay``). Rings and replies travel as they are. Of the other fields,
:data:`TO_SIMULATOR` follow the records of a rank, :data:`TO_RANK` and :data:`TO_ALL` come back. Those of
:data:`OF_A_NODE` belong to one side. The rest is the same from the start on.
"""

from __future__ import annotations

from phantora.wire.schema import Struct

TO_SIMULATOR = (
    "clock",
    "host_memory",
    "host_pinned",
    "memory_peak",
    "data_cpu",
    "data_counted",
    "data_apart",
    "data_batch",
    "data_used",
    "data_workers",
    "data_starts",
    "cpu_uncounted",
    "pid",
    "waiting",
    "holding",
    "producer_waiting",
)
TO_RANK = ("tail", "floor", "drawn_mj", "drawn_mw")
TO_ALL = ("stalled_ns", "sim_state")
OF_A_NODE = (
    *("head", "tail_futex", "processes", "left", "memory"),
    *("sim_pid", "doorbell", "sim_sleeping", "relay_bell", "relay_sleeping"),
)
PID_BITS = 22  # of a process number in Linux; in the mirror the node's number stands above them


def structs(header: Struct, control: Struct) -> tuple[Struct, ...]:
    """What travels of a rank to the simulator, of a rank back, and of the header to all nodes."""
    return _some("ph_said", control, TO_SIMULATOR), _some("ph_given", control, TO_RANK), _some("ph_run", header, TO_ALL)


def _some(name: str, struct: Struct, names: tuple[str, ...]) -> Struct:
    known = {field[1]: field for field in struct.fields}
    fields = tuple(known[wanted] for wanted in names)
    odd = sum(ctype in ("int32_t", "uint32_t") for ctype, _, _, _ in fields) % 2
    return Struct(name, (*fields, *((("uint32_t", "pad", 1, ""),) if odd else ())))


def c_lines(travelling: tuple[Struct, ...]) -> list[str]:
    """A macro for each struct that names its fields, as ``PH_SAID_FIELDS(X)``."""
    lines = []
    for one in travelling:
        names = " ".join(f"X({name})" for _, name, _, _ in one.fields if name != "pad")
        lines.append(f"#define {one.name.upper()}_FIELDS(X) {names}")
    return lines
