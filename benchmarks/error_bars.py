"""Error bars beside the truth: how often the real step time lies within the bar of the simulated one.

    python benchmarks/error_bars.py REAL.jsonl... LOGS

REAL.jsonl holds a line per real run (``run_id``, ``median_iter_s``), LOGS the simulations of them as
``benchmarks/accuracy.py --keep LOGS`` leaves them: ``RUN_ID.arrow``. The bar is that of the headline of `phantora
analyze` on the same log.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", type=Path, nargs="+")
    parser.add_argument("logs", type=Path)
    args = parser.parse_args()
    table = Table("run", "real ms", "simulated", "difference", "error bar", "inside", box=None)
    inside, bars = 0, []
    lines = [line for path in args.real for line in path.read_text().splitlines()]
    for row in map(json.loads, lines):
        log = args.logs / f"{row['run_id']}.arrow"
        if not log.exists() or "median_iter_s" not in row:
            continue
        headline = analyze(open_log(log), details=False).headline
        assert headline.error is not None and headline.error_above is not None
        real, ours = row["median_iter_s"] * 1e3, headline.step_time / 1e6
        difference = real / ours - 1  # the bar is relative to our step
        held = -headline.error <= difference <= headline.error_above
        inside += held
        bars.append(headline.error + headline.error_above)
        bar = f"-{headline.error:.1%} +{headline.error_above:.1%}"
        numbers = f"{real:.1f}", f"{ours:.1f}", f"{difference:+.1%}", bar
        table.add_row(row["run_id"], *numbers, "yes" if held else "NO")
    console = Console(width=110)
    console.print(table)
    if bars:
        median = statistics.median(bars)
        console.print(f"{inside} of {len(bars)} inside; median width {median:.1%}, widest {max(bars):.1%}")


if __name__ == "__main__":
    main()
