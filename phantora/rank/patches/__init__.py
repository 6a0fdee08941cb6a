"""Changes to torch, Python and libraries inside a rank, one subject per module.

Each module has a :class:`~phantora.rank.patch.Patch`. Changes to frameworks are in ``phantora/rank/shims``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from phantora.rank.patch import Patch, Rank, When


@cache
def patches() -> tuple[Patch, ...]:
    """All that there are, in the order of their installation within each moment."""
    first = _ordered()
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    found: list[Patch] = [module.PATCH for module in modules if hasattr(module, "PATCH")]
    return (*first, *(patch for patch in found if patch not in first))


def _ordered() -> tuple[Patch, ...]:
    """Patches before or behind which others stand, and those outside of this folder."""
    from phantora.rank import assume, clock, failures, shims, standins
    from phantora.rank.fold import groups
    from phantora.rank.patches import (
        block_masks,
        clipping,
        cupy_sparse,
        cute_calls,
        disk,
        engine_calls,
        garbage,
        host_storages,
        libraries,
        loading,
        memory_uses,
        modules,
        profiler,
        progress_bars,
        races,
        remedies,
        rendezvous,
        rpc_channels,
        static_runtime,
        symmetric,
        threads,
        triton_launches,
        tuning,
        unmodelled_cpu,
        unpickling,
        worst_batch,
    )
    from phantora.rank.standins import hub

    return (
        clock.PATCH,
        profiler.PATCH,
        failures.PATCH,
        static_runtime.PATCH,
        cupy_sparse.PATCH,
        assume.PATCH,
        triton_launches.PATCH,
        engine_calls.PATCH,
        cute_calls.PATCH,
        block_masks.PATCH,
        clipping.PATCH,
        disk.PATCH,
        host_storages.PATCH,
        modules.PATCH,
        garbage.PATCH,
        libraries.PATCH,
        memory_uses.PATCH,
        races.PATCH,
        unpickling.PATCH,
        progress_bars.PATCH,
        rpc_channels.PATCH,
        tuning.PATCH,
        symmetric.PATCH,
        hub.PATCH,
        standins.PATCH,
        shims.PATCH,
        loading.PATCH,
        worst_batch.PATCH,
        remedies.PATCH,
        unmodelled_cpu.PATCH,
        threads.PATCH,
        rendezvous.PATCH,
        groups.PATCH,
    )


def install(when: When, rank: Rank) -> None:
    """Installs the patches of a moment."""
    for patch in patches():
        if patch.when is when:
            patch.install(rank)
