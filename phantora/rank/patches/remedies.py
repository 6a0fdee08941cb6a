"""Remedies for memory on an unmodified script (``--remedy``).

The repeated layers of a model are the entries of a ModuleList, ModuleDict or Sequential of one class. ``checkpointing``
computes their forward pass again in the backward pass (``torch.utils.checkpoint``). ``offload`` copies what they save
for the backward pass to pinned memory of the host, and back. ``fsdp`` shards what DistributedDataParallel gets by
``fully_shard``, each repeated layer by itself.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from phantora.rank.patch import Patch, Rank, When
from phantora.spec import CHECKPOINTING, FSDP, REMEDIED, rank_spec

_INSIDE = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_CHECKPOINTED = "_checkpoint_wrapped_module"
_LEAST_BYTES = 1 << 20  # smaller tensors stay on the GPU


def install(rank: Rank) -> None:
    """Applies the run's remedy to the modules of this rank."""
    kind = rank_spec().remedy
    if not kind:
        return
    report = ctypes.PyDLL(str(rank.tracer)).phantora_assumed
    report.argtypes, report.restype = [ctypes.c_char_p, ctypes.c_size_t], None

    def note(text: str) -> None:
        words = f"{text}{REMEDIED}{kind})".encode()
        report(words, len(words))

    if kind == FSDP:
        _shard_instead(note)
        return
    from torch.nn.modules.module import register_module_forward_pre_hook

    register_module_forward_pre_hook(_Layers(_checkpointed if kind == CHECKPOINTING else _offloaded, note).begin)


def layers_of(model: Any) -> list[Any]:
    """The repeated layers of a model: those in another such layer left out."""
    from torch import nn

    found: list[Any] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        entries = list(module.children())
        if len(entries) < 2 or len({type(one) for one in entries}) > 1 or not any(entries[0].children()):
            continue
        found += entries
        inside |= {id(below) for entry in entries for below in entry.modules()}
    return found


class _Layers:
    """Changes the layers of each model when it is called for the first time."""

    def __init__(self, change: Callable[[Any], Any], note: Callable[[str], None]) -> None:
        self._change, self._note = change, note
        self._seen: WeakSet[Any] = WeakSet()

    def begin(self, module: Any, _: Any) -> None:
        """A hook: `module` is called."""
        if module in self._seen:
            return
        self._seen.update(module.modules())
        changed = [self._change(layer) for layer in layers_of(module)]
        if any(changed):
            self._note(f"{sum(map(bool, changed))} repeated layers of {type(module).__name__}")


def _checkpointed(layer: Any) -> bool:
    """Computes `layer` again in the backward pass; False if it does so already."""
    from torch.utils.checkpoint import checkpoint

    def around(forward: Any, *args: Any, **kwargs: Any) -> Any:
        if "use_cache" in kwargs:  # a second forward pass would add to the cache again
            kwargs |= {"use_cache": False} | {name: None for name in kwargs if name.startswith("past_key_value")}
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return _around(layer, around)


def _offloaded(layer: Any) -> bool:
    """Keeps what `layer` saves on the host."""
    from torch.autograd.graph import saved_tensors_hooks

    def around(forward: Any, *args: Any, **kwargs: Any) -> Any:
        with saved_tensors_hooks(_to_host, _to_gpu):
            return forward(*args, **kwargs)

    return _around(layer, around)


def _around(layer: Any, around: Callable[..., Any]) -> bool:
    import torch

    for name in _INSIDE:  # the parameters of the wrapper are gathered outside
        if hasattr(layer, name):
            if name == _CHECKPOINTED:
                return False
            layer = getattr(layer, name)
    forward = layer.forward

    @functools.wraps(forward)
    def changed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return around(forward, *args, **kwargs)

    layer.forward = changed
    return True


def _to_host(tensor: Any) -> Any:
    """What the backward pass gets is saved as: a copy in pinned memory, unless it is a parameter or small."""
    import torch

    origin = tensor if tensor._base is None else tensor._base
    if not tensor.is_cuda or isinstance(origin, torch.nn.Parameter) or tensor.nbytes < _LEAST_BYTES:
        return tensor
    kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    kept.copy_(tensor, non_blocking=True)
    return kept, tensor.device


def _to_gpu(saved: Any) -> Any:
    return saved[0].to(saved[1], non_blocking=True) if isinstance(saved, tuple) else saved


def _shard_instead(note: Callable[[str], None]) -> None:
    """Makes DistributedDataParallel shard its module."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def begin(self: Any, module: Any, *_: Any, process_group: Any = None, **__: Any) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.distributed_c10d import _get_default_group
        from torch.distributed.fsdp import fully_shard
        from torch.optim import Optimizer

        mine = {id(parameter) for parameter in module.parameters()}
        for one in gc.get_objects():
            if issubclass(type(one), Optimizer) and any(id(p) in mine for g in one.param_groups for p in g["params"]):
                raise RuntimeError("--remedy fsdp: the optimizer is made before DistributedDataParallel")
        name = type(module).__name__  # before fully_shard gives it another
        nn.Module.__init__(self)
        self.module, self.require_backward_grad_sync = module, True
        self.process_group = process_group or _get_default_group()
        mesh = DeviceMesh.from_group(self.process_group, "cuda")
        for layer in layers_of(module):
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        note(f"{name} is sharded over {mesh.size()} GPUs")

    @contextmanager
    def no_sync(self: Any) -> Iterator[None]:
        self.module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)

    changed: Any = DistributedDataParallel
    changed.__init__, changed.no_sync = begin, no_sync
    changed.forward = lambda self, *args, **kwargs: self.module(*args, **kwargs)


PATCH = Patch("remedies", When.IN_RANK, install)
