"""Fits the costs of `cost/families/linear_algebra.py` to real factorisations, and prints them with what is left over.

    python -m validation.fits.linear_algebra

From kernels by the profiler, on an H100 (`validation/probes/linear_algebra.py`) and an H200 (small and tall matrices),
and from calls between events on an H100 (`validation/probes/factorizations.py`). Needs SciPy. Coefficients are not
negative; relative errors are least squares. float64 counts by its ratio to float32.

A single matrix takes its kernels and the gaps between them: the host's launches are charged to the host
(`stub/cusolver`).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from math import prod
from typing import Any

import numpy as np
from scipy.optimize import nnls

from phantora.cost.families.linear_algebra import COSTS, REGISTER_COLUMNS, SQUARE_FIRST, terms
from validation import data

FEW = 8  # a batch of more kernels is as long as from its first to its last: the library waits between them
GAP_US = 1.0  # between two kernels of a call
GPU_BOUND = 1024  # columns from which the GPU, not the host, decides what a call between events takes
OF_TORCH = {
    "qr": "linalg_qr",
    "cholesky": "linalg_cholesky_ex",
    "inv": "linalg_inv_ex",
    "solve": "linalg_solve_ex",
    "lu_factor": "linalg_lu_factor_ex",
    "eigh": "_linalg_eigh",
    "eigvalsh": "_linalg_eigvalsh",
    "svd": "_linalg_svd",
    "svdvals": "_linalg_svdvals",
    "cholesky_solve": "cholesky_solve",
    "solve_triangular": "linalg_solve_triangular",
}
ONE_SIDE = ("linalg_solve_ex", "cholesky_solve", "linalg_solve_triangular")
HOST_NS = 35_000.0  # of times between events
LEAST_MS = 0.3  # shorter ones between events are mostly the host's
# A call that consists of others: what is left of it without them is its own.
PARTS = {"linalg_householder_product": ("linalg_qr", "geqrf")}
VALUES = "_linalg_svdvals"
Rows = list[tuple[list[float], float]]


def fitted(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    features, times = np.array([f for f, _ in rows]), np.array([t for _, t in rows])
    found: np.ndarray[Any, np.dtype[np.float64]] = nnls(features / times[:, None], np.ones(len(times)))[0]
    return found


def between_events() -> dict[str, dict[tuple[int, int, int, str], float]]:
    """ns of square matrices by operator, and by size, batch, right-hand sides, dtype."""
    found: dict[str, dict[tuple[int, int, int, str], float]] = defaultdict(dict)
    for row in data.rows("2026-11-23-h100/factorizations.parquet"):
        name, _, kind = row["op"].partition("/")
        if kind == "vals":
            name = VALUES
        if kind == "8" or row["ms"] < LEAST_MS or name not in COSTS:
            continue
        if not row["batch"] and row["n"] < GPU_BOUND:
            continue
        columns = 1 if kind == "1" else row["n"]
        found[name][row["n"], prod(row["batch"]), columns, f"torch.{row['t']}"] = row["ms"] * 1e6 - HOST_NS
    return found


def taken_ns(row: dict[str, Any], batch: int) -> float:
    if batch == 1:
        return float(row["kernels_us"] + GAP_US * (row["kernels"] - 1)) * 1e3
    span = min(row["span_us"], row["wall_us"]) if row["kernels"] > FEW else 0.0
    return float(max(row["kernels_us"], span)) * 1e3


def main() -> None:
    measured = between_events()
    for row in data.rows("2026-11-23-h100/linear_algebra.parquet"):
        if "n" in row and "m" not in row and "error" not in row:
            key = (row["n"], row["batch"], row.get("columns", row["n"]), row["dtype"])
            measured[row["op"]][key] = taken_ns(row, row["batch"])
    small_and_tall: dict[str, Rows] = defaultdict(list)
    for row in data.rows("2026-11-27-h200x4/linear_algebra.parquet"):
        name = OF_TORCH.get(row["op"])
        if name is None or "error" in row or row["shape"][0] > 1 or row["shape"][1] < row["shape"][2]:
            continue
        _, m, n = row["shape"]
        rows = n if name in SQUARE_FIRST else m
        small_and_tall[name].append((terms(n, 1 if name in ONE_SIDE else n, rows), taken_ns(row, 1)))
    for name, (whole, part) in PARTS.items():
        measured[name] = {key: ns - measured[part][key] for key, ns in measured[whole].items() if key in measured[part]}
    left = []
    for name, rows in sorted(measured.items()):
        single, narrow, wide, double = [], [], [], []
        for (n, batch, columns, dtype), ns in rows.items():
            if batch == 1 and dtype.endswith("32"):
                single.append((terms(n, columns), ns))
        one = fitted(single + small_and_tall[name])
        for (n, batch, columns, dtype), ns in rows.items():
            alone = float(np.dot(one, terms(n, columns)))
            if dtype.endswith("64"):
                double.extend([ns / alone] * (batch == 1))
            elif batch > 1 and n <= REGISTER_COLUMNS:
                narrow.append(([1.0, batch * float(n * n)], ns))
            elif batch > 1:
                wide.append(([(batch - 1) * t for t in terms(n, columns)], max(ns - alone, 0.05 * ns)))
        few = fitted(narrow) if narrow else np.zeros(2)
        more = fitted(wide) if wide else np.zeros(5)
        for (n, batch, columns, dtype), ns in rows.items():
            prediction = float(np.dot(one, terms(n, columns)))
            if batch > 1 and n <= REGISTER_COLUMNS and few.any():
                prediction = float(np.dot(few, [1.0, batch * n * n]))
            elif batch > 1:
                prediction += (batch - 1) * float(np.dot(more, terms(n, columns)))
            if dtype.endswith("64"):
                prediction *= statistics.median(double)
            left.append((abs(prediction / ns - 1), name, n, batch, columns, dtype))
        numbers = [", ".join(f"{c:.3g}" for c in group) for group in (one, more, few)]
        ratio = statistics.median(double) if double else 1.0
        print(f'    "{name}": Cost(({numbers[0]}), ({numbers[1]}), ({numbers[2]}), {ratio:.2f}),')
    for batched in (False, True):
        errors = sorted(error for error, _, _, batch, *_ in left if (batch > 1) == batched)
        high = errors[len(errors) * 9 // 10]
        about = f"{'batches' if batched else 'single'} {len(errors)}"
        print(f"{about}: median {statistics.median(errors):.1%}, 90th percentile {high:.1%}")
    for error, *what in sorted(left, reverse=True)[:10]:
        print(f"{error:.0%}", *what)


if __name__ == "__main__":
    main()
