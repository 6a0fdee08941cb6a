"""From a time on one GPU to the time on another: by the limits that a kernel meets.

A kernel takes its launch, and then what memory or the SMs take, whichever is more, less what overlaps.
How much is memory follows from the share of the bandwidth that the kernel reached where it was measured.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from phantora.cost import gemm
from phantora.cost.catalogue import base_name
from phantora.cost.machine import Machine
from phantora.cost.roofline import Roofline
from phantora.cost.tensors import nbytes, tensor_at
from phantora.cost.types import KernelLaunch, OperatorSignature

Kernels = tuple[KernelLaunch, ...]

# Kinds of operators whose parts are not told apart by what they reach: their time follows the analytic model.
BY_MODEL = frozenset(("gemm", "attention"))
PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "linear", "_scaled_mm", "_grouped_mm"))
# How abruptly one limit takes over from the other: the norm of their times. Kernels that work in chunks or tiles
# wait for memory and compute in turn; a random generator's rounds hide behind nothing and hide all stores.
SHARPNESS = 2.5
IN_TURN, IN_TURN_CLASSES = 1.7, frozenset(("optimizer", "reduction", "convolution"))
HIDDEN, HIDDEN_CLASSES = 12.0, frozenset(("random",))
SHORTEST = 0.05  # of a kernel's time is not its launch, however short it is
NORM_BLOCKS, SOFTMAX_BLOCKS, SOFTMAX_ROW = 16, 2, 1024  # rows in flight per SM; longer rows have a block each
COLD_CLASSES = frozenset(("copy", "optimizer", "fill"))
"""Classes whose operands are old when they run (parameters, gradients, states): they are charged the time out
of memory. Others follow the kernel that wrote their input, part of which is still in L2: on real steps the mean
of the cold and the warm time is right at every size (docs/costs.md)."""


def modelled_ns(roofline: Roofline, signature: OperatorSignature, compute: str, kernels: Kernels) -> float:
    """The analytic time of an operator from its arguments, whatever its library was called for."""
    name = base_name(signature.name)
    products = gemm.from_signature(signature, name)
    if products and name in PRODUCTS:
        if compute == "tf32":
            products = [replace(p, dtype="tfloat32") for p in products]
        return sum(gemm.product_ns(roofline.machine, p) for p in products)
    bare = tuple(k for k in kernels if not k.library)
    return float(sum(roofline.operator(signature, bare).durations))


def transfer_ns(
    ns: float, source: Roofline, target: Roofline, signature: OperatorSignature, compute: str, kernels: Kernels
) -> float:
    """What takes `ns` on the GPU of `source`, on that of `target`."""
    bare = tuple(k for k in kernels if not k.library)
    price = source.operator(signature, bare)
    models = [modelled_ns(roofline, signature, compute, kernels) for roofline in (source, target)]
    if price.cls in BY_MODEL:
        return ns * models[1] / models[0]
    there, here = source.machine, target.machine
    launches = max(1, len(kernels))
    work = max(ns - launches * there.launch_ns, SHORTEST * ns)
    if price.cls == "fill":  # nothing is read, and L2 takes in what it can: no bandwidth tells
        floors = [machine.fit.floor_ns for machine in (there, here)]
        parts = [max(model - floor, 1.0) for model, floor in zip(models, floors, strict=True)]
        return launches * here.launch_ns + work * parts[1] / parts[0]
    moved = [_from_memory(machine, signature, price.cls, price.bytes) for machine in (there, here)]
    sharpness = SHARPNESS
    if price.cls in IN_TURN_CLASSES or "foreach" in signature.name:
        sharpness = IN_TURN
    elif price.cls in HIDDEN_CLASSES:
        sharpness = HIDDEN
    reached = min(1.0, moved[0] / there.stream_rate / work)
    memory = reached * there.stream_rate / here.stream_rate * (moved[1] / max(1.0, moved[0]))
    cores = (1.0 - reached**sharpness) ** (1 / sharpness) * _core_ratio(there, here, signature, price.cls)
    return launches * here.launch_ns + work * float((memory**sharpness + cores**sharpness) ** (1 / sharpness))


def _core_ratio(there: Machine, here: Machine, signature: OperatorSignature, cls: str) -> float:
    """Time that the SMs take here over there."""
    if cls == "convolution":
        x = tensor_at(signature.args, 0)
        dtype = "tfloat32" if x is None or x.dtype == "float32" else x.dtype
        return there.peak(dtype) / here.peak(dtype)
    return here.cycles_ns(1.0) / there.cycles_ns(1.0)


def _from_memory(machine: Machine, signature: OperatorSignature, cls: str, moved: float) -> float:
    """Bytes that an operator which moves `moved` gets from memory, not from L2."""
    cold = moved + _read_again(machine, signature)
    if cls in COLD_CLASSES:
        return cold
    return (cold + machine.misses(cold)) / 2.0


def _read_again(machine: Machine, signature: OperatorSignature) -> float:
    """Bytes that kernels of a row read from memory once more: the rows in flight do not fit into L2."""
    name, x = base_name(signature.name), tensor_at(signature.args, 0)
    if x is None or not x.shape:
        return 0.0
    backward = "backward" in name
    if name.startswith(("_fused_rms_norm", "native_layer_norm")):
        blocks = NORM_BLOCKS
    elif name.lstrip("_").startswith(("softmax", "log_softmax")) and x.shape[-1] > SOFTMAX_ROW:
        blocks = SOFTMAX_BLOCKS
    else:
        return 0.0
    size = float(nbytes(x))
    row = size / max(1, prod(x.shape[:-1]))
    flight = min(size, machine.gpu.sms * blocks * row) * (3 if backward else 2)  # with what is written
    again = size * (1 if blocks == NORM_BLOCKS and not backward else 2)
    return again * machine.misses(flight) / max(1.0, flight)


