"""What DeepGEMM's stand-ins share: checks of operands, and a product with its price."""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.kernels import check, launch, operator

TILE = 128


def asserted(holds: bool, what: str) -> None:
    """As DG_HOST_ASSERT."""
    check(holds, f"DeepGEMM: assertion failed: {what}")


def padded(extent: int, step: int) -> int:
    """`extent`, rounded up to steps."""
    return -(-extent // step) * step


def depth(operand: Any) -> int:
    """Elements of a row; of 4 bits, two are a byte."""
    import torch

    if operand.dtype != torch.int8:
        return int(operand.shape[-1])
    asserted(torch.cuda.get_device_capability()[0] == 10, "ab.scalar_type() == kPackedFP4 and arch_major == 10")
    return 2 * int(operand.shape[-1])


def _eight(operand: Any) -> Any:
    """An operand for the price: one of 4 bits is multiplied at the rate of 8."""
    if isinstance(operand, dict) or str(operand.dtype) != "torch.int8":
        return operand
    packed = operand.stride().index(1)
    double = [2 if i == packed else 1 for i in range(operand.dim())]
    return {
        "t": "float8_e4m3fn",
        "s": [n * extent for n, extent in zip(double, operand.shape, strict=True)],
        "st": [step * 2 // n for n, step in zip(double, operand.stride(), strict=True)],
    }


def product(name: str, left: Any, right: Any, scales: tuple[Any, ...], rows: int, columns: int) -> None:
    """`left` is (.., rows, k) and `right` (.., k, columns); `scales` stand behind them."""
    blocks = max(1, -(-rows // TILE) * -(-columns // TILE))
    operator(name, [_eight(left), _eight(right), *scales], lambda: launch("deep_gemm_kernel", blocks, 384))
