"""index, gather, scatter and their kin: rows or elements that an index picks."""

from __future__ import annotations

from math import prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import broadcast, ints_at, item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

BEGINNINGS = (
    "index", "gather", "scatter", "take", "put", "masked_select", "masked_scatter", "nonzero", "_index_put_impl",
    "_unsafe_index", "unique", "_unique", "repeat_interleave", "searchsorted", "bucketize",
)  # fmt: skip
# Each one kernel; the copy that a form without underscore makes before is an operator of its own.
ADDED = ("index_add_", "index_add")
# scatter adds or assigns in one kernel of ATen.
WRITTEN = ("scatter_add_", "scatter_add", "scatter_", "scatter")
SCATTERED = 0.25  # of a stream's speed: rows picked or written one by one, measured on H200
# DeBERTa's and DGCNN's on an H100 (benchmarks/device/results/varied_h100.parquet):
WITHIN = 0.5  # of a stream's speed: elements picked within rows that lie in a cache
ADD_CYCLES = 3.4  # SM cycles of an element that is added to where it belongs


def classify(name: str) -> str | None:
    """Names begin so."""
    if not name.rstrip("_").startswith(BEGINNINGS):
        return None
    return "embedding" if name.startswith("index_select") else "copy"


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Indices, and as many elements as they address."""
    given = on_gpu(signature.args)
    if not given:
        return passes_memory(machine, signature, name, kernels)
    source = given[0]
    indices = [t for t in given[1:] if t.dtype in ("int64", "int32", "bool", "uint8")]
    values = [t for t in given[1:] if t not in indices and not name.startswith("gather")]
    if values:
        touched = sum(nbytes(t) for t in values) * 2
    elif name.startswith(("index_select", "index")) and indices:
        picked = signature.args[1] if len(signature.args) > 1 else None
        if isinstance(picked, tuple) and any(t in indices for t in picked):
            elements = _picked(source, picked)
        else:
            count = prod(broadcast(t.shape for t in indices))
            elements = count * _row(signature, source, len(indices) if not name.startswith("index_select") else 0)
        touched = 2 * elements * item_bytes(source.dtype)
    elif indices:
        touched = 2 * prod(indices[0].shape) * item_bytes(source.dtype)
        if name.startswith("gather") and _within_rows(signature, source, indices[0]):
            moved = float(touched + _stored(indices[0]))
            return Estimate(machine.memory_ns(moved, WITHIN), moved)
        if name.startswith("gather") and indices[0].stride and indices[0].stride[-1] == 0:  # whole rows
            return Estimate(machine.memory_ns(float(touched)), float(touched))
    else:
        touched = 2 * nbytes(source)
    moved = float(min(touched, 64 * nbytes(source) + touched) + sum(map(_stored, indices)))
    wide = name.startswith("index_select") or (
        bool(indices) and touched > 64 * sum(prod(t.shape) for t in indices)
    )
    adds = sum(prod(t.shape) for t in values) if name.startswith("scatter_add") else 0
    ns = max(machine.memory_ns(moved, 0.8 if wide else SCATTERED), machine.cycles_ns(adds * ADD_CYCLES))
    return Estimate(ns, moved)


def _stored(index: TensorSpec) -> int:
    """Bytes of an index in memory: dimensions that it was expanded to hold nothing."""
    if len(index.stride) != len(index.shape):  # a layout without strides
        return nbytes(index)
    return prod(n for n, s in zip(index.shape, index.stride, strict=True) if s) * item_bytes(index.dtype)


def _within_rows(signature: OperatorSignature, source: TensorSpec, index: TensorSpec) -> bool:
    """Is the index one of places within the last dimension, which is contiguous?"""
    axis = signature.args[1] if len(signature.args) > 1 else None
    last = len(source.shape) - 1
    inner = last > 0 and axis in (-1, last) and source.stride[-1:] == (1,)
    return inner and index.stride[-1:] not in ((), (0,))


def _picked(source: TensorSpec, positions: tuple[object, ...]) -> int:
    """Elements of ``source[positions]``. A mask stands for as many dimensions as it has, and may pick all of them."""
    axis, kept = 0, 1
    shapes: list[tuple[int, ...]] = []
    for position in positions:
        if not isinstance(position, TensorSpec):  # None: a whole dimension
            kept *= prod(source.shape[axis : axis + 1])
            axis += 1
        elif position.dtype in ("bool", "uint8"):
            shapes.append((prod(position.shape),))
            axis += len(position.shape)
        else:
            shapes.append(position.shape)
            axis += 1
    return kept * prod(broadcast(shapes)) * prod(source.shape[axis:])


def _row(signature: OperatorSignature, source: TensorSpec, leading: int) -> int:
    """Elements that an index picks: behind `leading` dimensions, or, if 0, all but those of the operator's own."""
    if leading:
        return prod(source.shape[leading:])
    dims = ints_at(signature.args, 1)
    axis = dims[0] if dims else 0
    extent = source.shape[axis] if -len(source.shape) <= axis < len(source.shape) else 1
    return prod(source.shape) // max(1, extent)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows; of those that are looked up also how many there are to choose from."""
    if not name.startswith(("gather", "index", "scatter")):
        return coordinates.by_size(signature, name, compute, launches)
    for same in (ADDED, WRITTEN):
        name = same[0] if name in same else name
    more = (coordinates.words(signature),) if name.startswith("index_select") else ()
    return coordinates.by_rows(signature, name, launches, images="norm" in name, more=more)


FAMILY = Family("gather", classify, estimate, 85, places=places, together=ADDED + WRITTEN)
