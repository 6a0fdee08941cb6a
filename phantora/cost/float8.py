"""torch's FP8 products: how their operands are scaled and their sums accumulated, which decides what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.cost.tensors import tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec

NAME = "aten::_scaled_mm"
BLOCK = 128  # elements that share a scale, in a row or on each side of a block
_OUT, _FAST = 6, 7  # arguments: dtype of the result, fast accumulation


@dataclass(frozen=True)
class Way:
    """How an FP8 product is made."""

    scales: str = "tensor"
    """What has a scale of its own: a ``tensor``, its ``rows``, ``vectors`` of 128 in a row, or, of the second operand,
    ``blocks`` of 128 x 128 (of the first, vectors)."""
    fast: bool = False
    """Are sums kept in the tensor cores' own registers alone?"""
    first: str = "float8_e4m3fn"
    """dtype of the first operand; the second's is e4m3. Gradients are in e5m2 under Transformer Engine."""
    out: str = "bfloat16"

    @property
    def narrow(self) -> str:
        """Its name among all."""
        return f"{self.wide} {self.first} {self.out}"

    @property
    def wide(self) -> str:
        """Its name among those that differ in more than dtypes."""
        return f"{self.scales} {'fast' if self.fast else 'split'}"


FORWARD = Way(fast=True)
WAYS = {
    "tensor": (
        FORWARD, Way(), Way(first="float8_e5m2"), Way(first="float8_e5m2", out="float32"),
    ),
    "rows": (Way("rows", fast=True), Way("rows")),
    "blocks": (Way("blocks"), Way("vectors")),
}  # fmt: skip
"""Those that training uses: forward passes, and gradients of inputs and of weights."""


def product(m: int, n: int, k: int, way: Way) -> OperatorSignature:
    """m x k by k x n. Hopper multiplies FP8 in this layout alone: both operands lie along k."""
    a, b = TensorSpec(way.first, (m, k), (k, 1)), TensorSpec("float8_e4m3fn", (k, n), (1, k))
    scale_a, scale_b = _scales(m, n, k, way)
    return OperatorSignature(NAME, (a, b, scale_a, scale_b, None, None, way.out, way.fast))


def way_of(signature: OperatorSignature) -> Way | None:
    """How the product `signature` is made; None if it is none, or scaled by formats of their own (MXFP8, NVFP4)."""
    a, b, scale = (tensor_at(signature.args, i) for i in range(3))
    if signature.name.partition(".")[0] != NAME or a is None or b is None or scale is None or scale.dtype != "float32":
        return None
    out, fast = signature.args[_OUT : _OUT + 1], signature.args[_FAST : _FAST + 1] == (True,)
    dtype = out[0] if out and isinstance(out[0], str) else a.dtype
    scale_b = tensor_at(signature.args, 3)
    return Way(_scaled_by(scale, scale_b, a.shape), fast, a.dtype, dtype)


def _scaled_by(scale: TensorSpec, other: TensorSpec | None, shape: tuple[int, ...]) -> str:
    if len(scale.shape) < 2 or scale.shape == (1, 1):
        return "tensor"
    if scale.shape[1] == 1 and shape[1] > BLOCK:
        return "rows"
    blocks = other is not None and len(other.shape) == 2 and other.stride[0] == 1
    return "blocks" if blocks or scale.stride[-1] == 1 else "vectors"


def _scales(m: int, n: int, k: int, way: Way) -> tuple[TensorSpec, TensorSpec]:
    """As torch wants them."""
    if way.scales == "tensor":
        one = TensorSpec("float32", (), ())
        return one, one
    if way.scales == "rows":
        return TensorSpec("float32", (m, 1), (1, 1)), TensorSpec("float32", (1, n), (n, 1))
    along = -(-k // BLOCK)
    of_a = TensorSpec("float32", (m, along), (1, m))
    if way.scales == "vectors":
        return of_a, TensorSpec("float32", (along, n), (n, 1))
    return of_a, TensorSpec("float32", (along, -(-n // BLOCK)), (1, along))
