"""Published training runs on several hosts, simulated: what they printed next to what the simulation prints.

    python -m validation.published.training run [--only TEXT] [--jobs N]   simulates what is missing
    python -m validation.published.training table                          prints the tables of docs/published.md

``validation/published/training.toml`` has the runs with their sources, and what is unknown of them. What was
simulated is
kept in ``validation/published/training.jsonl``, so that nothing runs twice: a line per command, with commit and
date. Runs
are folded (docs/scale.md) and have few layers: a step is affine in the number of layers where all are equal, so two
numbers of layers give the whole model's step:

    step = t(a) + (layers - a) * (t(b) - t(a)) / (b - a)

A pipeline's step is affine in its micro-batches, too, so a series with `rounds` has two numbers of these as well. The
first rule and the runs' configurations were committed before any of their results was compared. `--whole` runs all
layers of the rows that `--only` selects; the table then says how far the rule is off.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from phantora.hardware import REFERENCE_HOST
from phantora.run_process import PHANTORA

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
HOST = 8  # GPUs; what is published of one is shown apart
RUNS, JOURNAL = HERE / "training.toml", HERE / "training.jsonl"
TITAN = HERE.parents[1] / "samples" / "torchtitan"


@dataclass(frozen=True)
class Row:
    """One published run. Rates are tokens per second and GPU."""

    series: str
    source: str
    url: str
    software: str
    """``same`` where the published software is what is simulated here; else what differs."""
    unknown: str
    gpus: int
    published: float
    tokens: int
    """Tokens of a GPU in a step."""
    layers: int
    points: tuple[int, int]
    accumulate: int
    """Micro-batches of a step."""
    rounds: tuple[int, ...]
    """Numbers of micro-batches that are simulated, two or one."""
    replicas: int
    """Replicas of the model, each with its own micro-batches."""
    command: tuple[str, ...]
    """Command of `phantora`, with {layers}; {sequences} are the micro-batches of all replicas."""
    step: str
    """Pattern of the step's seconds, or of tokens per second, in what the run prints; the last one counts."""

    def at(self, layers: int, rounds: int) -> str:
        return shlex.join(part.format(layers=layers, sequences=rounds * self.replicas) for part in self.command)

    def seconds(self, found: Mapping[str, float]) -> float | None:
        """Seconds of a step of the whole model, from what was simulated."""
        by_layers = []
        for layers in self.points:
            times = [found[key] for rounds in self.rounds if (key := self.at(layers, rounds)) in found]
            if len(times) < len(self.rounds):
                return None
            by_layers.append(_line(self.rounds, times, self.accumulate))
        return _line(self.points, by_layers, self.layers)


def _line(places: Sequence[int], values: Sequence[float], at: int) -> float:
    """Value at `at` on the line through the first and the last of the points; of one point, its value."""
    if len(values) == 1:
        return values[0]
    return values[0] + (at - places[0]) * (values[-1] - values[0]) / (places[-1] - places[0])


@dataclass(frozen=True)
class Result:
    """A row of the table: tokens per second and GPU."""

    run: str
    software: str
    gpus: int
    published: float
    ours: float

    @property
    def error(self) -> float:
        return self.ours / self.published - 1


def elsewhere(only: str) -> list[Result]:
    """Published runs that sweeps of layouts have simulated."""
    entries = [entry for entry in tomllib.loads(RUNS.read_text())["elsewhere"] if only in entry["name"]]
    return [
        Result(
            entry["name"],
            entry["software"],
            entry["gpus"],
            entry["tokens"] / entry["published_s"],
            entry["tokens"] / entry["simulated_s"],
        )
        for entry in entries
    ]


def rows() -> list[Row]:
    """Every run of the file: its series' fields with its own."""
    made = []
    for series in tomllib.loads(RUNS.read_text())["series"]:
        for run in series["runs"]:
            values: dict[str, Any] = {**series, **run}
            values["hosts"] = values["gpus"] // values.get("gpus_per_host", 8)
            values["world"] = values["gpus"]
            later = {"layers": "{layers}", "sequences": "{sequences}"}
            command = tuple(part.format(**{**values, **later}) for part in values["command"])
            accumulate = values.get("accumulate", 1)
            tokens = values["batch"] * values["seq"] * accumulate // values.get("shared_by", 1)
            made.append(
                Row(
                    values["name"],
                    values["source"],
                    values["url"],
                    values["software"],
                    values["unknown"],
                    values["gpus"],
                    values["published"],
                    tokens,
                    values["layers"],
                    tuple(values["points"]),
                    accumulate,
                    tuple(values.get("rounds", [accumulate])),
                    values.get("replicas", 1),
                    command,
                    values["step"],
                )
            )
    return made


def journal() -> dict[str, float]:
    """Seconds of a step by command."""
    if not JOURNAL.exists():
        return {}
    entries = [json.loads(line) for line in JOURNAL.read_text().splitlines()]
    return {entry["command"]: entry["step_s"] for entry in entries}


def simulate(row: Row, layers: int, rounds: int) -> None:
    """Runs `row` with this number of layers and micro-batches, and writes the step."""
    command = row.at(layers, rounds)
    with tempfile.TemporaryDirectory(prefix="phantora-published-") as folder:
        assets = Path(folder) / "assets"
        if "torchtitan.train" in command:
            make = [sys.executable, str(TITAN / "make_assets.py"), str(assets)]
            subprocess.run(make, check=True, capture_output=True)
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        own = (str(HERE.parents[1]), str(TITAN), os.environ.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, own))
        options = ["trace", "--no-recording", "--no-summary", "--host", REFERENCE_HOST, "-o", f"{folder}/run.arrow"]
        parts = [part.replace("SAMPLES", str(HERE.parents[1] / "samples")) for part in shlex.split(command)]
        ran = subprocess.run(
            [*PHANTORA, *options, *parts],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    output = re.sub(r"\x1b\[[\d;]*m", "", ran.stdout + ran.stderr)
    values = [float(value.replace(",", "")) for value in re.findall(row.step, output)]
    if ran.returncode or not values:
        print(f"{command}\n{output[-1500:]}", file=sys.stderr, flush=True)
        return
    seconds = row.tokens / values[-1] if "tps" in row.step else values[-1]
    if "ms" in row.step:
        seconds /= 1e3
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()
    entry = {"command": command, "step_s": seconds, "commit": commit, "date": date.today().isoformat()}
    with JOURNAL.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    print(f"{seconds:9.4f} s  {command}", flush=True)


def run(chosen: Iterable[Row], jobs: int, whole: bool) -> None:
    found = journal()
    wanted = {
        row.at(layers, rounds): (row, layers, rounds)
        for row in chosen
        for layers in ((*row.points, row.layers) if whole else row.points)
        for rounds in row.rounds
        if row.at(layers, rounds) not in found
    }
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda entry: simulate(*entry), wanted.values()))


def table(chosen: Sequence[Row], more: Sequence[Result]) -> None:
    """Rows with what is published, what is simulated; then errors and scaling by series."""
    found = journal()
    results = [
        Result(row.series, row.software, row.gpus, row.published, row.tokens / seconds)
        for row in chosen
        if (seconds := row.seconds(found)) is not None
    ]
    print("| run | GPUs | tokens/s and GPU | simulated | difference |\n| --- | --- | --- | --- | --- |")
    for one in (*results, *more):
        print(f"| {one.run} | {one.gpus:,} | {one.published:,.0f} | {one.ours:,.0f} | {one.error:+.1%} |")
    errors_of((*results, *more))
    scaling_of(results)
    for row in chosen:
        whole, rule = found.get(row.at(row.layers, row.accumulate)), row.seconds(found)
        if whole and rule and row.layers not in row.points:
            print(f"\nall {row.layers} layers: {row.series}, {row.gpus} GPUs: {whole:.4f} s; by the rule {rule:.4f} s")


def errors_of(results: Sequence[Result]) -> None:
    """Prints errors by software; for runs on several hosts also by whether their software can be run here."""
    not_here = tomllib.loads(RUNS.read_text())["not_here"]
    groups: dict[str, list[float]] = {}
    totals: dict[str, list[float]] = {}
    for one in results:
        several = one.gpus > HOST
        groups.setdefault(one.software if several else f"{one.software}; one host", []).append(one.error)
        if several:
            kind = "software that cannot be run here" if one.software in not_here else "software that can be run here"
            for total in (kind, "all"):
                totals.setdefault(f"**several hosts: {total}**", []).append(one.error)
    print("\n| software | rows | mean error | mean | largest |\n| --- | --- | --- | --- | --- |")
    for name, values in (groups | dict(sorted(totals.items()))).items():
        sizes = [abs(value) for value in values]
        mean, signed = statistics.fmean(sizes), statistics.fmean(values)
        print(f"| {name} | {len(values)} | {mean:.1%} | {signed:+.1%} | {max(sizes):.1%} |")


def scaling_of(results: Sequence[Result]) -> None:
    """Prints the rate of each series of several numbers of GPUs, relative to the fewest."""
    series: dict[str, list[Result]] = {}
    for one in results:
        series.setdefault(one.run, []).append(one)
    print("\n| series | GPUs | scaling published | simulated | points |\n| --- | --- | --- | --- | --- |")
    gaps = []
    for name, own in series.items():
        first, last = min(own, key=lambda one: one.gpus), max(own, key=lambda one: one.gpus)
        if last.gpus > first.gpus:
            published, ours = last.published / first.published, last.ours / first.ours
            gaps.append(100 * (ours - published))
            print(f"| {name} | {first.gpus} to {last.gpus} | {published:.1%} | {ours:.1%} | {gaps[-1]:+.1f} |")
    if gaps:
        sizes = [abs(gap) for gap in gaps]
        print(f"\n{len(gaps)} series: {statistics.fmean(sizes):.1f} points on average, {max(sizes):.1f} at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--only", default="", help="series that contain this text, or SERIES:GPUS,GPUS")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="with all layers as well")
    args = parser.parse_args()
    name, _, gpus = args.only.partition(":")
    chosen = [row for row in rows() if name in row.series and (not gpus or str(row.gpus) in gpus.split(","))]
    if args.what == "run":
        run(chosen, args.jobs, args.whole)
    else:
        table(chosen, [] if gpus else elsewhere(name))


if __name__ == "__main__":
    main()
