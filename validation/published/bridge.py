"""Published steps of Megatron-Bridge, simulated: python -m validation.published.bridge FILE... [--only TEXT]

Each FILE contains rows of its performance summary as JSON lines. Every row is printed: tokens per second and GPU as
published and as simulated, or the reason why it is left out. `bridge_rows` has the settings of a row,
validation/workloads/bridge.py its program. Nothing is fitted to a row.

A step is affine in its micro-batches, and without a pipeline in its layers. Two values of each give the step:
pipelines have all their layers. A row is folded to one rank of each pipeline stage. The GPUs have 2000 GiB: the
layers keep weights in both layouts, so a run says nothing of memory. Rows with `--te` need Transformer Engine
(docs/frameworks/megatron.md).

bridge.jsonl has the seconds of the steps that are simulated already. Delete a line to simulate it again.

The last table compares formats: rates of rows that differ in precision only (and the layout that it needs).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA
from validation.published.bridge_rows import Run, expressed
from validation.published.parts import parts_of

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+)")
JOURNAL = Path(__file__).with_name("bridge.jsonl")
LIMIT_S = 1800
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_HIGH_PRIORITY": "1"}
"""Of all recipes."""
MARGIN = {"CUDNNFE_CLUSTER_OVERLAP_MARGIN": "8"}
"""Of recipes with fused experts next to the exchange of tokens: pairs of SMs that experts leave to it."""
DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"


@dataclass(frozen=True)
class Step:
    """What a command gave: seconds of its last step, and where they went on rank 0."""

    seconds: float
    parts: dict[str, float]


class Journal:
    """Seconds by command: nothing is simulated twice."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text().splitlines() if file.exists() else []
        entries = [json.loads(line) for line in lines]
        self.known: dict[str, float | str] = {entry["command"]: entry["seconds"] for entry in entries}
        self.parts: dict[str, dict[str, float]] = {entry["command"]: entry.get("parts", {}) for entry in entries}

    def fill(self, runs: list[Run], jobs: int) -> None:
        """Simulates what is missing of `runs`, `jobs` commands at a time."""
        commands = {shlex.join(command): command for run in runs for command in commands_of(run)}
        missing = [command for key, command in commands.items() if key not in self.known]
        with ThreadPoolExecutor(jobs) as pool:
            pending = {pool.submit(_simulated, command): shlex.join(command) for command in missing}
            for done in as_completed(pending):
                command, found = pending[done], done.result()
                if isinstance(found, str):
                    self.known[command] = found
                    continue
                self.known[command], self.parts[command] = found.seconds, found.parts
                with self.file.open("a") as out:
                    out.write(json.dumps({"command": command, "seconds": found.seconds, "parts": found.parts}) + "\n")

    def seconds(self, command: tuple[str, ...]) -> float:
        """Raises RuntimeError with the last line of a run that failed, or if it is not simulated."""
        found = self.known.get(shlex.join(command), "not simulated yet")
        if isinstance(found, str):
            raise RuntimeError(found)
        return found


def commands_of(run: Run) -> Iterator[tuple[str, ...]]:
    """The commands whose seconds give the step of `run`."""
    return (run.command(layers, micro) for layers in run.points for micro in run.rounds)


def _environment(command: tuple[str, ...]) -> dict[str, str]:
    """Of the recipe of `command`."""
    if "hybridep" not in command:
        return ENVIRONMENT
    own = ENVIRONMENT | (MARGIN if {"--fused-experts", "--overlap-experts"} <= {*command} else {})
    ranks, rack = int(command[command.index("--ep") + 1]), "gb" in command[command.index("--cluster") + 1]
    return own | {DOMAIN: str(ranks if rack else min(8, ranks))}


class Unsimulated(Exception):
    """Why a command has no result, in one line."""


def traced(command: tuple[str, ...], log: Path, limit_s: int = LIMIT_S) -> str:
    """What `command` prints, simulated. Raises :class:`Unsimulated` if it fails or takes over `limit_s` seconds."""
    words = [*PHANTORA, "trace", "--no-summary", "-o", str(log), *command]
    env = {**os.environ, **_environment(command)}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=False, cwd=ROOT, env=env)
    except subprocess.TimeoutExpired:
        raise Unsimulated(f"more than {limit_s} s") from None
    text = done.stdout + done.stderr
    if done.returncode:
        lines = [line for line in text.splitlines() if line.strip()] or [f"status {done.returncode}"]
        raise Unsimulated(next((line for line in lines if line.startswith("FAILED")), lines[-1])[:150])
    return text


def _simulated(command: tuple[str, ...]) -> Step | str:
    """The last step, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.arrow"
        try:
            steps = STEP.findall(traced(command, log))
        except Unsimulated as reason:
            return str(reason)
        if not steps:
            return "it prints no step"
        seconds = float(steps[-1]) / 1e3
        parts = parts_of(log, seconds)
    return Step(seconds, {kind: round(part, 6) for kind, part in parts.items()})


def on_line(places: tuple[int, ...], values: list[float], at: int) -> float:
    """What lies at `at` on the line through the points; of one point, its value."""
    if len(values) == 1:
        return values[0]
    return values[0] + (at - places[0]) * (values[-1] - values[0]) / (places[-1] - places[0])


def step_seconds(run: Run, journal: Journal) -> float:
    of_layers = []
    for layers in run.points:
        times = [journal.seconds(run.command(layers, micro)) for micro in run.rounds]
        of_layers.append(on_line(run.rounds, times, run.micro))
    return on_line(run.points, of_layers, run.layers)


def _label(row: Mapping[str, Any]) -> str:
    axes = " ".join(f"{key}{row[key]}" for key in ("TP", "PP", "CP", "VP", "EP") if row[key] not in ("1", "n/a"))
    machine = f"{row['#-GPUs']}x{row['System'].removeprefix('DGX-')}"
    return f"{row['model']} {machine} {row['Precision']} {axes} {row['container'].split()[0]}"


def by_group(titles: tuple[str, str], errors: Mapping[tuple[str, str], list[float]]) -> Iterator[str]:
    """Lines of a table of errors; positive ones are rates that are too high."""
    yield f"| {titles[0]} | {titles[1]} | rows | mean error | mean | largest |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for group, found in sorted(errors.items()):
        size, mean = statistics.fmean(map(abs, found)), statistics.fmean(found)
        yield f"| {' | '.join(group)} | {len(found)} | {size:.1%} | {mean:+.1%} | {max(found, key=abs):+.1%} |"


PAIRS = (("NVFP4", "MXFP8"), ("FP8", "MXFP8"), ("FP8", "BF16"), ("MXFP8", "BF16"))
Rates = dict[str, tuple[float, float]]
"""Published and simulated rate by precision."""


def ratios(runs: Mapping[tuple[str, ...], Rates]) -> Iterator[str]:
    """Lines of a table of the ratios of rates that two formats have in one container."""
    yield "| model | GPU | container | formats | published | simulated | points |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    off = []
    for (model, system, container, _), rates in runs.items():
        for first, second in (pair for pair in PAIRS if rates.keys() >= {*pair}):
            published, simulated = (one / other for one, other in zip(rates[first], rates[second], strict=True))
            off.append(100.0 * (simulated - published))
            yield (
                f"| {model} | {system.removeprefix('DGX-')} | {container.split()[0]} | {first}/{second} "
                f"| {published:.2f} | {simulated:.2f} | {off[-1]:+.0f} |"
            )
    if off:
        sizes = list(map(abs, off))
        inside = sum(size <= POINTS for size in sizes)
        yield f"{len(off)} ratios: {statistics.fmean(sizes):.1f} points off on average, {inside} within {POINTS} points"


POINTS = 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="rows whose label matches this pattern")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="simulated commands, read and extended")
    parser.add_argument("--jobs", type=int, default=1, help="commands that are simulated at the same time")
    parser.add_argument("--known", action="store_true", help="simulate nothing: only what the journal has")
    args = parser.parse_args()
    journal = Journal(args.journal)
    if missing := [str(file) for file in args.files if not file.is_file()]:
        parser.error(f"no such file of rows: {', '.join(missing)}")
    rows = [row for file in args.files for row in map(json.loads, file.read_text().splitlines())]
    rows = [row for row in rows if re.search(args.only, _label(row))]
    if not args.known:
        journal.fill([run for run in map(expressed, rows) if isinstance(run, Run)], args.jobs)
    errors: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    of_models: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    formats: defaultdict[tuple[str, ...], Rates] = defaultdict(dict)
    print(f"{'row':<64}{'published':>10}{'simulated':>10}{'error':>8}   tokens/s/GPU")
    for row in rows:
        run, published = expressed(row), float(row["Tokens / sec / GPU"])
        try:
            if isinstance(run, str):
                raise RuntimeError(run)
            rate = run.tokens / step_seconds(run, journal)
        except RuntimeError as error:
            reasons[str(error)] += 1
            print(f"{_label(row):<64}{published:>10,.0f}   left out: {error}", flush=True)
            continue
        errors[run.gpu, row["Precision"]].append(rate / published - 1.0)
        machine = "H100" if run.gpu == "H100" else "Blackwell"
        kind = "" if row["section"] == "Pre-Training Performance" else f", {row['section'].split()[0]}"
        of_models[row["model"] + kind, run.gpu].append(rate / published - 1.0)
        if machine != run.gpu:
            of_models[row["model"], machine].append(rate / published - 1.0)
        of_models["all", machine].append(rate / published - 1.0)
        formats[row["model"], row["System"], row["container"], row["#-GPUs"]][row["Precision"]] = published, rate
        print(f"{_label(row):<64}{published:>10,.0f}{rate:>10,.0f}{rate / published - 1.0:>+8.1%}", flush=True)
    print("", *by_group(("GPU", "precision"), errors), "", *by_group(("model", "GPU"), of_models), sep="\n")
    for reason, count in reasons.most_common():
        print(f"left out, {count}: {reason}")
    print("", *ratios(formats), sep="\n")


if __name__ == "__main__":
    main()
