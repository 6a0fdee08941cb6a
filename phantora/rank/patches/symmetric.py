"""Symmetric memory inside one host runs as torch does it, over the stubs of the driver (docs/symmetric-memory.md).
What is not simulated ends in a message where a program asks for it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.rank.fold import groups
from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_MODULE = "torch.distributed._symmetric_memory"


def _refuse(what: str, remedy: str) -> None:
    raise PhantoraError(f"symmetric memory {what} is not simulated; {remedy}")


def _before(function: Callable[..., Any], check: Callable[..., None]) -> Any:
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return function(*args, **kwargs)

    return staticmethod(checked)


def _check_backend(name: str | None, *_: Any) -> None:
    if name not in (None, "CUDA"):
        _refuse(f"of the backend {name}", 'use the backend "CUDA"')


def _wrap(module: ModuleType, neighbour: Callable[[int], bool]) -> None:
    memory = module._SymmetricMemory
    processes = groups.processes()

    def check_allocation(*args: Any, **named: Any) -> None:  # size, stride, dtype, device, ...
        _check_backend(memory.get_backend(named["device"] if "device" in named else args[3]))

    def check_rendezvous(*args: Any, **named: Any) -> None:  # tensor, group_name
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        group = named.get("group_name", args[1] if len(args) > 1 else None)
        ranks = c10d.get_process_group_ranks(c10d._resolve_process_group(group)) if group else ()
        if not all(map(neighbour, ranks)):
            _refuse("between hosts", "leave it to groups inside a host")
        if processes is not None and not processes.issuperset(ranks):
            few = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
            _refuse(
                f"of ranks {few} of which some are not processes",
                "expand their axis (--fold dp=8,tp=4:all), or --fold off",
            )

    def refuse_native(*_: Any, **__: Any) -> None:
        _refuse("with products that wait for their input (TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP)", "unset the variable")

    memory.empty_strided_p2p = _before(memory.empty_strided_p2p, check_allocation)  # all ways to such memory begin here
    memory.rendezvous = _before(memory.rendezvous, check_rendezvous)
    memory.set_backend = _before(memory.set_backend, _check_backend)
    module._fused_all_gather_matmul_native = refuse_native  # type: ignore[attr-defined]


def install(rank: Rank) -> None:
    """Refuses by name what is not simulated, as soon as the module is there."""
    neighbour = rank.runtime.ph_neighbour
    neighbour.restype = ctypes.c_bool
    refuse(neighbour)


def refuse(neighbour: Callable[[int], bool]) -> None:
    """Refuses what is not simulated. `neighbour`: is a rank on this host?"""
    on_import((_MODULE,), lambda module: _wrap(module, neighbour))


PATCH = Patch("symmetric memory", When.AFTER_TORCH, install)
