"""What makes two operators comparable: a family, and the logarithms of their sizes within it.

Within a family the same kernels run, or kernels that differ in how they cut the work; between two
members whose sizes are near, the analytic model's error is nearly the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Any

from phantora.cost import attention, gemm, reduction
from phantora.cost.catalogue import base_name, classify
from phantora.cost.tensors import dense, layout, nbytes, on_gpu, tensors
from phantora.cost.types import KernelLaunch, OperatorSignature, TensorSpec

CHUNK = 65536  # elements of a block of torch's multi-tensor kernels (ATen/native/cuda/MultiTensorApply.cuh)


@dataclass(frozen=True)
class Place:
    """Where an operator stands in a family: its coordinates there, base-2 logarithms of sizes."""

    cls: str
    family: str
    at: tuple[float, ...]


def places(
    signature: OperatorSignature, compute: str = "", kernels: Sequence[KernelLaunch] = ()
) -> tuple[Place, ...]:
    """The places of `signature`, from its narrowest family to the widest; none for what has no sizes to
    compare. `kernels` are those that it launches, their names mangled or not, if they are known."""
    name = base_name(signature.name)
    cls, _ = classify(name)
    if cls == "gemm":
        return _gemm(signature, name, compute)
    if cls == "attention":
        return _attention(signature, name)
    found = _memory(signature, name, cls, max(1, len(kernels)))
    if not found or not kernels:
        return found
    first = found[0]
    cut = reduction.cut_of(signature, kernels)
    if cut is not None:
        return _reduction(signature, cut, kernels[0].block)
    stems = " ".join(dict.fromkeys(kernel_stem(kernel.name) for kernel in kernels))
    blocks = " ".join(dict.fromkeys(str(kernel.block) for kernel in kernels))
    return (
        Place(cls, f"{first.family} {stems} {blocks}", first.at),
        Place(cls, f"{first.family} {stems}", first.at),
        *found,
    )


def _reduction(signature: OperatorSignature, cut: reduction.Cut, block: tuple[int, int, int]) -> tuple[Place, ...]:
    x = on_gpu(signature.args)[0]
    at = (_log(cut.rounds), _log(cut.blocks), _log(cut.sharing), 0.5 * _log(nbytes(x)))
    kind = f"{signature.name} {x.dtype} cut {cut.wide} {reduction.side_by_side(signature, x)}"
    return Place("reduction", f"{kind} {block}", at), Place("reduction", kind, at)


def bfloat16_for_float16(signature: OperatorSignature) -> OperatorSignature | None:
    """The same operator of bfloat16, which runs in the same kernels; None if it has no float16."""

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


def _log(value: float) -> float:
    return log2(max(1.0, value))


def _gemm(signature: OperatorSignature, name: str, compute: str) -> tuple[Place, ...]:
    products = gemm.from_signature(signature, name)
    operands = [t for t in tensors(signature.args) if len(t.shape) >= 2]
    if len(products) != 1 or len(operands) < 2:
        return ()
    p = products[0]
    a, b = operands[-2:] if name.startswith(("addmm", "baddbmm")) else operands[:2]
    form = f"{_transposed(a)}{_transposed(b)}"
    kind = "grouped" if "grouped" in name else "batched" if p.batch > 1 or len(a.shape) > 2 else "plain"
    dtypes = f"{p.dtype} {compute} {kind}"
    at = (_log(p.m), _log(p.n), _log(p.k), *((_log(p.batch),) if kind != "plain" else ()))
    rows = f"{dtypes} {p.alignment}"
    return Place("gemm", f"{rows} {form}", at), Place("gemm", rows, at), Place("gemm", dtypes, at)


def _transposed(t: TensorSpec) -> str:
    """How a product reads an operand: along its rows or its columns."""
    return "t" if len(t.stride) >= 2 and t.stride[-1] != 1 and t.stride[-2] == 1 else "n"


def _attention(signature: OperatorSignature, name: str) -> tuple[Place, ...]:
    found = attention.from_signature(signature, name)
    if found is None:
        return ()
    a = found
    # A short last wave matters as little as many blocks there are.
    at = (_log(a.batch * a.heads), _log(a.queries), _log(a.keys), 0.3 * _log(a.heads / max(1, a.kv_heads)))
    narrow = f"{name} {a.causal} {a.head} {32 if a.dtype == 'float32' else 16} {a.dropout}"
    wide = f"{name} {32 if a.dtype == 'float32' else 16} {a.dropout}"
    return Place("attention", narrow, at), Place("attention", wide, (*at, _log(a.head)))


def _memory(signature: OperatorSignature, name: str, cls: str, launches: int) -> tuple[Place, ...]:
    lists = [a for a in signature.args if isinstance(a, tuple) and any(isinstance(t, TensorSpec) for t in a)]
    given = on_gpu(signature.args)
    if not given:
        return ()
    stem = name.rstrip("_")
    if lists:
        return _lists(name, cls, lists, given, launches)
    largest = max(given, key=lambda t: (prod(t.shape), nbytes(t)))
    dtypes = " ".join(t.dtype for t in given if t.shape)
    shapes = {layout(t) + t.shape for t in given if prod(t.shape) > 1}
    flat = len(shapes) <= 1 and all(dense(t) for t in given)
    form = "flat" if flat else " ".join(_form(t, largest) for t in given)
    words = " ".join(str(v) for v in signature.args if isinstance(v, (bool, str)) and v not in (False, ""))
    if cls in _BY_ROWS or name.startswith(("gather", "index", "scatter")):
        dims = _windows(signature) if "pool" in name else _reduced(signature) if _reduces(name, cls) else ""
        rows, inner = prod(largest.shape[:-1]), largest.shape[-1] if largest.shape else 1
        if len(largest.shape) == 4 and "norm" in name:  # images
            rows, inner = largest.shape[0] * prod(largest.shape[2:]), largest.shape[1]
        channels_last = len(largest.stride) == 4 and largest.stride[1] == 1
        form = f"{len(largest.shape) == 4} {channels_last} {words}"
        at: tuple[float, ...] = (_log(rows), _log(inner), 0.3 * _evenness(inner))
        if "bag" in name:  # bags, their indices, what is in a row
            spans = [prod(t.shape) for t in given if t.dtype in ("int64", "int32")]
            width = next((t.shape[-1] for t in given if t.shape and t.dtype not in ("int64", "int32")), 1)
            at = (*sorted((_log(n) for n in spans), reverse=True)[:3], _log(width))
        if cls == "embedding":
            at += (0.5 * _log(max((v for v in signature.args if type(v) is int), default=1)),)  # words
        narrow = Place(cls, f"{name} {dtypes} {dims} {form}", at)
        return (narrow, Place(cls, f"{name} {dtypes} {form}", at)) if "pool" in name else (narrow,)
    size = sum(nbytes(t) for t in given if prod(t.shape) > 1) or nbytes(largest)
    run = 0.0 if flat else 0.3 * _inner(largest)
    at = (_log(size), run)
    # In place or not, of other formats, laid out otherwise.
    wider = f"{stem} {dtypes} {form}", f"{stem} {form}", f"{stem} {dtypes} {flat}"
    families = f"{name} {dtypes} {form} {words}", *wider
    return tuple(Place(cls, family, at) for family in families)


def _lists(
    name: str, cls: str, lists: list[tuple[Any, ...]], given: list[TensorSpec], launches: int
) -> tuple[Place, ...]:
    """Multi-tensor kernels give each block a chunk of one tensor: small tensors leave blocks half empty."""
    total = sum(nbytes(t) for a in lists for t in tensors(a))
    dtypes = " ".join(dict.fromkeys(t.dtype for t in given))
    first = list(tensors(lists[0]))
    if name.rstrip("_") in ("cat", "stack", "_chunk_cat", "split_with_sizes_copy"):
        widest = max(first, key=nbytes)
        even = all(dense(t) for t in given)
        at: tuple[float, ...] = (_log(total), 0.5 * _log(len(first)), 0.3 * _inner(widest))
        return Place(cls, f"{name} {dtypes} {even}", at), Place(cls, f"{name} {dtypes}", at)
    elements = [prod(t.shape) for t in first]
    chunks = sum(-(-n // CHUNK) for n in elements)
    largest = min(CHUNK, max(elements, default=1))  # a launch lasts at least as long as its longest block
    at = (_log(total), _log(chunks), _log(launches), _log(largest))
    return Place(cls, f"{name} {dtypes} {len(lists)}", at), Place(cls, f"{name} {dtypes}", at)


_BY_ROWS = frozenset(("normalization", "loss", "reduction", "sort", "embedding"))


def _evenness(extent: int) -> float:
    """How often `extent` can be halved, up to 8 times: whether rows divide evenly over threads."""
    return min(8.0, log2(extent & -extent)) if extent else 8.0


def _reduces(name: str, cls: str) -> bool:
    return cls == "reduction" or "softmax" in name


def _windows(signature: OperatorSignature) -> str:
    """Extents and strides of a pool's windows."""
    return str([v for v in signature.args if isinstance(v, tuple) and all(type(n) is int for n in v)][:2])


def _reduced(signature: OperatorSignature) -> str:
    """Which dimensions are reduced, counted from the last."""
    first = next((t for t in signature.args if isinstance(t, TensorSpec)), None)
    rank = len(first.shape) if first else 0
    for value in signature.args[1:]:
        if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
            return str(sorted(v - rank if v >= 0 else v for v in value))
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value - rank if value >= 0 else value)
    return "all"


def _inner(t: TensorSpec) -> float:
    """Elements that lie side by side, as a logarithm."""
    run = 1
    for extent, stride in zip(reversed(t.shape), reversed(t.stride), strict=True):
        if extent != 1 and stride != run:
            break
        run *= extent
    return _log(run)


def _form(t: TensorSpec, largest: TensorSpec) -> str:
    """How `t` lies beside the largest operand."""
    if prod(t.shape) == 1:
        return "one"
    if t.shape == largest.shape and t.stride == largest.stride:
        return "dense" if dense(t) else f"gaps{t.stride[-1] if t.stride else 1 == 1}"
    if prod(t.shape) < prod(largest.shape):
        return "broadcast"
    return "other" + "".join(map(str, layout(t)))
