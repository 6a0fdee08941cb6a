"""Do simulated step times put layouts in the order of the real ones?

    python -m validation.compare.sweep_order

Real runs are those of the README's table and the sessions `parallel` on H200 of validation/runs.toml, simulated
ones what ``validation/compare/accuracy.py`` found for them. Runs that train the same model on as many tokens (or
images) a
step are compared in pairs, whatever their layout and number of GPUs; pairs whose real steps differ by 3 % or less count
as equal, and the same layout on two machines is no pair. Ends with status 1 if a pair comes out in the other order.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from validation.data import HERE, rows

FOLDERS = ("2026-11-21-h200x4", "2026-11-21-h200x2", "2026-11-22-h200")
EQUAL = 0.03
NO_LAYOUT = ("profile", "warmup", "iters")  # of a configuration


@dataclass(frozen=True)
class Run:
    name: str
    model: tuple[Any, ...]
    """The trained model, and the work of a step."""
    layout: str
    real: float
    """Seconds a step."""
    simulated: float


def read() -> list[Run]:
    simulated = {row["run"]: row["simulated"]["median_iter_s"] for row in rows(HERE / "simulated.jsonl")}
    runs = []
    for name in ("2026-11-22-h200x4/train.jsonl", *(f"{folder}/runs.jsonl" for folder in FOLDERS)):
        for row in rows(name):
            step, rate = row.get("median_iter_s"), row.get("tokens_per_s") or row.get("images_per_s")
            if row["run_id"] not in simulated or not step or not rate or not row.get("params"):
                continue
            config = {key: value for key, value in row["config"].items() if key not in NO_LAYOUT}
            model = (row["params"], config.get("seq") or config.get("size"), round(rate * step))
            layout = json.dumps([row["name"], row["world_size"], config], sort_keys=True)
            runs.append(Run(row["run_id"], model, layout, step, simulated[row["run_id"]]))
    return runs


def main() -> int:
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in read():
        groups[run.model].append(run)
    pairs = wrong = 0
    for (params, size, work), runs in sorted(groups.items()):
        if len({run.layout for run in runs}) < 2:
            continue
        print(f"\n{params / 1e9:.2f}B parameters, sequences or images of {size}, {work:,} a step:")
        for run in sorted(runs, key=lambda run: run.real):
            print(f"  {run.name:52} real {run.real * 1e3:7.1f} ms  simulated {run.simulated * 1e3:7.1f} ms")
        for a, b in itertools.combinations(sorted(runs, key=lambda run: run.real), 2):
            if a.layout == b.layout or b.real / a.real - 1 <= EQUAL:
                continue
            pairs += 1
            if a.simulated >= b.simulated:
                wrong += 1
                print(f"  the other way round: {a.name} and {b.name}")
    print(f"\n{pairs} pairs differ by more than {EQUAL:.0%}; {pairs - wrong} of them are simulated in the same order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
