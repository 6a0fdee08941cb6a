"""Error bars beside the truth: how often the real step time lies within the bar of the simulated one.

    python benchmarks/error_bars.py REAL.jsonl... SIMULATED

REAL.jsonl holds a line per real run (``run_id``, ``median_iter_s``), SIMULATED their simulations: the file that
``benchmarks/accuracy.py --out`` writes, or the folder of logs that its ``--keep`` leaves (``RUN_ID.arrow``). The bar is
that of the headline of `phantora analyze`.

The part that all runs have in common was chosen with real runs at hand. So it is also chosen on a random half of the
runs, as the least with which 9 in 10 of that half lie inside, and judged on the other half; 200 halves.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy import Headline, headline_of
from rich.console import Console
from rich.table import Table

from phantora.trace.analysis.uncertainty import COMMON

SPLITS, INSIDE = 200, 0.9


@dataclass(frozen=True)
class Held:
    """A run: how far the real step is off, and the bar without its common part (shares of our step)."""

    difference: float
    below: float
    above: float

    def needs(self) -> float:
        """The least common part with which the real step lies inside."""
        own = self.below if self.difference < 0 else self.above
        return math.sqrt(max(0.0, self.difference**2 - own**2))

    def width(self, common: float) -> float:
        return math.hypot(self.below, common) + math.hypot(self.above, common)


def judge_by_halves(runs: Sequence[Held]) -> tuple[float, float, float]:
    """(share inside of the halves that nothing was chosen on, median width there, mean common part)."""
    chance = random.Random(0)
    inside, widths, chosen = [], [], []
    for _ in range(SPLITS):
        order = chance.sample(runs, len(runs))
        ours, others = order[: len(order) // 2], order[len(order) // 2 :]
        needed = sorted(run.needs() for run in ours)
        common = needed[min(len(needed) - 1, math.ceil(INSIDE * len(needed)) - 1)]
        inside.append(sum(run.needs() <= common for run in others) / len(others))
        widths.append(statistics.median(run.width(common) for run in others))
        chosen.append(common)
    return statistics.mean(inside), statistics.median(widths), statistics.mean(chosen)


def read(simulated: Path) -> dict[str, Headline]:
    """The headlines by run, from a folder of logs or a file of accuracy.py; of several of one run the last counts."""
    if simulated.is_dir():
        return {log.stem: headline_of(log) for log in sorted(simulated.glob("*.arrow"))}
    rows = map(json.loads, simulated.read_text().splitlines())
    return {row["run"]: Headline(**row["headline"]) for row in rows if row.get("headline")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", type=Path, nargs="+")
    parser.add_argument("simulated", type=Path)
    args = parser.parse_args()
    table = Table("run", "real ms", "simulated", "difference", "error bar", "inside", box=None)
    inside, bars = 0, []
    runs: list[Held] = []
    lines = [line for path in args.real for line in path.read_text().splitlines()]
    simulated = read(args.simulated)
    for row in map(json.loads, lines):
        headline = simulated.get(row["run_id"])
        if headline is None or "median_iter_s" not in row:
            continue
        if headline.steps < 2:
            print(f"{row['run_id']}: left out, as it has no steady steps: the run ended early")
            continue
        real, ours = row["median_iter_s"] * 1e3, headline.step_ns / 1e6
        difference = real / ours - 1  # the bar is relative to our step
        held = -headline.error <= difference <= headline.error_above
        inside += held
        bars.append(headline.error + headline.error_above)
        own = (math.sqrt(max(0.0, bar**2 - COMMON**2)) for bar in (headline.error, headline.error_above))
        runs.append(Held(difference, *own))
        bar = f"-{headline.error:.1%} +{headline.error_above:.1%}"
        numbers = f"{real:.1f}", f"{ours:.1f}", f"{difference:+.1%}", bar
        table.add_row(row["run_id"], *numbers, "yes" if held else "NO")
    console = Console(width=110)
    console.print(table)
    if bars:
        median = statistics.median(bars)
        share, width, common = judge_by_halves(runs)
        console.print(f"{inside} of {len(bars)} inside; median width {median:.1%}, widest {max(bars):.1%}")
        console.print(
            f"chosen on one half and judged on the other: {share:.0%} inside, median width {width:.1%}, common part "
            f"{common:.1%} (in use: {COMMON:.1%})"
        )


if __name__ == "__main__":
    main()
