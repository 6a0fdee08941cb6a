"""What one script's own host work takes on this machine, beside what the host profile counts for it.

The profile counts calls, operators, autograd nodes and Python frames, each at one price. Scripts differ from that by
-20 to +30 %: how much code they go through, and how much of it stays in the caches, no count says. So the script is
run without CUDA (`phantora trace --null`), where its CPU time is what Python, the dispatcher and autograd take, and its
costs follow. docs/holdout.md compares both with steps on real hosts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.hardware import DEFAULT_HOST, HostProfile, load_host
from phantora.profile import host_script
from phantora.wire.layout import Api

OWN = ("OP_", "PY_", "ANNOTATION", "BACKWARD_CALL", "OPTIMIZER_PARAM", "BLOCK_FREE", "GET_DEVICE", "OTHER")
"""How the names of costs begin that are the script's own: Python's and PyTorch's. The others are CUDA's libraries'."""
CALLS = (
    "LAUNCH", "MEMCPY_ASYNC", "MEMCPY_SYNC", "MEMSET", "EVENT_RECORD", "EVENT_QUERY", "STREAM_WAIT", "STREAM_SYNC",
    "STREAM_QUERY", "GEMM", "GEMM_LT", "GEMM_HEURISTIC", "CUDNN_BUILD", "CUDNN_CONVERT", "NCCL_ENQUEUE", "NCCL_GROUP",
)  # fmt: skip
"""CUDA's calls whose costs are those of a loop that does nothing else."""
COLD = 1.2
"""How many times as long they take in a step, where other code has taken their place in the caches: chosen with 25
workloads in turns with and without CUDA's calls (benchmarks/host_paired.py, the first session)."""
UNITS = {"PY_CODE": 1e-6, "OP_COLD": 1e-3}  # of a count; stub/rank/clock.c
FIRST = 2  # steps that load code
FEWEST = 3  # steps that count
SCRIPT_SPREAD = (0.85, 1.15)  # twice the mean error of 17 scripts that were measured so (docs/costs.md, The host)


@dataclass(frozen=True)
class Script:
    """A step of a script on this machine's host."""

    cpu_ns: float
    """CPU time of all threads, without CUDA."""
    counted_ns: float
    """ns that the default host is charged for the same, without CUDA."""

    @property
    def ratio(self) -> float:
        """CPU time over what the default host is charged."""
        return self.cpu_ns / self.counted_ns


@dataclass(frozen=True)
class Mark:
    """The end of an optimizer step."""

    cpu_ns: int
    charges: Sequence[int]


def measure(command: Sequence[str], cluster: str) -> Script:
    """Runs `command` (a script and its arguments) twice. Raises PhantoraError when it fails or has too few steps."""
    without, charged = _marks(command, cluster, ["--null"]), _marks(command, cluster, [])
    cpu = [after.cpu_ns - before.cpu_ns for before, after in pairwise(without)]
    counted = [own_ns(before, after) for before, after in pairwise(charged)]
    return Script(statistics.median(cpu[FIRST - 1 :]), statistics.median(counted[FIRST - 1 :]))


def own_ns(before: Mark, after: Mark) -> float:
    """ns that the default host is charged for Python and PyTorch between two marks."""
    costs = load_host(DEFAULT_HOST).api_ns
    return sum(
        (now - then) * costs[name] * UNITS.get(name, 1.0)
        for name, then, now in zip(Api.names(), before.charges, after.charges, strict=True)
        if name.startswith(OWN)
    )


def calibrated(host: HostProfile, script: Script, machine: float) -> HostProfile:
    """`host` with the costs of `script`, measured on a machine that is `machine` times as slow as the default host.

    Counts make up for what CUDA's calls take in steps, since they were fitted to whole steps; a script's own CPU time
    does not. So these calls get their time in a step here."""
    own = script.ratio / machine
    costs = {
        name: round(ns * (own if name.startswith(OWN) else COLD if name in CALLS else 1.0))
        for name, ns in host.api_ns.items()
    }
    return replace(host, api_ns=costs)


def _marks(command: Sequence[str], cluster: str, options: Sequence[str]) -> list[Mark]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "marks.jsonl"
        log = [] if options else ["--no-summary", "--no-recording", "-o", str(Path(folder) / "run.arrow")]
        command_line = [
            sys.executable, "-m", "phantora", "trace", "-q", "--cluster", cluster, *options, *log,
            str(Path(host_script.__file__)), str(out), *command,
        ]  # fmt: skip
        root = str(Path(__file__).parents[2])
        environment: Mapping[str, str] = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            "PHANTORA_API_COUNT": str(len(Api.names())),
        }  # fmt: skip
        done = subprocess.run(command_line, capture_output=True, text=True, env=environment, check=False)
        how = "without CUDA" if options else "under simulation"
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise PhantoraError(f"{command[0]} failed {how} (status {done.returncode}): {said[:300]}")
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        marks = [Mark(**json.loads(line)) for line in text.splitlines()]
    if len(marks) < FIRST + FEWEST:
        raise PhantoraError(
            f"{command[0]} took {len(marks)} optimizer steps {how}; at least {FIRST + FEWEST} are needed: "
            "raise its number of steps, and name a script that trains"
        )
    return marks
