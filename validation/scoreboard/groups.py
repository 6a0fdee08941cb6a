"""The groups of the scoreboard by name, those with the longest cases first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from validation.scoreboard import comparisons, costs, folds, programs, reports
from validation.scoreboard.rows import Case

GROUPS: dict[str, Callable[[Path | None], Sequence[Case]]] = {
    "public": programs.public,
    "folds": folds.cases,
    "speed": costs.slowest,
    "zoo": programs.zoo,
    "runs": programs.runs,
    "reports": reports.cases,
    "cost": costs.cases,
    "accuracy": comparisons.cases,
}
"""Each makes its cases from the folder of ``--cases``, or None."""

QUICK = ["accuracy"]
"""The groups that simulate nothing."""
