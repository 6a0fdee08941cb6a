"""Times factorizations of matrices and systems of equations on a real GPU. One JSON line per case: sizes and milliseconds.

    python -m validation.probes.factorizations > "$OUT/factorizations.jsonl"

Matrices of 16 to 8,192 in fp32, batches, three sizes in fp64. `/1`: one right-hand side; `/8`: eight times as high as
wide; `/vals`: no vectors. Medians between events. 85 s on an H100. For phantora/cost/families/linear_algebra.py.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import linalg

REPEATS = 5
SIZES = (16, 64, 256, 1024, 2048, 4096, 8192)
BATCHES = ((64, 16), (64, 64), (1024, 32), (16, 256), (8, 1024))


class Operands:
    """Matrices of n x n and what is made of them."""

    def __init__(self, batch: tuple[int, ...], n: int, dtype: torch.dtype) -> None:
        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(*batch, rows, columns, device="cuda", dtype=dtype)

        self.any, self.column, self.high = normal(n, n), normal(n, 1), normal(8 * n, n)
        self.positive = self.any @ self.any.mT / n + torch.eye(n, device="cuda", dtype=dtype)
        self.factor, self.lu = linalg.cholesky(self.positive), linalg.lu_factor(self.any)


@dataclass(frozen=True)
class Case:
    call: Callable[[Operands], object]
    largest: int


CASES = {
    "linalg_cholesky_ex": Case(lambda o: linalg.cholesky_ex(o.positive), 8192),
    "linalg_lu_factor_ex": Case(lambda o: linalg.lu_factor_ex(o.any), 8192),
    "linalg_solve_triangular": Case(lambda o: linalg.solve_triangular(o.factor, o.any, upper=False), 8192),
    "linalg_solve_triangular/1": Case(lambda o: linalg.solve_triangular(o.factor, o.column, upper=False), 8192),
    "linalg_lu_solve": Case(lambda o: linalg.lu_solve(*o.lu, o.any), 8192),
    "linalg_lu_solve/1": Case(lambda o: linalg.lu_solve(*o.lu, o.column), 8192),
    "cholesky_solve": Case(lambda o: torch.cholesky_solve(o.any, o.factor), 8192),
    "cholesky_solve/1": Case(lambda o: torch.cholesky_solve(o.column, o.factor), 8192),
    "cholesky_inverse": Case(lambda o: torch.cholesky_inverse(o.factor), 4096),
    "linalg_inv_ex": Case(lambda o: linalg.inv_ex(o.any), 8192),
    "linalg_qr": Case(lambda o: linalg.qr(o.any), 4096),
    "linalg_qr/8": Case(lambda o: linalg.qr(o.high), 4096),
    "geqrf": Case(lambda o: torch.geqrf(o.any), 4096),
    "_linalg_eigh": Case(lambda o: linalg.eigh(o.positive), 2048),
    "_linalg_svd": Case(lambda o: linalg.svd(o.any), 2048),
    "_linalg_svd/vals": Case(lambda o: linalg.svdvals(o.any), 2048),
    "_linalg_svd/8": Case(lambda o: linalg.svd(o.high, full_matrices=False), 1024),
    "linalg_lstsq": Case(lambda o: linalg.lstsq(o.any, o.column), 4096),
    "linalg_eig": Case(lambda o: linalg.eig(o.any), 1024),
}


def milliseconds(call: Callable[[], object]) -> float:
    """Once, on a stream that has nothing else to do."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last)


def main() -> None:
    shapes: list[tuple[tuple[int, ...], int]] = [((), n) for n in SIZES] + [((b,), n) for b, n in BATCHES]
    for dtype in (torch.float32, torch.float64):
        for batch, n in shapes:
            if dtype == torch.float64 and (prod(batch) > 1 or n not in (64, 256, 1024)):
                continue
            operands = Operands(batch, n, dtype)
            for name, case in CASES.items():
                if n > case.largest:
                    continue
                case.call(operands)
                torch.cuda.synchronize()
                ms = statistics.median(milliseconds(partial(lambda c, o: c.call(o), case, operands)) for _ in range(REPEATS))
                about = {"op": name, "batch": batch, "n": n, "t": str(dtype).removeprefix("torch."), "ms": ms}
                print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
