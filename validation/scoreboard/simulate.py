"""Runs of `phantora trace` for the scoreboard."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.launch.daemon import VARIABLE
from phantora.run_process import PHANTORA
from validation.compare.accuracy import Headline, headline_of
from validation.data import HERE

ROOT = HERE.parent
LIMIT_S = 1800.0
_ROUNDED = 0.05  # GiB, of the printed range
_end = math.inf


def end_after(seconds: float | None) -> None:
    """Runs end this many seconds from now."""
    global _end
    _end = math.inf if seconds is None else time.monotonic() + seconds


def seconds_left() -> float:
    """Until runs end: LIMIT_S at most."""
    return min(LIMIT_S, _end - time.monotonic())


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    status: int
    output: str
    """stdout and stderr, without the prefixes of the ranks."""
    cpu: float
    """User and system seconds of all its processes."""
    log: Path

    @property
    def headline(self) -> Headline | None:
        """The printed step and its range; None if it has no bar."""
        try:
            return headline_of(self.log)
        except AssertionError:
            return None

    def holds(self, peak: float) -> bool:
        """True if the printed range of the allocated peak (PEAK) has `peak`."""
        found = re.search(r"PEAK +([\d.]+) to ([\d.]+) GiB allocated", self.output)
        return found is not None and float(found[1]) - _ROUNDED <= peak / 2**30 <= float(found[2]) + _ROUNDED


def trace(
    folder: Path, cluster: str, *words: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> Ran:
    """Runs ``phantora trace --cluster CLUSTER WORDS``; its log is in `folder`."""
    log = folder / "run.arrow"
    options = ["--cluster", cluster, "-o", str(log), "--force"]
    return run([*PHANTORA, "trace", *options, *words], log, cwd, environment)


def run(command: Sequence[str], log: Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> Ran:
    """Runs a command to its end. Raises subprocess.TimeoutExpired if no seconds are left."""
    variables = {**os.environ, **(environment or {}), VARIABLE: "0"}  # a daemon's CPU would not be counted
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH", ""))))
    timed = ["/bin/bash", "-c", 'TIMEFORMAT="CPU %U %S"; time "$@"', "timed", *command]
    process = subprocess.Popen(
        timed, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=max(seconds_left(), 0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    errors, _, times = errors.rstrip().rpartition("\n")
    cpu = sum(map(float, times.split()[1:]))
    return Ran(process.returncode, output + errors, cpu, log)


def error_of(ran: Ran) -> str:
    """The line that says why a run failed."""
    lines = [line for line in ran.output.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "phantora: error"))]
    return (failed or lines or [f"status {ran.status}"])[-1][:160]
