"""Kernels of stand-ins: launches without work, whose time is that of the operator around them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from phantora.errors import PhantoraError
from phantora.rank.patches.engine_calls import described, hashable
from phantora.rank.patches.operator_announcer import Announcer

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry {name}() {{ ret; }}\n"
ONE_TO_ONE, TWO_TO_ONE = "aten::silu", "aten::silu_backward"
"""Operators of torch that read one or two tensors, and write one."""
_announcers: list[Announcer] = []
_texts: dict[Any, bytes] = {}


def announce_to(tracer: Path) -> None:
    """Stand-ins announce operators to this library of the tracer."""
    _announcers[:] = [Announcer(tracer)]


@cache
def _function(name: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    error = driver.cuModuleLoadData(ctypes.byref(module), PTX.format(name=name).encode() + b"\0")
    error = error or driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
    if error:
        raise PhantoraError(
            f"the kernel {name} of a stand-in cannot be loaded (CUresult {error}); run `phantora doctor`"
        )
    return driver, function


def launch(name: str, blocks: int, threads: int = 128) -> None:
    """A kernel on the current stream."""
    import torch

    stream = torch.cuda.current_stream().cuda_stream
    driver, function = _function(name)
    sizes = (max(1, min(blocks, 2**31 - 1)), 1, 1, threads, 1, 1, 0)
    if error := driver.cuLaunchKernel(function, *sizes, ctypes.c_void_p(stream), None, None):
        raise RuntimeError(f"CUDA error: {name} (CUresult {error})")


def operator(name: str, arguments: list[Any], function: Callable[[], Any]) -> Any:
    """Calls `function`, whose kernels are those of the operator `name` with `arguments`."""
    shown = [each if isinstance(each, dict) else described(each) for each in arguments]
    key = (name, hashable(shown))
    text = _texts.get(key)
    if text is None:
        text = _texts[key] = orjson.dumps({"op": name, "args": shown, "bwd": False})
    return _announcers[0].around(text, function) if _announcers else function()


def spec(dtype: Any, *shape: int) -> dict[str, Any]:
    """A contiguous tensor that is an argument for the price alone."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return {"t": str(dtype).removeprefix("torch."), "s": list(shape), "st": strides[::-1]}


def check(holds: bool, message: str) -> None:
    """As TORCH_CHECK. Raises RuntimeError."""
    if not holds:
        raise RuntimeError(message)
