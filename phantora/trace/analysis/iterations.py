"""Places of a loop's iterations in the time of each rank's host, by their marks.

- *optimizer*: ``Optimizer.step#...`` annotations, which every torch optimizer makes. An iteration ends with its
  optimizer's. Optimizers in a row with no backward pass between them count as one (Megatron's for dense and expert
  parameters, DeepSpeed's sub-groups, Muon and AdamW), and optimizers of other parameters that take turns (a GAN's)
  make one iteration together;
- *profiler*: ``ProfilerStep#k`` annotations, which torch.profiler makes;
- *dataloader*: annotations of torch's DataLoader; an iteration begins with each batch that it is asked for;
- *annotation*: any annotation by name; an iteration begins with each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import MODULE
from phantora.trace.reader import Log
from phantora.trace.schema import OPTIMIZER_STEP
from phantora.wire.names import CUDNN_PLAN

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PROFILER = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_ZERO_GRAD = "Optimizer.zero_grad"
DATALOADER = "enumerate(DataLoader)#"
# Annotations of libraries, which mark parts of an iteration; the others are the user's own.
_PARTS = ("nccl", "FSDP::", "autograd::", "c10d::", MODULE)
_LIBRARIES = ("Optimizer.", "ProfilerStep", "enumerate(", "phantora: ", CUDNN_PLAN, *_PARTS)
_TENSOR = re.compile(r"\w+\[[^\]]*\]|\d+ in all")
MOST_TURNS = 12  # of optimizers in one iteration
_LIKE = 0.8  # of their operators two optimizer steps share at least if they are of the same optimizer
_NEVER = int(np.iinfo(np.int64).max)


class Mark(NamedTuple):
    """An annotation on a rank's host: ns."""

    start: int
    end: int
    name: str
    thread: int


class Iteration(NamedTuple):
    """Work that the host launched from `begin` to `end` (ns, both included) belongs to iteration `number`."""

    number: int
    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Iterations:
    """The iterations of every rank, and their source."""

    source: str
    """``optimizer``, ``profiler``, ``dataloader``, ``annotation NAME``, ``backward``, ``pattern``, ``run`` or
    ``time``."""
    of_rank: dict[int, list[Iteration]]


Marks = dict[int, list[Mark]]


def read_marks(log: Log, ranks: Iterable[int], asked: str | None = None) -> Marks:
    """The annotations of `ranks` that can tell an iteration, by rank in order of their start: not those of a library's
    parts, but for the one called `asked`."""
    names = log.words("name")
    counts = np.array([name == asked or not name.startswith(_PARTS) for name in names] + [False])
    found: Marks = {rank: [] for rank in ranks}
    for batch in log.batches(("rank", "stream", "name", "start", "end"), kinds=("annotation",), ranks=found):
        kept = counts[batch["name"]]
        columns = (batch[c][kept].tolist() for c in ("rank", "stream", "name", "start", "end"))
        for rank, thread, name, start, end in zip(*columns, strict=True):
            found[rank].append(Mark(start, end, names[name], thread))
    return {rank: sorted(own) for rank, own in found.items()}


def _chosen(marks: Marks, prefix: str) -> Marks:
    """Marks whose name begins with `prefix`, less those inside of another such."""
    found: Marks = {}
    for rank, own in marks.items():
        kept: list[Mark] = []
        for mark in own:
            if mark.name.startswith(prefix) and not (kept and mark.end <= kept[-1].end):
                kept.append(mark)
        found[rank] = kept
    return found


# ---------------------------------------------------------------------- profiler, dataloader, annotations


def by_profiler(marks: Marks) -> Iterations | None:
    """Iterations that torch.profiler marks; None if a rank has none."""
    found: dict[int, list[Iteration]] = {}
    for rank, own in _chosen(marks, "ProfilerStep").items():
        steps: list[Iteration] = []
        for mark in own:
            match = _PROFILER.match(mark.name)
            if match and (not steps or mark.start > steps[-1].end):  # a nested second profiler adds nothing
                steps.append(Iteration(int(match[1]), f"ProfilerStep#{match[1]}", mark.start, mark.end - 1))
        found[rank] = steps
    return _complete("profiler", found)


def by_dataloader(marks: Marks) -> Iterations | None:
    """Iterations from batch to batch; None if a rank has none."""
    return _complete("dataloader", _from_beginnings(_chosen(marks, DATALOADER), "batch"))


def by_annotation(marks: Marks, name: str) -> Iterations | None:
    """Iterations from one annotation called `name` to the next; None if a rank has none."""
    chosen = {rank: [m for m in own if m.name == name] for rank, own in _chosen(marks, name).items()}
    return _complete(f"annotation {name}", _from_beginnings(chosen, name))


def _from_beginnings(marks: Marks, name: str) -> dict[int, list[Iteration]]:
    """An iteration lasts until the next begins; the last until the work that follows ends."""
    found: dict[int, list[Iteration]] = {}
    for rank, own in marks.items():
        ends = [*(mark.start - 1 for mark in own[1:]), _NEVER]
        found[rank] = [
            Iteration(i + 1, f"{name} {i + 1}", m.start, e)
            for i, (m, e) in enumerate(zip(own, ends, strict=False))  # without marks one end is too many
        ]
    return found


def _complete(source: str, found: dict[int, list[Iteration]]) -> Iterations | None:
    return Iterations(source, found) if found and all(found.values()) else None


def repeated_annotations(marks: Marks) -> list[str]:
    """Names of the users' annotations that every rank has at least three times, never inside of another and never
    inside itself; the rarest first."""
    shared: Counter[str] | None = None
    for own in marks.values():
        counts: Counter[str] = Counter()
        reached: dict[int, int] = {}
        for mark in own:
            if not mark.name.startswith(_LIBRARIES) and mark.start >= reached.get(mark.thread, -1):
                reached[mark.thread] = mark.end
                counts[mark.name] += 1
        frequent = Counter({name: count for name, count in counts.items() if count >= 3})
        shared = frequent if shared is None else shared & frequent
    return [name for name, _ in sorted((shared or Counter()).items(), key=lambda item: (item[1], item[0]))]


# ---------------------------------------------------------------------- optimizers


def by_optimizer(log: Log, marks: Marks) -> Iterations | None:
    """Up to the end of each optimizer step; None if a rank has none. A step that torch.compile has compiled has no
    annotation: then up to the end of each ``zero_grad``."""
    chosen = _chosen(marks, OPTIMIZER_STEP)
    if not chosen or not all(chosen.values()):
        chosen = _chosen(marks, _ZERO_GRAD)
    if not chosen or not all(chosen.values()):
        return None
    busy = _passes_between(log, chosen)
    merged = {rank: _merge(own, busy[rank]) for rank, own in chosen.items()}
    first = min(merged)
    turns = _turns(log, first, merged[first])
    found: dict[int, list[Iteration]] = {}
    for rank, own in merged.items():
        ends = [span[1] for span in own[turns - 1 :: turns]]
        begins = [int(np.iinfo(np.int64).min), *(end + 1 for end in ends)]
        found[rank] = [
            Iteration(i + 1, f"step {i + 1}", b, e) for i, (b, e) in enumerate(zip(begins, ends, strict=False))
        ]
    return _complete("optimizer", found)


def _merge(marks: Sequence[Mark], busy: Mask) -> list[tuple[int, int]]:
    """(start, end) of optimizers, those without a pass between them taken together."""
    spans: list[tuple[int, int]] = []
    for i, mark in enumerate(marks):
        if i and not busy[i - 1]:
            spans[-1] = spans[-1][0], mark.end
        else:
            spans.append((mark.start, mark.end))
    return spans


def _passes_between(log: Log, marks: Marks) -> dict[int, Mask]:
    """For each rank, whether a backward pass ran between one optimizer's end and the next's (Lightning has the
    optimizer call it): operators of another thread than the optimizer's, as autograd has its own. Of a rank
    whose operators all ran in one thread, whether a kernel was launched before the next began."""
    busy: dict[int, Mask] = {}
    gaps: dict[int, tuple[Ints, Ints, Ints]] = {}
    thread: dict[int, int] = {}
    for rank, own in marks.items():
        gaps[rank] = (
            np.array([mark.end for mark in own[:-1]], np.int64),
            np.array([mark.start for mark in own[1:]], np.int64),
            np.array([mark.end for mark in own[1:]], np.int64),
        )
        thread[rank] = own[0].thread
        busy[rank] = np.zeros(len(own) - 1, bool)
    single = {rank for rank, own in busy.items() if len(own)}
    for rank, moments in _moments(log, "start", ("operator",), sorted(single), thread):
        ended, _, end = gaps[rank]
        busy[rank] |= _any_between(moments, ended, end)
        single.discard(rank)
    for rank, moments in _moments(log, "launch", ("kernel", "collective", "sendrecv"), sorted(single)):
        ended, start, _ = gaps[rank]
        busy[rank] |= _any_between(moments, ended, start)
    return busy


def _moments(
    log: Log, column: str, kinds: Collection[str], ranks: Collection[int], without: dict[int, int] | None = None
) -> Iterator[tuple[int, Ints]]:
    """Values of `column` by batch and rank, ascending, without the thread that `without` names by rank."""
    if not ranks:
        return
    own = np.full(max(ranks) + 1, -1)
    for rank, thread in (without or {}).items():
        if rank < len(own):
            own[rank] = thread
    for batch in log.batches(("rank", "stream", column), kinds=kinds, ranks=ranks):
        kept = np.flatnonzero(batch["stream"] != own[batch["rank"]]) if without else np.arange(len(batch))
        if not len(kept):
            continue
        order = kept[np.argsort(batch["rank"][kept], kind="stable")]
        present, first = np.unique(batch["rank"][order], return_index=True)
        for rank, moments in zip(present.tolist(), np.split(batch[column][order], first[1:]), strict=True):
            yield rank, np.sort(moments)


def _any_between(moments: Ints, lower: Ints, upper: Ints) -> Mask:
    count = np.searchsorted(moments, upper, "right") - np.searchsorted(moments, lower, "left")
    return np.asarray(count > 0)


def _turns(log: Log, rank: int, spans: Sequence[tuple[int, int]]) -> int:
    """Number of optimizers that take turns on `rank`: the period of the sequence of their steps, distinguished by the
    operators that they launch; 1 for one optimizer."""
    if len(spans) < 4:
        return 1
    starts, ends = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    launched: list[set[int]] = [set() for _ in spans]
    tensors = _tensors(log.words("shape"))
    for batch in log.batches(("rank", "launch", "op", "shape"), kinds=("kernel",), ranks=(rank,)):
        slot = np.searchsorted(starts, batch["launch"], "right") - 1
        inside = (slot >= 0) & (batch["launch"] <= ends[slot]) & (batch["op"] >= 0)
        key = batch["op"][inside].astype(np.int64) << 32 | (tensors[batch["shape"][inside]] + 1)
        for index in np.unique(slot[inside]).tolist():
            launched[index].update(key[slot[inside] == index].tolist())
    return _period(_classes(launched))


def _tensors(shapes: Sequence[str]) -> Ints:
    """A number for each of `shapes`, the same for those that differ in scalars only (Adam's bias corrections change
    with every step); -1 at the end, for rows without shapes."""
    known: dict[tuple[str, ...], int] = {}
    return np.array([*(known.setdefault(tuple(_TENSOR.findall(text)), len(known)) for text in shapes), -1], np.int64)


def _classes(launched: Sequence[set[int]]) -> list[int]:
    """Equal sets get the same number. The last come first: an optimizer's first step also makes its state."""
    kinds: list[set[int]] = []
    found: list[int] = []
    for own in reversed(launched):
        known = next((number for number, other in enumerate(kinds) if _identical(own, other)), len(kinds))
        if known == len(kinds):
            kinds.append(own)
        found.append(known)
    return found[::-1]


def _identical(a: set[int], b: set[int]) -> bool:
    smaller = min(len(a), len(b))
    return len(a & b) >= _LIKE * smaller if smaller else len(a) == len(b)


def _period(classes: Sequence[int]) -> int:
    """Smallest period of `classes`, 1 if there is none that two repetitions show."""
    if len(set(classes)) == 1:
        return 1
    for period in range(2, min(MOST_TURNS, len(classes) // 2) + 1):
        if all(a == b for a, b in zip(classes, classes[period:], strict=False)):
            return period
    return 1
