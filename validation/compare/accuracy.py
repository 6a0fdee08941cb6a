"""Real runs next to simulated ones: step time, MFU, memory, and, where a trace exists, what the step was spent on.

    python -m validation.compare.accuracy TRUTH_DIR [RUN_ID ...] [--gpu GPU] [--real FILE.jsonl] [--out FILE.jsonl] \
        [--keep DIR]

TRUTH_DIR contains training scripts
and ``traces/RUN_ID.json.gz`` (Chrome traces of torch.profiler of one step of rank 0). ``--real`` names a
file of real runs in validation/measurements (a row per run: command, median step time, memory). Every run is started
by its own
command, less profiling, as ``phantora trace --cluster 1xNxGPU -- script``, with default settings. Runs whose framework
is not installed are named and left out. Scripts print one JSON line with their times; TorchTitan's are read from
its log.

``--known FILE.jsonl`` takes runs that were simulated before from such a file as ``--out`` writes, for instance
``validation/simulated.jsonl``. Errors are given for all runs together, and apart for those whose real
steps were steady, by a rule that knows nothing of the simulation (:data:`STEADY`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from phantora.hardware import REFERENCE_HOST
from phantora.run_process import PHANTORA
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.reader import open_log
from validation.data import rows

TITAN_TPS = re.compile(r"step:\s*(\d+).*?memory:\s*([\d.]+)GiB.*?tps:\s*([\d,]+).*?mfu:\s*([\d.]+)%")
TITAN_DROPPED = 5  # steps before the real runs' numbers begin
STEADY = 0.10
"""A run is steady if the middle four fifths of its real steps lie within this share of their median; else the host,
which is what varies, counts as its limit. Runs that recorded no single steps count as steady."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Spent:
    """Parts of a step of rank 0: ns, and kernel time by class."""

    time: float = 0
    compute: float = 0
    communication: float = 0
    exposed: float = 0
    by_class: dict[str, float] = field(default_factory=dict)

    @property
    def overlap(self) -> float | None:
        return 1 - self.exposed / self.communication if self.communication else None


@dataclass(frozen=True)
class Headline:
    """First line of `phantora analyze`: ns a step, its error bar as shares of it, number of steady steps."""

    step_ns: float
    error: float
    error_above: float
    steps: int


def headline_of(log: Path) -> Headline:
    h = analyze(open_log(log), details=False).headline
    assert h.error is not None and h.error_above is not None
    return Headline(h.step_time, h.error, h.error_above, h.steps)


@dataclass
class Outcome:
    run: str
    real: dict[str, Any]
    simulated: dict[str, Any] | None
    error: str = ""
    real_spent: Spent | None = None
    spent: Spent | None = None
    headline: Headline | None = None

    @property
    def spread(self) -> float | None:
        """Distance from the tenth to the ninetieth percentile of real steps, over their median."""
        steps = self.real.get("iter_times")
        if not steps:
            return None
        low, middle, high = np.percentile(steps, [10, 50, 90])
        return float((high - low) / middle)

    @property
    def steady(self) -> bool:
        return self.spread is None or self.spread <= STEADY

    def ratio(self, key: str) -> float | None:
        """Simulated over real, less one."""
        ours, theirs = (self.simulated or {}).get(key), self.real.get(key)
        return ours / theirs - 1 if ours and theirs else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path)
    parser.add_argument("runs", nargs="*", help="ids of runs (default: all)")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--real", default="2026-11-22-h200x4/train.jsonl", help="the real runs (default: the README's)")
    parser.add_argument("--out", type=Path, help="write a JSON line per run")
    parser.add_argument("--known", type=Path, help="take runs from such a file instead of simulating them")
    parser.add_argument("--keep", type=Path, help="keep the logs here")
    parser.add_argument("--timeout", type=float, default=900)
    args = parser.parse_args()
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    real = {row["run_id"]: row for row in rows(args.real) if not row.get("name", "").endswith(".rank")}
    if unknown := [run for run in args.runs if run not in real]:
        parser.error(f"no such run: {', '.join(unknown)}; there are {', '.join(real)}")
    known = {}
    if args.known:
        known = {row["run"]: row["simulated"] for row in map(json.loads, args.known.read_text().splitlines())}
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.runs or real:
            if name in known:
                outcomes.append(Outcome(name, real[name], known[name]))
                continue
            log = (args.keep or Path(scratch)) / f"{name}.arrow"
            outcome = replay(name, real[name], args.truth, args.gpu, log, args.timeout)
            step = outcome.ratio("median_iter_s")
            print(f"{name}: {outcome.error or f'{step:+.1%}'}", file=sys.stderr, flush=True)
            outcomes.append(outcome)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
    report(outcomes)


def replay(name: str, row: dict[str, Any], truth: Path, gpu: str, log: Path, timeout: float) -> Outcome:
    """Simulates the run that `row` describes."""
    words = shlex.split(row["cmd"])
    environment = dict(os.environ, NCCL_NVLS_ENABLE="0")  # as the real runs had it
    while "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        if key != "CUDA_VISIBLE_DEVICES":  # which of the host's GPUs: the simulated ones are all equal
            environment[key] = value
    words = [word for word in words[1:] if not word.startswith("--nproc")]
    if "--profile" in words:
        at = words.index("--profile")
        del words[at : at + 2]
    target = ["-m", *words[1:]] if words[0] == "-m" else words
    cluster = f"1x{row['world_size']}x{gpu}"
    command = [*PHANTORA, "trace", "-q", "--no-summary", "--cluster", cluster, "-o", str(log)]
    command += ["--host", REFERENCE_HOST]  # the machine of these runs
    command += target
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=truth, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    found = parse(done.stdout + done.stderr)
    if done.returncode or found is None:
        return Outcome(name, row, None, (done.stderr.strip().splitlines() or ["printed no result"])[-1][:200])
    if "tps_per_rank" in found:  # torchtitan: its step time follows from tokens/s
        found["median_iter_s"] = row["median_iter_s"] * row["tokens_per_s"] / row["world_size"] / found["tps_per_rank"]
    trace = truth / "traces" / f"{name}.json.gz"
    spent = simulated_step(log) if trace.exists() else None
    return Outcome(name, row, found, "", real_step(trace) if trace.exists() else None, spent, headline_of(log))


def parse(output: str) -> dict[str, Any] | None:
    steps = []
    for line in output.splitlines():
        line = re.sub(r"^\[rank\d+\]: ", "", ANSI.sub("", line))
        if line.startswith("{") and '"median_iter_s"' in line:
            result: dict[str, Any] = json.loads(line)
            return result
        if (match := TITAN_TPS.search(line)) and int(match[1]) > TITAN_DROPPED:
            steps.append((float(match[3].replace(",", "")), float(match[4]) / 100, float(match[2])))
    if not steps:
        return None
    tps, mfu, memory = (statistics.median(column) for column in zip(*steps, strict=True))
    return {"tps_per_rank": tps, "mfu": mfu, "max_memory_reserved": memory * 2**30}


def simulated_step(log: Path) -> Spent:
    """The last step but one of rank 0 (the last may include the script's farewell)."""
    report = analyze(open_log(log), Filters(ranks=frozenset((0,))), details=False)
    steps = report.ranks[0].steps
    number = steps[-2 if len(steps) > 2 else -1].number
    report = analyze(open_log(log), Filters(ranks=frozenset((0,)), steps=frozenset((number,))), details=False)
    rank, times = report.ranks[0], report.ranks[0].steps[-1].times
    return Spent(times.time, times.compute, times.communication, times.exposed, dict(rank.by_class))


CLASSES = (
    ("communication", re.compile("nccl")),
    ("attention", re.compile("flash_|fmha|sdpa|attention", re.IGNORECASE)),
    ("gemm", re.compile("nvjet|gemm|cutlass|splitK|xmma", re.IGNORECASE)),
)


def real_step(path: Path) -> Spent:
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = {True: [], False: []}  # type: dict[bool, list[tuple[float, float]]]
    by_class: dict[str, float] = {}
    for event in work:
        start, end = event["ts"] * 1e3, (event["ts"] + event["dur"]) * 1e3
        cls = next((c for c, pattern in CLASSES if pattern.search(event["name"])), "other")
        by_class[cls] = by_class.get(cls, 0) + end - start
        if event["cat"] == "kernel":  # copies count by class, but are not compute, as in `phantora analyze`
            spans[cls == "communication"].append((start, end))
    communication, compute = union(spans[True]), union(spans[False])
    both = union([*spans[True], *spans[False]])
    ends = [t for span in (*spans[True], *spans[False]) for t in span]
    exposed = length(both) - length(compute)
    return Spent(max(ends) - min(ends), length(compute), length(communication), exposed, by_class)


def union(spans: Sequence[tuple[float, float]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Disjoint intervals that cover the same time."""
    if not spans:
        return np.empty((0, 2))
    ordered = np.array(sorted(spans))
    reach = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate([[True], ordered[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([ordered[first, 0], reach[last]])


def length(intervals: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def report(outcomes: list[Outcome]) -> None:
    console = Console(width=120)
    table = Table("run", "real ms", "spread", "simulated", "step", "MFU", "allocated", "reserved", box=None)
    errors: dict[str, list[float]] = {"all runs": [], "steady": [], "unsteady": []}
    for o in outcomes:
        if o.simulated is None:
            table.add_row(o.run, f"{o.real['median_iter_s'] * 1e3:.1f}", "", o.error[:60])
            continue
        step = o.ratio("median_iter_s")
        assert step is not None
        for group in ("all runs", "steady" if o.steady else "unsteady"):
            errors[group].append(step)
        memory = [o.ratio("max_memory_allocated"), o.ratio("max_memory_reserved")]
        table.add_row(
            o.run,
            f"{o.real['median_iter_s'] * 1e3:.1f}",
            "-" if o.spread is None else f"{o.spread:.1%}",
            f"{o.simulated['median_iter_s'] * 1e3:.1f}",
            f"{step:+.1%}",
            f"{o.real.get('mfu', 0):.3f} {o.simulated.get('mfu', 0):.3f}",
            *("-" if value is None else f"{value:+.2%}" for value in memory),
        )
    console.print(table)
    for name, each in errors.items():
        if each:
            absolute = [abs(error) for error in each]
            console.print(
                f"step time, {name}: mean error {statistics.mean(absolute):.1%}, largest {max(absolute):.1%}, "
                f"signed {statistics.mean(each):+.1%}, {len(each)} runs"
            )
    columns = ("run", "", "gemm", "attention", "other", "communication", "exposed", "overlap")
    table = Table(*columns, title="ms of a step of rank 0", box=None)
    for o in outcomes:
        for label, spent in (("real", o.real_spent), ("simulated", o.spent)):
            if spent is None:
                continue
            named = {c: spent.by_class.get(c, 0) for c in ("gemm", "attention")}
            other = sum(spent.by_class.values()) - sum(named.values()) - spent.by_class.get("communication", 0)
            overlap = "-" if spent.overlap is None else f"{spent.overlap:.1%}"
            values = (*named.values(), other, spent.communication, spent.exposed)
            table.add_row(o.run if label == "real" else "", label, *(f"{v / 1e6:.1f}" for v in values), overlap)
    if table.row_count:
        console.print(table)


if __name__ == "__main__":
    main()
