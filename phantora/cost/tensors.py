"""Sizes, strides and traffic of tensor arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from phantora.cost.types import OperatorSignature, TensorSpec

_BYTES = {
    "float64": 8,
    "double": 8,
    "int64": 8,
    "long": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "float32": 4,
    "float": 4,
    "int32": 4,
    "int": 4,
    "uint32": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "int16": 2,
    "short": 2,
    "uint16": 2,
    "complex32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


INDEX_BYTES = 8  # of an index: int64
INDICES = ("int64", "int32")  # dtypes that indices have
HALVES = ("bfloat16", "float16")


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a torch dtype; the 8-bit and smaller formats take one."""
    known = _BYTES.get(dtype)
    if known is not None:
        return known
    if dtype.startswith(("float8", "float4", "quint", "qint8", "int4", "uint4", "bits")):
        return 1
    return 4


def numel(shape: Iterable[int]) -> int:
    """Elements of a tensor of this shape."""
    return prod(shape)


def nbytes(tensor: TensorSpec) -> int:
    """Bytes of the elements (not of a storage with gaps); of a sparse tensor those stored, indices included."""
    if tensor.layout and tensor.stored >= 0:
        return tensor.stored * (item_bytes(tensor.dtype) + INDEX_BYTES * (2 if tensor.layout == "sparse_coo" else 1))
    return prod(tensor.shape) * item_bytes(tensor.dtype)


def traffic(tensor: TensorSpec) -> int:
    """Bytes that reading the tensor once moves: a dimension of stride 0 is one row."""
    if tensor.layout:
        return nbytes(tensor)
    size = item_bytes(tensor.dtype)
    for extent, stride in zip(tensor.shape, tensor.stride, strict=True):
        size *= 1 if stride == 0 else extent
    return size


@lru_cache(maxsize=4096)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements, of a dense tensor."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def dense(tensor: TensorSpec) -> bool:
    """Without gaps or overlaps in some order of the dimensions: what TensorIterator can flatten."""
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n != 1):
        if stride != step:
            return False
        step *= extent
    return True


def layout(tensor: TensorSpec) -> tuple[int, ...]:
    """Dimensions from the slowest to the fastest: equal layouts can be walked in one pass."""
    pairs = enumerate(zip(tensor.shape, tensor.stride, strict=True))
    order = sorted((-stride, i) for i, (extent, stride) in pairs if extent != 1)
    return tuple(i for _, i in order)


def tensors(args: Iterable[Any]) -> Iterator[TensorSpec]:
    """All tensors in `args`, lists flattened, in order."""
    for value in args:
        if isinstance(value, TensorSpec):
            yield value
        elif isinstance(value, tuple):
            yield from tensors(value)


def on_gpu(args: Iterable[Any]) -> list[TensorSpec]:
    """The GPU tensors of `args` (scalars wrapped as CPU tensors don't move through memory)."""
    return [t for t in tensors(args) if t.device != "cpu"]


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to; if they don't, that of most elements."""
    result: list[int] = []
    shapes = list(shapes)
    for shape in shapes:
        if len(shape) > len(result):
            result = [1] * (len(shape) - len(result)) + result
        for i, extent in enumerate(reversed(shape), start=1):
            if extent != 1:
                if result[-i] not in (1, extent):
                    return max(shapes, key=prod)
                result[-i] = extent
    return tuple(result)


def tensor_at(args: tuple[Any, ...], index: int) -> TensorSpec | None:
    """The argument at `index` if it is a tensor."""
    value = args[index] if 0 <= index < len(args) else None
    return value if isinstance(value, TensorSpec) else None


def ints_at(args: tuple[Any, ...], index: int) -> tuple[int, ...]:
    """A list of integers among the arguments; a single integer counts as one."""
    value = args[index] if 0 <= index < len(args) else None
    if isinstance(value, bool):
        return (int(value),)
    if isinstance(value, int):
        return (value,)
    if isinstance(value, tuple):
        return tuple(int(v) for v in value if isinstance(v, (int, bool)))
    return ()


def int_tuples(args: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """The arguments that are lists of integers, empty ones too."""
    return [value for value in args if isinstance(value, tuple) and all(type(v) is int for v in value)]


_NUMBER = TensorSpec("float64", (), stride=(), device="cpu")
_RATE = 0.1


def as_measured(signature: OperatorSignature) -> OperatorSignature:
    """`signature` as tables have its work: :func:`reading_once`, then :func:`returning`."""
    return returning(reading_once(signature))


def reading_once(signature: OperatorSignature) -> OperatorSignature:
    """The square of a tensor as the operator that moves as much: ``x * x`` as ``x`` times a number, and
    ``addcmul(a, x, x)`` as ``lerp(a, x, number)``. Tables contain both, and of products those of two tensors only."""
    if not signature.square:
        return signature
    name, _, overload = signature.name.partition(".")
    if "addcmul" in name:
        args = (*signature.args[:2], _RATE)
        return replace(signature, name=f"{name.replace('addcmul', 'lerp')}.Scalar", args=args, square=False)
    return replace(signature, name=f"{name}.{overload}", args=(signature.args[0], _NUMBER), square=False)


def returning(signature: OperatorSignature) -> OperatorSignature:
    """An elementwise operator that writes into a tensor it is given (`aten::clamp.out`) as the one that returns it.

    That tensor is not read. Others are as they are: where an operand has another shape or dtype than the result, the
    result determines the work (`aten::_chunk_cat.out`), and tables contain it.
    """
    name, _, overload = signature.name.partition(".")
    if not (overload == "out" or overload.endswith("_out")) or not signature.args:
        return signature
    *given, last = signature.args
    if not isinstance(last, TensorSpec) or (last.dtype, last.shape) not in [(t.dtype, t.shape) for t in tensors(given)]:
        return signature
    if any(isinstance(value, tuple) and any(tensors(value)) for value in given):  # lists of tensors
        return signature
    kind = overload.removesuffix("out").removesuffix("_")
    return replace(signature, name=f"{name}.{kind}" if kind else name, args=tuple(given))
