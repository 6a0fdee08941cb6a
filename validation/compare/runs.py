"""All real runs next to what was simulated for them, by what they were used for: python -m validation.compare.runs

Reads the ledger ``validation/runs.toml``; simulates nothing. Simulated steps come from a file of
``validation/compare/accuracy.py --out`` or from predictions of ``validation/predict.py``, which give a step by the
host's
factor: there ``host`` of the ledger is the factor that was measured next to the runs. No run is left out; those whose
steps were not steady (the rule of accuracy.py) are marked, and counted apart as well as together. Files with ``again``
hold runs that were simulated once more after something had been fixed with them in view: these count apart only.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from phantora.hardware import toml
from validation.compare.accuracy import STEADY
from validation.data import HERE, rows


def sessions() -> list[dict[str, Any]]:
    """Entries of the ledger."""
    found: list[dict[str, Any]] = toml.read(HERE / "runs.toml")["session"]
    return found


def steps(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of runs whose steps were timed, one of each run."""
    return [row for row in found if "median_iter_s" in row and not row.get("name", "").endswith(".rank")]


def real_runs(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the real runs of a session."""
    folder, session = entry["real"].split("/")
    return steps([row for row in rows(f"{folder}/runs.jsonl") if row["session"] == session])


def predictions(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of the predictions for a session, by run."""
    every = rows(HERE / "predictions.jsonl")
    return {row["run_id"]: row for row in every if row["prediction"] == entry["predicted"]}


def steady(run: dict[str, Any]) -> bool:
    times = run.get("iter_times") or []
    if len(times) < 2:
        return True
    low, high = np.quantile(times, (0.1, 0.9))
    return bool(max(high - run["median_iter_s"], run["median_iter_s"] - low) <= STEADY * run["median_iter_s"])


def at_host(by_host: dict[str, float], factor: float) -> float:
    """Seconds of a step on a host of `factor`, between the points of the prediction and beyond the last ones."""
    factors = sorted(map(float, by_host))
    times = [by_host[key] for key in sorted(by_host, key=float)]
    if len(factors) > 1 and factor > factors[-1]:
        slope = (times[-1] - times[-2]) / (factors[-1] - factors[-2])
        return times[-1] + slope * (factor - factors[-1])
    return float(np.interp(factor, factors, times))


def simulated_steps(entry: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step by run."""
    if "predicted" not in entry:
        found = rows(HERE / "simulated.jsonl")
        return {row["run"]: row["simulated"]["median_iter_s"] for row in found if row.get("simulated")}
    factor = float(entry["host"])
    return {run: at_host(row["by_host"], factor) for run, row in predictions(entry).items()}


def main() -> None:
    console = Console(width=120)
    errors: dict[str, list[float]] = {}
    for entry in sessions():
        ours = simulated_steps(entry)
        title = f"{entry['real']}: {entry['machine']}, {entry['date']}, {entry['use']}"
        table = Table("run", "real ms", "simulated", "difference", "", title=title, title_justify="left", box=None)
        for run in real_runs(entry):
            name, real = run["run_id"], run["median_iter_s"]
            if name not in ours and "again" in entry:
                continue
            if name not in ours:
                table.add_row(name, f"{real * 1e3:.2f}", "-", "not simulated", "")
                continue
            error, calm = ours[name] / real - 1, steady(run)
            kind = "steady" if calm else "not steady"
            table.add_row(name, f"{real * 1e3:.2f}", f"{ours[name] * 1e3:.2f}", f"{error:+.1%}", "" if calm else kind)
            use = entry["use"]
            for group in (f"{use} and fixed",) if "again" in entry else ("all", use, f"{use}, {kind}"):
                errors.setdefault(group, []).append(error)
        console.print(table)
    table = Table("runs", "number", "median error", "mean", "signed", "largest", "within 5 %", box=None)
    for group, found in errors.items():
        sizes = [abs(error) for error in found]
        within = sum(size <= 0.05 for size in sizes)
        table.add_row(
            group,
            str(len(found)),
            *(f"{mean(sizes):.1%}" for mean in (statistics.median, statistics.mean)),
            f"{statistics.mean(found):+.1%}",
            f"{max(sizes):.1%}",
            str(within),
        )
    console.print(table)


if __name__ == "__main__":
    main()
