"""Launches of a rank, their partners, and the waits of the rank and its streams: the parts of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

WHOLE_GPU = -1
"""All launches, in place of one."""
LEAST_NS = 1
"""Least time of a transfer."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A collective, or one side of a transfer, of a communication kernel."""

    group: int
    bytes: int
    dtype: str
    """torch's name; empty if unknown."""
    collective: int = -1
    """``wire.layout.Coll``; -1 for a transfer."""
    peer: int = -1
    """Partner of a transfer: rank in the group."""
    sends: bool = False


@dataclass
class Joint:
    """A communication kernel whose partners are in the traces too."""

    parts: list[Part] = field(default_factory=list)
    duration: int = LEAST_NS
    """ns from the last arrival of a partner to the end."""
    crowd: float = 1.0
    """Mean number of simultaneous collectives over links of its kind, itself included."""


@dataclass(frozen=True)
class Wait:
    """A stream waits for a launch on another one."""

    time: int
    stream: int
    item: int
    """Place among the launches."""


@dataclass(frozen=True)
class Sync:
    """The host waits."""

    row: int
    time: int
    resumes: int
    """End of the awaited work, at least `time`."""
    item: int
    """Place of the launch that it waits for, or WHOLE_GPU."""
    room: bool = False
    """It waits for room in a queue."""


@dataclass
class Timeline:
    """The launches of a rank in order of their calls. Times are ns of the rank's clock."""

    rows: Ints
    """Positions in the trace."""
    launch: Ints
    delay: Ints
    """Delay of each launch that its host, its stream and its waits do not explain."""
    waits: list[Wait]
    syncs: list[Sync]


@dataclass(frozen=True)
class Schedule:
    """Launches and waits of a rank, from a source that has them instead of calls and times."""

    line: Timeline
    joints: dict[int, Joint]
    """Joints by position in the rows."""
