"""Random numbers and dropout."""

from __future__ import annotations

from math import ceil, prod

from phantora.cost.families.elementwise import operands
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes
from phantora.cost.types import OperatorSignature

NAMES = frozenset(
    (
        "uniform",
        "normal",
        "random",
        "bernoulli",
        "exponential",
        "geometric",
        "rand",
        "randn",
        "randint",
        "native_dropout",
        "dropout",
        "_fused_dropout",
        "multinomial",
        "cauchy",
        "log_normal",
        "randperm",
        "poisson",
    )
)
# Of a vectorised stream's speed, and the generator's rounds before the first store (traces on H200, docs/accuracy.md).
SHARE, FLOOR_NS = 0.80, 800.0
# From an H100 (validation/probes/factories.py): a permutation is a radix sort, in one tile or in passes over memory;
# probabilities of multinomial are normalised, and of several rows added up, by one block for each row.
TILE_NS, SORT_NS, SORT_BYTES, SORT_ERROR = 7_300.0, 36_000.0, 323.0, 0.2
TILE_KERNELS = 2
ROW_NS, ROW_CYCLES, SUM_CYCLES, ROW_ERROR = 11_000.0, 0.81, 2.6, 1.0


def classify(name: str) -> str | None:
    """Class by name, in place or not, or like another tensor."""
    stem = name.rstrip("_")
    return "random" if stem in NAMES or (stem.endswith("_like") and stem.startswith("rand")) else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Inputs are read, the result is written; permutations are sorted, rows of probabilities added up."""
    inputs, output = operands(signature, name)
    if name == "randperm":
        return _permutation(machine, prod(output.shape), float(nbytes(output)), kernels)
    if name == "multinomial" and inputs and inputs[0].shape:
        columns = inputs[0].shape[-1]
        rows = prod(inputs[0].shape) // max(1, columns)
        cycles = ROW_CYCLES + (SUM_CYCLES if rows > 1 else 0.0)
        ns = ROW_NS + machine.cycles_ns(ceil(rows / machine.gpu.sms) * columns * cycles) * machine.gpu.sms
        return Estimate(ns, float(nbytes(inputs[0])), error=ROW_ERROR)
    moved = float(nbytes(output) + sum(nbytes(t) for t in inputs))
    return Estimate(FLOOR_NS + machine.memory_ns(moved, SHARE), moved)


def _permutation(machine: Machine, count: int, written: float, kernels: Kernels) -> Estimate:
    if len(kernels) <= TILE_KERNELS:
        return Estimate(TILE_NS, written, error=SORT_ERROR)
    passes = machine.memory_ns(count * SORT_BYTES) - machine.fit.floor_ns
    return Estimate(SORT_NS + max(0.0, passes), written, error=SORT_ERROR)


FAMILY = Family("random numbers", classify=classify, estimate=estimate, precedence=70)
