"""Annotations of the modules whose forward pass runs, for `phantora trace --modules`: ``module: layers.0.attention``.

A module's name is its path in the outermost module that is called, wrappers' own parts left out. The backward pass
gets its modules from the tracer (``stub/tracer/modules.cpp``). Hooks cost no virtual time.
"""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakKeyDictionary

from phantora.rank.patch import Patch, Rank, When
from phantora.spec import rank_spec

PREFIX = "module: "
# Parts of paths that wrappers add (DistributedDataParallel, FSDP, torch.compile, checkpoint_wrapper).
_WRAPPERS = frozenset(("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"))


def install(rank: Rank) -> None:
    """Adds the hooks to torch, which has been imported, if the run logs modules."""
    if not rank_spec().modules:
        return
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    library = ctypes.CDLL(str(rank.tracer))
    hooks = _Hooks(library.phantora_module_begin, library.phantora_module_end)
    register_module_forward_pre_hook(hooks.begin)
    register_module_forward_hook(hooks.end, always_call=True)


class _Hooks:
    def __init__(self, begin: Any, end: Any) -> None:
        begin.argtypes = [ctypes.c_char_p]
        self._begin, self._end = begin, end
        self._names: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()

    def begin(self, module: Any, _: Any) -> None:
        if module not in self._names:  # the outermost that is called names all below it
            for path, child in module.named_modules():
                self._names.setdefault(child, _text(path, child))
        self._begin(self._names[module])

    def end(self, *_: Any) -> None:
        self._end()


def _text(path: str, module: Any) -> bytes:
    kept = [part for part in path.split(".") if part and part not in _WRAPPERS]
    return f"{PREFIX}{'.'.join(kept) or type(module).__name__}".encode()


PATCH = Patch("modules", When.AFTER_TORCH, install)
