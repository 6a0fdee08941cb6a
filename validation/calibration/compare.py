"""Compares predictions of calibrated programs with their real steps.

    python -m validation.calibration.compare [PREDICTIONS.jsonl]

- `traced`: the step of the traced configuration without the profiler. It tests the cost of the profiler.
- `other`: a configuration that is not traced. `change` compares its ratio to the traced configuration, simulated and
  real; it tests the transfer alone.

CUPTI slows a process after its first profile. The real processes on one cluster ran the traced configuration before the
profile and after it; steps after it are divided by the ratio of this pair.

The predictions in the repository are from after the comparison. Those from before it, with another cost of the
profiler and without the slowest rank's pace, have a mean error of 18.9 %.

`noise`: the median step of a process against its step of ten in a row, a second later. Host-bound steps on these rented
machines change by that much without any change of the program: errors below it show nothing.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from validation.calibration.predict import HERE, PROGRAMS, TRACED, TWO, step_seconds
from validation.data import rows

MEASURED = ("2026-11-27-h100/host_bound.jsonl", "2026-11-27-h200x4/host_bound.jsonl")
AGAIN = f"{TRACED}_again"
Seconds = Mapping[tuple[str, str], float]


def measured() -> dict[tuple[str, str], float]:
    """Real seconds of a step, without the profiler and its effects, by program and configuration."""
    raw = {(row["name"], row["config"]): step_seconds(row) for name in MEASURED for row in rows(name)}
    found = {}
    for program, configurations in PROGRAMS.items():
        slowed = raw[program, AGAIN] / raw[program, TRACED]
        for name, cluster in configurations.items():
            own_process = name == TRACED or cluster == TWO
            found[program, name] = raw[program, name] / (1.0 if own_process else slowed)
    return found


def noise() -> list[float]:
    """Relative differences of two measurements of one configuration in one process."""
    return [row["median_iter_s"] / row["in_a_row_s"] - 1 for name in MEASURED for row in rows(name)]


def summary(errors: list[float]) -> str:
    absolute = [abs(error) for error in errors]
    return f"mean {statistics.mean(absolute):.1%}, bias {statistics.mean(errors):+.1%}, largest {max(absolute):.1%}"


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "predictions.jsonl"
    predicted: Seconds = {(row["program"], row["configuration"]): row["step_s"] for row in rows(path.resolve())}
    real = measured()
    errors: dict[str, list[float]] = {"traced": [], "other": [], "change": []}
    print(f"| {'program':10} | {'configuration':13} | simulated ms | real ms | error | change |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (program, name), seconds in predicted.items():
        error = seconds / real[program, name] - 1
        change = (1 + error) * real[program, TRACED] / predicted[program, TRACED] - 1
        errors["traced" if name == TRACED else "other"].append(error)
        reported = "" if name == TRACED else f"{change:+.1%}"
        errors["change"] += [] if name == TRACED else [change]
        print(
            f"| {program:10} | {name:13} | {seconds * 1e3:12.2f} | {real[program, name] * 1e3:7.2f} "
            f"| {error:+6.1%} | {reported:6} |"
        )
    print()
    for kind, found in {**errors, "noise": noise()}.items():
        middle = statistics.median(abs(error) for error in found)
        print(f"{kind}: {len(found)} configurations, median {middle:.1%}, {summary(found)}")


if __name__ == "__main__":
    main()
