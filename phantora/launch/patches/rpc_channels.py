"""``torch.distributed.rpc`` moves tensors between GPUs through memory of the host.

TensorPipe would share memory and events of CUDA between processes. Such memory does not have the other process's bytes
here, and such events order nothing, so tensors came as zeros. Copies to the host and back have both.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from phantora.launch.importhook import on_import

_MODULE = "torch.distributed.rpc.options"
_CHANNELS = ("cuda_xth", "cuda_basic", "cma", "basic")
"""TensorPipe's ways, the best first, without those that need another process's memory of a GPU (cuda_ipc, cuda_gdr)."""


def install() -> None:
    """Adds these channels to options that name none, as soon as the module is imported."""

    def meet(module: ModuleType) -> None:
        options = module.TensorPipeRpcBackendOptions
        make = options.__init__

        @functools.wraps(make)
        def made(this: Any, *given: Any, _channels: list[str] | None = None, **named: Any) -> None:
            make(this, *given, _channels=list(_CHANNELS) if _channels is None else _channels, **named)

        options.__init__ = made

    on_import((_MODULE,), meet)
