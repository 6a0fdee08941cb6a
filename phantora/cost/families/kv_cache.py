"""Caches of keys and values, as vLLM keeps them: rows written by slot, attention over the blocks of each sequence."""

from __future__ import annotations

from phantora.cost import flops
from phantora.cost.families.gather import SCATTERED
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, on_gpu, tensor_at
from phantora.cost.types import OperatorSignature

WRITES = frozenset(
    f"{namespace}::{name}"
    for namespace in ("_C_cache_ops", "vllm", "flashinfer")
    for name in ("reshape_and_cache", "reshape_and_cache_flash", "concat_and_cache_mla")
)
READS = frozenset(f"{namespace}::paged_attention_{v}" for namespace in ("_C", "vllm") for v in ("v1", "v2"))
READ_SHARE = 0.6  # of a stream's speed, when blocks of a cache are read
ERROR = 0.50


def classify(name: str) -> str | None:
    """Class by whole name."""
    return "copy" if name in WRITES else "attention" if name in READS else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Estimate of the part that is written or read, never the whole cache."""
    return (_attention if name in READS else _writes)(machine, signature)


def _writes(machine: Machine, signature: OperatorSignature) -> Estimate:
    """Keys and values come first, caches after them, then the slot of each row."""
    given = on_gpu(signature.args)
    rows = sum(map(nbytes, given[: 1 if len(given) < 4 else 2]))
    slots = sum(nbytes(t) for t in given if t.dtype == "int64")
    moved = float(2 * rows + slots)
    return Estimate(machine.memory_ns(moved, SCATTERED), moved, error=ERROR)


def _attention(machine: Machine, signature: OperatorSignature) -> Estimate:
    """A token of each sequence, over as many keys as its blocks hold, at most. How long each sequence is, is data; the
    longest is an argument. The schema ends in: query, caches of keys and values, heads of these, scale, the sequences'
    blocks, their lengths, tokens of a block, the longest."""
    args = signature.args
    at = next((i for i, v in enumerate(args) if type(v) is int), len(args))
    queries, keys, values, blocks = (tensor_at(args, i) for i in (at - 3, at - 2, at - 1, at + 2))
    sizes = [v for v in args[at:] if type(v) is int]
    given = on_gpu(args)
    if queries is None or keys is None or values is None or blocks is None or len(sizes) < 3 or len(queries.shape) != 3:
        moved = float(sum(map(nbytes, given)))
        return Estimate(machine.memory_ns(moved), moved, error=1.0)
    sequences, heads, head = queries.shape
    kv_heads, block, longest = sizes[:3]
    length = min(longest, blocks.shape[-1] * block)
    picked = sequences * length * kv_heads * head * (item_bytes(keys.dtype) + item_bytes(values.dtype))
    moved = float(min(picked, nbytes(keys) + nbytes(values)) + 2 * nbytes(queries))
    count = flops.attention(sequences, heads, 1, length, head, head)
    return Estimate(machine.memory_ns(moved, READ_SHARE), moved, flops=count, error=ERROR)


FAMILY = Family("caches of keys and values", classify=classify, estimate=estimate)
