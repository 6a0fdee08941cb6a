"""Transformer Engine's calls, announced to the operator tracer with their arguments.

Its kernels stand behind functions of the extension ``transformer_engine_torch`` that torch's dispatcher does not know.
Each call that launches something is an operator ``transformer_engine::NAME``. A quantised tensor stands as one of its
own format, with the shape that it stands for; a quantiser as a text (``Float8Quantizer kFloat8E4M3 rc``: r for data
along rows, c along columns).
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches.operator_announcer import Announcer
from phantora.wire.shared import LIST_HEAD, LONG_LIST

COMMON, EXTENSION = "transformer_engine.common", "transformer_engine_torch"
PACKAGE, PREFIX = "transformer_engine", "transformer_engine::"
USERS = (PACKAGE, "megatron")  # packages whose modules take functions out of the extension
Around = Callable[[bytes, Callable[[], Any]], Any]
"""Calls a function as the operator that a text describes."""
QUERIES = ("get_", "is_", "device_", "ubuf_", "nvshmem_", "create_", "init_", "bulk_overlap_")
SMALL = 1 << 16  # bytes of results that read as zero; larger ones are never read


class Calls:
    """Describes calls, each kind once."""

    def __init__(self, around: Around, settle: Callable[..., None] | None = None) -> None:
        self._around, self._settle = around, settle
        self._texts: dict[Any, bytes] = {}

    def wrap(self, module: ModuleType) -> None:
        """Announces what the functions of the extension do, also to modules that took them out of it by name."""
        wrapped = {
            function: self._announcing(name, function)
            for name, function in vars(module).items()
            if isinstance(function, (BuiltinFunctionType, FunctionType)) and not name.startswith(QUERIES)
        }
        takers = [other for name, other in list(sys.modules.items()) if name.startswith(USERS) and other is not module]
        for holder in (module, *takers):
            for name, value in list(vars(holder).items()):
                if isinstance(value, (BuiltinFunctionType, FunctionType)) and value in wrapped:
                    setattr(holder, name, wrapped[value])

    def _announcing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            text = self._text(name, args, kwargs)
            made = self._around(text, lambda: function(*args, **kwargs))
            if self._settle is not None:
                self._settle(made, (*args, *kwargs.values()))
            return made

        return call

    def _text(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        texts = [described(value) for value in (*args, *kwargs.values())]
        key = (name, hashable(texts))
        text = self._texts.get(key)
        if text is None:
            table = {"op": PREFIX + name, "args": texts, "bwd": False}
            text = self._texts[key] = json.dumps(table, separators=(",", ":")).encode()
        return text


def clearing(clear: Any) -> Callable[..., None]:
    """Small results that are no arguments read as zero (docs/values.md), not as what their memory held before."""
    clear.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    clear.restype = None

    def settle(made: Any, given: tuple[Any, ...]) -> None:
        known = set(map(id, given))
        for value in made if isinstance(made, (tuple, list)) else (made,):
            if id(value) in known or not hasattr(value, "data_ptr") or type(value).__module__.startswith(PACKAGE):
                continue
            size = value.numel() * value.element_size()
            if value.is_cuda and 0 < size <= SMALL and value.is_contiguous():
                clear(value.data_ptr(), size)

    return settle


def hashable(value: Any) -> Any:
    """What `described` returns, as a key of a dictionary: True and 1 are two keys."""
    if isinstance(value, list):
        return tuple(map(hashable, value))
    if isinstance(value, dict):
        return tuple((key, hashable(item)) for key, item in value.items())
    return (type(value), value)


def described(value: Any) -> Any:
    """As the tracer writes an argument (``phantora/cost/parse.py`` reads it)."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(f"{value:.1g}")
    if isinstance(value, (list, tuple)):
        items = [described(item) for item in value]
        if not any(isinstance(item, dict) for item in items):
            return items
        if len(items) <= LONG_LIST or any("t" not in item for item in items if item):
            return {"l": items}
        shown = [item for item in value if hasattr(item, "numel")]
        counts = [(item.numel(), item.numel() * item.element_size()) for item in shown]
        total = {"numel": sum(n for n, _ in counts), "bytes": sum(size for _, size in counts)}
        return {"l": items[:LIST_HEAD], "n": len(items)} | total
    if hasattr(value, "_fp8_dtype"):
        return _quantised(value)
    if hasattr(value, "data_ptr") and hasattr(value, "stride"):
        table = {"t": str(value.dtype).removeprefix("torch."), "s": list(value.shape), "st": list(value.stride())}
        return table if value.is_cuda else {**table, "d": "cpu"}
    if hasattr(value, "rowwise_usage"):
        sides = "r" * bool(value.rowwise_usage) + "c" * bool(value.columnwise_usage)
        return f"{type(value).__name__} {getattr(getattr(value, 'dtype', None), 'name', '')} {sides}".replace("  ", " ")
    return getattr(value, "name", None)  # enumerations; of all else nothing is known


def _quantised(value: Any) -> Any:
    """A tensor of Transformer Engine: one byte an element."""
    shape = list(value.size()) if hasattr(value, "size") else []
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    dtype = "float8_e5m2" if "E5M2" in str(value._fp8_dtype) else "float8_e4m3fn"
    return {"t": dtype, "s": shape, "st": strides[::-1]}


def install(rank: Rank) -> None:
    """Announces calls to the tracer's library, as soon as Transformer Engine loads its extension."""
    when_loaded(Calls(Announcer(rank.tracer).around, clearing(rank.runtime.ph_memory_clear)))


def when_loaded(calls: Calls) -> None:
    """Wraps the extension once it is loaded: before modules take functions out of it by name."""

    def wrap(module: ModuleType) -> None:
        load = module.load_framework_extension

        @functools.wraps(load)
        def loading(framework: str) -> None:
            known = EXTENSION in sys.modules
            load(framework)
            if framework == "torch" and not known:
                calls.wrap(sys.modules[EXTENSION])

        vars(module)["load_framework_extension"] = loading

    on_import((COMMON,), wrap)
    if EXTENSION in sys.modules:
        calls.wrap(sys.modules[EXTENSION])


PATCH = Patch("engine calls", When.AFTER_TORCH, install)
