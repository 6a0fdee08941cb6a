"""Folded runs: a mesh of ranks of which only some are processes (docs/scale.md).

Of each axis of the mesh there are the first rank, the last and one between, the witness, each with all other axes at
their first rank; of a long axis the second too, of a lone one the first alone. Those at the ends run for every place
of the axes that are whole (the stages of a pipeline; of a long one the first and the last), witnesses for the first and
the last place. The rank that is
last on all axes runs, and on the first place one that is a witness on all. Along an axis that
a star keeps whole (its ranks may map each other's memory) each of these has all others beside it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from phantora.errors import PhantoraError

"""What `--fold` takes beside axes."""
WHOLE = "*"
"""Behind an axis's size: all its ranks are processes."""
UNEVEN = "~"
"""Behind an axis's size: each of its ranks has a part of its own of what is sharded, so that they are alike in their
communication alone."""
LONE = "/1"
"""Behind an axis's size: its first rank alone is a process, and nothing tells whether the others do the same."""
PIPELINE, TENSOR = "pp", "tp"
NEVER_FOLDED = (PIPELINE, "cp", "ep")
"""Axes whose ranks do different things: stages of a pipeline, parts of a ring of attention, experts."""

STAGES = 4  # of a pipeline: of a longer one the stages between run their first rank alone
MANY = 64  # ranks of an axis: of more the second is a process too


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh."""

    name: str
    size: int
    ends: tuple[int, ...]
    """Coordinates of the ranks at its ends, ascending; of a whole axis all."""
    witness: int = 0
    """The coordinate that stands for those between; 0: there are none."""
    whole: bool = False
    uneven: bool = False
    """Its ranks are alike in their communication alone."""
    lone: bool = False
    """Its first rank stands for all others."""
    starred: bool = False
    """A group along it is a process in all its ranks, or in none."""

    @property
    def tensor(self) -> bool:
        """Its ranks share each product, so they wait for each other in every layer."""
        return self.name == TENSOR or "tensor" in self.name

    def stands_in(self, coordinate: int) -> int:
        """The coordinate whose process speaks for this one."""
        if self.lone:
            return 0
        return coordinate if coordinate in self.ends or not self.witness else self.witness


@dataclass(frozen=True)
class Fold:
    """Axes, the outermost (of the largest stride) first; ranks that shall be processes besides."""

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
            points += [_with(place, {number: end}) for place in self._with_ends for end in axis.ends if not axis.whole]
        points += [_with(place, {number: at}) for place in (first, last) for number, at in self._witnesses.items()]
        points.append(_with(first, self._witnesses))
        points.append(tuple(axis.ends[-1] for axis in self.axes))
        points = [beside for point in points for beside in self._beside(point)]
        for rank in self.named:
            point = self.coordinates(rank)
            points += [_with(point, {n: at for n, at in enumerate(place) if self.axes[n].whole}) for place in places]
        # The first member of every group that has a process must be one: it makes the id of the communicator.
        closed = {lower for point in points for lower in product(*({0, at} for at in point))}
        return frozenset(self.rank(point) for point in closed)

    @cached_property
    def _places(self) -> list[tuple[int, ...]]:
        """All places along the axes that are whole; the first of the others."""
        return list(product(*(axis.ends if axis.whole else (0,) for axis in self.axes)))

    @cached_property
    def _with_ends(self) -> list[tuple[int, ...]]:
        """The places at which the ranks at the ends of the other axes run. What is special about these (edges of a
        vocabulary, logs, the rest of a split) is found at the ends of a pipeline, or makes nobody wait."""
        long = [
            number
            for number, axis in enumerate(self.axes)
            if axis.name == PIPELINE and axis.size > STAGES and not axis.starred
        ]
        return [
            place
            for place in self._places
            if all(place[number] in (0, self.axes[number].size - 1) for number in long)
        ]

    def _beside(self, point: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        """All that differ from it along starred axes alone, itself among them."""
        return product(*(axis.ends if axis.starred else (at,) for axis, at in zip(self.axes, point, strict=True)))

    @cached_property
    def _witnesses(self) -> dict[int, int]:
        return {number: axis.witness for number, axis in enumerate(self.axes) if axis.witness}

    def coordinates(self, rank: int) -> tuple[int, ...]:
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

    def stands_in(self, rank: int) -> int:
        """The process that stands for `rank`; itself, if it is one."""
        if rank in self._real:
            return rank
        point = self.coordinates(rank)
        return self._process_like(tuple(axis.stands_in(at) for axis, at in zip(self.axes, point, strict=True)))

    def _process_like(self, point: tuple[int, ...]) -> int:
        """The process that differs from `point` in the fewest axes, where it is first."""
        rank = self.rank(point)
        if rank in self._real:
            return rank
        apart = [number for number, axis in enumerate(self.axes) if not axis.whole]
        ends = _with(point, {number: 0 for number in apart if point[number] == self.axes[number].witness})
        for number in (None, *reversed(apart)):
            ends = ends if number is None else _with(ends, {number: 0})
            if self.rank(ends) in self._real:
                break
        return self.rank(ends)

    def stands_for(self, rank: int) -> int:
        """How many ranks the process `rank` stands for, itself included."""
        return self._stood_for[rank]

    @cached_property
    def _stood_for(self) -> Counter[int]:
        found: Counter[int] = Counter()
        lists = [sorted({*axis.ends, *(self.coordinates(rank)[number] for rank in self.named), axis.witness})
                 for number, axis in enumerate(self.axes)]  # fmt: skip
        for point in product(*lists):
            others = [
                axis.size - len(known) if (at == 0 if axis.lone else at and at == axis.witness) else 0
                for axis, known, at in zip(self.axes, lists, point, strict=True)
            ]
            found[self.stands_in(self.rank(point))] += 1
            between = prod(1 + count for count in others) - 1
            like = tuple(axis.stands_in(at) for axis, at in zip(self.axes, point, strict=True))
            found[self._process_like(like)] += between
        return found

    def witnesses(self) -> Iterable[tuple[int, int, int, str, bool]]:
        """(witness, before, after, axis, uneven): processes of a line along an axis, `before` and `after` the nearest
        on either side; the witness must be like one of them, if `uneven` in its communication."""
        firsts = list(self._beside(self._places[0]))
        for place in dict.fromkeys((*firsts, *self._beside(self._places[-1]))):
            for number, at in self._witnesses.items():
                axis = self.axes[number]
                before, after = max(end for end in axis.ends if end < at), min(end for end in axis.ends if end > at)
                alike = [self.rank(_with(place, {number: there})) for there in (at, before, after)]
                yield alike[0], alike[1], alike[2], axis.name, axis.uneven
        numbers = list(self._witnesses)
        for place in firsts if len(numbers) > 1 else ():
            one = _with(place, {number: self._witnesses[number] for number in numbers[:-1]})
            other = _with(place, {numbers[-1]: self._witnesses[numbers[-1]]})
            witness = self.rank(_with(place, self._witnesses))
            name = " x ".join(self.axes[number].name for number in numbers)
            yield witness, self.rank(one), self.rank(other), name, any(self.axes[number].uneven for number in numbers)

    def siblings(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """Groups like `ranks`, at other places of the mesh, that have no process of their own and for which `ranks`
        stands."""
        # A rank of each speaks for it, at all stages the same: at another one another process may stand for its place.
        lowest = min(ranks)
        point = self.coordinates(lowest)
        points = np.array(np.unravel_index(np.asarray(ranks, np.int64), self.sizes))
        still = [not axis.whole and bool((row == row[0]).all()) for axis, row in zip(self.axes, points, strict=True)]
        found: list[tuple[int, ...]] = []
        for place in product(*(range(axis.size) if moves else (at,)
                               for axis, moves, at in zip(self.axes, still, point, strict=True))):  # fmt: skip
            there = self.rank(place)
            moved = tuple(rank + there - lowest for rank in ranks)
            if self.stands_in(there) in ranks and self._real.isdisjoint(moved):
                found.append(moved)
        return found

    def describe(self) -> str:
        """``dp=64 tp=8``; a whole axis has a star, an uneven one a tilde, a lone one ``/1``."""
        return " ".join(f"{axis.name}={axis.size}{_mark(axis)}" for axis in self.axes)


def _mark(axis: Axis) -> str:
    return WHOLE if axis.whole else LONE if axis.lone else UNEVEN if axis.uneven else ""


def _with(point: tuple[int, ...], changes: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(changes.get(number, at) for number, at in enumerate(point))


def parse_fold(text: str, world_size: int, more: Sequence[int] = ()) -> Fold | None:
    """``pp=4,dp=64,tp=8``, the outermost axis first; ranks of `more` are processes too, at all stages. None if that
    leaves nothing to fold. Raises PhantoraError."""
    sizes: list[tuple[str, int, str]] = []
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        mark = next((mark for mark in (WHOLE, UNEVEN, LONE) if size.endswith(mark)), "")
        size = size.removesuffix(mark)
        if not name or not equals or not size.isdigit() or int(size) < 1:
            raise PhantoraError(
                f"--fold {text}: {part!r} is no axis; write NAME=SIZE, the axis of the largest stride first, as "
                "pp=4,dp=64,tp=8 (behind the size: a star runs all its ranks, a tilde compares communication alone, /1 "
                "runs the first rank alone)"
            )
        sizes.append((name, int(size), mark))
    total = prod(size for _, size, _ in sizes)
    if total != world_size:
        raise PhantoraError(f"--fold {text}: the axes have {total} ranks together, the run has {world_size}")
    if any(not 0 <= rank < world_size for rank in more):
        raise PhantoraError(f"--real-ranks: the run has ranks 0 to {world_size - 1}")
    found = Fold(tuple(_axis(*each) for each in sizes), tuple(sorted(more)))
    return found if len(found.real) < world_size else None


def mesh_of(groups: Iterable[tuple[Sequence[int], str]], world_size: int) -> str:
    """The axes, as :func:`parse_fold` reads them, of which all `groups` of rank 0 (their ranks and names) consist.

    Raises PhantoraError if they are those of no mesh.
    """
    borders, names = {1, world_size}, dict[tuple[int, int], str]()
    for ranks, name in groups:
        if 0 not in ranks or len(ranks) < 2:
            continue
        parts = _evenly_spaced(sorted(ranks))
        borders |= {border for stride, count in parts for border in (stride, stride * count)}
        if len(parts) == 1:
            names.setdefault(parts[0], name)
    order = sorted(borders)
    if any(after % before for before, after in pairwise(order)):
        raise PhantoraError(
            f"--fold auto: the process groups of rank 0 belong to no mesh (strides {', '.join(map(str, order))}); "
            "give the axes, as --fold pp=4,dp=64,tp=8, or --fold off"
        )
    axes = [(stride, above // stride) for stride, above in pairwise(order)]
    return ",".join(f"{_axis_name(names.get(axis, ''), axis[0])}={axis[1]}" for axis in reversed(axes)) or "all=1"


def _evenly_spaced(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """(stride, count) of the loops that count through `ranks`, the innermost first."""
    parts: list[tuple[int, int]] = []
    while len(ranks) > 1:
        stride, count = ranks[1] - ranks[0], 1
        while count < len(ranks) and ranks[count] - ranks[0] == count * stride:
            count += 1
        outer = ranks[::count]
        if [first + at * stride for first in outer for at in range(count)] != list(ranks):
            raise PhantoraError(
                f"--fold auto: ranks {', '.join(map(str, ranks[:8]))}, ... are a process group, no part of a mesh; "
                "give the axes, as --fold pp=4,dp=64,tp=8, or --fold off"
            )
        parts.append((stride, count))
        ranks = outer
    return parts


def _axis_name(group: str, stride: int) -> str:
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in group.lower().removeprefix("mesh_"))
    if "pp" in name.split("_") or "pipeline" in name or "pipe" in name.split("_"):
        return "pp"
    if name.startswith(("context_parallel", "expert_model_parallel")):
        return "cp" if name.startswith("context") else "ep"
    return name if name and name != "undefined" else f"stride{stride}"


def _axis(name: str, size: int, mark: str) -> Axis:
    if mark == WHOLE or name in NEVER_FOLDED or size == 1:
        return Axis(name, size, tuple(range(size)), whole=True, starred=mark == WHOLE)
    if mark == LONE:
        return Axis(name, size, (0,), lone=True)
    # The first rank often does more than others (roots of broadcasts, logs), and the last of many has a smaller shard:
    # there a second one runs, for the witness to be like.
    ends = {0, 1, size - 1} if size > MANY else {0, size - 1}
    witness = random.Random(size).randrange(len(ends) - 1, size - 1) if size > 2 else 0
    return Axis(name, size, tuple(sorted(ends)), witness, uneven=mark == UNEVEN)


def to_dict(fold: Fold) -> dict[str, Any]:
    """For the log's metadata."""
    return {"axes": [{**asdict(axis), "ends": list(axis.ends)} for axis in fold.axes], "named": list(fold.named)}


def from_dict(fold: Mapping[str, Any]) -> Fold:
    """The inverse of :func:`to_dict`."""
    axes = tuple(Axis(**{**axis, "ends": tuple(axis["ends"])}) for axis in fold["axes"])
    return Fold(axes, tuple(fold["named"]))
