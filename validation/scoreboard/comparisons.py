"""Figures of the comparisons that need the repository alone: what ``validation.tables`` prints."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from validation.data import HERE
from validation.scoreboard.rows import WRONG, Case, Row, at_least, at_most
from validation.tables import TABLES


@dataclass(frozen=True)
class Figure:
    """A figure in the output of a table of ``validation.tables``."""

    table: str
    name: str
    pattern: str
    """Its group is the figure; the last one found counts."""
    bound: float
    least: bool = False
    """The figure must be at least `bound`, not at most."""
    unit: str = "%"


# The bounds are the figures of README.md, docs/accuracy.md and validation/tables.
FIGURES = (
    Figure("real-runs", "steps of all real runs, median", r"\n all +\d+ +([\d.]+)%", 4.7),
    Figure("kernels", "kernels alone, median", r"\| all, alone \| \d+ \| ([\d.]+)%", 3.5),
    Figure("kernels", "kernels alone, 90th percentile", r"\| all, alone \| \d+ \| [\d.]+% \| ([\d.]+)%", 13.2),
    Figure("collectives", "collectives on 2 and 4 H200, median", r"\| all \| \| \d+ \| ([\d.]+)%", 2.7),
    Figure("collectives", "collectives on 2 and 4 H200, largest", r"\| all \| \| \d+ \| [\d.]+% \| ([\d.]+)%", 11.0),
    Figure("layout-order", "pairs of layouts in the real order", r"\d+ pairs .*; (\d+) of them", 20, True, "pairs"),
    Figure("calibration", "calibrated, other configurations, mean", r"other: .* mean ([\d.]+)%", 8.8),
    Figure("calibration", "calibrated, other configurations, largest", r"other: .* largest ([\d.]+)%", 36),
    Figure("error-bars", "real steps inside the bar", r"\n all +\d+ +\d+ +([\d.]+)%", 89.5, True),
    Figure("published-training", "published runs on several hosts, mean", r"hosts: all\*\* \| \d+ \| ([\d.]+)%", 10.2),
    Figure("published-training", "published runs, largest", r"hosts: all\*\* .* ([\d.]+)% \|", 23.5),
    Figure(
        "published-training",
        "published runs, software that runs here, mean",
        r"can be run here\*\* \| \d+ \| ([\d.]+)%",
        5.5,
    ),
    Figure(
        "published-training",
        "published runs, software that runs here, largest",
        r"can be run here.* ([\d.]+)% \|",
        18.8,
    ),
    Figure("published-training", "published scaling, mean", r"series: ([\d.]+) points", 2.9, unit="points"),
    Figure("sparse", "sparse products, median", r"as they are: .* median ([\d.]+) %", 8.0),
    Figure("leave-out-h200", "left out of the H200's table, median", r"\| all \| \d+ \| ([\d.]+)%", 3.1),
    Figure("leave-out-h200", "left out, 90th percentile", r"\| all \| \d+ \| [\d.]+% \| ([\d.]+)%", 10.3),
    Figure("published-collectives", "published, InfiniBand, large", r"InfiniBand \| from .* \| \d+ \| (\d+)% \|", 3.4),
)


def cases(_: Path | None) -> list[Case]:
    """One for each table."""
    names = dict.fromkeys(figure.table for figure in FIGURES)
    return [Case("accuracy", name, partial(_figures, name)) for name in names]


def _figures(table: str, _: Path) -> list[Row]:
    command = [sys.executable, "-m", *TABLES[table].split()]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr.strip() or f"{table}: no output")
    return [_row(figure, done.stdout) for figure in FIGURES if figure.table == table]


def _row(figure: Figure, text: str) -> Row:
    found: Sequence[str] = re.findall(figure.pattern, text)
    if not found:
        return Row("accuracy", figure.name, WRONG, note=f"the table has nothing like {figure.pattern}")
    judge = at_least if figure.least else at_most
    return judge("accuracy", figure.name, float(found[-1]), figure.bound, figure.unit)
