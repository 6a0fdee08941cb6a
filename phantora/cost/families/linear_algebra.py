"""Factorisations, triangular solvers, eigenvalues and singular values (cuSOLVER, cuBLAS).

A factorisation goes over a matrix panel by panel. Panels follow each other, so small matrices cost time for each
column however large the GPU is; what lies behind a panel is a product. So a matrix of n columns takes a sum of terms in
1, n, n^2 and n^3, and in n^2 times the right-hand sides. Further matrices of a batch have terms of their own: some
libraries take all at once, others one by one. Matrices of up to 32 columns in batches are held in registers.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec

NARROW = 32  # columns of matrices that batched kernels hold in registers
ERROR, BATCH_ERROR, UNMEASURED_ERROR = 0.4, 0.8, 1.0  # relative: nine in ten of the fitted rows are nearer
COMPLEX = 4.0  # multiplications of a complex one
DOUBLE_SHARE = 0.5  # float64 of float32's peak on the GPU of the costs


class Cost(NamedTuple):
    """ns at the clock of an H100, float32, by :func:`terms`: of one matrix; of each further one of a batch; of a batch
    of narrow ones, by 1 and elements. `double`: float64 over float32."""

    one: tuple[float, ...]
    more: tuple[float, ...]
    narrow: tuple[float, float]
    double: float


# benchmarks/linear_algebra_fit.py, from 372 operators of an H100: 12 % off in the median, 54 % at the 90th percentile.
COSTS = {
    "_linalg_eigh": Cost(
        (0, 7.63e+03, 2.16, 0.000472, 0), (0, 1.09e+04, 0.493, 0, 0), (4.67e+04, 0.609), 1.07
    ),
    "_linalg_eigvalsh": Cost(
        (0, 6.97e+03, 2.26, 0.00039, 0), (0, 1.09e+04, 0, 0, 0), (1.28e+04, 0.511), 0.98
    ),
    "_linalg_svd": Cost(
        (559, 6.91e+03, 49.7, 0, 0), (0, 1.05e+04, 41.6, 0, 0), (0, 1.28), 1.82
    ),
    "_linalg_svdvals": Cost(
        (0, 7.08e+03, 46.5, 0, 0), (0, 1.04e+04, 42, 0, 0), (0, 1.27), 1.88
    ),
    "cholesky_inverse": Cost(
        (6.43e+03, 426, 0.143, 0, 3.29e-05), (0, 0, 0.0439, 0.000575, 0), (6.23e+04, 0), 1.26
    ),
    "cholesky_solve": Cost(
        (1.12e+04, 150, 0, 5.87e-07, 6.76e-05), (26.4, 0, 0, 0.000143, 0.000789), (2.47e+04, 0.0308), 1.18
    ),
    "geqrf": Cost(
        (0, 2.05e+03, 0.898, 0, 0), (0, 0, 0, 0.00358, 0), (9.75e+04, 0), 1.16
    ),
    "linalg_cholesky_ex": Cost(
        (1.01e+04, 234, 0.0467, 0, 5.99e-06), (21.3, 0, 0.02, 9e-05, 0), (2.19e+04, 0.014), 1.19
    ),
    "linalg_eig": Cost(
        (0, 2.98e+04, 50.5, 0, 0), (0, 0, 0, 0, 0), (0, 0), 1.25
    ),
    "linalg_householder_product": Cost(
        (1.64e+04, 270, 0.186, 0, 1.75e-05), (1.04e+04, 261, 0.273, 0, 0), (0, 35.2), 0.89
    ),
    "linalg_inv_ex": Cost(
        (1.87e+04, 1.86e+03, 0.527, 0, 3.01e-05), (0, 0, 0.128, 0.000974, 0), (9.19e+04, 0), 1.12
    ),
    "linalg_lu_factor_ex": Cost(
        (6.5e+03, 1.53e+03, 0.357, 0, 0), (85.9, 0, 0, 0.000845, 0), (1.12e+04, 0.0115), 1.09
    ),
    "linalg_qr": Cost(
        (0, 2.87e+03, 1.03, 0, 0), (1.92e+04, 0, 3.08, 0, 0.00142), (0, 35.8), 1.01
    ),
    "linalg_solve_ex": Cost(
        (1.78e+04, 1.85e+03, 0.344, 0, 6.02e-05), (104, 0, 0.0179, 0.000921, 0.000499), (5.99e+04, 0), 1.11
    ),
    "linalg_solve_triangular": Cost(
        (6.83e+03, 59.3, 0, 0, 3.57e-05), (0, 0, 0.00399, 3.13e-05, 6.52e-05), (1.36e+04, 0), 1.19
    ),
}
PEAK = 66.9e3  # FLOP/ns in float32 of that H100
SAME = {  # what was not measured apart
    "_linalg_eigvals": "linalg_eig",
    "linalg_eigvals": "linalg_eig",
    "linalg_lu": "linalg_lu_factor_ex",
    "linalg_lu_factor": "linalg_lu_factor_ex",
    "_linalg_det": "linalg_lu_factor_ex",
    "_linalg_slogdet": "linalg_lu_factor_ex",
    "linalg_cholesky": "linalg_cholesky_ex",
    "_cholesky_solve_helper": "cholesky_solve",
    "linalg_lu_solve": "cholesky_solve",
    "triangular_solve": "linalg_solve_triangular",
    "_linalg_solve_ex": "linalg_solve_ex",
    "linalg_inv": "linalg_inv_ex",
    "ormqr": "linalg_householder_product",
    "orgqr": "linalg_householder_product",
    "linalg_lstsq": "geqrf",
    "linalg_ldl_factor_ex": "linalg_lu_factor_ex",
    "linalg_ldl_solve": "cholesky_solve",
}
GUESSED = frozenset(("linalg_ldl_factor_ex", "linalg_ldl_solve", "ormqr", "linalg_lstsq"))
RIGHT = {  # argument with the right-hand sides, and that with the matrix
    "linalg_solve_triangular": (1, 0),
    "triangular_solve": (0, 1),
    "_cholesky_solve_helper": (0, 1),
    "cholesky_solve": (0, 1),
    "linalg_lu_solve": (2, 0),
    "linalg_solve_ex": (1, 0),
    "_linalg_solve_ex": (1, 0),
    "linalg_ldl_solve": (2, 0),
    "ormqr": (2, 0),
    "linalg_lstsq": (1, 0),
}


def classify(name: str) -> str | None:
    """By name."""
    return "other" if name in COSTS or name in SAME else None


def terms(n: int, columns: int, rows: int | None = None) -> list[float]:
    """Of a matrix of `rows` (else as many) and `n` columns and of `columns` right-hand sides."""
    size = float(n if rows is None else rows) * n
    return [1.0, float(n), size, size * n, float(n) * n * columns]


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Bytes are those of the matrices, once read and once written."""
    given = on_gpu(signature.args)
    right, left = RIGHT.get(name, (-1, 0))
    matrix = _matrix(signature, left)
    if matrix is None:
        return Estimate(machine.fit.floor_ns, 0.0)
    rows, n = max(matrix.shape[-2:]), min(matrix.shape[-2:])
    sides = _matrix(signature, right) if right >= 0 else None
    columns = sides.shape[-1] if sides is not None else n
    batch = max(1, prod(matrix.shape[:-2]))
    cost = COSTS[_measured_as(signature, name)]
    if batch > 1 and n <= NARROW and any(cost.narrow):
        ns = (cost.narrow[0] + cost.narrow[1] * batch * rows * n) / machine.clock_ratio
    else:
        by, more = terms(n, columns, rows), cost.more if any(cost.more) else cost.one
        ns = _ns(machine, matrix.dtype, cost.one, by) + (batch - 1) * _ns(machine, matrix.dtype, more, by)
    if matrix.dtype in ("float64", "complex128"):
        ns *= cost.double
    if matrix.dtype.startswith("complex"):
        ns *= COMPLEX
    error = BATCH_ERROR if batch > 1 else ERROR
    if name in GUESSED or matrix.dtype.startswith("complex"):
        error = UNMEASURED_ERROR
    return Estimate(ns, 2.0 * sum(map(nbytes, given)), error=error)


def _ns(machine: Machine, dtype: str, of: tuple[float, ...], by: list[float]) -> float:
    """Panels go with the clock, products with the peak of `dtype` beside that of the costs' GPU."""
    wide = dtype in ("float64", "complex128")
    peak = machine.peak("float64") / DOUBLE_SHARE if wide else machine.peak("float32")
    panels = sum(c * t for c, t in zip(of[:3], by[:3], strict=True))
    products = sum(c * t for c, t in zip(of[3:], by[3:], strict=True))
    return panels / machine.clock_ratio + products * PEAK / peak


def _matrix(signature: OperatorSignature, place: int) -> TensorSpec | None:
    found = signature.args[place] if place < len(signature.args) else None
    return found if isinstance(found, TensorSpec) and len(found.shape) >= 2 and all(found.shape) else None


def _measured_as(signature: OperatorSignature, name: str) -> str:
    """Eigenvalues and singular values alone cost less than with their vectors."""
    flags = [value for value in signature.args if isinstance(value, bool)]
    if name == "_linalg_eigh" and flags and not flags[-1]:
        return "_linalg_eigvalsh"
    if name == "_linalg_svd" and flags and not flags[-1]:
        return "_linalg_svdvals"
    return SAME.get(name, name)


FAMILY = Family("linear algebra", classify, estimate)
