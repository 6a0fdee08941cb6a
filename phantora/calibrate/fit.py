"""From a real log, and a simulated one of the same script, to the host on which the script ran.

Host time is a sum of costs (docs/costs.md). The real step took

    work = ratio * (modelled + profiler)

where `modelled` is the simulated step's host work, and `profiler` what the events of the trace cost on the simulated
host. The ratio holds for the script: its layers, batch, sequence and number of GPUs may differ in the next run.
Without a simulated log the operators' own times are compared with those on a host of known factor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phantora.calibrate.profiled import HostStep, operator_times, real_step, simulated_step
from phantora.errors import PhantoraError
from phantora.hardware import DEFAULT_HOST, HostProfile, load_host
from phantora.trace.reader import Log

OPERATORS = Path(__file__).with_name("operators.json")
SCRIPT_SPREAD = (0.85, 1.15)
MACHINE_SPREAD = (0.7, 1.5)
_FEWEST = 5  # operators of different names that a machine is compared by


@dataclass(frozen=True)
class Calibration:
    """A host as a real run shows it."""

    host: HostProfile
    ratio: float
    """Host time over that of the host `compared_with`."""
    compared_with: str
    real: HostStep | None = None
    """With a simulated log: the real step, and the simulated one."""
    simulated: HostStep | None = None
    operators: int = 0
    """Number of operators by which the machine is compared, without a simulated log."""


def calibrate(real: Log, simulated: Log | None, name: str) -> Calibration:
    """The host of the imported log `real`: for its script, where `simulated` is a log of the same script and
    configuration, else for the machine. Raises PhantoraError for logs that do not tell it."""
    if "imported" not in real.metadata.extra:
        raise PhantoraError(f"{real.path} is a simulated log; `phantora import` makes logs of real runs")
    return _by_script(real, simulated, name) if simulated is not None else _by_operators(real, name)


def _by_script(real: Log, simulated: Log, name: str) -> Calibration:
    host, step = _host_of(simulated), real_step(real)
    modelled = simulated_step(simulated, step.rank)
    if not modelled.work_ns:
        raise PhantoraError(f"{simulated.path}: its host costs nothing; simulate with --host-time modelled")
    ratio = step.work_ns / (modelled.work_ns + host.factor * step.profiler_ns)
    return Calibration(_named(host, ratio, name, SCRIPT_SPREAD, real), ratio, host.name, step, modelled)


def _host_of(simulated: Log) -> HostProfile:
    about: Mapping[str, Any] = simulated.metadata.extra.get("host", {})
    try:
        host = load_host(str(about.get("name", "")))
    except PhantoraError as error:
        raise PhantoraError(
            f"{simulated.path}: its host {about.get('name')!r} is not built-in; simulate without --host"
        ) from error
    if not math.isclose(host.factor, float(about.get("factor", 0.0)), rel_tol=0.01):
        raise PhantoraError(f"{simulated.path}: its host {host.name} has changed since; simulate it again")
    return host


def _by_operators(real: Log, name: str) -> Calibration:
    """The machine's factor: the weighted median of operators' own times over those of the machine that is known."""
    known = json.loads(OPERATORS.read_text(encoding="utf-8"))
    found = operator_times(real)
    shared = [(found[op][1] / ns, found[op][0] * ns) for op, ns in known["own_ns"].items() if op in found]
    if len(shared) < _FEWEST:
        raise PhantoraError(
            f"{real.path}: {len(shared)} operators to compare the machine by, {_FEWEST} are needed; name a simulated "
            "log of the same script, `phantora calibrate REAL SIMULATED`"
        )
    host = load_host(DEFAULT_HOST)
    ratio = _weighted_median(shared) * known["factor"] / host.factor
    return Calibration(_named(host, ratio, name, MACHINE_SPREAD, real), ratio, host.name, operators=len(shared))


def _weighted_median(pairs: list[tuple[float, float]]) -> float:
    """The value at which half of the weight is reached."""
    ordered, reached = sorted(pairs), 0.0
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return ordered[-1][0]


def _named(host: HostProfile, ratio: float, name: str, spread: tuple[float, float], real: Log) -> HostProfile:
    source = f"phantora calibrate: {Path(real.path).name}, torch {real.metadata.torch or 'unknown'}"
    found = host.slower(ratio)
    return replace(
        found, name=name, factor=round(found.factor, 4), spread=spread, cpu="", sources=(source,), measured=True
    )
