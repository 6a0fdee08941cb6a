"""The axes of a mesh, from the process groups of rank 0, and the kinds of ranks along them, from the dimensions that it
cuts (``--fold auto``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

from phantora.errors import PhantoraError

FEW = 8
"""Up to this number, all ranks are processes."""


def mesh_of(groups: Iterable[tuple[Sequence[int], str]], world_size: int) -> str:
    """The axes, as :func:`parse_fold` reads them, of which all `groups` of rank 0 (their ranks and names) consist.

    Raises PhantoraError if they are those of no mesh.
    """
    found = _axes(groups, world_size)
    return ",".join(f"{_axis_name(name, stride)}={size}" for stride, size, name in found) or "all=1"


def splits_of(
    groups: Iterable[tuple[Sequence[int], str]], world_size: int, chunks: Iterable[tuple[int, int]]
) -> dict[int, list[int]]:
    """By the number of an axis, the coordinates at which ranks of another kind begin. `chunks`: (rows, parts) of the
    dimensions that rank 0 cuts; the parts are the ranks along an axis, or along neighbouring axes together."""
    sizes = [size for _, size, _ in _axes(groups, world_size)]
    places: dict[int, list[tuple[int, int]]] = {}  # by a number of ranks: first axis, size of the axes inside of it
    for first in range(len(sizes)):
        for last in range(first, len(sizes)):
            inner = prod(sizes[first + 1 : last + 1])
            places.setdefault(sizes[first] * inner, []).append((first, inner))
    found: dict[int, set[int]] = {}
    for rows, parts in set(chunks):
        for axis, inner in places.get(parts, ()):
            for at in kinds_of_chunks(rows, parts):
                found.setdefault(axis, set()).update({at // inner, -(-at // inner)} - {0, sizes[axis]})
    return {axis: sorted(at) for axis, at in found.items() if at}


def kinds_of_chunks(rows: int, parts: int) -> list[int]:
    """The parts that differ from the ones before them, if ``torch.chunk`` cuts `rows` into `parts`: the last one with
    rows has fewer, and those after it have none."""
    chunk = max(-(-rows // parts), 1)
    full, rest = divmod(rows, chunk)
    return [at for at in dict.fromkeys((full, full + (rest > 0))) if 0 < at < parts]


def _axes(groups: Iterable[tuple[Sequence[int], str]], world_size: int) -> list[tuple[int, int, str]]:
    """(stride, size, name of its group) of each axis, the outermost first."""
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
    return [(*axis, names.get(axis, "")) for axis in reversed(axes)]


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
