"""Changes that would make a run fit: each is simulated as a point of its own, with its cost in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster
from phantora.json_data import Bytes
from phantora.spec import CHECKPOINTING, FSDP, OFFLOAD, REMEDIES, RunSpec
from phantora.sweeps.batch import smaller_batch
from phantora.sweeps.expressions import Value
from phantora.sweeps.precision import float8
from phantora.sweeps.result import FAILED, RAN, Result
from phantora.sweeps.run import Request, run_sweep
from phantora.sweeps.runner import Entry
from phantora.trace.analysis.units import size

REMEDY = "remedy"
_NAMES = {
    CHECKPOINTING: "checkpointed layers",
    OFFLOAD: "activations of layers on the host",
    FSDP: "FSDP instead of DDP",
}
_TIMES = (2, 4)  # smaller batches
_LEAST = 0.005  # of the memory: what saves less changes nothing


@dataclass(frozen=True, kw_only=True)
class Remedied:
    """A run with one change."""

    name: str
    how: str
    """Words that make the change: of Phantora (``--remedy offload``) or of the script (``--batch 4``)."""
    fits: bool
    """It fits and leaves the margin."""
    memory: Bytes | None
    """Memory of the fullest GPU; None if it is not known."""
    slower: float | None
    """Share by which the same work takes longer than with enough memory."""
    at_most: bool = False
    """`slower` is an upper limit: steps of a smaller batch as often as it is smaller, each with its optimizer."""

    def says(self, capacity: int) -> str:
        """``checkpointed layers (--remedy checkpointing): 52.10 GiB of 79.18 GiB, 27 % slower``."""
        if self.memory is None:
            return f"Not enough: {self.name} ({self.how})."
        memory = f"{size(self.memory)} of {size(capacity)}"
        if not self.fits:
            return f"Not enough: {self.name} ({self.how}), {memory}."
        time = ""
        if self.slower is not None:
            limit = "at most " if self.at_most else ""
            time = f", {limit}{abs(self.slower):.0%} {'slower' if self.slower >= 0 else 'faster'}"
        return f"Simulated remedy: {self.name} ({self.how}), {memory}{time}."


def remedied(
    run: RunSpec,
    request: Request,
    result: Result,
    on_result: Callable[[Entry, int, int], None],
    on_part: Callable[[str], None],
) -> tuple[list[Remedied], str]:
    """Runs the script once with each change; the fastest that fits first, and a sentence about those that did not run.
    `result` is that of the run without."""
    cluster = load_cluster(run.cluster)
    single = cluster.world_size == 1
    needless = {FSDP: single, CHECKPOINTING: result.measured is not None and result.measured.checkpointed}
    kinds = () if run.ranks.remedy else [kind for kind in REMEDIES if not needless.get(kind)]
    changes: dict[str, tuple[str, ...]] = {kind: ("--remedy", kind) for kind in kinds}
    smaller = {" ".join(words): (times, words) for times in _TIMES if (words := smaller_batch(run.arguments, times))}
    if precise := float8(run, cluster):
        smaller[" ".join(precise)] = (1, precise)
    listed: tuple[dict[str, Value], ...] = tuple({REMEDY: name} for name in (*changes, *smaller))
    if not listed:
        return [], ""
    on_part(f"running it with changes that may make it fit: {', '.join(map(str, (*changes, *smaller)))}")
    options = {**changes, **dict.fromkeys(smaller, ())}
    arguments = {**dict.fromkeys(changes, ()), **{name: words for name, (_, words) in smaller.items()}}
    space = replace(request.space, listed=listed, options={REMEDY: options}, arguments={REMEDY: arguments})
    try:
        found = run_sweep(replace(request, space=space, needs=False), on_result).answer
    except PhantoraError as error:  # all fail in the same way, which says nothing about the run itself
        return [], f"No remedy was simulated: {error}."
    made, failed, reason = [], list[str](), ""
    for row in found.rows:
        name, seen = str(row.entry.point.values[REMEDY]), row.entry.result
        times, words = smaller.get(name, (1, changes.get(name, ())))
        if seen is not None and seen.status == FAILED:
            failed.append(name)
            reason = reason or seen.error
        if seen is None or seen.status == FAILED or _changes_nothing(seen, result):
            continue
        if name in changes and seen.measured is not None and not seen.measured.remedied:
            continue
        title = _NAMES.get(name) or (f"1/{times} of the batch, {times} times" if times > 1 else "products in FP8")
        memory = seen.measured.memory if seen.measured and seen.status == RAN else None
        made.append(
            Remedied(
                name=title,
                how=" ".join(words),
                fits=row.measured is not None and row.room,
                memory=memory,
                slower=_slower(seen, result, times),
                at_most=times > 1,
            )
        )
    unknown = f"Not simulated: {', '.join(failed)}: {reason}." if failed else ""
    return sorted(made, key=lambda one: (not one.fits, one.slower or 0.0)), unknown


def _changes_nothing(changed: Result, before: Result) -> bool:
    """A change that the script has no use for: it takes as much memory."""
    a, b = changed.measured, before.measured
    if a is None or b is None or changed.status != RAN:
        return False
    return b.memory - a.memory < _LEAST * b.capacity


def _slower(changed: Result, before: Result, times: int) -> float | None:
    a, b = changed.measured, before.measured
    return times * a.step_time / b.step_time - 1.0 if a and b and changed.status == RAN and b.step_time else None
