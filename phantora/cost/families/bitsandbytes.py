"""bitsandbytes' kernels: quantisation in blocks and back, products with one row of 4-bit weights, 8-bit optimizers.

Constants follow from 11 operators measured on an H100 (validation/probes/extension_kernels.py): what searches a code
book for each value is bound by its instructions, what looks values up by memory. `int8_mm_dequant` follows from its 24
launches in a step of validation/workloads/programs/quantized.py, llm_int8.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

NAMESPACE = "bitsandbytes::"
ERROR = 0.20
PACKED = 2  # values of 4 bits in a byte


@dataclass(frozen=True)
class Kind:
    """Cost of a value: cycles of an SM, share of a stream's speed at which bytes move, class."""

    cycles: float
    share: float
    cls: str = "elementwise"


KINDS = {
    "quantize_4bit": Kind(2.47, 0.7),
    "quantize_blockwise": Kind(1.51, 0.7),
    "dequantize_4bit": Kind(0.0, 0.70),
    "dequantize_blockwise": Kind(0.0, 0.65),
    "int8_vectorwise_quant": Kind(0.0, 0.385),
    "int8_mm_dequant": Kind(0.0, 0.905),
    "gemv_4bit": Kind(0.0, 0.25, "gemm"),
    "optimizer_update_8bit_blockwise": Kind(7.2, 0.65, "optimizer"),
    "optimizer_update_32bit": Kind(0.0, 0.65, "optimizer"),
}
WRITTEN = {"optimizer_update_8bit_blockwise": 3, "optimizer_update_32bit": 3}
"""Operands behind the first that are read and written: parameters and two states."""


def _kind(name: str) -> Kind | None:
    return KINDS.get(name.removeprefix(NAMESPACE).partition(".")[0]) if name.startswith(NAMESPACE) else None


def classify(name: str) -> str | None:
    """Whole names; other operators of the package are bounded as those of any extension."""
    kind = _kind(name)
    return kind.cls if kind is not None else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Operands once, what is written once more, and the instructions of each value."""
    kind, given = _kind(name), on_gpu(signature.args)
    if kind is None or not given:
        return Estimate(machine.fit.floor_ns, 0.0, error=1.0)
    base = name.removeprefix(NAMESPACE).partition(".")[0]
    updated = given[1 : 1 + WRITTEN.get(base, 0)]
    written = sum(map(nbytes, updated)) or sum(map(nbytes, on_gpu(signature.outputs))) or _made(signature, base, given)
    moved = float(sum(map(nbytes, given)) + written)
    memory = machine.memory_ns(moved, kind.share)
    busy = machine.fit.floor_ns + machine.cycles_ns(prod(given[0].shape) * kind.cycles)
    rest = max(0, len(kernels) - 1) * machine.fit.floor_ns
    return Estimate(max(memory, busy) + rest, moved, error=ERROR)


def _made(signature: OperatorSignature, base: str, given: list[TensorSpec]) -> int:
    """Bytes of results that the tracer did not see."""
    values = prod(given[0].shape)
    if not base.startswith("dequantize"):
        return values // (PACKED if "4bit" in base else 1)
    dtype = next((v for v in reversed(signature.args) if isinstance(v, str) and "float" in v), "bfloat16")
    return values * (PACKED if "4bit" in base else 1) * item_bytes(dtype)


FAMILY = Family("bitsandbytes", classify=classify, estimate=estimate)
"""Operators of bitsandbytes that were measured."""
