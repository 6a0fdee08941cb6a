"""Steps that do not represent the run: start-up, evaluations, checkpoints, work that others do not have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.faults import FAULT
from phantora.trace.analysis.prefetched import PREFETCHED
from phantora.trace.analysis.settled_steps import SETTLING

Floats = npt.NDArray[np.float64]

_LONGER = 1.005  # than the typical step, or nothing in it is worth a note
_MORE, _FEWER = 1.02, 0.9  # kernels than the typical step's
_CHECKPOINT = 1 << 20  # bytes to the host beyond the typical step's
_HICCUP = 1.5  # times as long with the same work
_USUAL = 1.05  # times the shortest or longest of the others: a first step within is like them
_RECUR, _LATE, _OFTEN = 3, 2, 0.15  # steps that wait: how many, how many in the run's second half, and their share
_RISING = 4  # steps, of which each has more kernels than the one before
MORE_WORK = "more work"
LESS_WORK = "less work"
_WORK = ("evaluation", MORE_WORK)
CUT = "cut"
"""The note of a real trace's first or last step that the trace does not have as a whole."""
WAITS = "waits"
"""The note of a step that takes longer with the same work."""
RECURRING = "recurring waits"
"""The note of such steps if some wait until the run's end, but few."""
ONCE = ("start-up", "recompile", "autotuning", WAITS, SETTLING, FAULT, PREFETCHED)
"""Notes of steps that a longer run would not have more of."""


@dataclass(kw_only=True)
class Content:
    """Sums over the device rows of one or several stretches of a rank's host."""

    busy: Floats
    """ns."""
    computed: Floats
    """ns of kernels that are no communication."""
    kernels: Floats
    backward: Floats
    """Kernels of backward operators."""
    forward: Floats
    """Products, convolutions and attention of forward passes."""
    optimizer: Floats
    """ns of optimizers."""
    to_host: Floats
    """Bytes copied to the host."""
    waited: Floats
    """ns that the host itself waited for the GPU or for others."""

    @classmethod
    def empty(cls, size: int) -> Content:
        """Zeros for `size` stretches."""
        return cls(**{f.name: np.zeros(size) for f in fields(cls)})

    def part(self, begin: int, end: int) -> Content:
        """The sum over stretches `begin` to `end` (excluded)."""
        return Content(**{f.name: getattr(self, f.name)[begin:end].sum(keepdims=True) for f in fields(self)})


Timed = tuple[int, float]  # number of a step, ns


def notes(
    steps: Mapping[int, Sequence[Timed]], contents: Mapping[int, Sequence[Content]], real: bool = False
) -> dict[int, str]:
    """Reason by number of each outlier step; both arguments by rank. The first of several steps pays for start-up. A
    `real` trace may begin and end anywhere, so its first step counts if it is like the others; and what its steps wait
    for is part of the run."""
    numbers = sorted({number for own in steps.values() for number, _ in own})
    if len(numbers) < 2:
        return {}
    if work_rises(contents):
        return {} if real else {numbers[0]: "start-up"}
    place = {number: i for i, number in enumerate(numbers)}
    table = np.zeros((7, len(numbers)))  # time, kernels, backward, forward, bytes to the host, ns of kernels; ranks
    for rank, own in steps.items():
        for (number, time), content in zip(own, contents[rank], strict=True):
            own_sums = (content.kernels, content.backward, content.forward, content.to_host, content.computed)
            values = (time, *(each[0] for each in own_sums), 1)
            table[:, place[number]] += values
    means = table[:6] / np.maximum(table[6], 1)
    # Of two in the middle the lower: the mean of a steady step and one that waits is like neither.
    typical = np.percentile(means[:, 1:], 50, axis=1, method="lower").tolist()
    found: dict[int, str] = {}
    for number, own_means in zip(numbers[1:], means[:, 1:].T.tolist(), strict=True):
        note = _note(own_means, typical, waits=not real)
        if note:
            found[number] = note
    if real and numbers[-1] in found and means[1, -1] < _FEWER * typical[1]:
        found[numbers[-1]] = CUT
    found |= {} if real else dict.fromkeys(_first_runs(numbers[1:], found), "start-up")
    others = [time for number, time in zip(numbers[1:], means[0, 1:].tolist(), strict=True) if number not in found]
    first = _note(means[:, 0].tolist(), typical, waits=False) if real else "start-up"
    if not first and others and not min(others) / _USUAL <= means[0, 0] <= max(others) * _USUAL:
        first = "start-up"
    if first:
        found[numbers[0]] = CUT if means[1, 0] < _FEWER * typical[1] and real else "start-up"
    if len(found) == len(numbers):  # then none of the notes means anything
        return {} if real else {numbers[0]: "start-up"}
    return found


def recurring_waits(found: Mapping[int, str], numbers: Sequence[int]) -> tuple[dict[int, str], bool]:
    """`found` with waits that recur renamed or, where they are frequent, left out; and whether they are frequent.

    Waits recur if there are `_RECUR` of them, `_LATE` in the second half of the steps `numbers`. They are frequent
    above the share `_OFTEN`: the headline is then the mean of all steps."""
    waiting = [number for number, note in found.items() if note == WAITS]
    late = [number for number in waiting if number > numbers[(len(numbers) - 1) // 2]]
    if len(waiting) < _RECUR or len(late) < _LATE:
        return dict(found), False
    often = len(waiting) > _OFTEN * len(numbers)
    others = {number: note for number, note in found.items() if note != WAITS}
    return (others, True) if often else (others | dict.fromkeys(waiting, RECURRING), False)


def work_rises(contents: Mapping[int, Sequence[Content]]) -> bool:
    """Each step behind the first has more kernels than the one before, on every rank, as with a graph or a cache that
    grows: no step is like the others."""
    kernels = [[float(each.kernels[0]) for each in own[1:]] for own in contents.values()]
    return all(len(own) >= _RISING and all(a < b for a, b in itertools.pairwise(own)) for own in kernels)


def _first_runs(numbers: Sequence[int], found: Mapping[int, str]) -> list[int]:
    """Steps right behind the first with work that no later step has: TorchScript and compilers profile their first
    runs."""
    early = list(itertools.takewhile(lambda number: found.get(number) in _WORK, numbers))
    later = {found[number] for number in numbers[len(early) :] if number in found}
    return [] if later.intersection(_WORK) or len(early) == len(numbers) else early


def _note(own: Sequence[float], typical: Sequence[float], waits: bool) -> str:
    """`waits`: a step that takes longer with the same work is an outlier."""
    time, kernels, backward, forward, to_host, computed = own
    if kernels < _FEWER * typical[1]:
        return LESS_WORK
    if time < _LONGER * typical[0]:
        return ""
    notes = []
    if to_host > typical[4] + _CHECKPOINT:
        notes.append("checkpoint")
    if kernels > _MORE * typical[1]:
        evaluates = typical[2] > 0 and backward <= _MORE * typical[2] and forward > _MORE * typical[3]
        notes.append("evaluation" if evaluates else MORE_WORK)
    longer = time - typical[0] - (computed - typical[5])  # not by longer kernels, as of longer sequences
    if waits and not notes and longer > (_HICCUP - 1) * typical[0]:
        notes.append(WAITS)
    return ", ".join(notes)
