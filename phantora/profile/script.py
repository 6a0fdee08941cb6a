"""Host work of one script on this machine, next to the charges of the host model.

The profile counts calls, operators, autograd nodes and Python frames, each at one price. Scripts differ from that by
-20 to +30 %: how much code they go through, and how much of it stays in the caches, no count says. So the script is
run without CUDA (`phantora trace --null`), where its CPU time is what Python, the dispatcher and autograd take, and its
costs follow. validation/holdout.md compares both with steps on real hosts.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.hardware import HostProfile
from phantora.hardware.hosts import to_toml
from phantora.profile import host_script
from phantora.profile.host import OWN, middle_tenths
from phantora.result import first_line
from phantora.run_process import run_in_process
from phantora.spec import OutputSpec, RankSpec, RunSpec
from phantora.wire.layout import Api

UNITS = {"PY_CODE": 1e-6, "OP_COLD": 1e-3, "NCCL_COLD": 1e-3, "LIST_COLD": 1e-3}  # of a count; stub/rank/clock/costs.c
NEXT_TO_CALLS = 1.06  # times the CPU time without CUDA's calls: see `host.COUNTED_BESIDE_CALLS`
NORMAL_QUARTILES = 1.35  # standard deviations between the quartiles of normal values
UNCERTAIN = 0.03  # standard error of a script's CPU time that is reported
FIRST = 2  # steps that load code
FEWEST = 3  # steps that count
SCRIPT_SPREAD = (0.85, 1.15)  # twice the mean error of 17 scripts that were measured so (docs/costs.md, The host)


@dataclass(frozen=True)
class Script:
    """A step of a script on this machine's host."""

    cpu_ns: float
    """CPU time of all threads, without CUDA: the mean of the steps, less the tenths that are least and most of what is
    counted for them."""
    counted_ns: float
    """ns that this machine's host, as the probe describes it, is charged for the same, without CUDA."""
    steps: int = 1
    spread: float = 0.0
    """Standard deviation of the steps' CPU time over what is counted, relative, from their quartiles."""

    @property
    def uncertainty(self) -> float:
        """Standard error of `cpu_ns`, relative."""
        return self.spread / sqrt(self.steps)

    @property
    def ratio(self) -> float:
        """CPU time, as it is next to CUDA's calls, over what is charged."""
        return self.cpu_ns * NEXT_TO_CALLS / self.counted_ns


@dataclass(frozen=True)
class Mark:
    """The end of an optimizer step."""

    cpu_ns: int
    charges: Sequence[int]


def measure(command: Sequence[str], cluster: str, host: HostProfile, between: float = 1.0) -> Script:
    """Runs `command` (a script and its arguments) twice: without CUDA, and simulated on `host`, which describes this
    machine as that many times as slow as its probe without CUDA (`phantora.profile.host.between`). Raises PhantoraError
    when it fails or has too few steps."""
    without = _marks(command, cluster, None)
    # On this host and not on another: how cold code is depends on what runs between, CUDA's calls among it.
    charged = _marks(command, cluster, host)
    cpu = [after.cpu_ns - before.cpu_ns for before, after in pairwise(without)]
    counted = [own_ns(before, after, host) for before, after in pairwise(charged)]
    # Each with its own: a script with several optimizers has steps of several kinds.
    pairs = sorted(zip(cpu[FIRST - 1 :], counted[FIRST - 1 :], strict=False), key=lambda pair: pair[0] / pair[1])
    quartiles = statistics.quantiles(ours / theirs for ours, theirs in pairs)
    middle = [statistics.fmean(kind) for kind in zip(*middle_tenths(pairs), strict=True)]
    spread = (quartiles[2] - quartiles[0]) / NORMAL_QUARTILES / (middle[0] / middle[1])
    return Script(middle[0], middle[1] / between, len(pairs), spread)


def own_ns(before: Mark, after: Mark, host: HostProfile) -> float:
    """ns that `host` is charged for Python and PyTorch between two marks."""
    return sum(
        (now - then) * host.api_ns[name] * UNITS.get(name, 1.0)
        for name, then, now in zip(Api.names(), before.charges, after.charges, strict=True)
        if name.startswith(OWN)
    )


def calibrated(host: HostProfile, script: Script) -> HostProfile:
    """`host` with the costs of `script`: CUDA's calls stay."""
    costs = {name: round(ns * script.ratio) if name.startswith(OWN) else ns for name, ns in host.api_ns.items()}
    return replace(host, api_ns=costs)


def _marks(command: Sequence[str], cluster: str, host: HostProfile | None) -> list[Mark]:
    """Without a host: without CUDA."""
    with tempfile.TemporaryDirectory() as folder:
        out, described = Path(folder) / "marks.jsonl", Path(folder) / "host.toml"
        spec = RunSpec(
            str(Path(host_script.__file__)),
            (str(out), str(len(Api.names())), *command),
            cluster=cluster,
            ranks=RankSpec(quiet=True),
            output=OutputSpec(str(Path(folder) / "run.arrow"), recording=False),
        )
        if host is None:
            spec = replace(spec, null=True)
        else:
            described.write_text(to_toml(host), encoding="utf-8")
            spec = replace(spec, host=str(described))
        result = run_in_process(spec)
        how = "without CUDA" if host is None else "under simulation"
        if result.status:
            raise PhantoraError(f"{command[0]} failed {how}: {first_line(result.message)[:300]}")
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        marks = [Mark(**json.loads(line)) for line in text.splitlines()]
    if len(marks) < FIRST + FEWEST:
        raise PhantoraError(
            f"{command[0]} took {len(marks)} optimizer steps {how}; at least {FIRST + FEWEST} are needed: "
            "raise its number of steps; of a script without an optimizer, trace a real run and use `phantora calibrate`"
        )
    return marks
