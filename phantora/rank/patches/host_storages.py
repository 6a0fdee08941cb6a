"""Storages in the host's memory that Python makes without a tensor (``torch.UntypedStorage``).

Torch takes their memory from an allocator that the tracer does not see, so their new pages would cost nothing. Here
they are the storages of tensors.
"""

from __future__ import annotations

from typing import Any

from phantora.rank.patch import Patch, Rank, When

LEAST = 1 << 20
"""Bytes; the tracer counts no smaller ones (``stub/tracer/host_tensors.cpp``)."""


def _empty(size: int) -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()


def to_host(storage: Any) -> Any:
    """``UntypedStorage.cpu``."""
    return storage if storage.device.type == "cpu" else _empty(storage.size()).copy_(storage, False)


def install(rank: Rank) -> None:
    """Gives ``torch.UntypedStorage`` the memory of tensors."""
    import torch

    kind: Any = torch.UntypedStorage
    original = kind.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        on_host = set(kwargs) == {"device"} and torch.device(kwargs["device"]).type == "cpu"
        large = len(args) == 1 and isinstance(args[0], int) and args[0] >= LEAST
        if cls is kind and on_host and large and not torch._C._len_torch_dispatch_stack():
            return _empty(args[0])
        return original(cls, *args, **kwargs)

    kind.__new__, kind.cpu = new, to_host


PATCH = Patch("host_storages", When.AFTER_TORCH, install)
