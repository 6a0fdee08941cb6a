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

REGISTER_COLUMNS = 32  # columns of matrices that batched kernels hold in registers
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


# validation/fits/linear_algebra.py, 437 calls on H100s and an H200: single matrices are 8 % off in the median and 41 %
# at the 90th percentile, batches 22 and 74 %. Single ones take their kernels; the host's launches are charged to the
# host, except those of linalg_eig, whose host waits for most kernels.
COSTS = {
    "_linalg_eigh": Cost((0, 9.72e03, 0.542, 0.000701, 0), (1.81e05, 1.27e04, 0, 0, 0), (1.92e05, 0.588), 1.06),
    "_linalg_eigvalsh": Cost((0, 8.62e03, 0.999, 0, 0.000571), (2.62e05, 1.25e04, 0, 0, 0), (6.57e04, 0.638), 0.90),
    "_linalg_svd": Cost((8.69e04, 6.7e03, 57, 0, 0), (0, 1.71e04, 35.8, 0, 0), (0, 1.26), 1.77),
    "_linalg_svdvals": Cost((9.08e04, 9.68e03, 1.37, 0.012, 0.0138), (0, 1.54e04, 42.1, 0, 0), (0, 1.25), 2.28),
    "cholesky_inverse": Cost((1.31e04, 430, 0.166, 3.04e-05, 0), (0, 0, 0.0376, 0.000673, 0), (6.43e04, 0), 1.25),
    "cholesky_solve": Cost(
        (1.78e04, 135, 0, 8.81e-07, 6.93e-05), (22.6, 0, 0, 0.000154, 0.000751), (2.06e04, 0.0348), 1.21
    ),
    "geqrf": Cost((0, 2.25e03, 0.869, 0, 0), (0, 0, 0, 0.00362, 0), (1.1e05, 0), 1.14),
    "linalg_cholesky_ex": Cost((1.6e04, 252, 0.0465, 0, 5.52e-06), (7.67, 0, 0.0192, 0.000117, 0), (4.38e04, 0), 1.12),
    "linalg_eig": Cost((2.86e05, 1.34e05, 70.4, 0, 0), (0, 9.14e04, 127, 0, 0), (5.69e07, 2.21e03), 1.26),
    "linalg_householder_product": Cost(
        (2.62e04, 319, 0.228, 1.29e-05, 0), (4.29e04, 295, 0.301, 0, 0), (0, 86.3), 0.90
    ),
    "linalg_inv_ex": Cost((2.77e04, 2.06e03, 0.381, 0, 4.94e-05), (0, 0, 0.114, 0.00142, 0), (2.15e05, 0), 1.12),
    "linalg_lu_factor_ex": Cost((1.29e04, 1.46e03, 0.392, 0, 0), (37.9, 0, 0, 0.00126, 0), (1.12e04, 0.0115), 1.11),
    "linalg_qr": Cost((3.35e04, 2.99e03, 0.944, 1.68e-05, 0), (4.96e04, 0, 4.59, 0, 0), (2.57e06, 83.2), 1.00),
    "linalg_solve_ex": Cost(
        (2.67e04, 1.84e03, 0.354, 0, 6.18e-05), (0, 0, 0.0569, 0.00107, 0.000468), (1.59e05, 0), 1.14
    ),
    "linalg_solve_triangular": Cost(
        (8.57e03, 56.8, 0, 1.82e-09, 3.61e-05), (0, 0, 0.00258, 4.59e-05, 6.9e-05), (1.36e04, 0), 1.22
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
SQUARE_FIRST = ("_linalg_svd",)  # a high matrix is first reduced to a square one, by QR: 5 % more for 8 times the rows
UNMEASURED = frozenset(("linalg_ldl_factor_ex", "linalg_ldl_solve", "ormqr", "linalg_lstsq"))
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
    """Class by name."""
    return "other" if name in COSTS or name in SAME else None


def terms(n: int, columns: int, rows: int | None = None) -> list[float]:
    """Terms for a matrix of `rows` (default: n) and `n` columns, and `columns` right-hand sides."""
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
    if name in SQUARE_FIRST:
        rows = n
    sides = _matrix(signature, right) if right >= 0 else None
    columns = sides.shape[-1] if sides is not None else n
    batch = max(1, prod(matrix.shape[:-2]))
    cost = COSTS[_measured_as(signature, name)]
    if batch > 1 and rows <= REGISTER_COLUMNS and any(cost.narrow):
        ns = (cost.narrow[0] + cost.narrow[1] * batch * rows * n) / machine.clock_ratio
    else:
        by, more = terms(n, columns, rows), cost.more if any(cost.more) else cost.one
        ns = _ns(machine, matrix.dtype, cost.one, by) + (batch - 1) * _ns(machine, matrix.dtype, more, by)
    if matrix.dtype in ("float64", "complex128"):
        ns *= cost.double
    if matrix.dtype.startswith("complex"):
        ns *= COMPLEX
    error = BATCH_ERROR if batch > 1 else ERROR
    if name in UNMEASURED or matrix.dtype.startswith("complex"):
        error = UNMEASURED_ERROR
    return Estimate(ns, 2.0 * sum(map(nbytes, given)), error=error)


def _ns(machine: Machine, dtype: str, of: tuple[float, ...], by: list[float]) -> float:
    """Panels go with the clock, products with the peak of `dtype` next to that of the costs' GPU."""
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


FAMILY = Family("linear algebra", classify=classify, estimate=estimate)
