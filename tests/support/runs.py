"""Runs `phantora trace` as a user does and reads what it leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantora.framework_logs import StepLog, read_step_log
from phantora.launch.shared_forkserver import VARIABLE
from phantora.run_process import PHANTORA
from phantora.trace.reader import is_log, open_log
from tests.support import forked
from tests.support.verdicts import agrees

SERVER = "TEST_SERVER"
"""The variable with the path of the fork server of all tests (conftest.py)."""
_PHANTORA = (
    "phantora.cli.main",
    "phantora.cli.report",
    "phantora.cli.status",
    "phantora.cli.trace",
    "phantora.runs.preload",
)
"""Modules of `phantora` that most commands import."""
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

    def step_lines(self) -> StepLog:
        """What is read of the step lines that a framework printed on rank 0."""
        printed = [line for line in (self.out + self.err).splitlines() if not re.match(r"\[rank[1-9]", line)]
        (self.directory / "printed.txt").write_text("\n".join(printed))
        return read_step_log(str(self.directory / "printed.txt"))


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
    steps and an error bar: it is simulated four times more for them. What is printed about its log must agree, and so
    about those of failures and stragglers.
    """
    words = ("-o", "run.arrow", "--no-summary", *(() if recording else ("--no-recording",)), *arguments)
    if alone or before is not None:
        own = environment(shared=False)
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": timeout, "check": False}
        done = subprocess.run(command(*words), cwd=directory, env=own, preexec_fn=before, **options)
    else:
        done = phantora("trace", *words, cwd=directory, timeout=timeout)
    if check:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    run = Run(done.returncode, done.stdout, done.stderr, directory)
    if (recording or done.returncode or "--straggler" in arguments) and is_log(run.log):
        agrees(run.log)
    return run


def phantora(
    *arguments: str, cwd: Path, timeout: float = 240, more: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """``phantora ARGUMENTS`` on the fork server of all tests, with `more` variables.

    Its process is forked from one that has imported its modules, which takes a second.
    """
    own = {**environment(shared=True), **more}
    return forked.completed(_PHANTORA, ("phantora", *arguments), own, str(cwd), timeout)


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
