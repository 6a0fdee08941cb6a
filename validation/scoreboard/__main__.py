"""The command of the scoreboard: runs cases, writes the table, and fails if a row that was right is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from validation.scoreboard import rows as table
from validation.scoreboard import simulate
from validation.scoreboard.groups import GROUPS, QUICK
from validation.scoreboard.rows import ABSENT, RIGHT, WRONG, Case, Row

ROWS = "rows.jsonl"


def run(case: Case, into: Path | None = None) -> list[Row]:
    """The rows of a case, appended to the file `into`. One that fails is wrong; one that is too late has none."""
    if simulate.seconds_left() <= 0:
        return []
    with tempfile.TemporaryDirectory(prefix="phantora-scoreboard-") as folder:
        try:
            found = list(case.rows(Path(folder)))
        except Exception as error:
            if simulate.seconds_left() <= 0:
                return []
            text = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            found = [Row(case.group, case.name, WRONG, note=text[:160])]
    for row in found:
        print(
            f"{row.group:10} {row.name:56} {row.verdict:7} {row.figure if row.figure is not None else ''}", flush=True
        )
    if into is not None:
        with into.open("a") as file:
            file.write(table.lines(found))
    return found


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m validation.scoreboard", description=__doc__)
    parser.add_argument("--tier", choices=("quick", "full"), default="quick", help="quick: nothing is simulated")
    parser.add_argument("--only", default="", help=f"groups, separated by commas: {', '.join(GROUPS)}")
    parser.add_argument("--rows", default="", help="only cases with this text in their name")
    parser.add_argument("--cases", type=Path, help="folder of the programs and real figures that are not committed")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="cases at a time")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end unfinished cases after this time")
    parser.add_argument("--out", type=Path, help=f"folder for the table, and for {ROWS}, rows as they are computed")
    parser.add_argument("--take", type=Path, nargs="+", metavar="FILE", help=f"run nothing; rows of these {ROWS}")
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    args = parser.parse_args(words)
    if unknown := [name for name in args.only.split(",") if name and name not in GROUPS]:
        parser.error(f"--only {','.join(unknown)}: no such group; there are {', '.join(GROUPS)}")
    return args


def _computed(chosen: Sequence[Case], args: argparse.Namespace) -> list[Row]:
    into = args.out / ROWS if args.out else None
    simulate.end_after(args.limit)
    with ThreadPoolExecutor(args.jobs) as pool:
        every = list(pool.map(lambda case: run(case, into), chosen))
    late = [case.name for case, rows in zip(chosen, every, strict=True) if not rows]
    if late:
        print(f"{len(late)} cases not done after {args.limit:g} s: {', '.join(late)}")
    return [row for rows in every for row in rows]


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 1 if a row that was right at the last commit is wrong."""
    args = _arguments(words)
    wanted = [name for name in args.only.split(",") if name] or (QUICK if args.tier == "quick" else list(GROUPS))
    every = [case for name in GROUPS for case in GROUPS[name](args.cases)]
    chosen = [case for case in every if case.group in wanted and args.rows in case.name]
    if args.list:
        print("\n".join(f"{case.group:10} {case.name}" for case in chosen))
        return 0
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    before = table.committed()
    if args.take:
        found = [Row(**json.loads(line)) for file in args.take for line in file.read_text().splitlines()]
    else:
        found = _computed(chosen, args)
    page = table.write(table.merged(found, before), before, args.out)
    counts = ", ".join(f"{sum(row.verdict == kind for row in found)} {kind}" for kind in (RIGHT, WRONG, ABSENT))
    print(f"{len(found)} rows: {counts}; {page}")
    worse = table.regressions(found, before)
    for row in worse:
        print(f"was right, is wrong: {row.group} {row.name}: {row.figure} {row.unit} ({row.bound}) {row.note}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
