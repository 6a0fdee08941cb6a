"""Predicted prices of operators that no table has, against an H200.

    python -m validation.compare.program_operators [--least N] [--file FILE]

`validation/probes/program_operators.py` drew the operators; `index_operators.py`, `volume_operators.py`,
`precise_operators.py` and `shape_operators.py` those of the files of these names below `2026-11-28-h200` and
`2026-11-30-h200`, where `more_shape_operators.parquet` has a later draw. They were predicted first and then measured,
with the operands out of the L2 cache (cold) and in it (warm). The error is the distance of the prediction from the
interval between these two. A line per operator with at least N cases: their number, the median and the 90th
percentile of the error, and the medians of predicted over cold and over warm time.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict

import numpy as np

from validation.data import rows

DATA = "2026-11-27-h200x4/program_operators.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=8)
    parser.add_argument("--file", default=DATA, help="below validation/measurements")
    args = parser.parse_args()
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows(args.file):
        predicted, cold, warm = row.get("predicted_ns"), sum(row["cold_ns"]), sum(row["warm_ns"])
        if predicted and cold and warm:
            ratios[json.loads(row["signature"])["op"]].append((predicted / cold, predicted / warm))
    print(f"{'operator':44} {'cases':>5} {'median':>7} {'90 %':>7} {'/ cold':>7} {'/ warm':>7}")
    show("all", [ratio for found in ratios.values() for ratio in found])
    for name, found in sorted(ratios.items(), key=lambda item: -len(item[1])):
        if len(found) >= args.least:
            show(name, found)


def show(name: str, found: list[tuple[float, float]]) -> None:
    """Prints a line; `found` has predicted over cold and over warm time of each case."""
    values = np.array(found)
    errors = np.maximum(0, np.maximum(values.min(axis=1) - 1, 1 - values.max(axis=1)))
    cold, warm = np.median(values, axis=0)
    print(f"{name:44} {len(found):5} {np.median(errors):7.0%} {np.percentile(errors, 90):7.0%} {cold:7.2f} {warm:7.2f}")


if __name__ == "__main__":
    main()
