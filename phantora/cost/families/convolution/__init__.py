"""Convolutions: their analytic model, and the prediction of those that were not measured."""

from __future__ import annotations

from phantora.cost.families.convolution.model import arithmetic, convolution_ns, without_bias
from phantora.cost.families.convolution.predict import Predicted
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import tensor_at
from phantora.cost.types import OperatorSignature


def classify(name: str) -> str | None:
    """Names hold it."""
    return "convolution" if any(part in name for part in _PARTS) else None


_PARTS = ("convolution", "conv2d", "conv3d", "conv_depthwise")


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Estimate from the arguments; a pass over memory if these are not as expected."""
    image = tensor_at(signature.args, 0)
    compute = arithmetic(image, kernels) if image else ""
    found = convolution_ns(machine, signature, name, compute)
    if found is None:
        return passes_memory(machine, signature, name, kernels)
    ns, flops, moved = found
    return Estimate(ns, moved, flops=flops, format=compute)


def cores(there: Machine, here: Machine, signature: OperatorSignature) -> float:
    """Tensor cores multiply."""
    x = tensor_at(signature.args, 0)
    dtype = "tfloat32" if x is None or x.dtype == "float32" else x.dtype
    return there.peak(dtype) / here.peak(dtype)


FAMILY = Family(
    "convolution",
    classify=classify,
    estimate=estimate,
    precedence=15,
    takes_libraries=True,
    predictor=Predicted,
    same_work=without_bias,
    cores=cores,
)
