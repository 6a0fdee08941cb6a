"""FlexAttention: the kernels that torch.compile generates for it, where their code is not known.

With its code and arguments a kernel is priced by what it does (docs/triton.md).
"""

from __future__ import annotations

from dataclasses import replace

from phantora.cost.coordinates import Place
from phantora.cost.families import attention
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import on_gpu, tensor_at, traffic
from phantora.cost.types import OperatorSignature

# Of a step, as in attention.py: causal, heads of 64 and 128, forward and backward on an H100
# (validation/measurements/2026-11-22-h100/triton.jsonl.xz). FlashAttention takes 1.3 to 1.75 times as long there.
FORWARD_NS, BACKWARD_NS = (460.0, 15.1), (1400.0, 12.9)
ERROR = 0.8
"""A mask that leaves out most blocks: a window of 1,024 of 8,192 keys takes 0.3 of the causal time."""


def classify(name: str) -> str | None:
    """The kernels from its template; others prepare for it."""
    return "attention" if name.startswith("triton_tem") and "flex_attention" in name else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Blocks and steps as FlashAttention's; a pass over the arguments where these are not as expected."""
    found = from_signature(signature, name)
    if found is None:
        moved = float(sum(traffic(t) for t in on_gpu(signature.args)))
        return Estimate(machine.memory_ns(moved), moved)
    return replace(attention.of(machine, found, kernels), error=ERROR)


def from_signature(signature: OperatorSignature, name: str) -> attention.Attention | None:
    """Queries, keys and values come first, as (batch, heads, sequence, head). Which blocks a mask leaves out
    is in the values of later arguments, so the mask counts as causal."""
    q, k, v = (tensor_at(signature.args, i) for i in range(3))
    if q is None or k is None or v is None or len(q.shape) != 4:
        return None
    (batch, heads, queries, head), (_, kv_heads, keys, _) = q.shape, k.shape
    backward = "backward" in name
    step = BACKWARD_NS if backward else FORWARD_NS
    return attention.Attention(
        kind="flex",
        backward=backward,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head=head,
        value_head=v.shape[-1],
        causal=True,
        dtype=q.dtype,
        step_ns=step,
    )


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """As those of other attention."""
    found = from_signature(signature, name)
    return attention.places_of(found, name) if found is not None else ()


FAMILY = Family("FlexAttention", classify=classify, estimate=estimate, places=places, depends_on_kernels=False)
