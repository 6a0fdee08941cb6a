"""Calls of kernels of the CuTe DSL, announced to the operator tracer with their arguments.

Torch has no operator for them. Each call of a compiled function is an operator ``cute::NAME``, whoever made the
function: a program, quack, FlashAttention-4. The functions of FlashAttention-4's interface are operators of their own,
with the arguments that the family of flash-attn reads; calls inside of these are a part of them.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import orjson

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches.engine_calls import described, hashable
from phantora.rank.patches.operator_announcer import Announcer

FFI, EXECUTOR = "cutlass.cutlass_dsl.tvm_ffi_provider", "cutlass.base_dsl.jit_executor"
LOADED = "cutlass.base_dsl.export.external_binary_module"
ATTENTION = "flash_attn.cute.interface"
NAMESPACE = "flash_attn_4::"
CALLED = {
    FFI: ("TVMFFIJitCompiledFunction", "TVMFFIJitCompiledFunctionWithKwargs"),
    EXECUTOR: ("JitCompiledFunction", "JitExecutor"),
}
"""Classes of compiled functions, by module."""
UNLIKE = ("qv", "page_table", "block_sparse_tensors", "gather_kv_indices")
"""Arguments with which FlashAttention-4 does other work than attention of all queries and keys."""

Around = Callable[[bytes, Callable[[], Any]], Any]
"""Calls a function as the operator that a text describes."""


class Calls:
    """Describes calls, each kind once. Those inside of others are not announced."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._texts: dict[Any, bytes] = {}
        self._thread = threading.local()

    def call(self, name: str, arguments: list[Any], function: Callable[[], Any]) -> Any:
        """Calls `function` as the operator `name` with `arguments`."""
        if getattr(self._thread, "inside", False):
            return function()
        shown = [described(value) for value in arguments]
        key = (name, hashable(shown))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = orjson.dumps({"op": name, "args": shown, "bwd": False})
        self._thread.inside = True
        try:
            return self._around(text, function)
        finally:
            self._thread.inside = False

    def wrap_classes(self, module: ModuleType) -> None:
        """Announces calls of compiled functions."""
        for name in CALLED[module.__name__]:
            kind = getattr(module, name)
            kind.__call__ = self._announcing(kind.__call__)

    def _announcing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def announced(function: Any, *args: Any, **kwargs: Any) -> Any:
            name = f"cute::{getattr(function, 'function_name', 'kernel')}"
            return self.call(name, [*args, *kwargs.values()], lambda: call(function, *args, **kwargs))

        return announced

    def wrap_loaded(self, module: ModuleType) -> None:
        """Announces calls of functions that were compiled by an earlier process and are loaded from a file."""
        kind = module.ExternalBinaryModule
        find = kind.__getattr__

        @functools.wraps(find)
        def found(loaded: Any, prefix: str) -> Any:
            function = find(loaded, prefix)
            if prefix.startswith("_") or not callable(function):
                return function
            return lambda *args: self.call(f"cute::{prefix}", list(args), lambda: function(*args))

        kind.__getattr__ = found

    def wrap_attention(self, module: ModuleType) -> None:
        """Announces FlashAttention-4."""
        for name, describe in (("_flash_attn_fwd", forward), ("_flash_attn_bwd", backward)):
            setattr(module, name, self._as_attention(getattr(module, name), describe))

    def _as_attention(self, function: Any, describe: Callable[[Mapping[str, Any]], list[Any]]) -> Any:
        signature = inspect.signature(function)
        way = "backward" if describe is backward else "forward"

        @functools.wraps(function)
        def announced(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            if given["q"] is None or any(given.get(name) is not None for name in UNLIKE):
                return function(*args, **kwargs)
            packed = "varlen_" if given["cu_seqlens_q"] is not None else ""
            name = f"{NAMESPACE}_flash_attn_{packed}{way}"
            return self.call(name, describe(given), lambda: function(*args, **kwargs))

        return announced


def forward(given: Mapping[str, Any]) -> list[Any]:
    """The arguments of flash-attn's operator: queries, keys and values, lengths of packed sequences, then numbers."""
    return [given["q"], given["k"], given["v"], *_lengths(given), *_numbers(given)]


def backward(given: Mapping[str, Any]) -> list[Any]:
    """Arguments of the backward pass, behind the gradient and with what the forward pass kept."""
    kept = [given[name] for name in ("dout", "q", "k", "v", "out", "lse")]
    return [*kept, None, None, None, *_lengths(given), *_numbers(given)]


def _lengths(given: Mapping[str, Any]) -> list[Any]:
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    return [given[name] for name in names] if given["cu_seqlens_q"] is not None else []


def _numbers(given: Mapping[str, Any]) -> list[Any]:
    """Dropout, scale, whether causal, the window's left and right (-1: none)."""
    sides = [-1 if side is None else side for side in (given["window_size_left"], given["window_size_right"])]
    return [0.0, given["softmax_scale"], bool(given["causal"]), *sides]


def install(rank: Rank) -> None:
    """Announces calls to the tracer's library, as soon as the CuTe DSL is imported."""
    calls = Calls(Announcer(rank.tracer).around)
    wraps = {
        FFI: calls.wrap_classes,
        EXECUTOR: calls.wrap_classes,
        LOADED: calls.wrap_loaded,
        ATTENTION: calls.wrap_attention,
    }
    on_import(wraps, lambda module: wraps[module.__name__](module))


PATCH = Patch("calls of the CuTe DSL", When.AFTER_TORCH, install)
