"""Error bars of every real run in the ledger ``validation/runs.toml``: how often the real step lies inside.

    python -m validation.compare.bars validation/compare/bars.jsonl                  # the tables
    python -m validation.compare.bars validation/compare/bars.jsonl --simulate       # first, the missing ones
    python -m validation.compare.bars validation/compare/bars.jsonl --simulate --host measured

Two tables. *Default host*: the bar that a user reads who knows nothing of the host; a run that was predicted with a bar
before it ran counts with that bar, as committed then. *Measured host*: what he reads who measured it; ``measured`` of
the ledger is then what `--host` gets, a file of `phantora profile host` or a factor. Simulated with today's tables of
operators; a run that cannot be simulated here counts with its prediction, read at that host. Runs without a measured
host count with the default one; so do the 18 of the README, whose machine the default host describes.

At the end: constants of the bar chosen on a random half of the runs and judged on the other half. Each run is simulated
by itself. Runs whose packages are not installed are named and stay out of the file.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from math import hypot, sqrt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from phantora.hardware.hosts import GIVEN_SPREAD, REFERENCE_HOST, load_host
from phantora.run_process import PHANTORA
from phantora.trace.analysis.uncertainty import Prices
from validation.compare.bar_halves import report_halves, waits
from validation.compare.bar_parts import Parts, parts_of
from validation.compare.host_asked import asked, judge_spread, within
from validation.compare.runs import at_host, predictions, real_runs, sessions, steady, steps
from validation.data import HERE, MEASUREMENTS, rows

TIMEOUT = 900
NARROW = 0.08  # of a step: what bars aim at
# The runs that validation/compare/accuracy.py simulates: several GPUs, several frameworks.
OURS = {row["run"]: row for row in rows(HERE / "simulated.jsonl")}
README = {"real": "README's", "gpu": "H200"}
README_RUNS = "2026-11-22-h200x4/train.jsonl"


@dataclass(frozen=True)
class Run:
    """A real run next to its prediction, both as their files have them."""

    entry: dict[str, Any]
    real: dict[str, Any]
    predicted: dict[str, Any]

    @property
    def key(self) -> str:
        return f"{self.real['run_id']} on {self.gpu}"

    @property
    def gpu(self) -> str:
        reported = self.real.get("gpu") or self.entry.get("gpu") or self.entry["real"]
        return "H200" if "H200" in reported.upper() else "H100"

    @property
    def file(self) -> str:
        return "validation/compare/accuracy.py's" if "headline" in self.predicted else self.entry["real"]

    @property
    def cluster(self) -> str:
        """As predicted, with the GPU that it ran on. Files of runs on one GPU do not say it."""
        shape, _, _ = self.predicted.get("cluster", "1x1xH100").rpartition("x")
        return f"{shape}x{self.gpu}"

    @property
    def host(self) -> str:
        """Value of `--host`: the host that was measured next to the run, else the reference host's name."""
        measured = self.entry.get("measured", REFERENCE_HOST)
        if isinstance(measured, float):
            return f"{REFERENCE_HOST}:{measured}"
        return str(MEASUREMENTS / measured) if measured.endswith(".toml") else measured

    def command(self) -> list[str]:
        """The one run alone: some predictions were made by a script that runs many models in turn."""
        command: list[str] = self.predicted["command"]
        if command[1].endswith("image_models"):
            return [*command[:2], os.devnull, self.real["run_id"].removeprefix("image_")]
        if command[1].endswith("fp8_moe"):
            return [*command[:2], os.devnull, self.real["run_id"]]
        return command


@dataclass(frozen=True)
class Bar:
    """A simulated step and its bar."""

    source: str
    """``as predicted`` or ``simulated again``."""
    step: float
    """s."""
    below: float
    above: float
    parts: Parts | None = None

    def covers(self, real: float) -> bool:
        return -self.below <= real / self.step - 1 <= self.above

    @property
    def width(self) -> float:
        return self.below + self.above


Simulated = dict[tuple[str, str], Parts]
"""Parts by run and host."""


def host_key(host: str) -> str:
    """A host's name in the file of bars: that below ``validation/measurements`` for a file there."""
    path = Path(host)
    return str(path.relative_to(MEASUREMENTS)) if path.is_relative_to(MEASUREMENTS) else path.name


def ledger() -> Iterator[Run]:
    """Every real run that was simulated, once."""
    for entry in sessions():
        if "again" in entry:
            continue
        predicted = OURS
        if "predicted" in entry:
            predicted = predictions(entry)
        for real in real_runs(entry):
            if real["run_id"] in predicted:
                yield Run(entry, real, predicted[real["run_id"]])
            elif "models.py" in real.get("cmd", ""):
                options = real["cmd"].partition("models.py ")[2].split()
                yield Run(entry, real, {"command": ["-m", "validation.workloads.models", *options]})
    for real in steps(rows(README_RUNS)):
        if real["run_id"] in OURS:
            yield Run(README, real, OURS[real["run_id"]])


def simulate(run: Run, host: str, log: Path) -> Parts | str:
    """The step and its bar, or why there is none."""
    words = [*PHANTORA, "trace", "-q", "--no-summary", "--force"]
    words += ["--cluster", run.cluster, "--host", host, "-o", str(log), *run.command()]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT, cwd=HERE.parent)
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
    parts = parts_of(log)
    log.unlink()
    return parts


def simulate_missing(path: Path, which: str, only: list[str], jobs: int) -> None:
    """Runs without a bar come first. `jobs` of them at once: their order in the file is that in which they end."""
    known = set(read(path))
    wanted: list[tuple[Run, str]] = []
    for run in sorted(ledger(), key=lambda run: run.predicted.get("error_below") is not None):
        host = run.host if which == "measured" else REFERENCE_HOST
        key = run.key, host_key(host)
        if key in known or "command" not in run.predicted or (only and run.file not in only):
            continue
        if run.entry.get("varying"):  # steps of several sizes: a headline over other ones is not comparable
            continue
        known.add(key)
        wanted.append((run, host))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        found = {
            pool.submit(simulate, run, host, Path(folder) / f"{number}.arrow"): (run.key, host_key(host))
            for number, (run, host) in enumerate(wanted)
        }
        for done in as_completed(found):
            (run_key, host), parts = found[done], done.result()
            print(f"{run_key}, host {host}: {parts}", file=sys.stderr, flush=True)
            if isinstance(parts, Parts) and parts.steps > 1:  # else no steps were found
                with path.open("a") as file:
                    print(json.dumps({"run": run_key, "host": host, "parts": asdict(parts)}), file=file)


def read(path: Path) -> Simulated:
    """Lines of the time before parts were kept have a printed bar alone (``headline``)."""
    if not path.exists():
        return {}
    found: Simulated = {}
    for row in map(json.loads, path.read_text().splitlines()):
        reported = row.get("parts") or row["headline"]
        prices = reported.get("prices")
        found[row["run"], row["host"]] = Parts(
            reported["step_ns"],
            reported["steps"],
            reported["error"],
            reported["error_above"],
            Prices(tuple(prices["together"]), tuple(prices["alone"])) if prices else None,
            reported.get("uneven", 0.0),
            {float(f): ns for f, ns in reported.get("by_host", {}).items()},
            tuple(reported.get("spread", (1.0, 1.0))),
        )
    return found


def again(parts: Parts | None) -> Iterator[Bar]:
    if parts and parts.steps > 1:
        yield Bar("simulated again", parts.step_ns / 1e9, *parts.bar(), parts)


def on_default(run: Run, simulated: Simulated) -> list[Bar]:
    """The first is the one that counts where each run counts once."""
    found = []
    before = run.predicted
    if before.get("error_below") is not None:
        found.append(Bar("as predicted", before["median_iter_s"], before["error_below"], before["error_above"]))
    if reported := before.get("headline"):
        found.append(Bar("simulated again", reported["step_ns"] / 1e9, reported["error"], reported["error_above"]))
    return [*found, *again(simulated.get((run.key, REFERENCE_HOST)))]


def on_measured(run: Run, simulated: Simulated) -> list[Bar]:
    """The same where the host is known that was measured next to the run."""
    parts = simulated.get((run.key, host_key(run.host)))
    if parts and run.host != REFERENCE_HOST:
        parts = replace(parts, spread=spread_of(run))
    found = list(again(parts))
    if not found and run.host != REFERENCE_HOST:
        found = list(predicted_at(run))
    return found or on_default(run, simulated)[::-1]


def spread_of(run: Run) -> tuple[float, float]:
    """Spread of the measured host. Files of an earlier version contain less than `phantora profile host` writes now."""
    low, high = load_host(run.host).spread
    return min(low, GIVEN_SPREAD[0]), max(high, GIVEN_SPREAD[1])


def predicted_at(run: Run) -> Iterator[Bar]:
    """The prediction at the measured host. Its bar is of the default host: that host's part of it is exchanged."""
    before = run.predicted
    if before.get("error_below") is None or len(before["by_host"]) < 2:
        return
    factor, unknown = load_host(run.host).factor, load_host(REFERENCE_HOST)
    was = at_host(before["by_host"], unknown.spread[0]) / before["median_iter_s"]
    rest = sqrt(max(0.0, before["error_below"] ** 2 - (1 - was) ** 2))
    step = at_host(before["by_host"], factor)
    low, high = (at_host(before["by_host"], factor * spread) / step for spread in spread_of(run))
    yield Bar("as predicted", step, hypot(rest, 1 - low), hypot(rest, high - 1))


def show_hosts(console: Console) -> None:
    """Prints the distance between the hosts that fit real steps and the measured ones."""
    ratios = []
    for run in ledger():
        if run.host != REFERENCE_HOST and len(run.predicted.get("by_host", ())) > 2:
            found = asked(run.predicted["by_host"], load_host(run.host).factor, run.real["median_iter_s"])
            ratios += [found] if found is not None else []
    low, high, inside = judge_spread(ratios)
    console.print(
        f"{len(ratios)} predictions follow a measured host: {within(ratios, GIVEN_SPREAD):.0%} of the real steps ask "
        f"for {GIVEN_SPREAD[0]:g} to {GIVEN_SPREAD[1]:g} times it; the middle nine tenths of one half, {low:.2f} to "
        f"{high:.2f}, hold {inside:.0%} of the other"
    )


def show_groups(console: Console, title: str, groups: dict[str, list[tuple[bool, float]]]) -> None:
    table = Table(title, "number", "inside", "share", "median width", box=None)
    for group, members in groups.items():
        held = sum(inside for inside, _ in members)
        width = statistics.median(width for _, width in members)
        table.add_row(group, str(len(members)), str(held), f"{held / len(members):.0%}", f"{width:.1%}")
    console.print(table)


def groups_of(run: Run, bar: Bar) -> Iterator[str]:
    calm = "steady" if steady(run.real) else "not steady"
    measured = "host measured" if run.host != REFERENCE_HOST else "host not measured"
    yield from ("all", calm, measured, f"{measured}, {calm}", bar.source, f"{bar.source}, {calm}", f"  {run.file}")
    if bar.parts and bar.parts.prices and bar.parts.by_host:  # with this version's bars
        follows = "host-bound" if waits(bar.parts) else "the GPU decides"
        yield from ("parts known", f"parts known, {follows}", f"parts known, {follows}, {measured}")
    if bar.width < NARROW:
        yield f"narrower than {NARROW:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulated", type=Path)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--host", choices=("default", "measured"), default="default", help="what --simulate takes")
    parser.add_argument("--only", nargs="*", default=[], help="files of real runs to simulate")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at once")
    args = parser.parse_args()
    if args.simulate:
        simulate_missing(args.simulated, args.host, args.only, args.jobs)
    simulated = read(args.simulated)
    console = Console(width=120)
    for title, bars in (("default host", on_default), ("measured host", on_measured)):
        outside = Table(f"outside, {title}", "real ms", "simulated", "real against ours", "error bar", "", "", box=None)
        groups: dict[str, list[tuple[bool, float]]] = {}
        for run in ledger():
            real = run.real["median_iter_s"]
            for bar in bars(run, simulated)[:1]:
                for group in groups_of(run, bar):
                    groups.setdefault(group, []).append((bar.covers(real), bar.width))
                if not bar.covers(real):
                    times = f"{real * 1e3:.2f}", f"{bar.step * 1e3:.2f}", f"{real / bar.step - 1:+.1%}"
                    calm = "" if steady(run.real) else "not steady"
                    outside.add_row(run.key, *times, f"-{bar.below:.1%} +{bar.above:.1%}", bar.source, calm)
        console.print(outside)
        show_groups(console, f"{title}, each run once", groups)
    counted = ((run, bar) for run in ledger() for bar in on_measured(run, simulated)[:1])
    measured = [(run, bar.parts) for run, bar in counted if bar.parts and run.host != REFERENCE_HOST]
    show_hosts(console)
    report_halves(console, [(run.real["median_iter_s"], parts) for run, parts in measured])


if __name__ == "__main__":
    main()
