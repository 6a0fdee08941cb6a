"""Fourier transforms of cuFFT: each dimension is a pass over memory, a long or an awkward one several.

Measured on an H100 (validation/probes/linear_algebra.py, transforms of 1 to 3 dimensions): a pass reads and writes
everything at a vectorised stream's speed. Lengths above 8,192 are cut in two, which takes a pass for each part; a real
transform of them one more, which takes halves apart. A length with a prime factor above 7 takes 2.7 times as long. 42
of them are 17 % off in the median; those along an outer dimension up to 70 %.
"""

from __future__ import annotations

from math import prod

from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes
from phantora.cost.types import OperatorSignature, TensorSpec

NAMES = frozenset(("_fft_c2c", "_fft_r2c", "_fft_c2r"))
ONE_PASS = 8192  # elements that a block transforms
AWKWARD = 2.7
SMOOTH = (2, 3, 5, 7)  # factors that have kernels of their own
COMPLEX_OF = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}


def classify(name: str) -> str | None:
    """By name."""
    return "other" if name in NAMES else None


def is_smooth(length: int) -> bool:
    """Has it no prime factor above 7?"""
    for factor in SMOOTH:
        while length % factor == 0 and length > 1:
            length //= factor
    return length == 1


def passes(length: int) -> float:
    """How often a transform of `length` passes over memory."""
    cut = 1 if length <= ONE_PASS else 2
    return cut * (1.0 if is_smooth(length) else AWKWARD)


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Real transforms move half of a spectrum: as many bytes as the reals on their other side."""
    x, dims = (*signature.args, None, None)[:2]
    if not isinstance(x, TensorSpec) or not x.shape or not prod(x.shape):
        return Estimate(machine.fit.floor_ns, 0.0)
    over = [d % len(x.shape) for d in (dims if isinstance(dims, tuple) else (dims,)) if isinstance(d, int)]
    shape = list(x.shape)
    if not over:
        return Estimate(machine.fit.floor_ns, 0.0)
    if name == "_fft_c2r":
        given = next((v for v in signature.args[3:4] if isinstance(v, int) and v > 0), 0)
        shape[over[-1]] = given or 2 * (shape[over[-1]] - 1)
    real = name != "_fft_c2c"
    width = item_bytes(COMPLEX_OF.get(x.dtype, "complex64") if name == "_fft_r2c" else x.dtype)
    spectrum = float(prod(shape)) * width * (0.5 if real else 1.0)
    moved = 0.0
    for place, dim in enumerate(reversed(over)):
        count = passes(shape[dim])
        if real and place == 0 and shape[dim] > ONE_PASS:
            count += 1
        moved += count * 2.0 * spectrum
    return Estimate(machine.memory_ns(moved), moved, error=0.3)


FAMILY = Family("Fourier transforms", classify, estimate)
