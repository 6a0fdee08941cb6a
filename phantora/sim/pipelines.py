"""Pipelines of a folded run: which GPUs each pipeline of processes may stand for (docs/scale.md, Power)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from phantora.wire.fold import PIPELINE, Fold

Point = tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """Processes that stand for the same pipelines."""

    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    """Of each process; -1: a part of another pipeline, which has not a process at every stage."""
    factors: tuple[tuple[float, ...], ...]
    """Of each pipeline that they stand for: the power factor of every process."""


def pipelines_of(fold: Fold, factors: Sequence[float]) -> list[Pipeline]:
    """Every process is in one of these; empty, if the mesh has no pipeline. `factors`: of the GPUs of all ranks.

    Pipelines lie side by side along all folded axes whose ranks do not share each layer. At some of these places there
    is a process at every stage. It stands for its own place and for those of which it is the witness. The first one
    stands for all others too, and processes of other places have what it has.
    """
    numbers = [number for number, axis in enumerate(fold.axes) if axis.name == PIPELINE and axis.size > 1]
    if not numbers:
        return []
    side = [number for number, axis in enumerate(fold.axes) if not axis.whole and not axis.tensor]
    inside = list(product(*((0,) if n in side else range(axis.size) for n, axis in enumerate(fold.axes))))
    places = dict.fromkeys(tuple(fold.coordinates(rank)[number] for number in side) for rank in fold.real)
    speakers = {place: _speakers(fold, inside, side, place) for place in places}
    stood_for = {
        place: list[Point]() for place, found in speakers.items() if sum(map(len, found.values())) == len(inside)
    }
    first = (0,) * len(side)
    for place in product(*(range(fold.axes[number].size) for number in side)):
        like = tuple(fold.axes[number].stands_in(at) for number, at in zip(side, place, strict=True))
        stood_for[next(known for known in (place, like, first) if known in stood_for)].append(place)
    pipelines = []
    for place, pipelines_like_it in stood_for.items():
        members = dict(speakers[place])
        stages = [fold.coordinates(rank)[numbers[0]] for rank in members]
        for other in speakers if place == first else ():
            if other not in stood_for:
                members |= speakers[other]
        stages += [-1] * (len(members) - len(stages))
        of_each = (
            tuple(max(factors[fold.rank(_moved(p, side, there))] for p in points) for points in members.values())
            for there in pipelines_like_it
        )
        pipelines.append(Pipeline(tuple(members), tuple(stages), tuple(of_each)))
    return pipelines


def _speakers(fold: Fold, inside: Iterable[Point], side: Sequence[int], place: Point) -> dict[int, list[Point]]:
    """The processes at a place, and for which points of a pipeline each of them speaks."""
    found: dict[int, list[Point]] = {}
    for point in inside:
        like = tuple(axis.stands_in(at) for axis, at in zip(fold.axes, point, strict=True))
        corner = tuple(at if axis.whole else 0 for axis, at in zip(fold.axes, point, strict=True))
        for speaker in (point, like, corner):
            rank = fold.rank(_moved(speaker, side, place))
            if fold.stands_in(rank) == rank:
                found.setdefault(rank, []).append(point)
                break
    return found


def _moved(point: Point, side: Sequence[int], place: Point) -> Point:
    """The point at another place."""
    changes = dict(zip(side, place, strict=True))
    return tuple(changes.get(number, at) for number, at in enumerate(point))
