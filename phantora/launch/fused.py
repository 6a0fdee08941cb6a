"""Kernels that torch.compile generates, told to the operator tracer with their arguments.

Torch has no operator for them, so a launch alone would say nothing of the tensors that it reads.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from phantora.launch.importhook import after_import

MODULE = "torch._inductor.runtime.triton_heuristics"


def install(tracer: Path) -> None:
    """Has Inductor's launches announced to the tracer's library."""
    library = ctypes.PyDLL(str(tracer))  # PyDLL: as short as these calls are, the GIL stays
    library.phantora_fused_begin.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.phantora_fused_end.restype = None
    if MODULE in sys.modules:
        _wrap(sys.modules[MODULE], library)
    else:
        after_import(MODULE.__eq__, lambda module: _wrap(module, library))


def _wrap(module: ModuleType, library: ctypes.PyDLL) -> None:
    launch = module.CachingAutotuner.run
    texts: dict[tuple[Any, ...], bytes] = {}

    @functools.wraps(launch)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        name = self.fn.__name__
        key = (name, *(_kind(argument) for argument in arguments))
        text = texts.get(key)
        if text is None:
            text = texts[key] = signature(name, self.fn.arg_names, arguments)
        if not library.phantora_fused_begin(text, len(text)):
            return launch(self, *arguments, **options)
        try:
            return launch(self, *arguments, **options)
        finally:
            library.phantora_fused_end()

    module.CachingAutotuner.run = run


def _kind(argument: Any) -> Any:
    """What of an argument decides the duration."""
    if hasattr(argument, "data_ptr"):
        return argument.dtype, argument.shape, argument.stride(), argument.is_cuda
    return argument


def signature(name: str, names: Sequence[str], arguments: Sequence[Any]) -> bytes:
    """The kernel as the tracer describes an operator, named ``inductor::NAME``.

    Tensors that it overwrites, which Inductor calls ``in_out_ptr``, come again at the end: they are moved twice.
    """
    overwritten = [value for key, value in zip(names, arguments, strict=False) if key.startswith("in_out_ptr")]
    described = [_describe(argument) for argument in (*arguments, *overwritten)]
    return json.dumps({"op": f"inductor::{name}", "args": described, "bwd": False}).encode()


def _describe(argument: Any) -> Any:
    if hasattr(argument, "data_ptr"):
        dtype = str(argument.dtype).removeprefix("torch.")
        table = {"t": dtype, "s": list(argument.shape), "st": list(argument.stride())}
        return table if argument.is_cuda else {**table, "d": "cpu"}
    return argument if isinstance(argument, (int, float, bool)) else None
