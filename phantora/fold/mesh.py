"""The mesh of a folded run, and which of its ranks are processes (docs/scale.md).

Along each folded axis the first and the last rank are processes (its ends), and one between, the representative. A long
axis has its second rank too, and a first-only axis has its first rank alone. Where the ranks between are of several
kinds, as with a dimension that the axis does not divide, the first rank of each kind is an end too, and each gap
between two ends has a representative. These lines start at the first rank of all
other axes. An expanded axis (the stages of a pipeline) has all its ranks: the ends run at each of its places (in a long
pipeline at the first and the last place), the representatives at the first and the last place. The last rank on all
axes runs, and at the first place the representative on all axes. Along an axis with full groups, whose ranks may map
each other's memory, all other ranks of such a group run too.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

PIPELINE, TENSOR = "pp", "tp"
STAGES = 4  # of a pipeline: in a longer one the middle stages run their first rank only

Point = tuple[int, ...]  # coordinates in the mesh, one per axis


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of the mesh."""

    name: str
    size: int
    ends: Point
    """Coordinates of the ranks at its ends, ascending; of an expanded axis all."""
    representatives: Point = ()
    """Coordinates that represent the ranks between two ends, ascending: one for each gap with ranks in it."""
    expanded: bool = False
    """All its ranks are processes."""
    uneven: bool = False
    """The axis's ranks are equal in their communication only."""
    first_only: bool = False
    """The axis's first rank represents all others."""
    full_group: bool = False
    """All ranks of a group along it are processes, or none."""

    @property
    def tensor(self) -> bool:
        """True if the axis's ranks share each product, so they wait for each other in every layer."""
        return self.name == TENSOR or "tensor" in self.name

    @property
    def representative(self) -> int:
        """The representative of the widest gap; 0: none."""
        return max(self.representatives, key=lambda at: len(self.gap(at)), default=0)

    def gap(self, coordinate: int) -> range:
        """The coordinates between the two nearest ends of `coordinate`, which lies between them."""
        above = bisect(self.ends, coordinate)
        return range(self.ends[above - 1] + 1, self.ends[above])

    def process_of(self, coordinate: int) -> int:
        """The coordinate of the process that represents this one."""
        if self.first_only:
            return 0
        if not self.representatives or coordinate in self.ends:
            return coordinate
        return self.representatives[bisect(self.representatives, self.gap(coordinate).start - 1)]


@dataclass(frozen=True)
class Comparison:
    """Three processes of a line along an axis: the representative must match one of the others."""

    representative: int
    before: int
    """The nearest process with a lower coordinate."""
    after: int
    axis: str
    uneven: bool
    """Only communication must match."""


@dataclass(frozen=True)
class Fold:
    """The axes, the outermost (of the largest stride) first, and further ranks that are processes."""

    axes: tuple[Axis, ...]
    named: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of ranks of each axis."""
        return tuple(axis.size for axis in self.axes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    @cached_property
    def real(self) -> tuple[int, ...]:
        """Ranks that are processes, ascending."""
        return tuple(sorted(self._real))

    @cached_property
    def _real(self) -> frozenset[int]:
        places = self._places
        first, last = places[0], places[-1]
        points = list(places)
        for number, axis in enumerate(self.axes):
            ends = () if axis.expanded else axis.ends
            points += [_with(place, {number: end}) for place in self._places_with_ends for end in ends]
        for place, (number, axis) in product((first, last), enumerate(self.axes)):
            points += [_with(place, {number: at}) for at in axis.representatives]
        points.append(_with(first, self._representatives))
        points.append(tuple(axis.ends[-1] for axis in self.axes))
        points = [member for point in points for member in self._full_groups_of(point)]
        for rank in self.named:
            point = self.coordinates(rank)
            points += [_with(point, {n: at for n, at in enumerate(place) if self.axes[n].expanded}) for place in places]
        # The first member of every group that has a process must be one: it makes the id of the communicator.
        closed = {lower for point in points for lower in product(*({0, at} for at in point))}
        return frozenset(self.rank(point) for point in closed)

    @cached_property
    def _places(self) -> list[Point]:
        """All places along the expanded axes; the first of the others."""
        return list(product(*(axis.ends if axis.expanded else (0,) for axis in self.axes)))

    @cached_property
    def _places_with_ends(self) -> list[Point]:
        """The places at which the ranks at the ends of the other axes run. What differs there (edges of a vocabulary,
        logs, the remainder of a split) is at the ends of a pipeline, or delays no other rank."""
        long = [
            number
            for number, axis in enumerate(self.axes)
            if axis.name == PIPELINE and axis.size > STAGES and not axis.full_group
        ]
        return [
            place for place in self._places if all(place[number] in (0, self.axes[number].size - 1) for number in long)
        ]

    def _full_groups_of(self, point: Point) -> Iterable[Point]:
        """The members of the full groups of `point`, which is one of them."""
        return product(*(axis.ends if axis.full_group else (at,) for axis, at in zip(self.axes, point, strict=True)))

    @cached_property
    def _representatives(self) -> dict[int, int]:
        """The coordinate of the representative of the widest gap, by the number of its axis."""
        return {number: axis.representative for number, axis in enumerate(self.axes) if axis.representatives}

    def coordinates(self, rank: int) -> Point:
        """Coordinates of a rank, one for each axis."""
        point = []
        for size in reversed(self.sizes):
            rank, at = divmod(rank, size)
            point.append(at)
        return tuple(reversed(point))

    def rank(self, coordinates: Sequence[int]) -> int:
        """The rank at these coordinates."""
        rank = 0
        for size, at in zip(self.sizes, coordinates, strict=True):
            rank = rank * size + at
        return rank

    def process_of(self, rank: int) -> int:
        """The process that represents `rank`; itself, if it is one."""
        if rank in self._real:
            return rank
        point = self.coordinates(rank)
        return self._nearest(tuple(axis.process_of(at) for axis, at in zip(self.axes, point, strict=True)))

    def _nearest(self, point: Point) -> int:
        """The process that differs from `point` in the fewest axes, where it is first."""
        rank = self.rank(point)
        if rank in self._real:
            return rank
        folded = [number for number, axis in enumerate(self.axes) if not axis.expanded]
        ends = _with(point, {number: 0 for number in folded if point[number] in self.axes[number].representatives})
        for number in (None, *reversed(folded)):
            ends = ends if number is None else _with(ends, {number: 0})
            if self.rank(ends) in self._real:
                break
        return self.rank(ends)

    def represented(self, rank: int) -> int:
        """Number of ranks that the process `rank` represents, itself included."""
        return self._represented[rank]

    @cached_property
    def _represented(self) -> Counter[int]:
        found: Counter[int] = Counter()
        known = [
            sorted({*axis.ends, *(self.coordinates(rank)[number] for rank in self.named), *axis.representatives})
            for number, axis in enumerate(self.axes)
        ]
        for point in product(*known):
            others = [_others(*each) for each in zip(self.axes, known, point, strict=True)]
            found[self.process_of(self.rank(point))] += 1
            nearest = self._nearest(tuple(axis.process_of(at) for axis, at in zip(self.axes, point, strict=True)))
            found[nearest] += prod(1 + count for count in others) - 1
        return found

    def comparisons(self) -> Iterable[Comparison]:
        """Conditions of a correct fold."""
        firsts = list(self._full_groups_of(self._places[0]))
        for place in dict.fromkeys((*firsts, *self._full_groups_of(self._places[-1]))):
            for number, axis in enumerate(self.axes):
                for at in axis.representatives:
                    gap = axis.gap(at)
                    places = (at, gap.start - 1, gap.stop)
                    one, low, high = (self.rank(_with(place, {number: there})) for there in places)
                    yield Comparison(one, low, high, axis.name, axis.uneven)
        numbers = list(self._representatives)
        for place in firsts if len(numbers) > 1 else ():
            left = _with(place, {number: self._representatives[number] for number in numbers[:-1]})
            right = _with(place, {numbers[-1]: self._representatives[numbers[-1]]})
            corner = self.rank(_with(place, self._representatives))
            name = " x ".join(self.axes[number].name for number in numbers)
            uneven = any(self.axes[number].uneven for number in numbers)
            yield Comparison(corner, self.rank(left), self.rank(right), name, uneven)

    def siblings(self, ranks: Sequence[int]) -> list[Point]:
        """Groups like `ranks` at other places of the mesh that have no process and that `ranks` represents."""
        # One rank decides for each, at all stages the same: at another stage another process may represent its place.
        lowest = min(ranks)
        point = self.coordinates(lowest)
        points = np.array(np.unravel_index(np.asarray(ranks, np.int64), self.sizes))
        moves = [not axis.expanded and bool((row == row[0]).all()) for axis, row in zip(self.axes, points, strict=True)]
        found: list[Point] = []
        for place in product(
            *(range(axis.size) if free else (at,) for axis, free, at in zip(self.axes, moves, point, strict=True))
        ):
            there = self.rank(place)
            moved = tuple(rank + there - lowest for rank in ranks)
            if self.process_of(there) in ranks and self._real.isdisjoint(moved):
                found.append(moved)
        return found


def _others(axis: Axis, known: Sequence[int], at: int) -> int:
    """Number of coordinates that the one at `at` represents, but those of `known`."""
    if axis.first_only:
        return axis.size - len(known) if at == 0 else 0
    gap = axis.gap(at) if at in axis.representatives else range(0)
    return len(gap) - sum(each in gap for each in known)


def _with(point: Point, changes: Mapping[int, int]) -> Point:
    return tuple(changes.get(number, at) for number, at in enumerate(point))


_OLD_KEYS = {"witness": "representative", "whole": "expanded", "lone": "first_only", "starred": "full_group"}


def to_dict(fold: Fold) -> dict[str, Any]:
    """For the log's metadata."""
    axes = [{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(axis).items()} for axis in fold.axes]
    return {"axes": axes, "named": list(fold.named)}


def from_dict(fold: Mapping[str, Any]) -> Fold:
    """The inverse of :func:`to_dict`; reads the keys of older logs too."""
    return Fold(tuple(map(_axis_from_dict, fold["axes"])), tuple(fold["named"]))


def _axis_from_dict(data: Mapping[str, Any]) -> Axis:
    known: dict[str, Any] = {_OLD_KEYS.get(key, key): value for key, value in data.items()}
    if "representative" in known:  # the only one, or 0
        known["representatives"] = list(filter(None, [known.pop("representative")]))
    known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return Axis(**known)
