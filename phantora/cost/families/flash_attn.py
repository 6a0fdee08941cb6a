"""The operators of the packages flash-attn 2, 3 and 4: FlashAttention as torch has it, with other arguments and a
window.

FlashAttention-3 and 4 are written for Hopper and Blackwell, like cuDNN's attention, and take its time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phantora.cost.families import attention
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import tensor_at
from phantora.cost.types import OperatorSignature

FLASH_3 = "flash_attn_3::"
NAMESPACES = {"flash_attn::": "flash", FLASH_3: "cudnn", "flash_attn_4::": "cudnn"}
"""The kind of attention whose time they take."""
ERROR = 0.30


def classify(name: str) -> str | None:
    """Class by namespace."""
    namespace, _, function = name.partition("::")
    own = function.startswith("_flash_attn") or (name.startswith(FLASH_3) and function in ("fwd", "bwd"))
    return "attention" if own and f"{namespace}::" in NAMESPACES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """As torch's own; a window of keys leaves out the rest."""
    found, share = from_signature(signature, name), window(signature, name)
    if found is None:
        return replace(passes_memory(machine, signature, name, kernels), error=1.0)
    whole = attention.of(machine, found, kernels)
    if share >= 1.0:
        return replace(whole, error=ERROR)
    ns = max(machine.memory_ns(found.moved), whole.ns * share)
    parts = tuple(part * ns / whole.ns for part in whole.parts)
    return replace(whole, ns=ns, parts=parts, computed=whole.computed * share, error=2 * ERROR)


@dataclass(frozen=True)
class Arguments:
    """Places of arguments: queries, begins of sequences, probability of dropout (None: it has none), whether causal.
    Keys and values follow queries, and the window's left and right whether causal."""

    queries: int
    begins: int
    dropout: int | None
    causal: int


def arguments(name: str) -> Arguments:
    """Places in an operator of a package's interface, or of FlashAttention-3's library."""
    function = name.partition("::")[2]
    backward = "backward" in function or function.startswith("bwd")
    if name.startswith(FLASH_3):
        begins = (9 if function.startswith("bwd") else 6) if backward else 7
        return Arguments(int(backward), begins, None, 16 if backward else 24)
    begins = 9 if backward else 3
    dropout = begins + (4 if "varlen" in name else 0)
    return Arguments(int(backward), begins, dropout, dropout + 2)


def from_signature(signature: OperatorSignature, name: str) -> attention.Attention | None:
    """Queries, keys and values are (batch, sequence, heads, head); packed ones (tokens, heads, head), with the
    begins of sequences."""
    args, at = signature.args, arguments(name)
    q, k, v = (tensor_at(args, at.queries + i) for i in range(3))
    if q is None or k is None or v is None or len(q.shape) < 3 or len(k.shape) != len(q.shape):
        return None
    dropout, causal = (args[i] if i is not None and i < len(args) else None for i in (at.dropout, at.causal))
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if len(q.shape) == 3:  # sequences are taken as equally long
        begins = tensor_at(args, at.begins)
        batch = max(1, begins.shape[0] - 1) if begins is not None and begins.shape else 1
        queries, keys = -(-q.shape[0] // batch), -(-k.shape[0] // batch)
    return attention.Attention(
        kind=NAMESPACES[f"{name.partition('::')[0]}::"],
        backward=at.queries > 0,
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
        packed=len(q.shape) == 3,
    )


def window(signature: OperatorSignature, name: str) -> float:
    """The share of the scores that a window to the left leaves, of those that a causal mask leaves."""
    at = arguments(name)
    k = tensor_at(signature.args, at.queries + 1)
    left = signature.args[at.causal + 1] if at.causal + 1 < len(signature.args) else -1
    if not isinstance(left, int) or left < 0 or k is None or len(k.shape) != 4 or left >= k.shape[1]:
        return 1.0
    keys = k.shape[1]
    return min(1.0, (left + 1) * (keys - left / 2) / (keys * keys / 2))


FAMILY = Family("flash-attn", classify=classify, estimate=estimate)
