"""Error bars of every real run in the ledger ``benchmarks/data/runs.toml``: how often the real step lies inside.

    python benchmarks/ledger_bars.py benchmarks/data/ledger_bars.jsonl                  # the tables
    python benchmarks/ledger_bars.py benchmarks/data/ledger_bars.jsonl --simulate       # first, those that it lacks

Every run is simulated by itself, on the default host, whatever host was measured beside it: the bar is the one that a
user reads who knows nothing of the host. Runs that were predicted with a bar before they ran count with that bar, as
committed then, under *as predicted*, and, simulated again, with today's. *each once* takes the bar of the prediction
where there is one. Runs whose packages are not installed are named and stay out of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accuracy import Headline, headline_of
from holdout import HERE, PREDICTIONS, RESULTS, real_runs, rows, steady
from rich.console import Console
from rich.table import Table

from phantora.hardware import toml

TIMEOUT = 900
# The runs that benchmarks/accuracy.py simulates: several GPUs, several frameworks.
OURS = {row["run"]: row for row in rows(HERE / "data" / "simulated_again.jsonl")}


@dataclass(frozen=True)
class Run:
    """A real run beside its prediction, both as their files have them."""

    entry: dict[str, Any]
    real: dict[str, Any]
    predicted: dict[str, Any]

    @property
    def key(self) -> str:
        return f"{self.real['run_id']} on {self.gpu}"

    @property
    def gpu(self) -> str:
        return "H200" if "H200" in self.real.get("gpu", "") else "H100"

    def command(self) -> list[str]:
        """The one run alone: some predictions were made by a script that runs many models in turn."""
        script, *rest = self.predicted["command"]
        if script.endswith("image_models.py"):
            return [script, os.devnull, self.real["run_id"].removeprefix("image_")]
        if script.endswith("fp8_moe.py"):
            return [script, os.devnull, self.real["run_id"]]
        return [script, *rest]


def ledger() -> Iterator[Run]:
    """Every real run that was simulated, once."""
    for entry in toml.read(HERE / "data" / "runs.toml")["file"]:
        if "again" in entry:
            continue
        predicted = OURS
        if "predicted" in entry:
            predicted = {row["run_id"]: row for row in rows(PREDICTIONS / entry["predicted"])}
        for real in real_runs(RESULTS / entry["real"]):
            if real["run_id"] in predicted:
                yield Run(entry, real, predicted[real["run_id"]])
            elif "models.py" in real.get("cmd", ""):
                options = real["cmd"].partition("models.py ")[2].split()
                yield Run(entry, real, {"command": ["benchmarks/device/models.py", *options]})


def simulate(run: Run, folder: Path) -> Headline | str:
    """The headline, or why there is none."""
    log = folder / "run.arrow"
    words = [sys.executable, "-m", "phantora", "trace", "-q", "--no-summary", "--force"]
    words += ["--cluster", f"1x1x{run.gpu}", "-o", str(log), *run.command()]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT, cwd=HERE.parent)
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
    return headline_of(log)


def simulate_missing(path: Path) -> None:
    known = set(read(path))
    with tempfile.TemporaryDirectory() as folder:
        for run in sorted(ledger(), key=lambda run: run.predicted.get("error_below") is not None):  # these have a bar
            if run.key in known or "command" not in run.predicted:
                continue
            known.add(run.key)
            found = simulate(run, Path(folder))
            print(f"{run.key}: {found}", file=sys.stderr, flush=True)
            if isinstance(found, Headline) and found.steps > 1:  # else no steps were found
                with path.open("a") as file:
                    print(json.dumps({"run": run.key, "headline": asdict(found)}), file=file)


def read(path: Path) -> dict[str, Headline]:
    if not path.exists():
        return {}
    return {row["run"]: Headline(**row["headline"]) for row in map(json.loads, path.read_text().splitlines())}


def bars(run: Run, simulated: dict[str, Headline]) -> Iterator[tuple[str, float, float, float]]:
    """(which simulation, its step in s, the bar below and above as shares of it)."""
    before = run.predicted
    if told := before.get("headline"):
        yield "simulated again", told["step_ns"] / 1e9, told["error"], told["error_above"]
    if before.get("error_below") is not None:
        yield "as predicted", before["median_iter_s"], before["error_below"], before["error_above"]
    if (now := simulated.get(run.key)) and now.steps > 1:
        yield "simulated again", now.step_ns / 1e9, now.error, now.error_above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulated", type=Path)
    parser.add_argument("--simulate", action="store_true")
    args = parser.parse_args()
    if args.simulate:
        simulate_missing(args.simulated)
    simulated = read(args.simulated)
    console = Console(width=120)
    columns = ("run outside", "real ms", "simulated", "real against ours", "error bar", "", "")
    table = Table(*columns, box=None)
    groups: dict[str, list[tuple[bool, float]]] = {}
    for run in ledger():
        found = list(bars(run, simulated))
        once = [("each once", *bar[1:]) for bar in found[:1]]  # "as predicted" comes first
        for which, step, below, above in (*found, *once):
            real = run.real["median_iter_s"]
            inside = -below <= real / step - 1 <= above
            calm = "steady" if steady(run.real) else "not steady"
            file = "benchmarks/accuracy.py's" if "headline" in run.predicted else run.entry["real"]
            for group in (which, f"{which}, {calm}", f"{which}: {file}"):
                groups.setdefault(group, []).append((inside, below + above))
            if not inside and which != "each once":
                times = f"{real * 1e3:.2f}", f"{step * 1e3:.2f}", f"{real / step - 1:+.1%}"
                table.add_row(run.key, *times, f"-{below:.1%} +{above:.1%}", which, "" if calm == "steady" else calm)
    console.print(table)
    table = Table("runs", "number", "inside", "share", "median width", box=None)
    for group, members in groups.items():
        held = sum(inside for inside, _ in members)
        width = statistics.median(width for _, width in members)
        table.add_row(group, str(len(members)), str(held), f"{held / len(members):.0%}", f"{width:.1%}")
    console.print(table)


if __name__ == "__main__":
    main()
