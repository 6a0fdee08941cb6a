"""Stand-in for ``deep_gemm._C`` of DeepGEMM: products of 8 and 16 bits, plain and of experts.

They have the prices of torch's products. Shapes and checks are those of its csrc (2.6). Operands are (rows,
k) and (columns, k), as the names with ``nt`` have them; the others are turned to that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from phantora.rank.standins.kernels import check, launch, operator, spec

TILE = 128
Scaled = tuple[Any, Any]
_settings: dict[str, Any] = {"num_sms": 0, "tc_util": 100, "pdl": False, "mk_alignment": TILE}


def _assert(holds: bool, what: str) -> None:
    check(holds, f"DeepGEMM: assertion failed: {what}")


def _product(name: str, left: Any, right: Any, scales: tuple[Any, ...], rows: int, columns: int) -> None:
    """`left` is (.., rows, k) and `right` (.., k, columns); `scales` stand behind them."""
    blocks = max(1, -(-rows // TILE) * -(-columns // TILE))
    operator(name, [left, right, *scales], lambda: launch("deep_gemm_kernel", blocks, 384))


def _laid_out(scale: Any) -> None:
    """Scales along columns are copied to rows of columns, unless they lie so."""
    if scale.dim() > 1 and scale.stride(-2) != 1 and scale.shape[-2] > 1:
        operator("deep_gemm::transpose_scales", [scale, scale], lambda: launch("transpose_fp32", scale.shape[-2]))


def _plain(a: Any, b: Any, d: Any, scales: tuple[Any, ...]) -> None:
    _assert(a.dim() == b.dim() == d.dim() == 2, "a, b and d have two dimensions")
    (m, k), (n, deep) = a.shape, b.shape
    _assert(tuple(d.shape) == (m, n) and k == deep, "m == m_ and n == n_ and k == k_")
    _assert(str(d.dtype) in ("torch.bfloat16", "torch.float32"), "d is bfloat16 or float")
    if d.numel() == 0:
        return
    for each in scales:
        _laid_out(each)
    _product("aten::_scaled_mm" if scales else "aten::mm", a, b.t(), scales, m, n)


def fp8_fp4_gemm_nt(a: Scaled, b: Scaled, d: Any, c: Any = None, *options: Any, **named: Any) -> None:
    """`a` and `b` are tensors with their scales; the product goes into `d` (rows, columns)."""
    if c is not None and c.data_ptr() != d.data_ptr():
        d.copy_(c)
    _plain(a[0], b[0], d, (a[1], b[1]))


def bf16_gemm_nt(a: Any, b: Any, d: Any, c: Any = None, compiled_dims: str = "nk") -> None:
    """The product goes into `d` (rows, columns)."""
    if c is not None and c.data_ptr() != d.data_ptr():
        d.copy_(c)
    _plain(a, b, d, ())


def cublaslt_gemm_nt(a: Any, b: Any, d: Any, c: Any = None) -> None:
    """A product of 16 bits by cuBLASLt."""
    bf16_gemm_nt(a, b, d, c)


def _turned(value: Any) -> Any:
    return tuple(each.transpose(-1, -2) for each in value) if isinstance(value, tuple) else value.transpose(-1, -2)


def _in_layout(product: Callable[..., None], layout: str) -> Callable[..., None]:
    """`product` for operands of which ``t`` as the first, and ``n`` as the second, lie the other way."""

    def turned(a: Any, b: Any, *args: Any, **kwargs: Any) -> None:
        product(_turned(a) if layout[0] == "t" else a, _turned(b) if layout[1] == "n" else b, *args, **kwargs)

    return turned


def _of_experts(a: Any, b: Any, d: Any, layout: Any, scales: tuple[Any, ...]) -> None:
    import torch

    _assert(a.dim() == 2 and b.dim() == 3 and d.dim() == 2, "a and d have two dimensions, b has three")
    (m, k), (groups, n, deep) = a.shape, b.shape
    _assert(tuple(d.shape) == (m, n) and k == deep, "m == m_ and n == n_ and k == k_")
    _assert(d.dtype == torch.bfloat16, "d.scalar_type() == torch::kBFloat16")
    _assert(layout.dtype == torch.int32 and layout.is_contiguous(), "grouped_layout.scalar_type() == torch::kInt")
    _assert(layout.numel() in (m, groups), "grouped_layout has an entry for each row or group")
    if m == 0:
        return
    if scales:
        _laid_out(scales[0])
    name = "aten::_scaled_grouped_mm" if scales else "aten::_grouped_mm"
    _product(name, a, b.transpose(1, 2), (*scales, spec(torch.int32, groups)), m, n)


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Any, grouped_layout: Any, *options: Any, **named: Any
) -> None:
    """`a` is (tokens, k) and `b` (experts, columns, k), each with scales."""
    _of_experts(a[0], b[0], d, grouped_layout, (a[1], b[1]))


def m_grouped_bf16_gemm_nt_contiguous(a: Any, b: Any, d: Any, grouped_layout: Any, *options: Any, **named: Any) -> None:
    """`a` is (tokens, k) and `b` (experts, columns, k)."""
    _of_experts(a, b, d, grouped_layout, ())


def _masked(a: Any, b: Any, d: Any, masked_m: Any, expected_m: int, scales: tuple[Any, ...]) -> None:
    import torch

    _assert(a.dim() == b.dim() == d.dim() == 3, "a, b and d have three dimensions")
    (groups, m, k), (experts, n, deep) = a.shape, b.shape
    _assert(groups == experts == masked_m.numel() and tuple(d.shape) == (groups, m, n), "num_groups == num_groups_")
    _assert(k == deep, "m == m_ and n == n_ and k == k_")
    _assert(expected_m > 0, "expected_m > 0")
    _assert(masked_m.dtype == torch.int32, "masked_m.scalar_type() == torch::kInt")
    rows = groups * min(expected_m, m)  # that are computed
    name = "aten::_scaled_grouped_mm" if scales else "aten::_grouped_mm"
    _product(name, spec(a.dtype, rows, k), b.transpose(1, 2), (*scales, spec(torch.int32, groups)), rows, n)


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Scaled, b: Scaled, d: Any, masked_m: Any, expected_m: int, *options: Any, **named: Any
) -> None:
    """`a` is (experts, most rows, k): of each expert `expected_m` rows are taken as used."""
    _masked(a[0], b[0], d, masked_m, expected_m, (a[1], b[1]))


def m_grouped_bf16_gemm_nt_masked(
    a: Any, b: Any, d: Any, masked_m: Any, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """Products of experts with masked rows, in 16 bits."""
    _masked(a, b, d, masked_m, expected_m, ())


def _of_weights(a: Any, b: Any, d: Any, scales: tuple[Any, ...]) -> None:
    import torch

    _assert(a.dim() == b.dim() == 2 and d.dim() == 3, "a and b have two dimensions, d has three")
    groups, m, n = d.shape
    _assert(a.shape[0] == b.shape[0] and (a.shape[1], b.shape[1]) == (m, n), "m == m_ and n == n_ and sum_k == sum_k_")
    name = "aten::_scaled_grouped_mm" if scales else "aten::_grouped_mm"
    _product(name, a.t(), b, (*scales, spec(torch.int32, groups)), m * groups, n)


def k_grouped_fp8_gemm_tn_contiguous(a: Scaled, b: Scaled, d: Any, *options: Any, **named: Any) -> None:
    """Each expert's rows of `a` (tokens, rows) and `b` (tokens, columns) are multiplied, into `d`."""
    _of_weights(a[0], b[0], d, (a[1], b[1]))


def k_grouped_bf16_gemm_tn_contiguous(a: Any, b: Any, d: Any, *options: Any, **named: Any) -> None:
    """Gradients of experts' weights, in 16 bits."""
    _of_weights(a, b, d, ())


def get_mn_major_tma_aligned_tensor(scale: Any) -> Any:
    """Scales with columns next to each other."""
    return scale.transpose(-1, -2).contiguous().transpose(-1, -2)


def get_tma_aligned_size(extent: int, item: int) -> int:
    """`extent` elements of `item` bytes, rounded to 16 bytes."""
    return -(-extent * item // 16) * 16 // item


def init(root: str, cuda: str) -> None:
    """Nothing is compiled."""


def _setting(name: str) -> dict[str, Callable[..., Any]]:
    def read() -> Any:
        import torch

        return _settings[name] or (torch.cuda.get_device_properties().multi_processor_count if name == "num_sms" else 0)

    return {f"set_{name}": partial(_settings.__setitem__, name), f"get_{name}": read}


def _absent(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"deep_gemm.{name} has no stand-in: only its products run without its compiled half")

    return call


_ABSENT = (
    *("fp8_gemm_nt_skip_head_mid", "k_grouped_fp8_gemm_nt_contiguous", "einsum", "fp8_einsum", "fp8_fp4_mqa_logits"),
    *("get_paged_mqa_logits_metadata", "fp8_fp4_paged_mqa_logits", "fp8_mqa_logits", "fp8_paged_mqa_logits"),
    *("tf32_hc_prenorm_gemm", "transform_sf_into_required_layout", "get_mn_major_tma_aligned_packed_ue8m0_tensor"),
    *("get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", "set_ignore_compile_dims", "fp8_fp4_mega_moe"),
    *("set_block_size_multiple_of", "get_theoretical_mk_alignment_for_contiguous_layout", "bf16_mega_moe"),
    *("get_token_alignment_for_mega_moe", "get_ring_limit_for_mega_moe", "get_symm_buffer_size_for_mega_moe"),
)


def exported() -> dict[str, Callable[..., Any]]:
    """All functions of the compiled module by name."""
    made: dict[str, Callable[..., Any]] = {
        f"{kind}_gemm_{layout}": _in_layout(product, layout)
        for kind, product in (("fp8_fp4", fp8_fp4_gemm_nt), ("bf16", bf16_gemm_nt), ("cublaslt", cublaslt_gemm_nt))
        for layout in ("nt", "nn", "tn", "tt")
    }
    for kind, product in (
        ("fp8_fp4", m_grouped_fp8_fp4_gemm_nt_contiguous),
        ("bf16", m_grouped_bf16_gemm_nt_contiguous),
    ):
        for layout in ("nt", "nn"):
            made[f"m_grouped_{kind}_gemm_{layout}_contiguous"] = _in_layout(product, layout)
    made["m_grouped_fp8_fp4_gemm_nt_masked"] = m_grouped_fp8_fp4_gemm_nt_masked
    made["m_grouped_bf16_gemm_nt_masked"] = m_grouped_bf16_gemm_nt_masked
    made["k_grouped_fp8_gemm_tn_contiguous"] = k_grouped_fp8_gemm_tn_contiguous
    made["k_grouped_bf16_gemm_tn_contiguous"] = k_grouped_bf16_gemm_tn_contiguous
    made |= {name.replace("fp8_fp4", "fp8"): made[name] for name in list(made) if "fp8_fp4" in name}
    for name in ("num_sms", "tc_util", "pdl"):
        made |= _setting(name)
    alignment = _setting("mk_alignment")
    made |= {name.replace("mk_alignment", "mk_alignment_for_contiguous_layout"): alignment[name] for name in alignment}
    own = (get_mn_major_tma_aligned_tensor, get_tma_aligned_size, init)
    return made | {each.__name__: each for each in own} | {name: _absent(name) for name in _ABSENT}
