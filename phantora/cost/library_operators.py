"""Calls of libraries as the operators of torch that make the same ones: what was measured of these holds for those.

Transformer Engine and other extensions call cuBLASLt and cuDNN themselves. The stubs describe each call
(``stub/cublaslt``, ``stub/cudnn/plan.c``); matrices of cuBLAS lie in columns, so that the first is torch's second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phantora.cost import float8
from phantora.cost.families.gemm import library_dtype
from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec

ATTENTION = {"sdpa_fwd": "aten::_cudnn_attention_forward", "sdpa_bwd": "aten::_cudnn_attention_backward"}
NARROW = ("float8", "float4")
SCALES = {
    "row row": "rows",
    "vec128 vec128": "vectors",
    "blk128x128 vec128": "blocks",
    "vec128 blk128x128": "blocks",
    "vec32 vec32": "mx",
    "vec16 vec16": "nv",
}
"""Scaling of a product in FP8 or FP4, by the modes of cuBLASLt's two operands."""


def operator_of(library: Mapping[str, Any]) -> OperatorSignature | None:
    """The operator that makes the call `library`; None if torch has none."""
    try:
        if library.get("call") in ATTENTION:
            return _attention(library)
        return _product(library) if library.get("call") == "gemm" else None
    except (KeyError, TypeError, ValueError):
        return None


def _product(call: Mapping[str, Any]) -> OperatorSignature | None:
    m, n, k, batch = (int(call.get(key, 1)) for key in ("m", "n", "k", "batch"))
    first, second = library_dtype(str(call["a"])), library_dtype(str(call.get("b", call["a"])))
    trans = str(call.get("trans", "nn")).ljust(2, "n")
    if batch != 1 or min(m, n, k) < 1:
        return None
    a = TensorSpec(second, (n, k), stride=(k, 1) if trans[1] == "n" else (1, n))
    b = TensorSpec(first, (k, m), stride=(m, 1) if trans[0] == "n" else (1, k))
    if not first.startswith(NARROW):
        return OperatorSignature("aten::mm", (a, b))
    modes = " ".join(str(call.get(key, "")) for key in ("scale_a", "scale_b"))
    formats = {first, second}
    narrow = next((dtype for dtype in (float8.E2M1, float8.E5M2) if dtype in formats), float8.E4M3)
    way = float8.Way(
        SCALES.get(modes, "tensor"),
        bool(call.get("fast_accumulation")),
        narrow,
        library_dtype(str(call.get("c", "bf16"))),
    )
    return float8.product(n, m, k, way)


def _attention(call: Mapping[str, Any]) -> OperatorSignature:
    batch, heads, queries, keys, head = (int(call[key]) for key in ("b", "h", "sq", "skv", "d"))
    groups, value_head = int(call.get("hkv", heads)), int(call.get("dv", head))
    dtype, causal = library_dtype(str(call["a"])), bool(call.get("causal", 0))
    dropped = 0.1 if call.get("dropout", 0) else 0.0
    q = _heads(dtype, batch, heads, queries, head)
    k, v = _heads(dtype, batch, groups, keys, head), _heads(dtype, batch, groups, keys, value_head)
    if call["call"] == "sdpa_fwd":
        args = (q, k, v, None, None, None, queries, keys, True, dropped, causal, False, None)
        return OperatorSignature(ATTENTION["sdpa_fwd"], args)
    out = _heads(dtype, batch, heads, queries, value_head)
    sums = TensorSpec("float32", (batch, heads, queries, 1), stride=contiguous_strides((batch, heads, queries, 1)))
    seed = TensorSpec("int64", (), stride=())
    return OperatorSignature(
        ATTENTION["sdpa_bwd"],
        (out, q, k, v, out, sums, seed, seed, None, None, None, queries, keys, dropped, causal, None),
        backward=True,
    )


def _heads(dtype: str, batch: int, heads: int, length: int, head: int) -> TensorSpec:
    """As torch's own operators get them: heads lie within tokens."""
    return TensorSpec(dtype, (batch, heads, length, head), stride=(heads * length * head, head, heads * head, 1))
