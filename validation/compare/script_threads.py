"""Training steps next to a background thread of the script on one H200, real and predicted.

    python -m validation.compare.script_threads

Predictions precede the real runs. Those of session 1 are of an earlier model, in which a thread lost Python's lock by
chance; the real step of `item` next to `python` of that session made the model of now. Those of session 2 are of the
model of now, three runs each. All are mean steps in ms.

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


def main() -> None:
    real = {program_of(row): row["mean_ms"] for row in rows(REAL)}
    print("| session | program | thread | real | predicted | mean off by | |\n|---|---|---|---|---|---|---|")
    for row in rows(PREDICTED):
        session, model, thread = program = program_of(row)
        predicted, measured = row["predicted_ms"], real.get(program)
        mean, low, high = sum(predicted) / len(predicted), min(predicted), max(predicted)
        between = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        off = "" if measured is None else f"{mean / measured - 1:+.0%}"
        shown = "not measured" if measured is None else f"{measured:.4g}"
        print(f"| {session} | {model} | {thread} | {shown} | {between} | {off} | {row['how']} |")


if __name__ == "__main__":
    main()
