"""Factorizations of matrices and systems of equations: cuSOLVER's and MAGMA's algorithms, which wait for themselves.

A matrix is eliminated column by column, so time grows far slower than arithmetic until matrices are large, and matrices
of a batch often take turns. There is no model but what was measured: an H100, torch 2.11,
`benchmarks/device/factorizations.py` (results/factorizations_h100.jsonl). The host's part of small ones is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, prod

from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

ERROR = 0.50
HOST_NS = 35_000.0  # of the measured times, between events of a stream that waits for the host
LEAST_NS = 6_000.0
SIZES = (16, 64, 256, 1024, 2048, 4096, 8192)
BATCHED = ((16, 64), (32, 1024), (64, 64), (256, 16), (1024, 8))  # size, and how many of them
GROWTH = 3.0  # power of the size beyond the largest
COMPLEX = 2.0  # not measured


@dataclass(frozen=True)
class Times:
    """ms of one square fp32 matrix by `SIZES`, and of batches by `BATCHED`; how much longer fp64 of 1,024 takes; by
    which power of rows over columns matrices that are higher than wide take longer, at the size 1,024."""

    one: tuple[float, ...]
    many: tuple[float, ...]
    double: float
    higher: float = 1.0


SVD = Times((0.289, 1.396, 7.201, 56.080, 233.164), (0.289, 1.308, 69.133, 108.496, 440.593), 1.63, 0.05)
VALUES = Times((0.228, 1.369, 7.134, 55.538, 195.823), (0.295, 1.309, 67.174, 107.961, 441.246), 1.64, 0.05)
EIGH = Times((0.176, 1.087, 5.633, 11.781, 27.112), (0.236, 0.800, 54.571, 82.382, 90.354), 1.01)
EIG = Times((1.688, 6.597, 54.761, 180.057), (93.067, 2371.328, 370.313, 681.467, 1703.045), 1.48)
QR = Times((0.120, 0.421, 0.851, 4.637, 10.934, 29.146), (3.993, 81.159, 5.873, 42.382, 36.308), 1.04, 0.41)
GEQRF = Times((0.060, 0.289, 0.729, 4.001, 9.487, 23.556), (0.134, 0.343, 1.230, 40.338, 31.046), 1.08, 0.41)
LSTSQ = Times((0.210, 1.228, 0.935, 4.488, 10.618, 25.913), (0.267, 0.491, 1.580, 37.617, 34.689), 1.12, 0.41)
LU = Times((0.056, 0.136, 0.473, 2.134, 4.923, 12.712, 36.085), (0.066, 0.065, 0.499, 1.763, 17.966), 1.17)
CHOLESKY = Times((0.048, 0.060, 0.131, 0.398, 0.775, 1.936, 9.235), (0.083, 0.063, 0.143, 0.302, 1.759), 1.26)
FROM_CHOLESKY = Times((0.087, 0.144, 0.206, 0.820, 1.826, 6.410), (0.148, 0.205, 0.437, 1.101, 7.767), 1.19)
INVERSE = Times((0.127, 0.258, 0.644, 2.733, 6.507, 18.750, 68.949), (0.145, 0.329, 0.846, 2.198, 21.958), 1.20)
# With as many right-hand sides as rows, and with one.
TRIANGULAR = (
    Times((0.048, 0.047, 0.084, 0.282, 0.756, 2.882, 16.121), (0.077, 0.058, 0.081, 0.161, 2.408), 1.54),
    Times((0.047, 0.054, 0.048, 0.097, 0.137, 0.271, 0.603), (0.068, 0.049, 0.085, 0.181, 0.521), 1.12),
)
LU_SOLVE = (
    Times((0.054, 0.152, 0.204, 0.592, 1.611, 6.181, 33.540), (0.084, 0.252, 0.260, 0.396, 4.409), 1.54),
    Times((0.059, 0.082, 0.177, 0.271, 0.443, 0.923, 1.769), (0.086, 0.098, 0.139, 0.370, 1.218), 1.11),
)
CHOLESKY_SOLVE = (
    Times((0.055, 0.112, 0.176, 0.687, 1.621, 5.949, 31.068), (0.106, 0.244, 0.351, 1.104, 6.741), 1.19),
    Times((0.060, 0.109, 0.110, 0.201, 0.279, 0.622, 1.355), (0.132, 0.137, 0.165, 0.257, 1.780), 1.16),
)
FACTORS = {
    "_linalg_svd": SVD, "_linalg_eigh": EIGH, "linalg_eig": EIG, "_linalg_eigvals": EIG, "linalg_eigvals": EIG,
    "linalg_qr": QR, "geqrf": GEQRF, "linalg_householder_product": GEQRF, "ormqr": GEQRF, "linalg_lstsq": LSTSQ,
    "linalg_lu_factor_ex": LU, "linalg_lu": LU, "linalg_ldl_factor_ex": LU, "_linalg_det": LU, "_linalg_slogdet": LU,
    "linalg_cholesky_ex": CHOLESKY, "cholesky": CHOLESKY, "cholesky_inverse": FROM_CHOLESKY, "linalg_inv_ex": INVERSE,
}  # fmt: skip
SOLVERS = {
    "linalg_solve_triangular": (TRIANGULAR, 0, 1), "triangular_solve": (TRIANGULAR, 1, 0),
    "linalg_lu_solve": (LU_SOLVE, 0, 2), "linalg_ldl_solve": (LU_SOLVE, 0, 2), "_linalg_solve_ex": (LU_SOLVE, 0, 1),
    "_cholesky_solve_helper": (CHOLESKY_SOLVE, 1, 0), "cholesky_solve": (CHOLESKY_SOLVE, 1, 0),
}  # fmt: skip
"""What they take, and which arguments on the GPU are the matrix and the right-hand sides."""


def classify(name: str) -> str | None:
    """By name."""
    return "other" if name in FACTORS or name in SOLVERS else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """From matrices of other sizes."""
    given = on_gpu(signature.args)
    if name in SOLVERS:
        times, at, beside = SOLVERS[name]
        if len(given) <= max(at, beside) or len(given[at].shape) < 2:
            return Estimate(LEAST_NS, 0.0, error=ERROR)
        matrix, sides = given[at], given[beside]
        n = matrix.shape[-1]
        few = min(1.0, max(1, sides.shape[-1] if len(sides.shape) > 1 else 1) / max(1, n))
        batch = max(prod(matrix.shape[:-2]), prod(sides.shape[:-2]))
        many, one = (of_batch(each, n, batch) for each in times)
        ms = (one + (many - one) * few) * wider(times[0], matrix)
    else:
        if not given or len(given[0].shape) < 2:
            return Estimate(LEAST_NS, 0.0, error=ERROR)
        matrix, found = given[0], FACTORS[name]
        if name == "_linalg_svd" and False in signature.args[2:3]:
            found = VALUES
        *rest, rows, columns = matrix.shape
        n, most = min(rows, columns), max(rows, columns)
        ms = of_batch(found, n, prod(rest)) * (most / max(1, n)) ** found.higher * wider(found, matrix)
    ns = max(LEAST_NS, ms * 1e6 - HOST_NS) / machine.clock_ratio
    return Estimate(ns, float(sum(map(nbytes, given))), error=ERROR)


def wider(times: Times, matrix: TensorSpec) -> float:
    """How much longer another type than fp32 takes."""
    double = times.double if matrix.dtype in ("float64", "complex128") else 1.0
    return double * (COMPLEX if matrix.dtype.startswith("complex") else 1.0)


def of_batch(times: Times, n: int, batch: int) -> float:
    """ms of `batch` matrices of n x n in fp32: in a batch each takes the same share of what it takes alone."""
    alone = of_one(times, n)
    if batch <= 1:
        return alone
    shares = [(size, ms / (count * of_one(times, size))) for (size, count), ms in zip(BATCHED, times.many, strict=True)]
    return alone * max(1.0, batch * between(shares, n, 0.0))


def of_one(times: Times, n: int) -> float:
    """ms of one matrix of n x n in fp32."""
    return between(list(zip(SIZES, times.one, strict=False)), n, GROWTH)


def between(points: list[tuple[int, float]], n: int, growth: float) -> float:
    """Between `points` (size, value) along powers; as the first below them, with the power `growth` above."""
    if n <= points[0][0]:
        return points[0][1]
    for (low, a), (high, b) in pairwise(points):
        if n <= high:
            return exp(log(a) + (log(b) - log(a)) * log(n / low) / log(high / low))
    size, value = points[-1]
    return float(value * (n / size) ** growth)


FAMILY = Family("factorization", classify, estimate, takes_libraries=True)
