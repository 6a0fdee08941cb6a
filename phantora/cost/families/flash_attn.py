"""The operators of the packages flash-attn 2, 3 and 4: FlashAttention as torch has it, with other arguments and a
window.

FlashAttention-3 and 4 are written for Hopper and Blackwell, like cuDNN's attention, and take its time."""

from __future__ import annotations

from dataclasses import replace

from phantora.cost.families import attention
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import tensor_at
from phantora.cost.types import OperatorSignature

NAMESPACES = {"flash_attn::": "flash", "flash_attn_3::": "cudnn", "flash_attn_4::": "cudnn"}
"""The kind of attention whose time they take."""
ERROR = 0.30


def classify(name: str) -> str | None:
    """Class by namespace."""
    namespace, _, function = name.partition("::")
    known = f"{namespace}::" in NAMESPACES and function.startswith("_flash_attn")
    return "attention" if known else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """As torch's own; a window of keys leaves out the rest."""
    found, share = from_signature(signature, name), window(signature, name)
    if found is None:
        return replace(passes_memory(machine, signature, name, kernels), error=1.0)
    whole = attention.of(machine, found, kernels)
    if share >= 1.0:
        return replace(whole, error=ERROR)
    ns = max(machine.memory_ns(found.moved), whole.ns * share)
    return replace(whole, ns=ns, parts=tuple(part * ns / whole.ns for part in whole.parts), error=2 * ERROR)


def from_signature(signature: OperatorSignature, name: str) -> attention.Attention | None:
    """Queries, keys and values are (batch, sequence, heads, head); packed ones (tokens, heads, head), with the
    longest sequence as a number."""
    args, backward = signature.args, "backward" in name
    first = 1 if backward else 0
    q, k, v = (tensor_at(args, first + i) for i in range(3))
    if q is None or k is None or v is None or len(q.shape) < 3 or len(k.shape) != len(q.shape):
        return None
    at = _numbers(name)
    dropout, causal = (args[i] if i < len(args) else None for i in (at, at + 2))
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if len(q.shape) == 3:  # sequences are taken as equally long
        lengths = tensor_at(args, at - 4)
        batch = max(1, lengths.shape[0] - 1) if lengths is not None and lengths.shape else 1
        queries, keys = -(-q.shape[0] // batch), -(-k.shape[0] // batch)
    return attention.Attention(
        kind=NAMESPACES[f"{name.partition('::')[0]}::"],
        backward=backward,
        batch=batch,
        heads=q.shape[-2],
        kv_heads=k.shape[-2],
        queries=queries,
        keys=keys,
        head=q.shape[-1],
        value_head=v.shape[-1],
        causal=bool(causal),
        dtype=q.dtype,
        dropout=isinstance(dropout, float) and dropout > 0.0,
    )


def window(signature: OperatorSignature, name: str) -> float:
    """The share of the scores that a window to the left leaves, of those that a causal mask leaves."""
    at, k = _numbers(name) + 3, tensor_at(signature.args, 2 if "backward" in name else 1)
    left = signature.args[at] if at < len(signature.args) else -1
    if not isinstance(left, int) or left < 0 or k is None or len(k.shape) != 4 or left >= k.shape[1]:
        return 1.0
    keys = k.shape[1]
    return min(1.0, (left + 1) * (keys - left / 2) / (keys * keys / 2))


def _numbers(name: str) -> int:
    """The place of the dropout's probability, ahead of scale, whether causal, and the window's left and right."""
    return (9 if "backward" in name else 3) + (4 if "varlen" in name else 0)


FAMILY = Family("flash-attn", classify=classify, estimate=estimate)
