"""Optimizers and other multi-tensor kernels: fused Adam, SGD and Adagrad, and what torch calls foreach."""

from __future__ import annotations

from math import prod

from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, tensors
from phantora.cost.types import OperatorSignature, TensorSpec

WIDE, NARROW = 0.80, 0.64  # shares of a vectorised stream's speed: 4-byte and 2-byte state, measured on H200


def classify(name: str) -> str | None:
    """Names begin so."""
    if name.startswith("_foreach_copy"):
        return "copy"
    named = name.startswith(("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_", "_amp_"))
    return "optimizer" if named else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Multi-tensor kernels: lists are read, the first list (and the state) is written."""
    lists = [a for a in signature.args if isinstance(a, tuple) and any(isinstance(t, TensorSpec) for t in a)]
    sizes = [sum(nbytes(t) for t in tensors(a) if t.device != "cpu") for a in lists]
    if not sizes:
        return passes_memory(machine, signature, name, kernels)
    if name.startswith("_fused_"):
        # Parameters and state are read and written, gradients read.
        moved = 2.0 * sum(sizes) - sizes[1] if len(sizes) > 1 else 2.0 * sizes[0]
    elif "norm" in name or name in ("_foreach_max",):
        moved = float(sizes[0])
    elif "copy" in name:
        moved = float(sum(sizes))
    elif name.endswith("zero_"):
        moved = float(sizes[0])
    else:
        moved = float(sum(sizes) + sizes[0])
    first = next(iter(tensors(lists[0])), None)
    share = NARROW if first is not None and item_bytes(first.dtype) < 4 else WIDE
    if name.startswith("_fused_"):
        share *= 0.97
    extra = max(0, len(kernels) - 1) * machine.fit.floor_ns
    if "copy" in name:  # slices of a flat buffer, rarely aligned: an element at a time
        elements = sum(prod(t.shape) for t in tensors(lists[0]))
        return Estimate(extra + max(machine.index_ns(elements, moved), machine.memory_ns(moved)), moved)
    return Estimate(machine.memory_ns(moved, share) + extra, moved)


FAMILY = Family("optimizer", classify=classify, estimate=estimate, precedence=40)
