"""Scales a time on one GPU to another, by the limits that a kernel meets.

A kernel takes its launch, and then what memory or the SMs take, whichever is more, less what overlaps.
How much is memory follows from the share of the bandwidth that the kernel reached where it was measured.
"""

from __future__ import annotations

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.families import base_name, family_of
from phantora.cost.family import Kernels
from phantora.cost.machine import Machine
from phantora.cost.timing import COLD_CLASSES
from phantora.cost.types import OperatorSignature

# Kinds of operators whose parts are not distinguished by what they reach: their time follows the analytic model.
BY_MODEL = frozenset(("gemm", "attention"))
# How abruptly one limit takes over from the other: the norm of their times. Kernels that work in chunks or tiles
# wait for memory and compute in turn; a random generator's rounds hide behind nothing and hide all stores.
SHARPNESS = 2.5
IN_TURN, IN_TURN_CLASSES = 1.7, frozenset(("optimizer", "reduction", "convolution"))
HIDDEN, HIDDEN_CLASSES = 12.0, frozenset(("random",))
# Share of the variance of prices that operators of one class have in common on a GPU without a table: errors of one
# sign. Of published kernels of A100, L40S, B200 and GB200 that no price is fitted to (validation/published/kernels.py).
# Classes without published kernels take that of attention.
COMMON_SHARES = {"attention": 0.62, "gemm": 0.06, "default": 0.62}
SHORTEST = 0.05  # of a kernel's time is not its launch, however short it is


def analytic_ns(analytic: AnalyticModel, signature: OperatorSignature, compute: str, kernels: Kernels) -> float:
    """The analytic time of an operator from its arguments, whatever its library was called for."""
    name = base_name(signature.name)
    of_arguments = family_of(name).ns_of_arguments
    ns = of_arguments(analytic.machine, signature, name, compute) if of_arguments else None
    if ns is not None:
        return ns
    bare = tuple(k for k in kernels if not k.library)
    return float(sum(analytic.operator(signature, bare).durations))


def scaled_ns(
    ns: float,
    source: AnalyticModel,
    target: AnalyticModel,
    signature: OperatorSignature,
    compute: str,
    kernels: Kernels,
) -> float:
    """Time on `target` of work that takes `ns` on the GPU of `source`."""
    bare = tuple(k for k in kernels if not k.library)
    price = source.operator(signature, bare)
    models = [analytic_ns(analytic, signature, compute, kernels) for analytic in (source, target)]
    if price.cls in BY_MODEL:
        return ns * models[1] / models[0]
    there, here = source.machine, target.machine
    launches = max(1, len(kernels))
    work = max(ns - launches * there.launch_ns, SHORTEST * ns)
    if price.cls == "fill":  # nothing is read, and L2 takes in what it can: no bandwidth is known
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
    sms = family_of(base_name(signature.name)).cores(there, here, signature)
    cores = (1.0 - reached**sharpness) ** (1 / sharpness) * sms
    return launches * here.launch_ns + work * float((memory**sharpness + cores**sharpness) ** (1 / sharpness))


def _from_memory(machine: Machine, signature: OperatorSignature, cls: str, moved: float) -> float:
    """Bytes that an operator which moves `moved` gets from memory, not from L2."""
    name = base_name(signature.name)
    cold = moved + family_of(name).read_again(machine, signature, name)
    if cls in COLD_CLASSES:
        return cold
    return (cold + machine.misses(cold)) / 2.0
