"""Fourier transforms of cuFFT: each dimension is a kernel, a long or an awkward one several.

Measured on an H100 (validation/probes/linear_algebra.py, 62 transforms of 1 to 3 dimensions) and on an H200
(validation/probes/program_operators.py, 45 of them). A kernel reads and writes everything, at a vectorised stream's
speed or at the speed of its arithmetic. Those of the H100 are 12 % off in the median, those of the H200 9 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes
from phantora.cost.types import OperatorSignature, TensorSpec

NAMES = frozenset(("_fft_c2c", "_fft_r2c", "_fft_c2r"))
COMPLEX_OF = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
START_NS = 900.0  # of a kernel, on top of the launch floor
ONE_KERNEL = 8192  # elements that a block transforms
SMALL_PRIMES, DIRECT = 7, 31  # prime factors with good kernels, and those with kernels at all
CONVOLVED = 2048  # longest length with a larger prime factor that a single kernel transforms, by a convolution
CONVOLUTION_KERNELS, CONVOLUTION_PASSES = 6, 20  # of longer ones: padded to twice the length, there and back
REAL_KERNELS = 64  # shortest length above which cuFFT has no kernels for odd numbers of reals
# SM cycles of an element, by the largest prime factor of the length: 2, up to 7, up to 31, larger.
CYCLES = (0.8, 1.5, 1.6, 5.0)
DOUBLE = 2.0  # times as many in 64 bits
OUTER = 2.8  # times as long without the last dimension: neighbours in a transform are not neighbours in memory


def classify(name: str) -> str | None:
    """Class by name."""
    return "other" if name in NAMES else None


def largest_factor(length: int) -> int:
    """The largest prime factor of `length`; 1 of 1."""
    largest, factor = 1, 2
    while factor * factor <= length:
        while length % factor == 0:
            largest, length = factor, length // factor
        factor += 1
    return max(largest, length)


def cycles(length: int) -> float:
    """SM cycles of an element in a transform of `length`."""
    largest = largest_factor(length)
    return CYCLES[0 if largest <= 2 else 1 if largest <= SMALL_PRIMES else 2 if largest <= DIRECT else 3]


def passes(length: int) -> tuple[int, int]:
    """Kernels of a transform of `length`, and how often they pass over memory together."""
    largest = largest_factor(length)
    if largest > DIRECT:
        return (1, 1) if length <= CONVOLVED else (CONVOLUTION_KERNELS, CONVOLUTION_PASSES)
    count = 1 if length <= ONE_KERNEL else 2 if largest <= 2 else 3
    return count, count


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Real transforms move half of a spectrum: as many bytes as the reals on their other side."""
    shape, over, width = _transformed(signature, name)
    if not over or not prod(shape):
        return Estimate(machine.fit.floor_ns, 0.0)
    double = DOUBLE if width > 8 else 1.0
    floor = machine.fit.floor_ns
    work = list(_kernels(shape, over, name, width))
    ns = sum(
        count * (START_NS + floor) + max(machine.memory_ns(moved) - floor, machine.cycles_ns(double * spent))
        for count, moved, spent in work
    )
    ns *= 1.0 if len(shape) - 1 in over else OUTER
    return Estimate(ns, sum(moved for _, moved, _ in work), error=0.3)


def _kernels(shape: list[int], over: list[int], name: str, width: int) -> Iterator[tuple[int, float, float]]:
    """Kernels of each dimension: their number, the bytes that they move and their SM cycles."""
    real, points = name != "_fft_c2c", float(prod(shape))
    for place, dim in enumerate(reversed(over)):
        length = shape[dim]
        count, times = passes(length)
        halved = 0.5 if real else 1.0
        spent = points * cycles(length) if count < CONVOLUTION_KERNELS else 0.0
        # Reals transformed as if they were complex: lengths of one kernel that are no powers of two.
        whole = place == 0 and REAL_KERNELS < length <= ONE_KERNEL and largest_factor(length) > 2
        yield count, times * 2.0 * points * halved * width, times * spent * (1.0 if whole else halved)
        if real and place == 0:
            if length % 2 and length > REAL_KERNELS:  # made complex before, and one half taken afterwards
                yield 2, 3.0 * points * width, 0.0
            elif length > ONE_KERNEL:
                yield 1, points * width, 0.0


def _transformed(signature: OperatorSignature, name: str) -> tuple[list[int], list[int], int]:
    """Extents in reals or complex numbers, the dimensions that are transformed, bytes of a complex number."""
    x, dims = (*signature.args, None, None)[:2]
    if not isinstance(x, TensorSpec) or not x.shape:
        return [], [], 0
    over = [d % len(x.shape) for d in (dims if isinstance(dims, tuple) else (dims,)) if isinstance(d, int)]
    shape = list(x.shape)
    if over and name == "_fft_c2r":
        given = next((v for v in signature.args[3:4] if isinstance(v, int) and v > 0), 0)
        shape[over[-1]] = given or 2 * (shape[over[-1]] - 1)
    return shape, over, item_bytes(COMPLEX_OF.get(x.dtype, "complex64") if name == "_fft_r2c" else x.dtype)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Places by the points and the length, among lengths with factors of the same kind."""
    shape, over, width = _transformed(signature, name)
    if not over or not prod(shape):
        return ()
    kind = " ".join(f"{cycles(shape[dim])}{passes(shape[dim])[0]}" for dim in over)
    at = (coordinates.log(prod(shape)), coordinates.log(prod(shape[dim] for dim in over)))
    return (Place(f"{name} {width} {kind}", at),)


FAMILY = Family("Fourier transforms", classify=classify, estimate=estimate, places=places)
