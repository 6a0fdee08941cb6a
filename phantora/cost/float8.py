"""torch's products in FP8 and FP4: how operands are scaled and sums accumulated, which decides what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.cost.tensors import tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec

NAME, NEWER = "aten::_scaled_mm", "aten::_scaled_mm_v2"
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
E2M1 = "float4_e2m1fn_x2"  # two elements in a byte
MICROSCALED = {"float8_e8m0fnu": "mx", E4M3: "nv"}  # by the dtype of scales: MXFP8 and MXFP4, NVFP4
SHARED_BY = {"mx": 32, "nv": 16}  # elements along k that share such a scale
SHARED = 128  # elements that share a scale, in a row or on each side of a block
_OUT, _FAST = 6, 7  # arguments: dtype of the result, fast accumulation
_RECIPES, _OUT_NEWER, _FAST_NEWER = (3, 6), 9, 11  # those of the newer operator
_BY_RECIPE = {
    "0 0": "tensor",
    "1 1": "rows",
    "4 4": "vectors",
    "4 5": "blocks",
    "5 4": "blocks",
    "3 3": "mx",
    "2 2": "nv",
    "2 0 2 0": "nv",
}
"""Scaled parts, by the numbers of torch's ``ScalingType`` for both operands."""


@dataclass(frozen=True)
class Way:
    """Scaling and accumulation of an FP8 product."""

    scales: str = "tensor"
    """The part with a scale of its own: a ``tensor``, its ``rows``, ``vectors`` of 128 in a row, or, of the second
    operand, ``blocks`` of 128 x 128 (of the first, vectors); 32 (``mx``) or 16 (``nv``) elements in a row."""
    fast: bool = False
    """Sums stay in the tensor cores' own registers."""
    first: str = E4M3
    """dtype of the first operand; the second's is e4m3, or e2m1 as well. Gradients are in e5m2 under Transformer
    Engine."""
    out: str = "bfloat16"

    @property
    def narrow(self) -> str:
        """Name of the form among all."""
        return f"{self.wide} {self.first} {self.out}"

    @property
    def wide(self) -> str:
        """Name of the form among those that differ in more than dtypes."""
        return f"{self.scales} {'fast' if self.fast else 'split'}"


FORWARD = Way(fast=True)
WAYS = {
    "tensor": (FORWARD, Way(), Way(first=E5M2), Way(first=E5M2, out="float32")),
    "rows": (Way("rows", fast=True), Way("rows")),
    "blocks": (Way("blocks"), Way("vectors")),
}
"""Ways that training uses: forward passes, and gradients of inputs and of weights."""


def product(m: int, n: int, k: int, way: Way) -> OperatorSignature:
    """m x k by k x n, k in elements. Hopper multiplies FP8 in this layout alone: both operands lie along k."""
    stored = k // elements(way.first)
    second = E2M1 if way.first == E2M1 else E4M3
    a, b = TensorSpec(way.first, (m, stored), stride=(stored, 1)), TensorSpec(second, (stored, n), stride=(1, stored))
    scale_a, scale_b = _scales(m, n, k, way)
    return OperatorSignature(NAME, (a, b, scale_a, scale_b, None, None, way.out, way.fast))


def way_of(signature: OperatorSignature) -> Way | None:
    """Way of the product `signature`; None if it is none, or scaled in a way that torch does not know."""
    name = signature.name.partition(".")[0]
    args = signature.args
    a, b = tensor_at(args, 0), tensor_at(args, 1)
    if name not in (NAME, NEWER) or a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2:
        return None
    if name == NEWER:
        recipes = [args[i] if len(args) > i and isinstance(args[i], tuple) else () for i in _RECIPES]
        scales = _BY_RECIPE.get(" ".join(str(n) for recipe in recipes for n in recipe))
        out, fast = args[_OUT_NEWER : _OUT_NEWER + 1], args[_FAST_NEWER : _FAST_NEWER + 1]
    else:
        scales = _scaled_by(tensor_at(args, 2), tensor_at(args, 3), a.shape)
        out, fast = args[_OUT : _OUT + 1], args[_FAST : _FAST + 1]
    if scales is None:
        return None
    first = next((dtype for dtype in (E2M1, E5M2) if dtype in (a.dtype, b.dtype)), E4M3)
    return Way(scales, fast == (True,), first, out[0] if out and isinstance(out[0], str) else a.dtype)


def as_tables_have_it(signature: OperatorSignature) -> OperatorSignature:
    """The product of the same extents, made in the same way, as :func:`product` writes it, however the operator was
    called; another operator as it is. A bias costs next to nothing next to the product."""
    way = way_of(signature)
    if way is None:
        return signature
    a, b = tensor_at(signature.args, 0), tensor_at(signature.args, 1)
    assert a is not None and b is not None  # or there were no way
    return product(a.shape[0], b.shape[1], a.shape[1] * elements(a.dtype), way)


def elements(dtype: str) -> int:
    """Elements of `dtype` in one that torch counts."""
    return 2 if dtype == E2M1 else 1


def _scaled_by(scale: TensorSpec | None, other: TensorSpec | None, shape: tuple[int, ...]) -> str | None:
    if scale is not None and scale.dtype in MICROSCALED:
        return MICROSCALED[scale.dtype]
    if scale is None or scale.dtype != "float32":
        return None
    if len(scale.shape) < 2 or scale.shape == (1, 1):
        return "tensor"
    if scale.shape[1] == 1 and shape[1] > SHARED:
        return "rows"
    of_blocks = other is not None and len(other.shape) == 2 and other.stride[0] == 1
    return "blocks" if of_blocks else "vectors"


def _scales(m: int, n: int, k: int, way: Way) -> tuple[TensorSpec, TensorSpec]:
    """As torch wants them."""
    if way.scales == "tensor":
        one = TensorSpec("float32", (), stride=())
        return one, one
    if way.scales == "rows":
        return TensorSpec("float32", (m, 1), stride=(1, 1)), TensorSpec("float32", (1, n), stride=(n, 1))
    if way.scales in SHARED_BY:
        dtype = next(dtype for dtype, scales in MICROSCALED.items() if scales == way.scales)
        counts = [_padded_scales(rows, k, SHARED_BY[way.scales]) for rows in (m, n)]
        return TensorSpec(dtype, (counts[0],), stride=(1,)), TensorSpec(dtype, (counts[1],), stride=(1,))
    along = -(-k // SHARED)
    of_a = TensorSpec("float32", (m, along), stride=(1, m))
    if way.scales == "vectors":
        return of_a, TensorSpec("float32", (along, n), stride=(n, 1))
    return of_a, TensorSpec("float32", (along, -(-n // SHARED)), stride=(1, along))


def _padded_scales(rows: int, k: int, shared: int) -> int:
    """Scales of an operand as cuBLASLt wants them: tiles of 128 rows by 4 scales."""
    return -(-rows // 128) * 128 * -(-k // shared // 4) * 4
