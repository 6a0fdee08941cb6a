"""FlexAttention: the kernels that torch.compile generates for it."""

from __future__ import annotations

from phantora.cost.coordinates import Place
from phantora.cost.families import attention
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import on_gpu, tensor_at, traffic
from phantora.cost.types import OperatorSignature


def classify(name: str) -> str | None:
    """The kernels from its template; others prepare for it."""
    return "attention" if name.startswith("triton_tem") and "flex_attention" in name else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """As FlashAttention; as a pass over the arguments where these are not as expected."""
    found = from_signature(signature, name)
    if found is None:
        moved = float(sum(traffic(t) for t in on_gpu(signature.args)))
        return Estimate(machine.memory_ns(moved), moved)
    return attention.of(machine, found, kernels)


def from_signature(signature: OperatorSignature, name: str) -> attention.Attention | None:
    """Queries, keys and values come first, as (batch, heads, sequence, head). Which blocks a mask leaves out
    is in the values of later arguments, so the mask counts as causal."""
    q, k, v = (tensor_at(signature.args, i) for i in range(3))
    if q is None or k is None or v is None or len(q.shape) != 4:
        return None
    (batch, heads, queries, head), (_, kv_heads, keys, _) = q.shape, k.shape
    return attention.Attention(
        "flash", "backward" in name, batch, heads, kv_heads, queries, keys, head, v.shape[-1], True, q.dtype
    )


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """As those of other attention."""
    found = from_signature(signature, name)
    return attention.places_of(found, name) if found is not None else ()


FAMILY = Family("FlexAttention", classify, estimate, places=places, kernels_tell=False)
