"""Softmax and log-softmax, whose class is that of losses."""

from __future__ import annotations

from math import ceil, hypot, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, on_gpu, tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.ttir.work import WARP

FORWARD, BACKWARD = 0.57, 0.65  # shares of a vectorised stream's speed, measured on H200 (docs/costs.md)
# Along another dimension than the last a thread goes from element to element, each of which waits for the L2 cache: ns
# of an element, and more for each thread of the block; forward (three passes) and backward. Of 53 operators on an H200.
STEP_NS, THREAD_NS = (300.0, 230.0), (0.38, 0.10)
MISSED, STEP_THREADS = 0.6, 1024  # longer, where elements come from memory
SHARED_SIDE, SHARED_ROW = 64, 64  # neighbours at most, and elements at least, of rows that several threads share
LONG_ROW, ROWS_PER_SM = 1024, 2  # longer rows have a block each; rows in flight per SM


def classify(name: str) -> str | None:
    """Names hold it."""
    if "softmax" not in name:
        return None
    return "loss" if "log_softmax" in name else "normalization"


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Read and written once; with `half_to_float` the result is twice as wide."""
    given = on_gpu(signature.args)
    backward = "backward" in name
    if backward:
        moved = sum(nbytes(t) for t in given[:2]) + (nbytes(given[0]) if given else 0)
    else:
        size = nbytes(given[0]) if given else 0
        moved = size + size * (2 if signature.args[2:3] == (True,) else 1)  # half_to_float
    memory = machine.memory_ns(float(moved), BACKWARD if backward else FORWARD)
    steps = _steps_ns(machine, signature, given[0], backward) if given else 0.0
    return Estimate(hypot(steps, memory) if backward else steps + memory, float(moved))


def _steps_ns(machine: Machine, signature: OperatorSignature, x: TensorSpec, backward: bool) -> float:
    """Time of the elements that a thread goes over, if not along the last dimension; as ATen's spatial softmax cuts
    them."""
    dim = signature.args[1 + backward] if len(signature.args) > 1 + backward else -1
    if not isinstance(dim, int) or not x.shape or dim % len(x.shape) == len(x.shape) - 1:
        return 0.0
    dim %= len(x.shape)
    side, row = max(1, prod(x.shape[dim + 1 :])), max(1, x.shape[dim])
    width = min(side, STEP_THREADS)
    shared = min(STEP_THREADS // width, row) if width <= SHARED_SIDE and row >= SHARED_ROW else 1
    threads = 1 << (shared.bit_length() - 1)  # of a row
    block = ceil(width * threads / WARP) * WARP
    blocks = prod(x.shape[:dim]) * ceil(side / width)
    waves = ceil(blocks / (machine.gpu.sms * (machine.gpu.max_threads_per_sm // block)))
    step = STEP_NS[backward] + THREAD_NS[backward] * block
    step *= 1.0 + MISSED * machine.misses(nbytes(x)) / max(1, nbytes(x))
    return waves * ceil(row / threads) * step / machine.clock_ratio


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
