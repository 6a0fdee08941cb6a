"""Fits the costs of `cost/families/linear_algebra.py` to real factorisations, and prints them with what is left over.

    python benchmarks/linear_algebra_fit.py [benchmarks/device/results/linear_algebra_h100.jsonl]

Needs SciPy. Coefficients are not negative; relative errors are least squares. float64 counts by its ratio to float32.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from phantora.cost.families.linear_algebra import NARROW, terms

RESULTS = Path(__file__).parent / "device/results/linear_algebra_h100.jsonl"
# A call that consists of others: what is left of it without them is its own.
PARTS = {"linalg_householder_product": ("linalg_qr", "geqrf")}
Rows = list[tuple[list[float], float]]


def fitted(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    features, times = np.array([f for f, _ in rows]), np.array([t for _, t in rows])
    found, _ = nnls(features / times[:, None], np.ones(len(times)))
    return found


def main() -> None:
    measured: dict[str, dict[tuple[int, int, int, str], float]] = defaultdict(dict)
    for row in map(json.loads, Path(sys.argv[1] if sys.argv[1:] else RESULTS).read_text().splitlines()):
        if "n" in row and "m" not in row and "error" not in row:
            key = (row["n"], row["batch"], row.get("columns", row["n"]), row["dtype"])
            measured[row["op"]][key] = row["kernels_us"] * 1e3
    for name, (whole, part) in PARTS.items():
        measured[name] = {key: ns - measured[part][key] for key, ns in measured[whole].items() if key in measured[part]}
    left = []
    for name, rows in sorted(measured.items()):
        single, narrow, wide, double = [], [], [], []
        for (n, batch, columns, dtype), ns in rows.items():
            if batch == 1 and dtype.endswith("32"):
                single.append((terms(n, columns), ns))
        one = fitted(single)
        for (n, batch, columns, dtype), ns in rows.items():
            alone = float(np.dot(one, terms(n, columns)))
            if batch == 1 and dtype.endswith("64"):
                double.append(ns / alone)
            elif batch > 1 and n <= NARROW:
                narrow.append(([1.0, batch * float(n * n)], ns))
            elif batch > 1:
                wide.append(([(batch - 1) * t for t in terms(n, columns)], max(ns - alone, 0.05 * ns)))
        few = fitted(narrow) if narrow else np.zeros(2)
        more = fitted(wide) if wide else np.zeros(5)
        for (n, batch, columns, dtype), ns in rows.items():
            guess = float(np.dot(one, terms(n, columns)))
            if dtype.endswith("64"):
                guess *= statistics.median(double)
            elif batch > 1 and n <= NARROW:
                guess = float(np.dot(few, [1.0, batch * n * n]))
            elif batch > 1:
                guess += (batch - 1) * float(np.dot(more, terms(n, columns)))
            left.append((abs(guess / ns - 1), name, n, batch, columns, dtype))
        numbers = [", ".join(f"{c:.3g}" for c in group) for group in (one, more, few)]
        ratio = statistics.median(double) if double else 1.0
        print(f'    "{name}": Cost(({numbers[0]}), ({numbers[1]}), ({numbers[2]}), {ratio:.2f}),')
    errors = sorted(error for error, *_ in left)
    high = errors[len(errors) * 9 // 10]
    print(f"{len(left)} rows: median {statistics.median(errors):.1%}, 90th percentile {high:.1%}")
    for error, *what in sorted(left, reverse=True)[:10]:
        print(f"{error:.0%}", *what)


if __name__ == "__main__":
    main()
