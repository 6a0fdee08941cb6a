"""Device meshes of folded runs: a rank's own process groups, without a loop over those of all others.

For each axis of a mesh torch calls ``new_group`` for every group of the world, although a rank is in one of them only.
TorchTitan's meshes of 8,192 ranks have 40,000 groups, which takes seconds in each process. torch also counts all ranks
of a layout whenever it makes one, as FSDP does for every parameter.

Here a process makes its own group and a few others, and only counts the rest. Its clock advances for the rest as for
those others.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.rank.clock import Runtime
from phantora.rank.importhook import on_import

_MESHES = "torch.distributed.device_mesh"
_LAYOUTS = "torch.distributed._mesh_layout"
_TRIED = 16
"""Groups of others that are made as torch does, in one loop: what the next ones would take."""
_MANY = 64
"""Groups from which on it is worth it."""
_LARGE = 1024
"""Ranks from which on layouts are counted once. What a cold host adds is lost: a seventh of a count with 8 ranks."""


def install(world_size: int) -> None:
    """Call it in the rank, before its script runs."""
    runtime = Runtime.of(ctypes.CDLL(None))

    def meet(module: ModuleType) -> None:
        if module.__name__ == _MESHES:
            _skip_others(module, runtime)
        else:
            _remember_ranks(module, runtime)

    on_import((_MESHES, _LAYOUTS) if world_size >= _LARGE else (_MESHES,), meet)


class _Rows:
    """A layout of which only some groups are left, for the loop over them."""

    def __init__(self, layout: Any, rows: Any) -> None:
        self._layout, self._rows = layout, rows

    def nest(self) -> _Rows:
        return self

    def remap_to_tensor(self, _: Any) -> Any:
        return self._rows

    def numel(self) -> int:
        return int(self._layout.numel())


def _skip_others(module: ModuleType, runtime: Runtime) -> None:
    import torch.distributed.distributed_c10d as c10d

    mesh = getattr(module, "DeviceMesh", None)
    make = getattr(mesh, "_init_one_process_group", None)
    if make is None or list(inspect.signature(make).parameters)[:2] != ["sub_layout", "rank_map"]:
        return  # of another version: it takes longer
    world: Any = c10d._world

    @functools.wraps(make)
    def make_own(sub_layout: Any, rank_map: Any, *arguments: Any) -> str | None:
        rows = sub_layout.nest().remap_to_tensor(rank_map)
        ranks = rows.tolist()
        here = c10d.get_rank()
        own = [at for at, group in enumerate(ranks) if here in group]
        if len(ranks) < _MANY or len(own) != 1 or _splits(module, c10d):
            return make(sub_layout, rank_map, *arguments)  # type: ignore[no-any-return]
        first = world.group_count
        others = [at for at in range(len(ranks)) if at != own[0]]

        def spent(groups: int) -> int:
            """Host time, ns, of a loop over the groups of others."""
            world.group_count = first
            begin = runtime.now()
            make(_Rows(sub_layout, rows[others[:groups]]), rank_map, *arguments)
            return runtime.now() - begin

        spent(1)  # a first one is slower
        once, many = spent(1), spent(_TRIED + 1)
        runtime.advance(max(many - once, 0) * (len(others) - _TRIED - 3) // _TRIED)
        world.group_count = first + own[0]
        name: str | None = make(_Rows(sub_layout, rows[own[0] : own[0] + 1]), rank_map, *arguments)
        world.group_count = first + len(ranks)
        return name

    mesh._init_one_process_group = staticmethod(make_own)  # type: ignore[union-attr]


def _splits(module: ModuleType, c10d: Any) -> bool:
    """True if torch makes NCCL split the world's communicator for all groups at once."""
    settings = getattr(module, "dist_config", None)
    return c10d._get_default_group().bound_device_id is not None or getattr(settings, "use_torchcomms", False)


def _remember_ranks(module: ModuleType, runtime: Runtime) -> None:
    layout = getattr(module, "_MeshLayout", None)
    count: Callable[[Any], list[int]] | None = getattr(layout, "all_ranks_from_zero", None)
    if count is None:
        return
    known: dict[Any, tuple[list[int], int]] = {}

    @functools.wraps(count)
    def remembered(self: Any) -> list[int]:
        found = known.get(self)
        if found is None:
            begin = runtime.now()
            found = known[self] = count(self), runtime.now() - begin
        else:
            runtime.advance(found[1])
        return found[0].copy()

    layout.all_ranks_from_zero = remembered  # type: ignore[union-attr]
