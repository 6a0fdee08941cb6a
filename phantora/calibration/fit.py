"""`phantora calibrate`: the machine of a real log, from that log and a simulated log of the same script.

Host time is a sum of costs (docs/costs.md). The real step took

    work = ratio * (modelled + profiler)

where `modelled` is the simulated step's host work, and `profiler` the cost of the trace's events on the simulated
host. The ratio holds for the script: its layers, batch, sequence and number of GPUs may differ in the next run.
It is one for all kinds of host work: a ratio of autograd's threads of its own does not repeat between two traces of one
program.
Without a simulated log the operators' own times are compared with those on a host of known factor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phantora.calibration.collectives import collective_curves
from phantora.calibration.kernels import Products, compare_products, traced_operators
from phantora.calibration.profiled import HostStep, operator_times, real_steps, simulated_step
from phantora.cost.traced import TracedOperator, write_traced
from phantora.errors import PhantoraError, cause_of
from phantora.hardware import DEFAULT_HOST, CalibrationFile, HostProfile, MeasuredGpu, load_gpu, load_host
from phantora.trace.reader import Log

OPERATORS = Path(__file__).with_name("operators.json")
SCRIPT_SPREAD = (0.85, 1.15)
MACHINE_SPREAD = (0.7, 1.5)
MOST_PACE = 1.6
"""Largest ratio of the slowest rank's host to the traced one: on 4 H200 it is 1.4. A larger one is a slow network."""
_BUSY = 0.6  # share of the real step with kernels other than communication: the GPU does not wait for a host
_HOST_BOUND = 1.25  # simulated step over its host's work
_FEWEST = 5  # operators of different names that a machine is compared by


@dataclass(frozen=True)
class HostFit:
    """The host of a rank."""

    ratio: float
    """Host time over that of the simulated host."""
    pace: float = 1.0
    """Host time of the slowest rank over that of this one: the slowest decides the step."""
    real: HostStep | None = None
    """The real step and the simulated one; None without a simulated log."""
    simulated: HostStep | None = None
    operators: int = 0
    """Number of operators by which the machine is compared, without a simulated log."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A machine as a real run shows it."""

    host: HostProfile
    fit: HostFit
    compared_with: str
    """The simulated host."""
    gpu: MeasuredGpu | None
    """None: the log does not name a known GPU."""
    operators: list[TracedOperator]
    differing: int
    """Operators that are left out because their instances differ."""
    products: Products


def calibrate(real: Log, simulated: Log | None, name: str) -> Calibration:
    """The machine of the imported log `real`: its host for the script, where `simulated` is a log of the same script
    and configuration, else for any script. Raises PhantoraError for logs that do not show it."""
    if "imported" not in real.metadata.extra:
        raise PhantoraError(f"{real.path} is a simulated log; `phantora import` makes logs of real runs")
    if simulated is not None:
        host, spread = _host_of(simulated), SCRIPT_SPREAD
        fits = [_by_script(host, step, simulated) for step in real_steps(real)]
        fit = max(fits, key=lambda each: each.ratio)  # ranks wait for the slowest
        products = compare_products(real, simulated)
    else:
        host, spread, products = load_host(DEFAULT_HOST), MACHINE_SPREAD, Products(0)
        fit = _by_operators(real, host)
    found = replace(_named(host, fit.ratio, name, real), spread=spread)
    operators, differing = traced_operators(real)
    return Calibration(
        host=found,
        fit=fit,
        compared_with=host.name,
        gpu=_gpu(real, products),
        operators=operators,
        differing=differing,
        products=products,
    )


def _by_script(host: HostProfile, step: HostStep, simulated: Log) -> HostFit:
    modelled = simulated_step(simulated, step.rank, step.launches)
    if not modelled.work_ns:
        raise PhantoraError(f"{simulated.path}: its host costs nothing; simulate with --host-time modelled")
    pace = pace_of(step, modelled)
    ratio = pace * step.work_ns / (modelled.work_ns + pace * host.factor * step.profiler_ns)
    return HostFit(ratio, pace, step, modelled)


def pace_of(step: HostStep, modelled: HostStep) -> float:
    """In a host-bound run with collectives each GPU takes the steps of the slowest host."""
    usual = modelled.gpu_ns / modelled.work_ns
    busy = step.computing_ns > _BUSY * step.gpu_ns
    if not step.communicates or busy or usual > _HOST_BOUND:
        return 1.0
    return min(max(1.0, step.gpu_ns / step.work_ns / usual), MOST_PACE)


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


def _by_operators(real: Log, host: HostProfile) -> HostFit:
    """The machine's factor: the weighted median of operators' own times over those of the machine that is known."""
    known = json.loads(OPERATORS.read_text(encoding="utf-8"))
    found = operator_times(real)
    shared = [(found[op][1] / ns, found[op][0] * ns) for op, ns in known["own_ns"].items() if op in found]
    if len(shared) < _FEWEST:
        raise PhantoraError(
            f"{real.path}: {len(shared)} operators to compare the machine by, {_FEWEST} are needed; name the script, "
            "`phantora calibrate REAL -- SCRIPT`"
        )
    return HostFit(_weighted_median(shared) * known["factor"] / host.factor, operators=len(shared))


def _weighted_median(pairs: list[tuple[float, float]]) -> float:
    """The value at which half of the weight is reached."""
    ordered, reached = sorted(pairs), 0.0
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return ordered[-1][0]


def _named(host: HostProfile, ratio: float, name: str, real: Log) -> HostProfile:
    source = f"phantora calibrate: {Path(real.path).name}, torch {real.metadata.torch or 'unknown'}"
    found = host.slower(ratio)
    return replace(found, name=name, factor=round(found.factor, 4), cpu="", sources=(source,), measured=True)


def _gpu(real: Log, products: Products) -> MeasuredGpu | None:
    try:
        product = load_gpu(real.metadata.gpu).product
    except PhantoraError:
        return None
    curves = collective_curves(real)
    if not products.consistent:
        return MeasuredGpu(product, collectives=curves)
    return MeasuredGpu(product, products=products.ratio, products_spread=products.quartiles, collectives=curves)


def write(found: Calibration, path: Path, table: Path) -> None:
    """Writes the calibration file, and the table of operators if there are any. Raises PhantoraError."""
    gpu = found.gpu
    if gpu is not None and found.operators:
        write_traced(table, gpu.product, found.operators)
        gpu = replace(gpu, kernels=table.name)
    try:
        path.write_text(CalibrationFile(found.host, gpu).text(), encoding="utf-8")
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {cause_of(error)}; choose another file") from error
