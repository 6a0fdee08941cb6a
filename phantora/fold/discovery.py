"""The axes of a mesh, from the process groups of rank 0 (``--fold auto``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from phantora.errors import PhantoraError


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
