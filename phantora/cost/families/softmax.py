"""Softmax and log-softmax, whose class is that of losses."""

from __future__ import annotations

from math import ceil, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, on_gpu, tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec

FORWARD, BACKWARD = 0.57, 0.65  # shares of a vectorised stream's speed, measured on H200 (docs/costs.md)
# H100, validation/probes/operators_wide.py: along another dimension than the last a thread goes from element to
# element.
STEP_NS, STEP_THREADS = 900.0, 1024
LONG_ROW, ROWS_PER_SM = 1024, 2  # longer rows have a block each; rows in flight per SM


def classify(name: str) -> str | None:
    """Names hold it."""
    if "softmax" not in name:
        return None
    return "loss" if "log_softmax" in name else "normalization"


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Read and written once; with `half_to_float` the result is twice as wide."""
    given = on_gpu(signature.args)
    if "backward" in name:
        moved = sum(nbytes(t) for t in given[:2]) + (nbytes(given[0]) if given else 0)
        return Estimate(machine.memory_ns(float(moved), BACKWARD), float(moved))
    size = nbytes(given[0]) if given else 0
    half_to_float = signature.args[2:3] == (True,)
    moved = size + size * (2 if half_to_float else 1)
    steps = _steps(machine, signature, given[0]) if given else 0.0
    return Estimate(max(steps * STEP_NS, machine.memory_ns(float(moved), FORWARD)), float(moved))


def _steps(machine: Machine, signature: OperatorSignature, x: TensorSpec) -> float:
    """Elements that a thread goes over, if not along the last dimension; as ATen's spatial softmax cuts them."""
    dim = signature.args[1] if len(signature.args) > 1 else -1
    if not isinstance(dim, int) or not x.shape or dim % len(x.shape) == len(x.shape) - 1:
        return 0.0
    dim %= len(x.shape)
    side = max(1, prod(x.shape[dim + 1 :]))
    threads = 1 << max(0, (STEP_THREADS // min(side, STEP_THREADS)).bit_length() - 1)  # that share an element's row
    blocks = prod(x.shape[:dim]) * ceil(side / STEP_THREADS)
    waves = ceil(blocks / (machine.gpu.sms * (machine.gpu.max_threads_per_sm // STEP_THREADS)))
    return waves * x.shape[dim] / threads


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows along a dimension."""
    return coordinates.by_rows(signature, name, launches, coordinates.reduced(signature), images="norm" in name)


def read_again(machine: Machine, signature: OperatorSignature, name: str) -> float:
    """Long rows are gone over three times."""
    x = tensor_at(signature.args, 0)
    if x is None or not x.shape or x.shape[-1] <= LONG_ROW or not name.lstrip("_").startswith(_OF_ROWS):
        return 0.0
    size = float(nbytes(x))
    row = size / max(1, prod(x.shape[:-1]))
    passes = 3 if "backward" in name else 2  # with what is written
    flight = min(size, machine.gpu.sms * ROWS_PER_SM * row) * passes
    return size * 2 * machine.misses(flight) / max(1.0, flight)


_OF_ROWS = ("softmax", "log_softmax")
FAMILY = Family("softmax", classify=classify, estimate=estimate, precedence=25, places=places, read_again=read_again)
