"""Simulated against measured energy of five workloads on an H100.

    phantora trace --cluster 1x1xH100 -m validation.probes.energy > simulated.jsonl
    python -m validation.compare.energy [simulated.jsonl]

`predicted` was simulated with the constants from before this measurement. The buffer of `memory` contains zeros. Values
decide power, and the model has that of random ones: on an H200 an add of random numbers draws 529 W, one of equal
numbers 369 W (2026-11-23-h200x4/interference.parquet, add and foreach_add alone).
"""

from __future__ import annotations

import sys
from pathlib import Path

from validation.data import HERE, rows

MEASURED = "2026-11-27-h100/energy"


def main() -> None:
    real = {row["workload"]: row for row in rows(f"{MEASURED}.jsonl")}
    predicted = {row["run_id"]: row for row in rows(HERE / "predictions.jsonl") if row["prediction"] == MEASURED}
    columns = {"predicted": predicted}
    if len(sys.argv) > 1:
        columns["simulated"] = {row["workload"]: row for row in rows(Path(sys.argv[1]).resolve())}
    print(f"{'workload':12}{'real':>8} W" + "".join(f"{name:>12} W{'':9}" for name in columns))
    for name, row in real.items():
        cells = "".join(
            f"{found[name]['watts']:>12.0f} W{100 * (found[name]['watts'] / row['watts'] - 1):+8.1f} %"
            for found in columns.values()
        )
        print(f"{name:12}{row['watts']:>8.0f} W{cells}")


if __name__ == "__main__":
    main()
