"""Symmetric memory inside one host runs as torch does it, over the stubs of the driver (docs/symmetric-memory.md).
What is not simulated ends in a message where a program asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.launch import folded
from phantora.launch.importhook import after_import

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


def _check_hosts(group: str | None) -> None:
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    ranks = c10d.get_process_group_ranks(c10d._resolve_process_group(group)) if group else []
    hosts = {rank // int(os.environ["LOCAL_WORLD_SIZE"]) for rank in ranks}
    if len(hosts) > 1:
        _refuse(f"between {len(hosts)} hosts", "leave it to groups inside a host")


def _wrap(module: ModuleType) -> None:
    memory = module._SymmetricMemory

    def check_allocation(size: Any, stride: Any, dtype: Any, device: Any, group: Any = None, alloc: Any = None) -> None:
        if folded.VARIABLE in os.environ:
            _refuse("in a folded run", "run all ranks with --fold off")
        _check_backend(memory.get_backend(device))

    def check_rendezvous(tensor: Any, group: str | None = None) -> None:
        _check_hosts(group)

    def refuse_native(*_: Any) -> None:
        _refuse("with products that wait for their input (TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP)", "unset the variable")

    memory.empty_strided_p2p = _before(memory.empty_strided_p2p, check_allocation)  # all ways to such memory begin here
    memory.rendezvous = _before(memory.rendezvous, check_rendezvous)
    memory.set_backend = _before(memory.set_backend, _check_backend)
    module._fused_all_gather_matmul_native = refuse_native  # type: ignore[attr-defined]


def install() -> None:
    """Refuses by name what is not simulated, as soon as the module is there."""
    if _MODULE in sys.modules:
        _wrap(sys.modules[_MODULE])
    else:
        after_import(_MODULE.__eq__, _wrap)
