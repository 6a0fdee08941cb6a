"""Peaks of memory of MLPerf Training's results: python -m validation.published.mlperf_memory ROW|all [--known]

Results of round 5.0 and a few of later ones log `max_memory_usage`: torch's largest allocated memory of rank 0 in GiB,
without NCCL's buffers, CUDA's context and what the allocator caches. Language models run with Transformer Engine itself
(docs/frameworks/megatron.md): the stand-ins of `mlperf` keep weights twice. Nothing is fitted to a row.

Without a pipeline a peak is affine in the layers from twelve on, where the optimizer's kernels no longer decide,
so two numbers of layers give it. With a pipeline all layers run, and twice as many micro-batches as stages: more are
never in flight. `--out FOLDER` has the GiB of each command (memory.jsonl); a known command is not simulated again.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from validation.published.bridge import LIMIT_S, Unsimulated, on_line, traced
from validation.published.bridge_rows import Run
from validation.published.mlperf import chosen, options
from validation.published.mlperf_rows import expressed, named

JOURNAL = "memory.jsonl"
PEAK = re.compile(r"\[Rank 0\] .*max allocated: ([0-9.]+)")
POINTS = (12, 16)


def memory_run(row: Mapping[str, Any]) -> Run | str:
    """The run of a row with real layers, or why it is left out."""
    run = expressed(row)
    if isinstance(run, str) or run.program != Run.program:
        return run
    words = list(run.words)
    if "--cuda-graphs" in words:  # their pool has what the passes take without them
        place = words.index("--cuda-graphs")
        del words[place : place + 2]
    words[words.index("--train-iters") + 1] = "2"
    apart = row["benchmark"] == "llama2_70b_lora"  # cross_entropy_loss_fusion=False of its train.py
    words += ["--te", "--fp8-param-gather", "--cross-entropy", "apart" if apart else "native"]
    env = row.get("config_env") or {}
    words += ["--narrow-activations"] if env.get("FP8_ACT") == "1" else []
    stages = int(words[words.index("--pp") + 1])
    if stages > 1:
        return replace(run, words=tuple(words), micro=2 * stages, rounds=(2 * stages,))
    return replace(run, words=tuple(words), points=POINTS, micro=1, rounds=(1,))


def peak(run: Run, known: Mapping[str, float]) -> float:
    """GiB; raises KeyError if a command is not simulated."""
    return on_line(run.points, [known[shlex.join(run.command(layers, run.micro))] for layers in run.points], run.layers)


def _simulated(command: tuple[str, ...]) -> float | str:
    """GiB of rank 0, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = PEAK.findall(traced(command, Path(folder) / "run.arrow", 2 * LIMIT_S))
        except Unsimulated as reason:
            return str(reason)
    return float(found[-1]) / 1024 if found else "it prints no peak"


def fill(runs: list[Run], file: Path, known: dict[str, float], jobs: int) -> None:
    """Simulates what is missing of `runs`, and appends it to `file`."""
    commands = {shlex.join(c): c for run in runs for c in (run.command(layers, run.micro) for layers in run.points)}
    missing = {key: command for key, command in commands.items() if key not in known}
    with ThreadPoolExecutor(jobs) as pool:
        for key, found in zip(missing, pool.map(_simulated, missing.values()), strict=True):
            if isinstance(found, str):
                print(f"failed: {found}\n  {key}", flush=True)
                continue
            known[key] = round(found, 4)
            with file.open("a") as out:
                out.write(json.dumps({"command": key, "gib": known[key]}) + "\n")


def too_long(run: Run) -> str:
    """Why a run that could be simulated is not: the machine that simulates has 2 cores."""
    if run.program != Run.program:
        return "not simulated: its compilation takes over 5 minutes of CPU"
    return f"not simulated: {run.words[run.words.index('--pp') + 1]} stages of all layers take over 5 minutes of CPU"


def table(rows: list[tuple[int, dict[str, Any]]], known: Mapping[str, float]) -> Iterator[str]:
    yield "| row | published GiB | simulated GiB | error |"
    yield "| --- | --- | --- | --- |"
    errors = []
    for number, row in rows:
        run, published = memory_run(row), float(row["max_memory_gb"])
        try:
            found = peak(run, known) if isinstance(run, Run) else None
        except KeyError:
            found, run = None, too_long(run) if isinstance(run, Run) else run
        if found is None:
            yield f"| {named(row, number)} | {published:.1f} | | {run} |"
            continue
        errors.append(found / published - 1.0)
        yield f"| {named(row, number)} | {published:.1f} | {found:.1f} | {errors[-1]:+.1%} |"
    if errors:
        sizes = [abs(error) for error in errors]
        yield (
            f"{len(errors)} rows: median error {statistics.median(sizes):.1%}, mean {statistics.fmean(errors):+.1%}, "
            f"{sum(size <= 0.03 for size in sizes)} within 3 %"
        )


def main() -> None:
    parser = options(__doc__)
    args = parser.parse_args()
    every = [json.loads(line) for line in args.file.read_text().splitlines()]
    rows = [(number, row) for number, row in chosen(every, args.rows) if row.get("max_memory_gb")]
    if not rows:
        parser.error(f"no row with a peak of memory has all of: {' '.join(args.rows)}")
    file = args.out / JOURNAL
    entries = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    known = {entry["command"]: entry["gib"] for entry in entries}
    if not args.known:
        fill([run for run in (memory_run(row) for _, row in rows) if isinstance(run, Run)], file, known, args.jobs)
    print(*table(rows, known), sep="\n")


if __name__ == "__main__":
    main()
