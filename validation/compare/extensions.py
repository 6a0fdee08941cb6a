"""Operators of extensions and custom operators, simulated next to measured.

    phantora trace --cluster 1x1xH100 -o ext.arrow -m validation.probes.extension_kernels --once
    python -m validation.compare.extensions ext.arrow [extensions.jsonl] [--predict FILE]

A case's time is the sum of its kernels'; measured: the mean of cold and warm L2. ``--predict`` writes what was
simulated as JSON lines, which can be given in the log's place.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

from phantora.trace.reader import open_log
from validation.data import MEASUREMENTS

DATA = MEASUREMENTS / "2026-11-22-h100/extensions.jsonl"
MARK = "case: "


def simulated(path: Path) -> dict[str, float]:
    """ns of each case, from a log or from what ``--predict`` wrote."""
    if path.suffix == ".jsonl":
        return {row["case"]: row["ns"] for row in map(json.loads, path.read_text().splitlines())}
    log = open_log(path)
    words = log.words("name")
    spans: list[tuple[int, int, str]] = []
    kernels: list[tuple[int, int]] = []
    for batch in log.batches(("name", "start", "end"), kinds=("annotation",)):
        rows = zip(*(batch[c].tolist() for c in ("start", "end", "name")), strict=True)
        spans += [(a, b, words[n].removeprefix(MARK)) for a, b, n in rows if n >= 0 and words[n].startswith(MARK)]
    for batch in log.batches(("launch", "start", "end"), kinds=("kernel",)):
        rows = zip(*(batch[c].tolist() for c in ("launch", "start", "end")), strict=True)
        kernels += [(launch, end - start) for launch, start, end in rows]
    return {name: float(sum(ns for at, ns in kernels if a <= at <= b)) for a, b, name in spans}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("measured", type=Path, nargs="?", default=DATA)
    parser.add_argument("--predict", type=Path)
    args = parser.parse_args()
    ours = simulated(args.log)
    if args.predict:
        args.predict.write_text("".join(json.dumps({"case": c, "ns": ns}) + "\n" for c, ns in sorted(ours.items())))
        return
    off: list[float] = []
    for row in map(json.loads, args.measured.read_text().splitlines()[1:]):
        real = sum((k["cold"] + k["warm"]) / 2 for k in row["kernels"])
        ns = ours.get(row["case"])
        if ns is None or not real:
            print(f"{row['case']:50s} {real / 1e3:9.1f} us, not simulated")
            continue
        off.append(max(ns / real, real / ns))
        print(f"{row['case']:50s} {real / 1e3:9.1f} us {ns / 1e3:9.1f} us {100 * (ns / real - 1):+7.1f} %")
    off.sort()
    if off:
        errors = f"median {100 * (median(off) - 1):.1f} %, 90th percentile {100 * (off[int(0.9 * len(off))] - 1):.1f} %"
        print(f"{len(off)} cases: {errors}, worst factor {off[-1]:.2f}")


if __name__ == "__main__":
    main()
