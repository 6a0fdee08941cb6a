"""FlexAttention's block masks hold the true blocks, however long the sequences are (docs/values.md).

``create_block_mask`` makes a mask of all queries by all keys on the GPU. Of up to 4 Mi elements the operator tracer
computes it when it is read. Larger ones, and those of ``torch.compile(create_block_mask)``, whose kernels nobody runs,
are computed here, some block rows at a time, with the program's own ``mask_mod`` on CPU tensors, and only which blocks
are empty, partial and full is kept. It takes no virtual time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches import tuning
from phantora.wire.shared import KNOWN, KNOWN_INTEGERS, SMALL_ELEMENTS, UNKNOWN

FLEX = "torch.nn.attention.flex_attention"
PIECE = 1 << 18  # elements that are computed at once: they stay in the processor's caches
MOST = 1 << 32  # of a mask: some ten seconds
FIELDS = tuple(
    f"{full}{side}_{what}" for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")
)


class Unknown(Exception):
    """The mask depends on unknown values."""


def install(rank: Rank) -> None:
    """Completes block masks, as soon as torch's module of FlexAttention is imported."""
    on_import((FLEX,), lambda module: _wrap(module, rank.tracer))


def _wrap(module: Any, tracer: Path) -> None:
    import torch

    create, compile_ = module.create_block_mask, torch.compile
    report = ctypes.PyDLL(str(tracer)).phantora_assumed
    report.argtypes, report.restype = [ctypes.c_char_p, ctypes.c_size_t], None

    def completed(mask: Any) -> Any:
        try:
            tuning.excluded(lambda: _complete(module, mask))
        except Unknown as reason:
            text = f"a block mask of {' x '.join(map(str, mask.seq_lengths))} is not known ({reason})".encode()
            report(text, len(text))
        return mask

    @functools.wraps(create)
    def create_block_mask(mask_mod: Any, B: Any, H: Any, Q_LEN: int, KV_LEN: int, *rest: Any, **options: Any) -> Any:
        mask = create(mask_mod, B, H, Q_LEN, KV_LEN, *rest, **options)
        if torch.compiler.is_compiling() or options.get("_compile") or len(rest) > 2:  # the latter come by `compiled`
            return mask
        return completed(mask) if (B or 1) * (H or 1) * Q_LEN * KV_LEN > KNOWN_INTEGERS else mask

    @functools.wraps(compile_)
    def compiled(model: Any = None, *args: Any, **options: Any) -> Any:
        if model is not create_block_mask:
            return compile_(model, *args, **options)
        create_compiled: Any = compile_(create, *args, **options)
        return functools.wraps(create)(lambda *given, **named: completed(create_compiled(*given, **named)))

    module.create_block_mask = create_block_mask
    torch.compile = compiled


def _complete(module: ModuleType, mask: Any) -> None:
    """Writes the true numbers and indices of blocks where `mask`, a ``BlockMask`` on the GPU, has them."""
    if not mask.kv_num_blocks.is_cuda:
        return
    true = _on_host(module, mask)
    give = ctypes.CDLL(None).ph_memory_give
    for name in FIELDS:
        to, value = getattr(mask, name), getattr(true, name)
        if to is not None and value is not None and to.shape == value.shape and to.is_contiguous():
            held = value.contiguous()
            size = ctypes.c_size_t(held.numel() * held.element_size())
            give(ctypes.c_void_p(to.data_ptr()), ctypes.c_void_p(held.data_ptr()), size)


def _on_host(module: Any, mask: Any) -> Any:
    """`mask` as a ``BlockMask`` of CPU tensors. Raises Unknown."""
    import torch
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    (queries, keys), (rows, columns) = mask.seq_lengths, mask.BLOCK_SIZE
    batch, heads = mask.kv_num_blocks.shape[:2]
    if batch * heads * queries * keys > MOST:
        raise Unknown(f"larger than {MOST:,} elements")
    at_once = max(1, PIECE // (batch * heads * keys * rows)) * rows
    one = module._vmap_for_bhqkv(mask.mask_mod, prefix=())
    partial, full = [], []
    with torch.no_grad(), _host_tensors()(), TransformGetItemToIndex():
        b, h, key = (torch.arange(n, dtype=torch.int32) for n in (batch, heads, keys))
        query = torch.arange(queries, dtype=torch.int32)
        for first in range(0, queries, at_once):
            some, every = _blocks(one(b, h, query[first : first + at_once], key), rows, columns)
            partial.append(torch.from_numpy(some & ~every))
            full.append(torch.from_numpy(every))
    blocks = tuple(torch.cat(parts, 2).to(torch.int8) for parts in (partial, full))
    return module._create_sparse_block_from_block_mask(blocks, mask.mask_mod, (queries, keys), rows, columns)


def _blocks(mask: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """The blocks of `mask` (batch, heads, queries, keys) with a true element, and those with no other.

    What lies beyond the last query or key counts as false, as torch's padding does."""
    shape = mask.shape
    repeated = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in mask.stride()[:2])
    held = mask[repeated].numpy()  # equal batches and heads once
    pad = [(0, 0), (0, 0), (0, -shape[2] % rows), (0, -shape[3] % columns)]
    if any(end for _, end in pad):
        held = np.pad(held, pad)
    held = np.ascontiguousarray(held)
    b, h, q, k = held.shape
    word = np.uint64 if columns % 8 == 0 else np.uint8
    words = held.view(word).reshape(b, h, q // rows, rows, -1)
    each = (b, h, q // rows, k // columns, columns)
    some = np.bitwise_or.reduce(words, axis=3).view(np.bool_).reshape(each).any(-1)
    every = np.bitwise_and.reduce(words, axis=3).view(np.bool_).reshape(each).all(-1)
    full = (shape[0], shape[1], *some.shape[2:])
    return np.broadcast_to(some, full).copy(), np.broadcast_to(every, full).copy()


@functools.cache
def _host_tensors() -> Callable[[], Any]:
    """A dispatch mode in which operators take the CPU's view of tensors on the GPU, if their bytes are true."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    runtime = ctypes.CDLL(None)

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "cuda" else value
        if not isinstance(value, torch.Tensor) or not value.is_cuda or not value.numel():
            return value
        span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        where, size = ctypes.c_void_p(value.data_ptr()), ctypes.c_size_t(span * value.element_size())
        runtime.ph_touch(where, size)
        flags = runtime.ph_memory_flags(where, size)
        if flags & UNKNOWN or (value.numel() > SMALL_ELEMENTS and not flags & KNOWN):
            raise Unknown(f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} is not")
        held = bytearray(ctypes.string_at(value.data_ptr(), size.value))
        return torch.frombuffer(held, dtype=value.dtype).as_strided(value.shape, value.stride())

    class HostTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            args, kwargs = tree_map(on_host, (args, kwargs or {}))
            return func(*args, **kwargs)

    return HostTensors


PATCH = Patch("block masks", When.AFTER_TORCH, install)
