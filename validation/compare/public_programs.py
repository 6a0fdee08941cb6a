"""Training programs of public repositories on one H200, next to predictions that precede the real runs.

    python -m validation.compare.public_programs                       # the table
    python -m validation.compare.public_programs predict COMMANDS.jsonl SIMULATED.jsonl LOGS >> FILE
    python -m validation.compare.public_programs table FILE            # rows of `predict` instead

Real and simulated steps are timed in the same way, from one optimizer step to the next. `predict` takes the
commands, the times of simulations (one JSON line each) and their logs (LOGS/NAME.arrow), whose error bars it adds.
Memory: the peaks of torch's allocator.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import phantora
from validation.compare.accuracy import headline_of
from validation.data import HERE, rows

SESSION = "2026-11-30-h200/public_programs"
AGAIN = f"{SESSION}-2"
"""`phantora trace SCRIPT` starts `mae` and `nanogpt_124m` as torchrun does, so they use DDP; the real ones are plain
programs. `lucid_ddpm` and `unet` start os.cpu_count() workers, here 16 as on the real host."""
COUNTED = f"{SESSION}-3"
"""On a machine of that kind, with the real runs known: batches of data count where the script waits for them.
`lucid_ddpm` and `unet` start os.cpu_count() workers, here 32, and 16 on the real host."""
REAL = f"{SESSION}.jsonl"
Row = Mapping[str, Any]


def main() -> None:
    match sys.argv[1:]:
        case []:
            every, real = rows(HERE / "predictions.jsonl"), rows(REAL)
            table([row for row in every if row["prediction"] == SESSION], real)
            print(
                "\nSimulated again with the real runs known: started as those were, DataLoader workers take their start"
            )
            table([row for row in every if row["prediction"] == AGAIN], real)
            print("\nSimulated again on a machine of that kind: batches count where the script waits for them")
            table([row for row in every if row["prediction"] == COUNTED], real)
        case ["table", file]:
            table(rows(Path(file).absolute()), rows(REAL))
        case ["predict", commands, simulated, logs]:
            predict(rows(Path(commands).absolute()), rows(Path(simulated).absolute()), Path(logs))
        case _:
            sys.exit(__doc__)


def predict(commands: Sequence[Row], simulated: Sequence[Row], logs: Path) -> None:
    times = {row["name"]: row for row in simulated if row.get("mean_s")}
    for command in commands:
        ours = times.get(command["name"])
        if ours is None:
            continue
        bar = headline_of(logs / f"{command['name']}.arrow")
        row = {
            "prediction": SESSION,
            "run_id": command["name"],
            "cluster": "1x1xH200",
            "repository": command["repo"],
            "command": command["argv"],
            "phantora": phantora.__version__,
            "step_s": ours["mean_s"],
            "printed_step_s": bar.step_ns / 1e9,
            "error_below": bar.error,
            "error_above": bar.error_above,
            "max_memory_allocated": ours["alloc"],
            "max_memory_reserved": ours["reserved"],
        }
        print(json.dumps(row))


def table(predicted: Sequence[Row], real: Sequence[Row]) -> None:
    measured = {row["name"]: row for row in real if row.get("mean_s")}
    head = ("program", "real ms", "step ms", "error", "range", "inside", "allocated", "reserved")
    print("{:16} {:>8} {:>8} {:>7} {:>13} {:>6} {:>9} {:>8}".format(*head))
    errors, others, inside = [], [], 0
    for row in predicted:
        name = row["run_id"]
        if name not in measured:
            print(f"{name:16} {'-':>8} {row['step_s'] * 1e3:8.2f}")
            continue
        truth = measured[name]
        step = truth["mean_s"]
        low, high = row["error_below"], row["error_above"]
        within = 1 - low <= step / row["step_s"] <= 1 + high
        errors.append(row["step_s"] / step - 1)
        inside += within
        if high < DATA and row["prediction"] != COUNTED:
            others.append(abs(errors[-1]))
        memory = [row[f"max_memory_{key}"] / truth[key[:5] if key == "allocated" else key] - 1 for key in PEAKS]
        print(
            f"{name:16} {step * 1e3:8.2f} {row['step_s'] * 1e3:8.2f} {errors[-1]:+7.0%} {-low:+6.0%}{high:+7.0%}"
            f" {'yes' if within else 'no':>6} {memory[0]:+9.1%} {memory[1]:+8.1%}"
        )
    if errors:
        sizes = sorted(abs(error) for error in errors)
        print(
            f"\n{len(sizes)} programs: median {statistics.median(sizes):.0%}, mean {statistics.mean(sizes):.0%},"
            f" largest {sizes[-1]:.0%}; {inside} inside the range; mean signed {statistics.mean(errors):+.0%}"
        )
    if others:
        print(
            f"{len(others)} whose data do not decide: median {statistics.median(others):.0%},"
            f" mean {statistics.mean(others):.0%}, largest {max(others):.0%}"
        )


PEAKS = ("allocated", "reserved")
DATA = 1.0
"""A range this far above the step has the CPU time of the data in it: no slower host reaches twice the step."""

if __name__ == "__main__":
    main()
