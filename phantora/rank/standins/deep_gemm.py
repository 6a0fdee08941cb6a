"""Stand-in for ``deep_gemm._C`` of DeepGEMM: products of 4, 8 and 16 bits, plain, of experts and of heads.

They have the prices of torch's products. Shapes and checks are those of its csrc (2.6). Operands are (rows,
k) and (columns, k), as the names with ``nt`` have them; the others are turned to that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from phantora.rank.standins import deep_gemm_attention as attention
from phantora.rank.standins.deep_gemm_operands import TILE, asserted, depth, padded, product
from phantora.rank.standins.kernels import check, launch, operator, spec

Scaled = tuple[Any, Any]
_settings: dict[str, Any] = {"num_sms": 0, "tc_util": 100, "pdl": False, "mk_alignment": TILE}


def _laid_out(scale: Any) -> None:
    """Scales along columns are copied to rows of columns, unless they lie so."""
    if scale.dim() > 1 and scale.stride(-2) != 1 and scale.shape[-2] > 1:
        operator("deep_gemm::transpose_scales", [scale, scale], lambda: launch("transpose_fp32", scale.shape[-2]))


def _plain(a: Any, b: Any, d: Any, scales: tuple[Any, ...]) -> None:
    asserted(a.dim() == b.dim() == d.dim() == 2, "a, b and d have two dimensions")
    m, n = a.shape[0], b.shape[0]
    asserted(tuple(d.shape) == (m, n) and depth(a) == depth(b), "m == m_ and n == n_ and k == k_")
    asserted(str(d.dtype) in ("torch.bfloat16", "torch.float32"), "d is bfloat16 or float")
    if d.numel() == 0:
        return
    for each in scales:
        _laid_out(each)
    product("aten::_scaled_mm" if scales else "aten::mm", a, b.t(), scales, m, n)


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

    asserted(a.dim() == 2 and b.dim() == 3 and d.dim() == 2, "a and d have two dimensions, b has three")
    m, (groups, n) = a.shape[0], b.shape[:2]
    asserted(tuple(d.shape) == (m, n) and depth(a) == depth(b), "m == m_ and n == n_ and k == k_")
    asserted(d.dtype == torch.bfloat16, "d.scalar_type() == torch::kBFloat16")
    asserted(layout.dtype == torch.int32 and layout.is_contiguous(), "grouped_layout.scalar_type() == torch::kInt")
    asserted(layout.numel() in (m, groups), "grouped_layout has an entry for each row or group")
    if m == 0:
        return
    if scales:
        _laid_out(scales[0])
    name = "aten::_scaled_grouped_mm" if scales else "aten::_grouped_mm"
    product(name, a, b.transpose(1, 2), (*scales, spec(torch.int32, groups)), m, n)


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

    asserted(a.dim() == b.dim() == d.dim() == 3, "a, b and d have three dimensions")
    (groups, m), (experts, n), k = a.shape[:2], b.shape[:2], depth(a)
    asserted(groups == experts == masked_m.numel() and tuple(d.shape) == (groups, m, n), "num_groups == num_groups_")
    asserted(k == depth(b), "m == m_ and n == n_ and k == k_")
    asserted(expected_m > 0, "expected_m > 0")
    asserted(masked_m.dtype == torch.int32, "masked_m.scalar_type() == torch::kInt")
    rows = groups * min(expected_m, m)  # that are computed
    name = "aten::_scaled_grouped_mm" if scales else "aten::_grouped_mm"
    product(
        name,
        spec(torch.float8_e4m3fn if scales else a.dtype, rows, k),
        b.transpose(1, 2),
        (*scales, spec(torch.int32, groups)),
        rows,
        n,
    )


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

    asserted(a.dim() == b.dim() == 2 and d.dim() == 3, "a and b have two dimensions, d has three")
    groups, m, n = d.shape
    asserted(a.shape[0] == b.shape[0] and (a.shape[1], b.shape[1]) == (m, n), "m == m_ and n == n_ and sum_k == sum_k_")
    name = "aten::_scaled_grouped_mm" if scales else "aten::_grouped_mm"
    product(name, a.t(), b, (*scales, spec(torch.int32, groups)), m * groups, n)


def k_grouped_fp8_gemm_tn_contiguous(a: Scaled, b: Scaled, d: Any, *options: Any, **named: Any) -> None:
    """Each expert's rows of `a` (tokens, rows) and `b` (tokens, columns) are multiplied, into `d`."""
    _of_weights(a[0], b[0], d, (a[1], b[1]))


def k_grouped_bf16_gemm_tn_contiguous(a: Any, b: Any, d: Any, *options: Any, **named: Any) -> None:
    """Gradients of experts' weights, in 16 bits."""
    _of_weights(a, b, d, ())


def k_grouped_fp8_gemm_nt_contiguous(a: Scaled, b: Scaled, d: Any, ks_cpu: Any, *options: Any, **named: Any) -> None:
    """As the one with rows of tokens, with each expert's columns one after the other."""
    _, m, n = d.shape
    tokens = sum(ks_cpu)
    asserted(a[0].numel() == tokens * m, "sum_mk == static_cast<int64_t>(sum_k) * m")
    asserted(b[0].numel() == tokens * n, "sum_nk == static_cast<int64_t>(sum_k) * n")
    _of_weights(a[0].view(tokens, m), b[0].view(tokens, n), d, (a[1], b[1]))


def einsum(expr: str, a: Any, b: Any, d: Any, c: Any = None, use_cublaslt: bool = False) -> None:
    """One of three products of 16 bits, into `d`."""
    import torch

    asserted(a.dtype == b.dtype == torch.bfloat16, "a.scalar_type() == torch::kBFloat16")
    if expr != "bmk,bnk->mn":
        _batched(expr, (a, None), (b, None), d)
        return
    (batch, m, k), n = a.shape, b.shape[1]
    asserted(tuple(b.shape) == (batch, n, k) and tuple(d.shape) == (m, n), "s == s_ and k == k_")
    given = [spec(a.dtype, m, batch * k), spec(a.dtype, batch * k, n)]
    if d.dtype == torch.float32:
        asserted(c is not None and c.data_ptr() == d.data_ptr(), "c->data_ptr() == d.data_ptr()")
        product("aten::mm", given[0], given[1], (), m, n)
        return
    sums = torch.empty_like(d, dtype=torch.float32).zero_()
    product("aten::mm", given[0], given[1], (), m, n)
    d.copy_(sums)


def fp8_einsum(expr: str, a: Scaled, b: Scaled, d: Any, c: Any = None, recipe: Any = (1, 128, 128)) -> None:
    """One of three batched products of 8 bits, into `d`."""
    import torch

    newer = torch.cuda.get_device_capability()[0] == 10
    known = expr == "bhr,hdr->bhd" or (newer and expr in ("bhd,hdr->bhr", "bhd,bhr->hdr"))
    check(known, f"DeepGEMM: Unsupported einsum expression: {expr}")
    _batched(expr, a, b, d)


def _batched(expr: str, a: tuple[Any, Any], b: tuple[Any, Any], d: Any) -> None:
    """A product for each head, h in `expr`: experts of equally many tokens."""
    import torch

    known = expr in ("bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr")
    check(known, f"DeepGEMM: Unsupported einsum expression: {expr}")
    extents: dict[str, int] = {}
    for names, tensor in zip(expr.replace("->", ",").split(","), (a[0], b[0], d), strict=True):
        asserted(tensor.dim() == len(names), "t.dim() == N")
        for name, extent in zip(names, tensor.shape, strict=True):
            asserted(extents.setdefault(name, extent) == extent, "b == b_ and h == h_ and r == r_ and d == d_")
    left, right, out = expr.replace("->", ",").split(",")
    inner = next(name for name in left if name not in out)
    row, column = (next(n for n in names if n not in ("h", inner)) for names in (left, right))
    heads, m, n, k = (extents[name] for name in ("h", row, column, inner))
    given = spec(a[0].dtype, heads * m, k), spec(b[0].dtype, heads, k, n)
    scales = () if a[1] is None else (a[1], b[1])
    name = "aten::_scaled_grouped_mm" if scales else "aten::_grouped_mm"
    product(name, *given, (*scales, spec(torch.int32, heads)), heads * m, n)


def tf32_hc_prenorm_gemm(a: Any, b: Any, d: Any, sqr_sum: Any, num_splits: int | None = None) -> None:
    """`a` (rows, k) of 16 bits times `b` (columns, k), and the sums of the squares of its rows."""
    import torch

    (m, k), (n, deep) = a.shape, b.shape
    parts = () if num_splits is None else (num_splits,)
    fits = tuple(d.shape) == (*parts, m, n) and tuple(sqr_sum.shape) == (*parts, m)
    asserted(fits and k == deep, "m == m_ and m == m__ and n == n_ and k == k_")
    asserted(a.dtype == torch.bfloat16 and b.dtype == d.dtype == torch.float32, "b.scalar_type() == torch::kFloat")
    if m:
        product("aten::mm", a, spec(a.dtype, k, n), (), m, n)


def transform_sf_into_required_layout(
    sf: Any, mn: int, k: int, recipe: tuple[int, ...], num_groups: int | None = None, is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False, psum_layout: Any = None,
) -> Any:  # fmt: skip
    """Scales as the kernels of a GPU read them: columns next to each other, on Blackwell four exponents in an int32."""
    import torch

    asserted((len(recipe) == 3) == (is_sfa is not None), "is_sfa.has_value()")
    rows = recipe[0] if len(recipe) == 2 or is_sfa else recipe[1]
    packed = sf.dtype == torch.int32
    asserted(sf.dim() == 2 + (num_groups is not None), "sf.dim() == num_groups.has_value() + 2")
    asserted(sf.shape[-2] == -(-mn // rows), "sf.size(-2) == ceil_div(mn, gran_mn)")
    asserted(sf.shape[-1] == -(-k // (recipe[-1] * (4 if packed else 1))), "sf.size(-1) == ceil_div(k, gran_k)")
    if packed or (rows > 1 and torch.cuda.get_device_capability()[0] == 9):
        return sf
    if torch.cuda.get_device_capability()[0] == 9 or disable_ue8m0_cast:
        return get_mn_major_tma_aligned_tensor(sf)
    each = sf if rows == 1 else sf.index_select(-2, torch.arange(mn, device=sf.device).floor_divide_(rows))
    return get_mn_major_tma_aligned_packed_ue8m0_tensor(each, psum_layout)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: Any, psum_layout: Any = None) -> Any:
    """Exponents of scales (.., rows, columns), four in an int32, with columns next to each other."""
    import torch

    *batch, rows, columns = sf.shape
    words, step = -(-columns // 4), get_tma_aligned_size(rows, 4)
    strides = (*([words * step] if batch else []), 1, step)
    made = torch.empty_strided((*batch, rows, words), strides, dtype=torch.int32, device=sf.device)
    operator("deep_gemm::transpose_scales", [sf, made], lambda: launch("pack_fp32_into_ue8m0", -(-sf.numel() // 512)))
    return made


def get_mn_major_tma_aligned_tensor(scale: Any) -> Any:
    """Scales with columns next to each other."""
    return scale.transpose(-1, -2).contiguous().transpose(-1, -2)


def get_tma_aligned_size(extent: int, item: int) -> int:
    """`extent` elements of `item` bytes, rounded to 16 bytes."""
    return padded(extent * item, 16) // item


def init(root: str, cuda: str) -> None:
    """Nothing is compiled."""


def _setting(name: str) -> dict[str, Callable[..., Any]]:
    def read() -> Any:
        import torch

        return _settings[name] or (torch.cuda.get_device_properties().multi_processor_count if name == "num_sms" else 0)

    return {f"set_{name}": partial(_settings.__setitem__, name), f"get_{name}": read}


def _absent(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"deep_gemm.{name} has no stand-in: it needs its compiled half")

    return call


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """Rows of a tile: to these each expert's tokens are rounded."""
    import torch

    if torch.cuda.get_device_capability()[0] != 10:
        return TILE
    return 224 if expected_m is None else min(224, max(32, padded(expected_m, 32)))


_ABSENT = (
    *("get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", "fp8_fp4_mega_moe", "bf16_mega_moe"),
    *("get_token_alignment_for_mega_moe", "get_ring_limit_for_mega_moe", "get_symm_buffer_size_for_mega_moe"),
)


def exported() -> dict[str, Callable[..., Any]]:
    """All functions of the compiled module by name."""
    made: dict[str, Callable[..., Any]] = {
        f"{kind}_gemm_{layout}": _in_layout(product, layout)
        for kind, product in (("fp8_fp4", fp8_fp4_gemm_nt), ("bf16", bf16_gemm_nt), ("cublaslt", cublaslt_gemm_nt))
        for layout in ("nt", "nn", "tn", "tt")
    }
    for kind, multiplied in (
        ("fp8_fp4", m_grouped_fp8_fp4_gemm_nt_contiguous),
        ("bf16", m_grouped_bf16_gemm_nt_contiguous),
    ):
        for layout in ("nt", "nn"):
            made[f"m_grouped_{kind}_gemm_{layout}_contiguous"] = _in_layout(multiplied, layout)
    made["m_grouped_fp8_fp4_gemm_nt_masked"] = m_grouped_fp8_fp4_gemm_nt_masked
    made["m_grouped_bf16_gemm_nt_masked"] = m_grouped_bf16_gemm_nt_masked
    made["k_grouped_fp8_gemm_tn_contiguous"] = k_grouped_fp8_gemm_tn_contiguous
    made["k_grouped_bf16_gemm_tn_contiguous"] = k_grouped_bf16_gemm_tn_contiguous
    made |= {name.replace("fp8_fp4", "fp8"): made[name] for name in list(made) if "fp8_fp4" in name}
    for name in ("num_sms", "tc_util", "pdl"):
        made |= _setting(name)
    alignment = _setting("mk_alignment")
    made |= {name.replace("mk_alignment", "mk_alignment_for_contiguous_layout"): alignment[name] for name in alignment}
    for name in ("ignore_compile_dims", "block_size_multiple_of"):
        made[f"set_{name}"] = _setting(name)[f"set_{name}"]
    own = (
        *(get_mn_major_tma_aligned_tensor, get_mn_major_tma_aligned_packed_ue8m0_tensor, get_tma_aligned_size, init),
        *(transform_sf_into_required_layout, get_theoretical_mk_alignment_for_contiguous_layout),
        *(einsum, fp8_einsum, tf32_hc_prenorm_gemm, k_grouped_fp8_gemm_nt_contiguous),
        *(attention.fp8_fp4_mqa_logits, attention.fp8_mqa_logits, attention.get_paged_mqa_logits_metadata),
        *(attention.fp8_fp4_paged_mqa_logits, attention.fp8_paged_mqa_logits, attention.fp8_gemm_nt_skip_head_mid),
    )
    return made | {each.__name__: each for each in own} | {name: _absent(name) for name in _ABSENT}
