"""Content of one rank's trace, on its way to the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.cost.types import OperatorSignature
from phantora.importers.schedule import Schedule
from phantora.trace.schema import DEVICE_KINDS, KIND_CODE

Rows = npt.NDArray[np.void]

ROW = np.dtype(
    [
        ("kind", "<u1"),
        ("stream", "<i4"),
        ("name", "<i4"),
        ("sig", "<i4"),
        ("comm", "<i4"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("bytes", "<i8"),
        ("value", "<i8"),
        ("correlation", "<i8"),
        ("external", "<i8"),
        ("device", "<i2"),
        ("detail", "<i4"),
    ]
)
"""A row as a trace gives it. `stream` is the thread's index for rows of the host. `correlation` is shared by a call and
what it launches, `external` names the operator that launches or is; both are -1 where the trace has none. `device` is
the number of the GPU, -1 for rows of the host. `detail` is the number of a :class:`KernelForm` or a
:class:`CommunicationCall`, -1 for none."""

CODES = KIND_CODE
_IS_DEVICE = np.array([kind in DEVICE_KINDS for kind in CODES])
Record = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""Values of :data:`ROW`, in its order."""


def is_device(kind: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """True for rows whose kind occupies a GPU."""
    mask: npt.NDArray[np.bool_] = _IS_DEVICE[kind]
    return mask


class Texts:
    """Words shared by all ranks of a log, by number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.words: list[Any] = []

    def number(self, word: Any) -> int:
        """The number of `word`, which is added if it is new."""
        found = self._numbers.get(word)
        if found is None:
            found = self._numbers[word] = len(self.words)
            self.words.append(word)
        return found


@dataclass(frozen=True)
class Operator:
    """An operator and the text of its arguments, as the log has it."""

    signature: OperatorSignature
    text: str


@dataclass(frozen=True)
class Group:
    """A process group: its name within the job, what it is for, and its ranks (empty: unknown)."""

    name: str
    purpose: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class KernelForm:
    """Launch parameters of a kernel."""

    grid: tuple[int, int, int]
    """Blocks."""
    block: tuple[int, int, int]
    """Threads."""
    shared_bytes: int


@dataclass(frozen=True)
class CommunicationCall:
    """A call of torch.distributed."""

    collective: str
    """As Kineto names it: ``allreduce``, ``_allgather_base``, ``send``."""
    group: int
    """Number in ``Vocabulary.groups``, -1 if unknown."""
    dtype: str
    """torch's name; empty if unknown."""
    bytes: int
    """Size of the larger of input and output."""
    peer: int
    """Partner of a send or receive: rank in the group, -1 if unknown."""

    @property
    def of_pair(self) -> bool:
        """True for a send or a receive."""
        return self.sends or self.collective.startswith(("recv", "irecv"))

    @property
    def sends(self) -> bool:
        """True for a send."""
        return self.collective in ("send", "isend")


@dataclass
class Vocabulary:
    """The words of all ranks."""

    names: Texts = field(default_factory=Texts)
    signatures: Texts = field(default_factory=Texts)
    """:class:`Operator`."""
    groups: Texts = field(default_factory=Texts)
    """:class:`Group`."""
    details: Texts = field(default_factory=Texts)
    """:class:`KernelForm` and :class:`CommunicationCall`."""


@dataclass(frozen=True)
class Device:
    """The GPU of a rank, as the trace describes it."""

    name: str = ""
    memory_bytes: int = 0
    per_host: int = 0
    """GPUs of the host; 0 if unknown."""


@dataclass(kw_only=True)
class RankTrace:
    """The rows of one rank in the order of the file, before they are linked."""

    rank: int
    source: str
    """The file."""
    rows: Rows
    """Rows of :data:`ROW`; times in ns of the rank's own clock."""
    world_size: int = 1
    device: Device = field(default_factory=Device)
    base: int = 0
    """ns to add to the rank's times to compare them with those of other ranks."""
    origin: int | None = None
    """Start of the profiler's recording, ns."""
    waits: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Position of a `wait` row -> correlation of the event's record, stream of the record."""
    functions: dict[int, int] = field(default_factory=dict)
    """Record function id of an operator -> its position."""
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Facts that the trace does not contain -> the option of the profiler that adds them."""
    cut_short: bool = False
    """The file ends before the trace does."""
    notes: list[str] = field(default_factory=list)
    """Notes about the file for the user."""
    schedule: Schedule | None = None
    no_replay: str = ""
    """Why the trace cannot be replayed, of a format that never can."""


def _fits(record: Record) -> bool:
    """Do its numbers fit into a row?"""
    try:
        np.array([record], ROW)
    except OverflowError:
        return False
    return True


class RowBuilder:
    """Gathers records in pieces, each of which becomes an array."""

    def __init__(self) -> None:
        self._parts: list[Rows] = []
        self.count = 0

    def add(self, records: Iterable[Record]) -> int:
        """Adds a batch; how many of its records are left out, as their numbers are too large for a row."""
        given = list(records)
        try:
            part = np.array(given, ROW)
        except OverflowError:
            part = np.array([record for record in given if _fits(record)], ROW)
        if len(part):
            self._parts.append(part)
            self.count += len(part)
        return len(given) - len(part)

    def rows(self) -> Rows:
        """All of them; the builder is empty afterwards."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else np.empty(0, ROW)
