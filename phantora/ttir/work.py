"""Work of one launch of a Triton kernel, as numbers: the input of its price."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

WARP = 32  # threads
SECTOR_BYTES = 32  # what memory is written in: one that is written in part is read first
PAIR_BYTES = 64  # of sectors, which memory and L2 hand out together
LINE_BYTES = 128  # of L2
COUNTERS = (
    "alu",
    "mufu",
    "integer",
    "convert",
    "again",
    "load_bytes",
    "load_sectors",
    "loads",
    "store_bytes",
    "store_sectors",
    "stores",
    "atomics",
    "accesses",
    "scattered",
    "cubed",
    "reduced",
    "scanned",
    "reductions",
    "crossings",
    "phases",
    "piped",
    "flops",
    "dots",
    "steps",
    "instructions",
    "partial",
)
"""Counters of a program (one block of threads), means over programs. Elements: `alu` (additions, products,
comparisons), `mufu` (exponentials, roots, quotients: the special function units' instructions), `instructions` of
functions of a library (`functions.py`), `integer`, `convert` (casts), `reduced` (inputs of reductions), `scanned`
(those of running sums), `cubed` (those of tensors of three dimensions and more). `again`: bytes read where the program
has been before. Memory: bytes asked for, and bytes of the pairs of sectors that they lie in, `partial` of those whose
sectors a store fills only in part (on an H100, loads of single bytes go as fast as those of 64 would, stores as 128
would); `loads` and `stores` are operations, `atomics` elements, `accesses` a thread's instructions that load or store,
`scattered` elements without neighbours. `reductions`: of rows of a tile, `crossings`: of all that a program contains,
which its warps must meet for. `phases`: loads one after the other, each waited for; `piped`: those of loops that
multiply, which are in flight beforehand. `flops` of products on tiles, `dots` their number, `steps`: iterations of
loops."""

LOOPS = "how often a loop runs, which counts as once"
"""Entry of `Work.unknown`: the work of the launch is a lower bound."""


@dataclass(frozen=True)
class Dot:
    """A product of m x k by k x n in one program. `dtype`: torch's name, ``tfloat32`` where float32 runs so."""

    m: int
    n: int
    k: int
    dtype: str
    count: float
    """Times a program runs it, mean over programs."""


@dataclass(frozen=True, eq=False, kw_only=True)  # compared and hashed by identity
class Work:
    """One launch. `programs` run in blocks of `warps` * 32 threads."""

    programs: int
    warps: int
    stages: int
    shared: int
    """Bytes a block."""
    registers: int
    """A thread; 0: not known."""
    spills: int
    """Registers a thread that do not fit and lie in memory."""
    counts: dict[str, float]
    """Counts by `COUNTERS`, a program's mean."""
    longest: float
    """Work of the longest program over that of the mean program."""
    read: float
    """Distinct bytes that all programs read."""
    written: float
    dots: tuple[Dot, ...] = ()
    copy_engine: bool = False
    """Operands come through descriptors (TMA)."""
    unknown: tuple[str, ...] = field(default=())
    """Unknown things that decide, as text for a user: `LOOPS`, branches, operations, addresses."""

    def text(self) -> dict[str, Any]:
        """As it travels in a signature."""
        table = asdict(self)
        table["counts"] = {key: round(value, 3) for key, value in self.counts.items() if value}
        table["longest"] = round(self.longest, 4)
        return table

    @classmethod
    def of(cls, table: dict[str, Any]) -> Work:
        """Reads the table of :meth:`text`."""
        dots = tuple(Dot(**dot) for dot in table.get("dots", ()))
        return cls(**{**table, "dots": dots, "unknown": tuple(table.get("unknown", ()))})
