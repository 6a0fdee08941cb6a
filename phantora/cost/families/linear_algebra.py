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


# validation/fits/linear_algebra.py, 437 calls on H100s: single matrices are 12 % off in the median and 42 % at the 90th
# percentile, batches 20 and 74 %.
COSTS = {
    "_linalg_eigh": Cost(
        (3.41e+05, 1.28e+04, 0, 0, 0.000687), (1.99e+05, 1.24e+04, 0, 0, 0), (1.92e+05, 0.588), 0.90
    ),
    "_linalg_eigvalsh": Cost(
        (2.56e+05, 1.26e+04, 0, 0, 0.000589), (2.75e+05, 1.22e+04, 0, 0, 0), (6.57e+04, 0.638), 0.69
    ),
    "_linalg_svd": Cost(
        (9.82e+04, 1.47e+04, 44.4, 0, 0.000558), (0, 1.69e+04, 36.2, 0, 0), (0, 1.26), 1.48
    ),
    "_linalg_svdvals": Cost(
        (7.4e+04, 1.5e+04, 41.9, 0, 0), (0, 1.55e+04, 38.5, 0, 0), (0, 1.25), 1.54
    ),
    "cholesky_inverse": Cost(
        (5.72e+03, 446, 0.235, 2e-05, 0), (0, 0, 0.0386, 0.000667, 0), (6.43e+04, 0), 1.53
    ),
    "cholesky_solve": Cost(
        (1.12e+04, 149, 0, 6.19e-07, 7e-05), (22.6, 0, 0, 0.000155, 0.00075), (2.06e+04, 0.0348), 1.20
    ),
    "geqrf": Cost(
        (0, 2.13e+03, 0.924, 0, 0), (0, 0, 0, 0.00362, 0), (1.1e+05, 0), 1.22
    ),
    "linalg_cholesky_ex": Cost(
        (1.01e+04, 234, 0.0466, 0, 6.03e-06), (4.07, 0, 0.0205, 0.000118, 0), (4.38e+04, 0), 1.19
    ),
    "linalg_eig": Cost(
        (2.86e+05, 1.34e+05, 70.4, 0, 0), (0, 9.14e+04, 127, 0, 0), (5.69e+07, 2.21e+03), 1.26
    ),
    "linalg_householder_product": Cost(
        (1.73e+05, 102, 0.234, 0, 1.79e-05), (4e+04, 325, 0.128, 0, 0.000149), (0, 86.3), 1.07
    ),
    "linalg_inv_ex": Cost(
        (3.45e+05, 1.01e+03, 0.931, 0, 0), (23.3, 0, 0.0936, 0.00145, 0), (2.15e+05, 0), 1.13
    ),
    "linalg_lu_factor_ex": Cost(
        (6.33e+03, 1.53e+03, 0.378, 0, 0), (39.1, 0, 0, 0.00126, 0), (1.12e+04, 0.0115), 1.09
    ),
    "linalg_qr": Cost(
        (2.14e+05, 2.91e+03, 1.07, 0, 0), (4.84e+04, 0, 4.57, 0, 0), (2.57e+06, 83.2), 1.07
    ),
    "linalg_solve_ex": Cost(
        (1.65e+05, 1.62e+03, 0.413, 0, 5.87e-05), (0, 0, 0.0487, 0.00105, 0.000508), (1.59e+05, 0), 1.14
    ),
    "linalg_solve_triangular": Cost(
        (6.84e+03, 59.2, 0, 0, 3.61e-05), (0, 0, 0.0027, 4.59e-05, 6.82e-05), (1.36e+04, 0), 1.19
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
    if name in GUESSED or matrix.dtype.startswith("complex"):
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


FAMILY = Family("linear algebra", classify, estimate)
