"""Neighbourhood attention of natten: attention of each query to the window of keys around it.

Kernels step over the tiles of keys that a tile of queries needs, so they compute products over windows that are
extended to tiles. Windows are shifted at borders, hence equally large everywhere; causal ones are cut at the query.
Schemas are those of natten's operators of torch (0.21.7).
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, replace
from math import prod
from typing import Any

from phantora.cost.families import attention
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, on_gpu, tensor_at
from phantora.cost.types import OperatorSignature

_NAME = re.compile(r"natten::(|hopper_|blackwell_|reference_)(na[123]d|fmha)_(forward|backward)")
_PASS = re.compile(r"natten::(token_(un)?permute_[123]d|compute_delta)")
KINDS = {"": "efficient", "reference_": "efficient", "hopper_": "cudnn", "blackwell_": "cudnn"}
"""The kind of attention whose time they take: kernels of CUTLASS 2 are xformers', others are written for their GPU."""
PROLOGUES = ("SumOdO", "sum_OdO", "compute_delta")  # in names of kernels: rows of gradient times result
TILE = 64  # of queries and keys, where a signature has none
ERROR = 0.40
UNMEASURED = 1.0  # of the reference kernels


def classify(name: str) -> str | None:
    """By whole name."""
    return "attention" if _NAME.fullmatch(name) else "copy" if _PASS.fullmatch(name) else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """As torch's own attention, with the keys of the window in place of all."""
    if _PASS.fullmatch(name):
        moved = float(sum(map(nbytes, on_gpu((*signature.args, *signature.outputs)))))
        return Estimate(machine.memory_ns(moved), moved, error=ERROR)
    found = from_signature(signature, name)
    if found is None:
        return replace(passes_memory(machine, signature, name, kernels), error=1.0)
    near, whole = found
    error = UNMEASURED if "reference" in name else ERROR
    ns = max(attention.attention_ns(machine, near), machine.memory_ns(whole.moved))
    before = attention.helper_ns(machine, whole)[0]
    own = [before if any(each in kernel.name for each in PROLOGUES) else 0.0 for kernel in kernels]
    main = max(machine.fit.floor_ns, ns - sum(own)) / max(1, own.count(0.0))
    return Estimate(
        ns,
        whole.moved,
        flops=near.flops,
        format=near.dtype,
        computed=near.computed,
        error=error,
        parts=tuple(each or main for each in own),
    )


@dataclass(frozen=True)
class Side:
    """One dimension of the tokens: its extent, the window with its stride and dilation, tiles of queries and keys."""

    extent: int
    window: int
    _: KW_ONLY
    stride: int = 1
    dilation: int = 1
    causal: bool = False
    queries: int = TILE
    keys: int = TILE

    @property
    def tokens(self) -> int:
        """Tokens of a dilation group."""
        return -(-self.extent // self.dilation)

    def keys_of(self, query: int) -> tuple[int, int]:
        """The window of a query: its first key, and the one behind its last. Queries of a stride share the window of
        the one in their middle; with a causal mask that of the last."""
        within = self.stride - 1 if self.causal else self.stride // 2
        leader = min(query // self.stride * self.stride + within, self.tokens - 1)
        if self.causal:
            return max(0, leader - self.window + 1), query + 1
        first = min(max(0, leader - self.window // 2), max(0, self.tokens - self.window))
        return first, min(self.tokens, first + self.window)

    @property
    def computed(self) -> float:
        """Keys that a query is multiplied with, on average: those of its tile's windows, in whole tiles."""
        total = tiles = 0
        for begin in range(0, self.tokens, self.queries):
            first, _ = self.keys_of(begin)
            _, end = self.keys_of(min(begin + self.queries, self.tokens) - 1)
            total += (-(-end // self.keys) - first // self.keys) * self.keys
            tiles += 1
        return total / max(1, tiles)


def from_signature(signature: OperatorSignature, name: str) -> tuple[attention.Attention, attention.Attention] | None:
    """The attention with the keys that are computed, and the one with all keys. Tokens of FNA are (batch, *extents,
    heads, head), or permuted to (batch, tokens, heads, head) with their extents behind the scale."""
    match = _NAME.fullmatch(name)
    args = signature.args
    q, k, v = (tensor_at(args, i) for i in range(3))
    if match is None or q is None or k is None or v is None or len(q.shape) < 4:
        return None
    architecture, what, way = match.groups()
    backward = way == "backward"
    rest: list[Any] = list(args[6 if backward else 3 :])
    whole = attention.Attention(
        kind=KINDS[architecture],
        backward=backward,
        batch=q.shape[0],
        heads=q.shape[-2],
        kv_heads=k.shape[-2],
        queries=prod(q.shape[1:-2]),
        keys=prod(k.shape[1:-2]),
        head=q.shape[-1],
        value_head=v.shape[-1],
        causal=what == "fmha" and bool(rest[:1] and rest[0]),
        dtype=q.dtype,
    )
    if what == "fmha":
        return whole, whole
    found = sides(rest, q.shape[1:-2], permuted=architecture in ("hopper_", "blackwell_"))
    if not found:
        return None
    groups = 1 if architecture in ("hopper_", "blackwell_") else prod(side.dilation for side in found)
    tokens, keys = prod(side.tokens for side in found), max(1, round(prod(side.computed for side in found)))
    queries, keys = (keys, tokens) if backward else (tokens, keys)
    return replace(whole, batch=whole.batch * groups, queries=queries, keys=keys), whole


def sides(rest: list[Any], extents: tuple[int, ...], permuted: bool) -> list[Side]:
    """From the arguments behind the tensors: window, stride, dilation, causal, scale, then extents of permuted tokens
    and tiles. Empty if they are not as expected."""
    lists = [[int(each) for each in value] if isinstance(value, (list, tuple)) else None for value in rest]
    windows, strides, dilations, causal = (lists + [None] * 4)[:4]
    if windows is None or strides is None or dilations is None or causal is None:
        return []
    behind = lists[5:]
    if permuted:  # padded extents of queries and keys, then those before
        shape = behind[2] if len(behind) > 2 else None
        extents, behind = tuple(shape or ()), behind[3:]
    tiles = [[*behind, None, None][i] or [TILE if len(windows) == 1 else 8] * len(windows) for i in (0, 1)]
    if not all(len(each) == len(windows) for each in (extents, strides, dilations, causal, *tiles)):
        return []
    rows = zip(extents, windows, strides, dilations, causal, *tiles, strict=True)
    return [
        Side(extent, window, stride=stride, dilation=dilation, causal=bool(masked), queries=queries, keys=keys)
        for extent, window, stride, dilation, masked, queries, keys in rows
    ]


FAMILY = Family("natten", classify, estimate)
