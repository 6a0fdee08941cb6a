"""A note on the script's own CPU time, where steps have much of it that the modelled host clock does not know.

The clock counts CUDA calls, operators and Python frames (docs/virtual-time.md). Code in C between them (NumPy, SciPy,
an environment's physics) and loops within one function cost nothing there, operators on CPU tensors the bytes that they
move.
``stub/rank/clock/unmodelled_cpu.c`` measures what they take on this machine.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Sequence

from phantora.rank.messages import report_at_end, tell
from phantora.rank.patch import Patch, Rank, When

_WINDOWS = 5  # what happens once, as compiling, is in one of them
_NOTED = 0.1  # of a step


def spent_and_taken(steps: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """CPU time of a step that was not counted, and a step's virtual time, in ns; 0 of too few steps.

    `steps` has both for each step. The first is not looked at. Evenly many others lie in each of up to five windows;
    the median window counts.
    """
    steps = steps[1:]
    if len(steps) < 2:
        return 0.0, 0.0
    size = -(-len(steps) // _WINDOWS)
    windows = [steps[at : at + size] for at in range(0, len(steps), size)]
    spent = statistics.median_low(sum(cpu for cpu, _ in window) / len(window) for window in windows)
    takes = statistics.median(sum(time for _, time in window) / len(window) for window in windows)
    return spent, takes


def note(spent: float, takes: float) -> str | None:
    """Note for the user about :func:`spent_and_taken`; None if the clock counted most of the steps' time."""
    if spent <= takes * _NOTED:
        return None
    return (
        f"code of the script that is no operator on a GPU (NumPy, simulators) takes "
        f"{spent / 1e6:.3g} ms of this machine's CPU for each optimizer step, which is not counted: "
        f"the simulated host takes {takes / 1e6:.3g} ms for one; --host-time measured counts it"
    )


def install(rank: Rank) -> None:
    """Prints the note when the process ends, in the first rank, and gives the time of each rank."""
    library = rank.runtime

    def report() -> None:
        pairs = ctypes.POINTER(ctypes.c_int64)()
        library.ph_unmodelled_steps.restype = ctypes.c_size_t
        count = library.ph_unmodelled_steps(ctypes.byref(pairs))
        spent, takes = spent_and_taken([(pairs[2 * i], pairs[2 * i + 1]) for i in range(count)])
        if (text := note(spent, takes)) is not None:
            if library.ph_rank() == 0:
                tell(text)
            library.ph_uncounted(ctypes.c_int64(round(spent)))

    report_at_end(library, report, every=True)


PATCH = Patch("unmodelled CPU time", When.IN_RANK, install)
