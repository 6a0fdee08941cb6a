"""Simulated against measured energy of workloads on an H100 and an H200.

    phantora trace --cluster 1x1xH100 -m validation.probes.energy > simulated.jsonl
    python -m validation.compare.energy [simulated.jsonl]

`predicted` of the H100 was simulated with the constants from before its measurement. `predicted` of the H200 has the
constants that its measurement did not change. The buffer of `memory` contains zeros. Values decide power, and the model
has that of random ones: on an H200 an add of random numbers draws 529 W, one of equal numbers 369 W
(2026-11-23-h200x4/interference.parquet, add and foreach_add alone).
"""

from __future__ import annotations

import sys
from pathlib import Path

from validation.data import HERE, rows

MEASURED = ("2026-11-27-h100/energy", "2026-11-27-h200x4/energy")


def main() -> None:
    simulated = {row["workload"]: row for row in rows(Path(sys.argv[1]).resolve())} if len(sys.argv) > 1 else {}
    for measured in MEASURED:
        predicted = {row["run_id"]: row for row in rows(HERE / "predictions.jsonl") if row["prediction"] == measured}
        columns = {"predicted": predicted} | ({"simulated": simulated} if simulated else {})
        print(f"{measured}\n{'workload':14}{'real':>8} W" + "".join(f"{name:>12} W{'':9}" for name in columns))
        for row in rows(f"{measured}.jsonl"):
            name, watts = row["workload"], row["watts"]
            cells = "".join(
                f"{found[name]['watts']:>12.0f} W{100 * (found[name]['watts'] / watts - 1):+8.1f} %"
                for found in columns.values()
            )
            print(f"{name:14}{watts:>8.0f} W{cells}")


if __name__ == "__main__":
    main()
