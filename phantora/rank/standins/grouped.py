"""Stand-in for ``grouped_gemm_backend`` of grouped_gemm: products of tokens with the matrices of their experts.

They are torch's grouped product, whose price they take.
"""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.kernels import check, launch, operator, spec


def gmm(a: Any, b: Any, c: Any, batch_sizes: Any, trans_a: bool, trans_b: bool) -> None:
    """`a` is (tokens, k) and `b` (experts, k, n), or (experts, n, k) with `trans_b`; with `trans_a` each expert's rows
    of `a` and of `b` (tokens, n) are multiplied. The result goes into `c`; `batch_sizes` are the experts' tokens, on
    the host."""
    import torch

    check(not (trans_a and trans_b), "grouped_gemm: only one of trans_a and trans_b may be set")
    check(batch_sizes.dim() == 1 and batch_sizes.dtype == torch.int64, "batch_sizes must be int64 of one dimension")
    check(a.is_cuda and a.dim() == 2 and a.dtype == torch.bfloat16, "a must be bfloat16 of two dimensions on CUDA")
    check(b.is_cuda and b.dtype == torch.bfloat16, "b must be bfloat16 on CUDA")
    check(b.dim() == (2 if trans_a else 3), "b must have two dimensions with trans_a, else three")
    experts = batch_sizes.numel()
    if trans_a:
        left, right = a.t(), b
    else:
        left, right = a, b.transpose(1, 2) if trans_b else b
        check(left.shape[1] == right.shape[1], "a and b do not fit: grouped_gemm")
    ends = spec(torch.int32, experts)
    operator("aten::_grouped_mm", [left, right, ends], lambda: launch("grouped_gemm_kernel", 8 * experts, 384))
