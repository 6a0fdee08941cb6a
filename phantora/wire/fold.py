"""Folded runs: a mesh of ranks of which only some are processes (docs/scale.md).

Of each axis of the mesh the first, the last and one member between are processes, the witness, in all combinations; of
a long axis the second too. The witness stands for all others between. An axis of up to three ranks, and one that is
whole, has no others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.errors import PhantoraError

WHOLE = "*"
"""Behind an axis's size: all its ranks are processes."""
NEVER_FOLDED = ("pp",)
"""Axes whose ranks do different things: the stages of a pipeline."""

MANY = 64  # ranks of an axis: of more the second is a process too


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh."""

    name: str
    size: int
    real: tuple[int, ...]
    """Coordinates of the ranks that are processes, ascending; always the first and the last."""
    witness: int = 0
    """The coordinate, one of `real`, that stands for those that are no processes."""

    @property
    def folded(self) -> bool:
        """Are some of the axis's ranks no processes?"""
        return len(self.real) < self.size

    def stands_in(self, coordinate: int) -> int:
        """The coordinate whose process speaks for this one."""
        return coordinate if coordinate in self.real else self.witness


@dataclass(frozen=True)
class Fold:
    """Axes, the outermost (of the largest stride) first."""

    axes: tuple[Axis, ...]

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
        """Ranks that are processes."""
        return tuple(sorted(self.rank(point) for point in product(*(axis.real for axis in self.axes))))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Coordinates of a rank, one for each axis."""
        return tuple(int(at) for at in np.unravel_index(rank, self.sizes))

    def rank(self, coordinates: Sequence[int]) -> int:
        """The rank at these coordinates."""
        return int(np.ravel_multi_index(tuple(coordinates), self.sizes))

    def stands_in(self, rank: int) -> int:
        """The process that stands for `rank`; itself, if it is one."""
        return self.rank([axis.stands_in(at) for axis, at in zip(self.axes, self.coordinates(rank), strict=True)])

    def stands_for(self, rank: int) -> int:
        """How many ranks the process `rank` stands for, itself included."""
        others = (
            axis.size - len(axis.real) if axis.folded and at == axis.witness else 0
            for axis, at in zip(self.axes, self.coordinates(rank), strict=True)
        )
        return prod(1 + count for count in others)

    def witnesses(self) -> Iterable[tuple[int, int, int, str]]:
        """(witness, before, after, axis): processes of a line along an axis, `before` and `after` the nearest on either
        side; the witness must be like one of them."""
        for number, axis in enumerate(self.axes):
            if not axis.folded:
                continue
            before = max(at for at in axis.real if at < axis.witness)
            after = min(at for at in axis.real if at > axis.witness)
            for point in product(*(other.real for other in self.axes)):
                if point[number] == axis.witness:
                    ends = [self.rank((*point[:number], end, *point[number + 1 :])) for end in (before, after)]
                    yield self.rank(point), ends[0], ends[1], axis.name

    def siblings(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """Groups like `ranks`, at other places of the mesh, that have no process of their own and for which `ranks`
        stands."""
        points = np.array(np.unravel_index(np.asarray(ranks, np.int64), self.sizes))
        moved: list[list[int]] = []
        for axis, row in zip(self.axes, points, strict=True):
            here = int(row[0])
            if not axis.folded or bool((row != here).any()) or here != axis.witness:
                moved.append([0])
            else:
                moved.append([at - here for at in range(axis.size) if at == here or at not in axis.real])
        found: list[tuple[int, ...]] = []
        for shift in product(*moved):
            if any(shift):
                there: npt.NDArray[np.int64] = points + np.array(shift)[:, None]
                found.append(tuple(int(rank) for rank in np.ravel_multi_index(tuple(there), self.sizes)))
        return found

    def describe(self) -> str:
        """``dp=64 tp=8``; a whole axis has a star."""
        return " ".join(f"{axis.name}={axis.size}{'' if axis.folded else WHOLE}" for axis in self.axes)


def parse_fold(text: str, world_size: int, more: Sequence[int] = ()) -> Fold | None:
    """``pp=4,dp=64,tp=8``, the outermost axis first; ranks of `more` and their lines are processes too. None if that
    leaves nothing to fold. Raises PhantoraError."""
    sizes: list[tuple[str, int, bool]] = []
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        whole = size.endswith(WHOLE) or name in NEVER_FOLDED
        size = size.removesuffix(WHOLE)
        if not name or not equals or not size.isdigit() or int(size) < 1:
            raise PhantoraError(
                f"--fold {text}: {part!r} is no axis; write NAME=SIZE, the axis of the largest stride first, as "
                "pp=4,dp=64,tp=8 (a star behind the size runs all its ranks)"
            )
        sizes.append((name, int(size), whole))
    total = prod(size for _, size, _ in sizes)
    if total != world_size:
        raise PhantoraError(f"--fold {text}: the axes have {total} ranks together, the run has {world_size}")
    if any(not 0 <= rank < world_size for rank in more):
        raise PhantoraError(f"--real-ranks: the run has ranks 0 to {world_size - 1}")
    points = [np.unravel_index(rank, [size for _, size, _ in sizes]) for rank in more]
    axes = tuple(
        _axis(name, size, whole, [int(point[number]) for point in points])
        for number, (name, size, whole) in enumerate(sizes)
    )
    return Fold(axes) if any(axis.folded for axis in axes) else None


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
        return NEVER_FOLDED[0]
    return name if name and name != "undefined" else f"stride{stride}"


def _axis(name: str, size: int, whole: bool, more: Iterable[int]) -> Axis:
    if whole or size <= 3:
        return Axis(name, size, tuple(range(size)))
    # The first rank often does more than others (roots of broadcasts, logs), and the last of many has a smaller shard:
    # there a second one runs, for the witness to be like.
    ends = {0, 1, size - 1} if size > MANY else {0, size - 1}
    witness = random.Random(size).randrange(len(ends) - 1, size - 1)
    return Axis(name, size, tuple(sorted({*ends, witness, *more})), witness)


def to_dict(fold: Fold) -> list[dict[str, Any]]:
    """For the log's metadata."""
    return [{**asdict(axis), "real": list(axis.real)} for axis in fold.axes]


def from_dict(axes: Iterable[dict[str, Any]]) -> Fold:
    """The inverse of :func:`to_dict`."""
    return Fold(tuple(Axis(**{**axis, "real": tuple(axis["real"])}) for axis in axes))
