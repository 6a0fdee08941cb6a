"""``torch.distributed.rpc`` moves tensors between GPUs through memory of the host.

TensorPipe's own channels share CUDA memory and events between processes. In a simulation such memory does not have the
other process's bytes. Copies through the host do.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_MODULE = "torch.distributed.rpc.options"
_CHANNELS = ("cuda_xth", "cuda_basic", "cma", "basic")
"""TensorPipe's channels, the best first, without those that read another process's GPU memory (cuda_ipc, cuda_gdr)."""


def install(_: Rank) -> None:
    """Adds these channels to options that name none, as soon as the module is imported."""

    def meet(module: ModuleType) -> None:
        options = module.TensorPipeRpcBackendOptions
        make = options.__init__

        @functools.wraps(make)
        def made(this: Any, *given: Any, _channels: list[str] | None = None, **named: Any) -> None:
            make(this, *given, _channels=list(_CHANNELS) if _channels is None else _channels, **named)

        options.__init__ = made

    on_import((_MODULE,), meet)


PATCH = Patch("rpc channels", When.AFTER_TORCH, install)
