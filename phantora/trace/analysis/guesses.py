"""Which guesses a run's time rests on most."""

from __future__ import annotations

from phantora.trace.analysis.report import Guess
from phantora.trace.reader import Log

MOST = 10


def costliest_guesses(log: Log) -> list[Guess]:
    """The operators with the most time among those whose price is not measured, longest first."""
    operators = log.operators() if log.lists_operators else []
    whole = sum(entry["ns"] for entry in operators) or 1
    guessed = [entry for entry in operators if entry["provenance"] != "measured" and entry["ns"]]
    return [
        Guess(
            entry["operator"], entry["shape"], entry["provenance"], entry["error"], entry["ns"], entry["ns"] / whole
        )
        for entry in guessed[:MOST]
    ]
