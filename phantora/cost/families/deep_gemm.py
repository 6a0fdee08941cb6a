"""DeepGEMM's logits of an index: queries of several heads with one head of keys, in 8 bits or 4, summed over heads.

It is attention without values, and writes what attention does not: a logit for each query and key.
"""

from __future__ import annotations

from phantora.cost.families import attention
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, tensor_at
from phantora.cost.types import OperatorSignature

LOGITS = "deep_gemm::mqa_logits"
ERROR = 0.50  # none is measured


def classify(name: str) -> str | None:
    """By whole name."""
    return "attention" if name == LOGITS else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Queries (batch, tokens, heads, head), keys (batch, keys, head), logits (batch * tokens, keys)."""
    q, k, logits = (tensor_at(signature.args, i) for i in range(3))
    if q is None or k is None or logits is None or len(q.shape) != 4 or len(k.shape) != 3:
        return passes_memory(machine, signature, name, kernels)
    batch, queries, heads, head = q.shape
    found = attention.Attention(
        kind="cudnn",
        backward=False,
        batch=batch,
        heads=heads,
        kv_heads=1,
        queries=queries,
        keys=k.shape[1],
        head=head,
        value_head=0,
        causal=False,
        dtype="float8_e4m3fn",
    )
    moved = float(nbytes(q) + nbytes(k) + nbytes(logits))
    ns = max(attention.attention_ns(machine, found), machine.memory_ns(moved))
    return Estimate(ns, moved, flops=found.flops, format=found.dtype, error=ERROR)


FAMILY = Family("deep-gemm", classify, estimate)
