"""Coordinates that make operators comparable: a family of places, and the logarithms of their sizes within it.

Within such a family the same kernels run, or kernels that differ in how they cut the work; between two
members whose sizes are near, the analytic model's error is nearly the same. What operators of several kinds have in
common stands here; phantora/cost/families say which of it they use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Any

from phantora.cost.tensors import dense, layout, nbytes, on_gpu, tensors
from phantora.cost.types import OperatorSignature, TensorSpec

CHUNK = 65536  # elements of a block of torch's multi-tensor kernels (ATen/native/cuda/MultiTensorApply.cuh)


@dataclass(frozen=True)
class Place:
    """Place of an operator in a family: its coordinates there, base-2 logarithms of sizes."""

    family: str
    at: tuple[float, ...]


def log(value: float) -> float:
    """Octaves above one."""
    return log2(max(1.0, value))


def by_size(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Kernels that pass over their operands: bytes, and how much of them lies side by side."""
    given = on_gpu(signature.args)
    if not given:
        return ()
    if lists := tensor_lists(signature):
        return _of_lists(name, lists, given, launches)
    largest = _largest(given)
    dtypes = " ".join(t.dtype for t in given if t.shape)
    shapes = {layout(t) + t.shape for t in given if prod(t.shape) > 1}
    flat = len(shapes) <= 1 and all(dense(t) for t in given)
    form = "flat" if flat else " ".join(_form(t, largest) for t in given)
    size = sum(nbytes(t) for t in given if prod(t.shape) > 1) or nbytes(largest)
    at = (log(size), 0.0 if flat else 0.3 * inner(largest))
    stem = name.rstrip("_")
    # In place or not, of other formats, laid out otherwise.
    wider = f"{stem} {dtypes} {form}", f"{stem} {form}", f"{stem} {dtypes} {flat}"
    return tuple(Place(kind, at) for kind in (f"{name} {dtypes} {form} {_words(signature)}", *wider))


def by_rows(
    signature: OperatorSignature,
    name: str,
    launches: int,
    dims: str = "",
    wider: bool = False,
    images: bool = False,
    at: tuple[float, ...] = (),
    more: tuple[float, ...] = (),
) -> tuple[Place, ...]:
    """Kernels that give rows to threads: how many rows, how long, whether these divide evenly.

    `dims` keeps apart which dimensions they go along; `wider`: others count as well if none of these is near.
    `images`: channels are the rows' elements. `at` replaces the coordinates, `more` adds some.
    """
    given = on_gpu(signature.args)
    if not given:
        return ()
    if lists := tensor_lists(signature):
        return _of_lists(name, lists, given, launches)
    largest = _largest(given)
    dtypes = " ".join(t.dtype for t in given if t.shape)
    count, length = prod(largest.shape[:-1]), largest.shape[-1] if largest.shape else 1
    if len(largest.shape) == 4 and images:
        count, length = largest.shape[0] * prod(largest.shape[2:]), largest.shape[1]
    channels_last = len(largest.stride) in (4, 5) and largest.stride[1] == 1
    form = f"{len(largest.shape) == 4} {channels_last} {_words(signature)}"
    at = (at or (log(count), log(length), 0.3 * _evenness(length))) + more
    narrow = Place(f"{name} {dtypes} {dims} {form}", at)
    return (narrow, Place(f"{name} {dtypes} {form}", at)) if wider else (narrow,)


def bfloat16_for_float16(signature: OperatorSignature) -> OperatorSignature | None:
    """`signature` in bfloat16, which runs in the same kernels; None if it has no float16."""

    def other(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return replace(value, dtype="bfloat16") if value.dtype == "float16" else value
        return tuple(other(item) for item in value) if isinstance(value, tuple) else value

    twin = replace(signature, args=other(signature.args))
    return twin if twin.args != signature.args else None


def kernel_stem(name: str) -> str:
    """The function's own name, without namespaces, template arguments and parameters: the same for a
    mangled name and a readable one."""
    if not name.startswith("_ZN"):
        plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
        return re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2]
    at, stem = 3, ""
    while match := re.compile(r"\d+").match(name, at):
        length = int(match.group())
        stem, at = name[match.end() : match.end() + length], match.end() + length
    return stem


def reduced(signature: OperatorSignature) -> str:
    """The dimensions that are reduced, counted from the last."""
    first = next((t for t in signature.args if isinstance(t, TensorSpec)), None)
    rank = len(first.shape) if first else 0
    for value in signature.args[1:]:
        if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
            return str(sorted(v - rank if v >= 0 else v for v in value))
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value - rank if value >= 0 else value)
    return "all"


def words(signature: OperatorSignature) -> float:
    """Number of rows to look up; counts half as much as other sizes."""
    return 0.5 * log(max((v for v in signature.args if type(v) is int), default=1))


def inner(t: TensorSpec) -> float:
    """Elements that lie side by side, as a logarithm."""
    run = 1
    for extent, stride in zip(reversed(t.shape), reversed(t.stride), strict=True):
        if extent != 1 and stride != run:
            break
        run *= extent
    return log(run)


def tensor_lists(signature: OperatorSignature) -> list[tuple[Any, ...]]:
    """The arguments that are lists of tensors."""
    return [a for a in signature.args if isinstance(a, tuple) and any(isinstance(t, TensorSpec) for t in a)]


def _of_lists(name: str, lists: list[tuple[Any, ...]], given: list[TensorSpec], launches: int) -> tuple[Place, ...]:
    """Multi-tensor kernels give each block a chunk of one tensor: small tensors leave blocks half empty."""
    total = sum(nbytes(t) for a in lists for t in tensors(a))
    dtypes = " ".join(dict.fromkeys(t.dtype for t in given))
    first = list(tensors(lists[0]))
    elements = [prod(t.shape) for t in first]
    chunks = sum(-(-n // CHUNK) for n in elements)
    largest = min(CHUNK, max(elements, default=1))  # a launch lasts at least as long as its longest block
    at = (log(total), log(chunks), log(launches), log(largest))
    return Place(f"{name} {dtypes} {len(lists)}", at), Place(f"{name} {dtypes}", at)


def _largest(given: list[TensorSpec]) -> TensorSpec:
    return max(given, key=lambda t: (prod(t.shape), nbytes(t)))


def _words(signature: OperatorSignature) -> str:
    return " ".join(str(v) for v in signature.args if isinstance(v, (bool, str)) and v not in (False, ""))


def _evenness(extent: int) -> float:
    """Number of times that `extent` can be halved, at most 8: a measure of how evenly rows divide over threads."""
    return min(8.0, log2(extent & -extent)) if extent else 8.0


def _form(t: TensorSpec, largest: TensorSpec) -> str:
    """Layout of `t` relative to the largest operand."""
    if prod(t.shape) == 1:
        return "one"
    if t.shape == largest.shape and t.stride == largest.stride:
        return "dense" if dense(t) else f"gaps{t.stride[-1] if t.stride else 1 == 1}"
    if prod(t.shape) < prod(largest.shape):
        return "broadcast"
    return "other" + "".join(map(str, layout(t)))
