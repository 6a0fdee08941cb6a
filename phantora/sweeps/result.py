"""Facts about a point after its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from phantora.json_data import Bytes, Ns

RAN, OUT_OF_MEMORY, FAILED = "ran", "out of memory", "failed"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Numbers of a run's log, those of ``phantora analyze``: times in ns, sizes in bytes, shares 0 to 1."""

    step_time: Ns
    lowest: Ns
    highest: Ns
    steps: int
    """Steady ones."""
    error: float | None
    error_above: float | None
    mfu: float | None
    tokens_per_second: float | None
    samples_per_second: float | None
    exposed: float
    """Communication that no compute hides, share of a step."""
    idle: float
    overlap: float | None
    fits: bool
    memory: Bytes
    """Bytes of the fullest GPU at most, as nvidia-smi shows it."""
    capacity: Bytes
    peak_allocated: Bytes
    peak_reserved: Bytes
    holds_up: str
    """Largest part of a step after compute, in words."""
    remedy: str = ""
    """A change that would make a point fit that does not."""
    remedied: bool = True
    """The run's ``--remedy`` found something to change."""
    checkpointed: bool = False
    """Memory ran out, and torch.utils.checkpoint was in use."""
    watts: float | None = None
    """Power of a GPU, on average in a steady step."""
    parts: dict[str, float] = field(default_factory=dict)
    """Shares of a step: products, attention, convolutions, memory (kernels that mostly move data), communication,
    host and DataLoader, the last three where nothing computes."""
    roles: str = ""
    """Share of idle time by role of reinforcement learning: ``generate 12%, score + train 53%``."""
    grows: str = ""
    """Memory that grows each iteration, and what keeps it."""
    full: int | None = None
    """Iteration in which the growth uses up the GPU."""
    may_grow: str = ""
    """Growth as in `grows` that uses up the GPU so late that a run this short does not show whether it lasts."""

    widest: str = ""
    """What widens the error bar most, as ``Headline.widest``."""
    longer: float = 1.0
    """Mean step with the noise of hosts, GPUs and links (``--samples``) over the typical one; 1 without samples."""
    not_sampled: str = ""
    """Why ``--samples`` gave none."""
    worst_batch: str = ""
    """The batches of ``--worst-batch``; "" without it, or if the script has no DataLoader."""

    @property
    def mean_step(self) -> float:
        """ns of a step on average over a long run."""
        return self.step_time * self.longer

    @property
    def left(self) -> float:
        """Share of the fullest GPU's memory that is left."""
        return 1.0 - self.memory / self.capacity


@dataclass(frozen=True)
class Result:
    """Result of a task, as the journal stores it."""

    key: str
    """Key of the task: the same command on the same cluster has the same."""
    values: dict[str, Any]
    status: str
    """:data:`RAN`, :data:`OUT_OF_MEMORY` or :data:`FAILED`."""
    _: KW_ONLY
    measured: Measured | None = None
    error: str = ""
    needs: int | None = None
    """Bytes of a GPU, where it has too few: those of the run on GPUs that have enough."""
    steps: int | None = None
    """Number of steps of the run."""
    seconds: float = 0.0
    """Seconds of real time."""
    command: tuple[str, ...] = field(default_factory=tuple)
    """Command that repeats the run."""
    processes: int | None = None
    """Ranks that were processes."""
    fold: str = ""
    """The folded axes; "" if all ranks were processes."""
    refused: str = ""
    """Why it was not folded as asked."""


def result_of(entry: Mapping[str, Any]) -> Result:
    """Reads an entry of the journal. Raises TypeError for another version's fields."""
    known = {f.name for f in fields(Result)}
    if not entry.keys() <= known:
        raise TypeError(f"unknown fields {', '.join(sorted(entry.keys() - known))}")
    measured = entry.get("measured")
    return Result(
        **{**entry, "measured": Measured(**measured) if measured else None, "command": tuple(entry.get("command", ()))}
    )
