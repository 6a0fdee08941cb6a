"""How long an operator or a kernel takes, and how we know."""

from phantora.cost.parse import kernel_launch, parse_library, parse_signature
from phantora.cost.roofline import Roofline
from phantora.cost.types import CostModel, KernelLaunch, OperatorSignature, Price, TensorSpec
from phantora.hardware.types import Gpu


def model_for(gpu: Gpu) -> CostModel:
    """The cost model of `gpu`."""
    return Roofline(gpu)


__all__ = [
    "CostModel",
    "KernelLaunch",
    "OperatorSignature",
    "Price",
    "Roofline",
    "TensorSpec",
    "kernel_launch",
    "model_for",
    "parse_library",
    "parse_signature",
]
