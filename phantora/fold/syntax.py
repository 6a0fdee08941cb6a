"""The text of ``--fold``: ``pp=4,dp=64:first,tp=8``."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from phantora.errors import PhantoraError
from phantora.fold.mesh import PIPELINE, Axis, Fold

ALL = "all"
"""All ranks of a group along this axis are processes, or none."""
FIRST = "first"
"""The first rank of the axis is its only process; nothing is compared."""
UNEVEN = "uneven"
"""Each rank of the axis owns another part of an optimizer, so only communication is compared."""

NEVER_FOLDED = (PIPELINE, "cp", "ep")
"""Axes whose ranks do different work: stages of a pipeline, parts of a ring of attention, experts."""

_MARKS = {"*": ALL, "/1": FIRST, "~": UNEVEN}  # short forms
_LONG = 64  # ranks; of more ranks of a kind the second is a process too


def parse_fold(
    text: str, world_size: int, more: Sequence[int] = (), splits: Mapping[int, Collection[int]] | None = None
) -> Fold | None:
    """``pp=4,dp=64:first,tp=8``, the outermost axis first; the ranks in `more` are processes too, at all stages.
    `splits`: by the number of an axis, coordinates at which ranks of another kind begin.

    None if that leaves nothing to fold. Raises PhantoraError.
    """
    axes: list[Axis] = []
    for part in text.split(","):
        name, size, mode = split_axis(part)
        if not name or not size.isdigit() or int(size) < 1 or mode not in ("", ALL, FIRST, UNEVEN):
            raise PhantoraError(
                f"--fold {text}: {part!r} is not an axis; write NAME=SIZE, the axis of the largest stride first, as "
                "pp=4,dp=64,tp=8 (after the size :all runs all ranks, :first the first rank only, :uneven compares "
                "communication only)"
            )
        axes.append(_axis(name, int(size), mode, (splits or {}).get(len(axes), ())))
    total = prod(axis.size for axis in axes)
    if total != world_size:
        raise PhantoraError(f"--fold {text}: the axes have {total} ranks together, the run has {world_size}")
    if any(not 0 <= rank < world_size for rank in more):
        raise PhantoraError(f"--real-ranks: the run has ranks 0 to {world_size - 1}")
    found = Fold(tuple(axes), tuple(sorted(more)))
    return found if len(found.real) < world_size else None


def split_axis(part: str) -> tuple[str, str, str]:
    """(name, size, mode) of one axis of ``--fold``; mode "" if there is none."""
    name, _, size = (piece.strip() for piece in part.partition("="))
    size, colon, mode = size.partition(":")
    for mark, word in _MARKS.items() if not colon else ():
        if size.endswith(mark):
            return name, size.removesuffix(mark), word
    return name, size, mode


def format_axis(name: str, size: int | str, mode: str) -> str:
    """The inverse of :func:`split_axis`."""
    return f"{name}={size}:{mode}" if mode else f"{name}={size}"


def describe(fold: Fold) -> str:
    """``dp=64:uneven tp=8``."""
    return " ".join(format_axis(axis.name, axis.size, _mode(axis)) for axis in fold.axes)


def _mode(axis: Axis) -> str:
    return ALL if axis.expanded else FIRST if axis.first_only else UNEVEN if axis.uneven else ""


def split_at(fold: Fold, rank: int) -> Fold | None:
    """`fold` with further kinds of ranks: along each axis along which `rank` is a representative it becomes an end.
    None: it is none."""

    def split(axis: Axis, at: int) -> Axis:
        if at not in axis.representatives:
            return axis
        ends = tuple(sorted((*axis.ends, at)))
        return replace(axis, ends=ends, representatives=_representatives(axis.size, ends))

    axes = tuple(map(split, fold.axes, fold.coordinates(rank)))
    return replace(fold, axes=axes) if axes != fold.axes else None


def _axis(name: str, size: int, mode: str, splits: Collection[int] = ()) -> Axis:
    if mode == ALL or name in NEVER_FOLDED or size == 1:
        return Axis(name=name, size=size, ends=tuple(range(size)), expanded=True, full_group=mode == ALL)
    if mode == FIRST:
        return Axis(name=name, size=size, ends=(0,), first_only=True)
    # The first rank often does more than others (roots of broadcasts, logs), and the last of many has a smaller shard.
    # Of many ranks of a kind the second runs too, so that the representative can match one of its neighbours: a number
    # such as 4,096 is special in a first rank (torch compares seeds byte by byte).
    kinds = sorted({0, *(at for at in splits if 0 < at < size)})
    seconds = {first + 1 for first, end in pairwise((*kinds, size)) if end - first > _LONG}
    ends = tuple(sorted({*kinds, *seconds, size - 1}))
    return Axis(name=name, size=size, ends=ends, representatives=_representatives(size, ends), uneven=mode == UNEVEN)


def _representatives(size: int, ends: Sequence[int]) -> tuple[int, ...]:
    """One of each gap between the ends, at random places that `size` decides."""
    random_place = random.Random(size)
    return tuple(random_place.randrange(low + 1, high) for low, high in pairwise(ends) if high - low > 1)
