"""Training steps next to a background thread of the script on one H200, real and predicted.

    python -m validation.compare.script_threads

Predictions precede the real runs. Those of session 1 are of an earlier model, in which a thread lost Python's lock by
chance; the real step of `item` next to `python` of that session made the model of session 2. `again` is simulated with
all real steps known: Python's work is timed warm since. Session 2 has two or three runs each, next to other work on
the machine. All are mean steps in ms; errors are those of the mean of the runs.

Threads: `python` never waits, `numpy` sorts without the lock, `sleeper` sleeps 1 ms and works 0.2 ms, `timer` works
2 ms every 10 ms, `logging` writes metrics, `prefetch` copies batches on a stream of its own, `augment` also makes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from validation.data import rows

PREDICTED = Path(__file__).with_suffix(".jsonl")
REAL = "2026-11-30-h200/script_threads.jsonl"


def program_of(row: dict[str, Any]) -> tuple[int, str, str]:
    """Session, model and thread."""
    return row["session"], row["model"], row["thread"]


def cells(steps: list[float] | None, real: float | None) -> str:
    """Range of the steps, and the error of their mean."""
    if not steps:
        return "| | |"
    low, high = min(steps), max(steps)
    off = "" if real is None else f"{sum(steps) / len(steps) / real - 1:+.0%}"
    return f"| {low:.4g}{'' if low == high else f' to {high:.4g}'} | {off} |"


def main() -> None:
    measured = {program_of(row): row["mean_ms"] for row in rows(REAL)}
    print("| session | program | thread | real | predicted | | | again | |\n|---|---|---|---|---|---|---|---|---|")
    for row in rows(PREDICTED):
        session, model, thread = program = program_of(row)
        real = measured.get(program)
        shown = "not measured" if real is None else f"{real:.4g}"
        predicted, again = cells(row["predicted_ms"], real), cells(row.get("again_ms"), real)
        print(f"| {session} | {model} | {thread} | {shown} {predicted} {row['how']} {again}")


if __name__ == "__main__":
    main()
