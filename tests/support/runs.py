"""Runs `phantora trace` as a user does and reads what it leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantora.launch.shared_forkserver import VARIABLE
from phantora.run_process import PHANTORA
from phantora.trace.reader import open_log

SERVER = "TEST_SERVER"
"""The variable with the path of the fork server of all tests (conftest.py)."""
SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@dataclass
class Run:
    status: int
    out: str
    err: str
    directory: Path

    @property
    def log(self) -> Path:
        return self.directory / "run.arrow"

    def report(self) -> dict[str, Any]:
        """The JSON line that a sample prints last."""
        lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in self.out.splitlines()]
        return dict(json.loads([line for line in lines if line.startswith("{")][-1]))


def command(*arguments: str) -> list[str]:
    return [*PHANTORA, "trace", *arguments]


def trace(
    directory: Path,
    *arguments: str,
    check: bool = True,
    before: Callable[[], None] | None = None,
    timeout: float = 240,
    alone: bool = False,
    recording: bool = False,
) -> Run:
    """One run, on the fork server of all tests: not one with something to do `before`, nor one that is `alone`.

    `test_runs.py` shows that the logs are the same. Only a run with a `recording` can be replayed, and has settled
    steps and an error bar: it is simulated four times more for them.
    """
    done = subprocess.run(
        command("-o", "run.arrow", "--no-summary", *(() if recording else ("--no-recording",)), *arguments),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout,
        preexec_fn=before,
        check=False,
        env=environment(shared=not alone and before is None),
    )
    if check:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return Run(done.returncode, done.stdout, done.stderr, directory)


def environment(*, shared: bool) -> dict[str, str]:
    """Without what differs between tests and between workers; `shared`: with the fork server of all tests."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return found | {VARIABLE: found[SERVER]} if shared else found


def rows(log: Path, *columns: str, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
    """Columns of a log as arrays; texts as indices into the log's words."""
    opened = open_log(log)
    parts: dict[str, list[Any]] = {name: [] for name in columns}
    for batch in opened.batches(list(columns), kinds=list(kinds) or None):
        for name in columns:
            parts[name].append(batch[name])
    return {name: np.concatenate(pieces) if pieces else np.array([]) for name, pieces in parts.items()}


def records(log: Path, kind: str, *columns: str) -> list[dict[str, Any]]:
    """The rows of one kind, texts as texts."""
    table = pa.ipc.open_file(log).read_all()
    return list(table.filter(pc.equal(table["kind"], kind)).select(list(columns)).to_pylist())
