"""Results of MLPerf Training, simulated: python -m validation.published.mlperf ROW|all [--out FOLDER] [--jobs N]

ROW is the number of a line of `--file` from 0, or words of its label. The shipped lines are results of
github.com/mlcommons/training_results_v3.1 to v6.0 (Apache-2.0) with what their configurations say. Each row is printed:
seconds of a step, as submitted and as simulated, or the reason why it does not run. `mlperf_rows` has the settings of a
row, validation/workloads its programs: bridge.py, Megatron-Core with stand-ins for Transformer Engine, which say
nothing of memory, and diffusion.py. Nothing is fitted to a row. Simulated results are unverified by MLCommons.

A step is affine in its micro-batches, and without a pipeline in its layers, so two values of each give the step. A row
is folded to one rank of each pipeline stage. FOLDER keeps the seconds of each command (journal.jsonl) and the table
(table.md); a command that is known is not simulated again. `--predict` leaves the submitted numbers out.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from validation.published.bridge import Journal, commands_of, step_seconds
from validation.published.bridge_rows import Run
from validation.published.mlperf_rows import expressed, gpu_of, named
from validation.published.parts import KINDS, shares

JOURNAL = "journal.jsonl"
OWN = Path(__file__).with_name("mlperf")


def chosen(rows: list[dict[str, Any]], words: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows by number, or with all words in their label."""
    numbers = {int(word) for word in words if word.isdigit()}
    texts = [word for word in words if not word.isdigit() and word != "all"]
    for number, row in enumerate(rows):
        if number in numbers or (not numbers and all(text in named(row, number) for text in texts)):
            yield number, row


def table(rows: list[tuple[int, dict[str, Any]]], journal: Journal, predicts: bool) -> Iterator[str]:
    """Lines of the results, of their errors by GPU and by benchmark, and of what does not run."""
    yield "| row | submitted s | simulated s | error |" if not predicts else "| row | simulated s |"
    yield "| --- | --- | --- | --- |" if not predicts else "| --- | --- |"
    errors: defaultdict[str, list[float]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for number, row in rows:
        try:
            seconds = _seconds(row, journal)
        except RuntimeError as error:
            reasons[str(error)] += 1
            yield f"| {named(row, number)} | {'' if predicts else '| | '}{error} |"
            continue
        if predicts:
            yield f"| {named(row, number)} | {seconds:.4g} |"
            continue
        off = seconds / float(row["step_time_s"]) - 1.0
        for group in (gpu_of(row), row["benchmark"], "all"):
            errors[group].append(off)
        yield f"| {named(row, number)} | {row['step_time_s']:.4g} | {seconds:.4g} | {off:+.1%} |"
    yield from _summary(errors)
    yield from _parts(rows, journal)
    yield from (f"- left out, {count}: {reason}" for reason, count in reasons.most_common())


def _seconds(row: Mapping[str, Any], journal: Journal) -> float:
    """Raises RuntimeError with the reason if the row does not run."""
    run = expressed(row)
    if isinstance(run, str):
        raise RuntimeError(run)
    return step_seconds(run, journal)


def _parts(rows: list[tuple[int, dict[str, Any]]], journal: Journal) -> Iterator[str]:
    """Where the time of each row's largest simulated step went."""
    yield f"\n| row | {' | '.join(KINDS)} |"
    yield f"| --- |{' --- |' * len(KINDS)}"
    for number, row in rows:
        run = expressed(row)
        found = [journal.parts.get(shlex.join(command)) for command in commands_of(run)] if isinstance(run, Run) else []
        if found and found[-1]:
            yield f"| {named(row, number)} | {shares(found[-1])} |"


def _summary(errors: Mapping[str, list[float]]) -> Iterator[str]:
    """Positive errors are simulated steps that are too long."""
    if not errors:
        return
    yield "\n| group | rows | median error | mean | too long | within 20 % |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for group, found in sorted(errors.items()):
        sizes = [abs(off) for off in found]
        yield (
            f"| {group} | {len(found)} | {statistics.median(sizes):.1%} | {statistics.fmean(found):+.1%} "
            f"| {sum(off > 0 for off in found)} | {sum(size <= 0.2 for size in sizes)} |"
        )


def options(description: str | None) -> argparse.ArgumentParser:
    """The options of a command that simulates rows of results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=OWN / "rows.jsonl", help="results as JSON lines")
    parser.add_argument("rows", nargs="+", metavar="ROW", help="number, words of a label, or all")
    parser.add_argument("--out", type=Path, default=OWN, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=1, help="commands that are simulated at the same time")
    parser.add_argument("--known", action="store_true", help="simulate nothing: only what FOLDER has")
    return parser


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--predict", action="store_true", help="print simulated steps only")
    args = parser.parse_args()
    if not args.file.is_file():
        parser.error(f"no such file of rows: {args.file}")
    rows = list(chosen([json.loads(line) for line in args.file.read_text().splitlines()], args.rows))
    if not rows:
        parser.error(f"no row has all of: {' '.join(args.rows)}")
    args.out.mkdir(parents=True, exist_ok=True)
    journal = Journal(args.out / JOURNAL)
    if not args.known:
        journal.fill([run for run in (expressed(row) for _, row in rows) if isinstance(run, Run)], args.jobs)
    lines = list(table(rows, journal, args.predict))
    print(*lines, sep="\n")
    if args.out != OWN:
        (args.out / ("predictions.md" if args.predict else "table.md")).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
