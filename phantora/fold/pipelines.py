"""Pipelines of a folded run: which GPUs each pipeline of processes represents (docs/scale.md, Power)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from phantora.fold.mesh import PIPELINE, Fold

Point = tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """Processes that represent the same pipelines."""

    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    """Stage of each process; -1: a part of another pipeline, some of whose stages have no process."""
    factors: tuple[tuple[float, ...], ...]
    """Factors for each represented pipeline: the power factor of every process."""


def pipelines_of(fold: Fold, factors: Sequence[float]) -> list[Pipeline]:
    """Every process is in one of these; empty, if the mesh has no pipeline. `factors`: of the GPUs of all ranks.

    There is one pipeline for each place along the folded axes whose ranks do not share each layer. Some places have a
    process at every stage. Such a pipeline represents its own place and those of which it is the representative. The
    first one represents all others too, and processes of other places have its factors.
    """
    numbers = [number for number, axis in enumerate(fold.axes) if axis.name == PIPELINE and axis.size > 1]
    if not numbers:
        return []
    side = [number for number, axis in enumerate(fold.axes) if not axis.expanded and not axis.tensor]
    inside = list(product(*((0,) if n in side else range(axis.size) for n, axis in enumerate(fold.axes))))
    places = dict.fromkeys(tuple(fold.coordinates(rank)[number] for number in side) for rank in fold.real)
    processes = {place: _processes(fold, inside, side, place) for place in places}
    represented = {
        place: list[Point]() for place, found in processes.items() if sum(map(len, found.values())) == len(inside)
    }
    first = (0,) * len(side)
    for place in product(*(range(fold.axes[number].size) for number in side)):
        like = tuple(fold.axes[number].process_of(at) for number, at in zip(side, place, strict=True))
        represented[next(known for known in (place, like, first) if known in represented)].append(place)
    pipelines = []
    for place, pipelines_like_it in represented.items():
        members = dict(processes[place])
        stages = [fold.coordinates(rank)[numbers[0]] for rank in members]
        for other in processes if place == first else ():
            if other not in represented:
                members |= processes[other]
        stages += [-1] * (len(members) - len(stages))
        of_each = (
            tuple(max(factors[fold.rank(_moved(p, side, there))] for p in points) for points in members.values())
            for there in pipelines_like_it
        )
        pipelines.append(Pipeline(tuple(members), tuple(stages), tuple(of_each)))
    return pipelines


def _processes(fold: Fold, inside: Iterable[Point], side: Sequence[int], place: Point) -> dict[int, list[Point]]:
    """The processes at a place, and the points of a pipeline that each of them represents."""
    found: dict[int, list[Point]] = {}
    for point in inside:
        like = tuple(axis.process_of(at) for axis, at in zip(fold.axes, point, strict=True))
        corner = tuple(at if axis.expanded else 0 for axis, at in zip(fold.axes, point, strict=True))
        for candidate in (point, like, corner):
            rank = fold.rank(_moved(candidate, side, place))
            if fold.process_of(rank) == rank:
                found.setdefault(rank, []).append(point)
                break
    return found


def _moved(point: Point, side: Sequence[int], place: Point) -> Point:
    """The point at another place."""
    changes = dict(zip(side, place, strict=True))
    return tuple(changes.get(number, at) for number, at in enumerate(point))
