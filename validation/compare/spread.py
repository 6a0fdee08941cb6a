"""Spread of the steps of real runs next to sampled ones (docs/spread.md).

    python -m validation.compare.spread                                             # the table
    python -m validation.compare.spread --simulate [--cases FOLDER] [--share 0.2]    # first, the missing runs

Real steps and samples are compared as multiples of their own medians: an error of the step itself does not count. Runs
come from the ledger ``validation/runs.toml`` (a share of the programs, drawn by their names) and from ``FOLDER/zoo``.
*Fitted*: the run's own steps are in the half that ``validation.fits.jitter`` fits. Quantiles of the samples are in
``validation/compare/spread.jsonl``.

The range of 3 to 20 real steps is narrower than that of many: of 10 steps of a normal distribution it has 0.7 of the
width. So there is a second ratio, of *as many*: the median range of as many samples, drawn again and again, in place of
that of all samples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from phantora.hardware.hosts import DEFAULT_HOST
from phantora.trace.analysis.spread import HIGH, LOW
from phantora.trace.reader import open_log
from validation.compare.bars import ledger
from validation.compare.runs import steady
from validation.data import HERE
from validation.fits.jitter import drawn, is_fitted
from validation.scoreboard.simulate import ROOT, end_after, error_of, trace

FILE = HERE / "compare" / "spread.jsonl"
SAMPLES = 100
LEVELS = tuple(round(0.05 * level, 2) for level in range(21))
LIMIT_S = 300
LEAST = 5  # steps of a real run whose own spread is compared
DRAWN = 400  # sets of as many samples
TIMED = 6  # steps of a run of which only the shortest, the median and the longest are known


@dataclass(frozen=True, kw_only=True)
class Program:
    """A real run, and how it is simulated."""

    name: str
    cluster: str
    host: str
    words: tuple[str, ...]
    folder: Path
    real: tuple[float, ...]
    """Its steps, or its shortest, median and longest one, in s."""
    steady: bool
    fitted: bool


def programs(cases: Path | None, share: float) -> Iterator[Program]:
    """Runs of the ledger, then of the zoo."""
    for each in ledger():
        times, name = each.real.get("iter_times") or (), f"{each.real['run_id']} {each.entry['real']}"
        known_command = "command" in each.predicted and not each.entry.get("varying")
        if len(times) < LEAST or not known_command or not drawn(name, share):
            continue
        yield Program(
            name=name,
            cluster=each.cluster,
            host=each.host if "measured" in each.entry else DEFAULT_HOST,
            words=tuple(each.command()),
            folder=ROOT,
            real=tuple(times),
            steady=steady(each.real),
            fitted=is_fitted(each),
        )
    for part in ("one", "many") if cases else ():
        assert cases is not None
        folder = cases / "zoo" / part
        real = {row["run"]: row for row in map(json.loads, (folder / "results.jsonl").read_text().splitlines())}
        for line in (folder / "COMMANDS").read_text().splitlines():
            name, *words = line.split()
            ranks = words.pop(0) if words[0].isdigit() else "1"
            row = real.get(name, {})
            if "median_iter_s" in row:
                ends = (row["min_iter_s"], row["median_iter_s"], row["max_iter_s"])
                yield Program(
                    name=f"zoo {name}",
                    cluster=f"1x{ranks}xH200",
                    host=str(cases / "zoo" / "host.toml"),
                    words=tuple(words),
                    folder=folder,
                    real=tuple(row.get("times", ends)),
                    steady=True,
                    fitted=False,
                )


def simulate(program: Program) -> dict[str, Any] | str:
    """The row of a program, or why there is none."""
    end_after(LIMIT_S)
    row: dict[str, Any] = {"name": program.name, "real_s": list(program.real)}
    row |= {"steady": program.steady, "fitted": program.fitted}
    with tempfile.TemporaryDirectory() as folder:
        options = ("-q", "--host", program.host, "--samples", str(SAMPLES))
        ran = trace(Path(folder), program.cluster, *options, *program.words, cwd=program.folder)
        if ran.status:
            return error_of(ran)
        found = open_log(ran.log).trailer.get("spread", {})
        if "steps_ns" not in found:
            return str(found.get("skipped", "no samples"))
        row["samples_ns"] = [round(ns) for ns in np.quantile(found["steps_ns"], LEVELS)]
    return row


def simulate_missing(cases: Path | None, share: float) -> None:
    """Appends a line for each program that has none."""
    known = {row["name"] for row in read()}
    for program in programs(cases, share):
        if program.name in known:
            continue
        try:
            row = simulate(program)
        except subprocess.TimeoutExpired as error:
            row = str(error)
        print(f"{program.name}: {row if isinstance(row, str) else 'done'}", file=sys.stderr, flush=True)
        if not isinstance(row, str):
            with FILE.open("a") as file:
                print(json.dumps(row), file=file)


def read() -> list[dict[str, Any]]:
    """Rows of the simulated programs."""
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


@dataclass(frozen=True)
class Compared:
    """A program's steps as multiples of their medians."""

    name: str
    inside: int
    """Real steps inside the printed range."""
    steps: int
    real: float
    """Width of the range of real steps: from 5 to 95 % where their number allows it, else from first to last."""
    ours: float
    as_many: float
    """Ours, of as many samples as real steps."""


def width_of_as_many(samples: np.ndarray[Any, np.dtype[np.float64]], steps: int) -> float:
    """Median width of the range of `steps` samples, from quantiles at ``LEVELS``."""
    random = np.random.default_rng(0)
    whole = steps > len(("shortest", "median", "longest"))
    found = np.interp(random.random((DRAWN, steps if whole else TIMED)), LEVELS, samples)
    if not whole:
        found = np.quantile(found, (0, 0.5, 1), axis=1).T
    low, high = np.quantile(found, (LOW, HIGH), axis=1)
    return float(np.median(high - low))


def compared(row: dict[str, Any]) -> Compared:
    """One program."""
    real = np.asarray(row["real_s"]) / statistics.median(row["real_s"])
    ours = np.asarray(row["samples_ns"]) / row["samples_ns"][LEVELS.index(0.5)]
    low, high = (float(ours[LEVELS.index(level)]) for level in (LOW, HIGH))
    ends = np.quantile(real, (LOW, HIGH))
    inside = int(((low <= real) & (real <= high)).sum())
    as_many = width_of_as_many(ours, len(real))
    return Compared(row["name"], inside, len(real), float(ends[1] - ends[0]), high - low, as_many)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--share", type=float, default=0.2, help="of the programs of the ledger")
    args = parser.parse_args()
    if args.simulate:
        simulate_missing(args.cases, args.share)
    console = Console(width=100)
    report(console, read())


def report(console: Console, found: list[dict[str, Any]]) -> None:
    """Prints a line for each program, and one for each group of them."""
    groups: dict[str, list[Compared]] = {}
    table = Table("program", "real width", "ours", "of as many", "inside", box=None)
    for row in sorted(found, key=lambda row: str(row["name"])):
        one = compared(row)
        table.add_row(
            one.name, f"{one.real:.1%}", f"{one.ours:.1%}", f"{one.as_many:.1%}", f"{one.inside} of {one.steps}"
        )
        calm = "steady" if row["steady"] else "not steady"
        use = "fitted" if row["fitted"] else "held out"
        source = "zoo" if one.name.startswith("zoo") else "ledger"
        for group in ("all", use, source, calm):
            groups.setdefault(group, []).append(one)
    console.print(table)
    summary = Table(
        "programs", "number", "steps inside", "median width: real", "ours", "ours / real", "as many", box=None
    )
    for group, members in groups.items():
        inside = sum(one.inside for one in members) / sum(one.steps for one in members)
        widths = [statistics.median(each) for each in ([m.real for m in members], [m.ours for m in members])]
        known = [one for one in members if one.real]
        ratios = [
            statistics.median(each)
            for each in zip(*((m.ours / m.real, m.as_many / m.real) for m in known), strict=True)
        ]
        texts = [*(f"{width:.1%}" for width in widths), *(f"{ratio:.2f}" for ratio in ratios)]
        summary.add_row(group, str(len(members)), f"{inside:.1%}", *texts)
    console.print(summary)


if __name__ == "__main__":
    main()
