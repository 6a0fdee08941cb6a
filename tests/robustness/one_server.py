"""Compares logs of a sweep's points, run alone and through one fork server (phantora/launch/shared_forkserver.py).

python -m tests.robustness.one_server FOLDER [SWEEP WORDS...]

SWEEP WORDS choose the points as of ``phantora sweep``: --preset tp --model small --cluster 1x4xH100 --set layers=2.
All rows of the logs are compared. Exit status 1 if any differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

import phantora
from phantora.cli.sweep import parse_setting, sweep
from phantora.launch.shared_forkserver import VARIABLE, WarmServer
from phantora.run_process import PHANTORA
from phantora.sweep.fold import ONE
from phantora.sweep.plan import make_plan
from phantora.sweep.run import located, set_up
from phantora.sweep.space import CLUSTER
from phantora.sweep.spaces import space_from
from phantora.sweep.task import Shared, Task

WORDS = (
    "--preset", "torchtitan", "--model", "debug", "--cluster", "2x8xH100", "--set", "tp=1,4", "--set", "pp=1,4",
    "--set", "rounds=1",
)  # fmt: skip


def tasks(words: tuple[str, ...], folder: Path) -> list[Task]:
    options = sweep.make_context("sweep", list(words)).params
    settings = dict(parse_setting(text) for text in options["settings"]) | {CLUSTER: options["clusters"]}
    found = space_from(None, options["preset"], options["model"], False, options["words"], settings, options["rules"])
    space = located(found, folder)
    set_up(space, folder)
    shared = Shared(folder, space.target, space.here, (), space.steps, True, ONE)
    return [Task.of(point, shared) for point in make_plan(space).points]


def run(task: Task, log: Path, variables: dict[str, str]) -> None:
    words = task.words(2, str(log), ("--no-summary", "--force"))
    done = subprocess.run(
        [*PHANTORA, *words], env={**os.environ, **variables}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise click.ClickException(done.stdout[-2000:] + done.stderr[-2000:])


def main() -> int:
    folder, words = Path(sys.argv[1]), tuple(sys.argv[2:]) or WORDS
    folder.mkdir(parents=True, exist_ok=True)
    different = 0
    server = WarmServer()
    try:
        for task in tasks(words, folder):
            alone, shared = folder / "alone.arrow", folder / "shared.arrow"
            run(task, shared, {VARIABLE: server.path})
            run(task, alone, {})
            table = phantora.open(alone).table()
            same = table.equals(phantora.open(shared).table())
            different += not same
            print(f"{task.point.label()}: {len(table):,} rows, {'equal' if same else 'DIFFERENT'}", flush=True)
    finally:
        server.close()
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
