"""Quantisation and back that was not measured (bitsandbytes, torchao): values pass once, with their scales."""

from __future__ import annotations

from math import prod

from phantora.cost.families import bitsandbytes
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

NAMESPACES = ("bitsandbytes::", "torchao::")
ERROR = 0.35


def classify(name: str) -> str | None:
    """Class by namespace and part of the name. Products of quantised operands have a name of their own (``mm``)."""
    ours = name.startswith(NAMESPACES) and "quant" in name and "mm" not in name.rpartition("::")[2]
    return "elementwise" if ours and bitsandbytes.classify(name) is None else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Operands are read, results written; where these are not known, their sizes follow from the name."""
    given = on_gpu(signature.args)
    read = sum(map(nbytes, given))
    written = sum(map(nbytes, on_gpu(signature.outputs))) or _written(signature, name, given)
    rest = max(0, len(kernels) - 1) * machine.fit.floor_ns
    return Estimate(machine.memory_ns(float(read + written)) + rest, float(read + written), error=ERROR)


def _written(signature: OperatorSignature, name: str, given: list[TensorSpec]) -> int:
    """Bytes of results that the tracer did not see."""
    if not given:
        return 0
    values = prod(given[0].shape)
    if "dequantize" not in name:
        return values // (bitsandbytes.PACKED if "4bit" in name else 1)
    dtype = next((v for v in reversed(signature.args) if isinstance(v, str) and "float" in v), "bfloat16")
    return values * (bitsandbytes.PACKED if "4bit" in name else 1) * item_bytes(dtype)


FAMILY = Family("quantization", classify=classify, estimate=estimate)
