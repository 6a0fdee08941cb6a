"""Stand-in for ``megablocks_ops`` of megablocks: what routes tokens to experts.

Its products are Triton kernels, or those of grouped_gemm. Here are torch's operators, whose results are the library's
and whose kernels are of the same kind.
"""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.kernels import check, launch, operator


def _indices(x: Any) -> None:
    import torch

    check(x.is_cuda, "x.is_cuda()")
    check(x.dtype in (torch.int16, torch.int32, torch.int64), "x must be short, int or long")


def exclusive_cumsum(x: Any, dim: int, out: Any) -> None:
    """Sums of what is before each element."""
    _indices(x)
    check(x.dim() == 2 and x.shape == out.shape, "x.ndimension() == 2")
    out.copy_(x.cumsum(dim) - x)


def inclusive_cumsum(x: Any, dim: int, out: Any) -> None:
    """Sums up to each element."""
    _indices(x)
    check(x.dim() == 2 and x.shape == out.shape, "x.ndimension() == 2")
    out.copy_(x.cumsum(dim))


def histogram(x: Any, bins: int) -> Any:
    """Counts of 0 to `bins` - 1, in int32; of each row if there are rows."""
    import torch

    _indices(x)
    check(x.dim() in (1, 2), "x.ndimension() == 1 || x.ndimension() == 2")
    shape = (bins,) if x.dim() == 1 else (x.shape[0], bins)
    ones = torch.ones_like(x, dtype=torch.int32)
    return torch.zeros(shape, dtype=torch.int32, device=x.device).scatter_add_(-1, x.long(), ones)


def sort(x: Any, end_bit: int, x_out: Any, iota_out: Any) -> None:
    """Sorted values and their places."""
    _indices(x)
    check(x.dim() == 1 and x.shape == x_out.shape == iota_out.shape, "x.ndimension() == 1")
    values, places = x.sort()
    x_out.copy_(values)
    iota_out.copy_(places)


def indices(padded_bins: Any, block_size: int, block_rows: int, block_columns: int, out: Any) -> None:
    """Columns of the blocks of the experts' matrix."""
    check(padded_bins.dim() == 1 and padded_bins.is_cuda, "padded_bins.ndimension() == 1")
    check(out.numel() == block_rows * block_columns, "out must have an element for each block")
    given = [padded_bins, out]
    operator("megablocks::indices", given, lambda: launch("ConstructIndices", padded_bins.numel()))


def replicate_forward(x: Any, bins: Any, out: Any) -> None:
    """Repeats an element of each row as often as its bin is long."""
    check(x.dim() == 2 and out.dim() == 2, "x.ndimension() == 2")
    operator("megablocks::replicate", [x, bins, out], lambda: launch("ReplicateForward", -(-out.numel() // 128)))


def replicate_backward(gradient: Any, bins: Any, out: Any) -> None:
    """Sums over bins."""
    check(gradient.dim() == 2 and out.dim() == 2, "grad.ndimension() == 2")
    operator("megablocks::replicate_backward", [gradient, bins, out], lambda: launch("SegmentedReduce", bins.numel()))
