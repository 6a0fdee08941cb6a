"""Prices of products with sparse matrices against measured times.

    python -m validation.compare.sparse [FILE ...]

Each line: a case, measured, simulated by the constants as they are, and by constants fitted to all other cases of its
kind (products of CSR and of COO; sampled products, whose two constants a grid is searched for).
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from phantora.cost import parse_signature
from phantora.cost.machine import Machine
from phantora.cost.sparse import CONSTANTS, Constants, product_ns
from phantora.cost.types import OperatorSignature
from phantora.hardware import load_gpu
from validation.data import MEASUREMENTS

DATA = [MEASUREMENTS / "2026-11-22-h100/sparse.jsonl", MEASUREMENTS / "2026-11-28-h200/sparse.jsonl"]
KINDS = {
    "mm csr": ("csr_stored", "csr_value"),
    "mm coo": ("coo_stored", "coo_value"),
    "sampled csr": ("sampled_hit", "sampled_miss"),
}
Case = tuple[Machine, OperatorSignature, float]
STEPS = [exp(0.08 * i) for i in range(-12, 13)]


def signature(row: dict[str, Any]) -> OperatorSignature:
    """As the tracer writes the call of ``validation/probes/sparse.py``."""
    rows, width, dtype = row["rows"], row["width"], row["dtype"]
    layout = "sparse_coo" if row["case"] == "mm coo" else "sparse_csr"
    matrix = {"t": dtype, "s": [rows, rows], "st": [], "layout": layout, "nnz": row["stored"]}
    dense = {"t": dtype, "s": [rows, width], "st": [width, 1]}
    if row["case"] != "sampled csr":
        return parse_signature(json.dumps({"op": "aten::mm", "args": [matrix, dense]}))
    other = {"t": dtype, "s": [width, rows], "st": [rows, 1]}
    return parse_signature(json.dumps({"op": "aten::sparse_sampled_addmm", "args": [matrix, dense, other, 1, 1]}))


def fit(names: tuple[str, ...], loss: Callable[[Constants], float]) -> Constants:
    """The best of a grid around the constants as they are."""
    tried = (
        replace(CONSTANTS, **{n: getattr(CONSTANTS, n) * s for n, s in zip(names, steps, strict=True)})
        for steps in product(STEPS, repeat=len(names))
    )
    return min(tried, key=loss)


def main() -> None:
    paths = [Path(path) for path in sys.argv[1:]] or DATA
    cases: dict[str, list[Case]] = defaultdict(list)
    for row in (json.loads(line) for path in paths for line in path.read_text().splitlines()):
        whole = row["case"] == "mm coo" and "columns" not in row  # with copies that are operators of their own
        if row["case"] in KINDS and "us" in row and not whole:
            cases[row["case"]].append((Machine(load_gpu(row["gpu"])), signature(row), row["us"] * 1e3))

    def ratio(machine: Machine, known: OperatorSignature, ns: float, constants: Constants) -> float:
        return (product_ns(machine, known, constants) or 0.0) / ns

    def spread(members: Iterable[Case]) -> Callable[[Constants], float]:
        members = list(members)
        return lambda c: sum(abs(log(ratio(*member, c))) for member in members)

    as_is, left_out = [], []
    for kind, members in cases.items():
        for i, (machine, known, ns) in enumerate(members):
            others = fit(KINDS[kind], spread(members[:i] + members[i + 1 :]))
            as_is.append(abs(ratio(machine, known, ns, CONSTANTS) - 1))
            left_out.append(abs(ratio(machine, known, ns, others) - 1))
            dense = known.args[1]
            print(
                f"{kind:12s} {known.args[0].stored:8d} x {dense.shape[1]:4d} {dense.dtype:8s} {ns / 1e3:9.1f} us"
                f"{100 * (ratio(machine, known, ns, CONSTANTS) - 1):+7.1f} %, "
                f"left out {100 * (ratio(machine, known, ns, others) - 1):+7.1f} %"
            )
        best = fit(KINDS[kind], spread(members))
        print(f"{kind}: best " + ", ".join(f"{n} {getattr(best, n):.3f}" for n in KINDS[kind]))
    for name, found in (("as they are", as_is), ("left out", left_out)):
        print(f"{name}: {len(found)} products, median {100 * median(found):.1f} %, worst {100 * max(found):.1f} %")


if __name__ == "__main__":
    main()
