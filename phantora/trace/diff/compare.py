"""Differences between two runs, as data. Times are ns per step, means over ranks; b is compared with a."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import orjson

from phantora.errors import PhantoraError
from phantora.json_data import Ns, Unit, encode
from phantora.trace.analysis.analyze import Filters, Progress, analyze, steps_of_mean
from phantora.trace.analysis.communicators import collective_kind, groups
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import no_kernels
from phantora.trace.diff.inventory import Amount, Inventory, Operation, Transfer
from phantora.trace.diff.reality import (
    align_classes,
    has_ranks,
    has_sizes,
    loading,
    plain_operations,
    plain_transfers,
    within_bars,
)
from phantora.trace.reader import Log
from phantora.trace.schema import REAL

DIFF_FORMAT = 2


@dataclass
class Change:
    """One quantity in both runs."""

    name: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """B's value less A's."""
        return self.b - self.a


InNs = Annotated[Change, Unit("ns")]
InBytes = Annotated[Change, Unit("bytes")]


@dataclass(kw_only=True)
class WorkChange:
    """One operator (all its shapes) or one kind of collective."""

    name: str
    part: str
    """``optimizer`` of operators within an optimizer's step, else empty."""
    a: Amount
    b: Amount
    by_count: Ns
    """Part of the change of time that comes from running the same shapes more or less often."""
    by_shape: Ns
    """Part by shapes that only one of the runs has."""
    by_duration: Ns
    """Part by longer or shorter durations of the same shapes."""

    @property
    def change(self) -> float:
        """B's time less A's, in ns."""
        return self.b.time - self.a.time


@dataclass
class Cause:
    """A cause of the difference; the most decisive is first."""

    kind: str
    """gpu, straggler, late host, compiled, graphs, scaler, layout, precision, model, batch, layers, trained, count,
    recompute, optimizer, clipping, dropout, zeroing, reads, pinned, memory format, trials, schedule, attention,
    reshard, reduced, buckets, collectives, data, updates, code, calls, shapes, network, kernels, cpu, host,
    environment, retries, memory, several, rest or other. ``several``: no cause has half of the change; ``rest``: what
    brings the sum of the effects to it."""
    text: str
    effect: Ns
    """ns per step of device or idle time that it accounts for; with ``rest`` they sum to the change."""


@dataclass(kw_only=True)
class Difference:
    """Differences of run b from run a. Times are ns."""

    DERIVED: ClassVar = ("ratio",)

    path_a: str
    path_b: str
    equal: bool
    step: InNs
    """Median steady step."""
    same_work: bool = False
    """Settings and steps are the same but for their durations, as in runs of different lengths."""
    error: Ns = 0.0
    """ns by which the change of the step may be wrong: what both runs share cancels, what differs counts with the error
    bars of its run."""
    causes: list[Cause] = field(default_factory=list)
    settings: list[tuple[str, Any, Any]] = field(default_factory=list)
    """(name, a, b) of what the runs' metadata say differently."""
    variables: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, a, b) of simulated environment variables that differ."""
    times: list[InNs] = field(default_factory=list)
    """Compute and each cause of time without it: their changes sum to the step's."""
    steps: list[InNs] = field(default_factory=list)
    """Step times by number, of steps that both have."""
    ranks: list[InNs] = field(default_factory=list)
    """Compute by rank, of ranks that both have."""
    classes: list[InNs] = field(default_factory=list)
    """Device time by class of work."""
    operators: list[WorkChange] = field(default_factory=list)
    collectives: list[WorkChange] = field(default_factory=list)
    exposure: list[InNs] = field(default_factory=list)
    """Exposed communication by collective."""
    memory: list[InBytes] = field(default_factory=list)
    """Bytes at the peak of the fullest rank, by use."""
    peaks: list[InBytes] = field(default_factory=list)
    """Largest of all ranks: ``allocated`` and ``reserved``; empty if unknown."""
    retries: Change | None = None
    """Most retries of the allocator on a rank; None if unknown."""
    added: list[str] = field(default_factory=list)
    """Operators that only b runs."""
    removed: list[str] = field(default_factory=list)
    reality: str = ""
    """The real run, if the other is simulated: ``a``, ``b``, else empty."""
    inconclusive: bool = False
    """The real step lies within the error bars of the simulated one."""
    rates: list[Change] = field(default_factory=list)
    """Throughput of the jobs: tokens/s, samples/s, MFU, as far as both logs show it."""
    recorded: bool = False
    """Neither of two real traces has steps: `step` has the lengths of the recordings, which say nothing about speed."""
    failures: dict[str, str] = field(default_factory=dict)
    """``a`` and ``b``, as far as they ended early: the line that says why."""
    pace: float = 1.0
    """Operators that b runs in a second, as share of those of a."""
    format: int = DIFF_FORMAT

    @property
    def ratio(self) -> float | None:
        """The step of b over that of a."""
        return self.step.b / self.step.a if self.step.a else None

    @property
    def significant(self) -> bool:
        """The change of the step is larger than its error."""
        return abs(self.step.change) > self.error


@dataclass(kw_only=True)
class Side:
    """One run, as far as it is compared."""

    log: Log
    report: Report
    operations: dict[Operation, Amount]
    transfers: dict[Transfer, Amount]
    optimizers: list[str]
    """Names of the optimizers' classes."""
    groups: list[int]
    """Sizes of the communicators that steps use."""
    loading: float = 0.0
    """ns of the host in torch's DataLoader, per step."""

    @property
    def real(self) -> bool:
        """True for a real run."""
        return self.log.metadata.real


def gather(log: Log, filters: Filters, progress: Progress | None = None, arrivals: bool = True) -> Side:
    """Reads what a comparison needs of one log. Without `arrivals` the waits for late ranks count as communication: a
    trace of a single rank does not tell them."""
    inventory = Inventory(log, arrivals)
    report = analyze(log, filters, progress=progress, also=[inventory])
    if not report.steady.time:
        raise PhantoraError(f"{log.shown}: nothing to compare, step {no_kernels(report)}")
    operations, transfers = inventory.result(steps_of_mean(report))
    used = {c.comm for c in report.details.collectives} if report.details else set()
    sizes = sorted({len(g.ranks) for comm, g in groups(log).items() if comm in used})
    return Side(
        log=log,
        report=report,
        operations=operations,
        transfers=transfers,
        optimizers=inventory.optimizers(),
        groups=sizes,
        loading=loading(log, report),
    )


def comparable(a: Side, b: Side) -> tuple[Side, Side]:
    """Both sides as they are, or where one is real and the other simulated, less what a profiler does not see."""
    if a.real == b.real:
        return a, b
    shapes = not any("shapes" in side.log.metadata.missing for side in (a, b))
    ranks, sizes = (all(known(side.transfers) for side in (a, b)) for known in (has_ranks, has_sizes))
    x, y = (
        replace(
            side,
            operations=plain_operations(side.operations, shapes),
            transfers=plain_transfers(side.transfers, ranks, sizes),
            groups=side.groups if ranks else [],
        )
        for side in (a, b)
    )
    if x.real:
        x = replace(x, operations=align_classes(x.operations, y.operations))
    else:
        y = replace(y, operations=align_classes(y.operations, x.operations))
    return x, y


def compare(a: Side, b: Side) -> Difference:
    """The difference of two runs; its causes are found by ``causes.find_causes``. A real and a simulated run are made
    :func:`comparable` before."""
    ra, rb = a.report, b.report
    mixed = a.real != b.real
    difference = Difference(
        path_a=ra.path, path_b=rb.path, equal=False, step=Change("step", ra.headline.step_time, rb.headline.step_time)
    )
    difference.failures = {name: report.failure for name, report in (("a", ra), ("b", rb)) if report.failure}
    difference.settings = _settings(ra.metadata, rb.metadata, mixed)
    difference.variables = [] if mixed else _changed_variables(ra.metadata, rb.metadata)
    if mixed:
        difference.reality = "a" if a.real else "b"
        simulated, real = (rb, ra) if a.real else (ra, rb)
        difference.inconclusive = within_bars(simulated, real)
    difference.times = _changes(
        {"compute": ra.steady.compute, **ra.steady.stalls}, {"compute": rb.steady.compute, **rb.steady.stalls}
    )
    step_a, step_b = ({step.number: step.times.time for step in r.steps} for r in (ra, rb))
    difference.steps = _numbered("step", step_a, step_b)
    difference.ranks = _numbered("rank", rank_compute(ra), rank_compute(rb))
    difference.classes = _changes(by_class(a), by_class(b))
    difference.operators = _work(a.operations, b.operations)
    difference.collectives = _work(a.transfers, b.transfers)
    difference.exposure = _changes(_exposure(ra, mixed), _exposure(rb, mixed))
    if not mixed or all("memory" not in side.log.metadata.missing for side in (a, b)):
        memory = [_memory(report) for report in (ra, rb)]
        difference.memory = _changes(*memory) if all(memory) else []
        difference.peaks, difference.retries = _peaks(ra, rb)
    difference.rates = [] if mixed and len(ra.ranks) < a.log.metadata.world_size else _rates(ra, rb)
    names_a, names_b = ({o.name for o in s.operations} for s in (a, b))
    difference.added, difference.removed = sorted(names_b - names_a), sorted(names_a - names_b)
    difference.equal = not any(
        getattr(difference, name)
        for name in (
            "settings",
            "times",
            "steps",
            "ranks",
            "classes",
            "operators",
            "collectives",
            "exposure",
            "memory",
            "added",
            "removed",
        )
    )
    same_work = a.operations.keys() == b.operations.keys() and a.transfers.keys() == b.transfers.keys()
    difference.equal &= same_work and ra.rows == rb.rows
    difference.equal &= not any(change and change.change for change in (*difference.peaks, difference.retries))
    difference.same_work = same_work and not difference.settings and _same_counts(difference)
    difference.error = _error(ra, rb, difference)
    difference.recorded = a.real and b.real and ra.step_source == rb.step_source == "run"
    if difference.recorded:
        counts = [sum(amount.count for amount in side.operations.values()) for side in (a, b)]
        times = [side.report.steady.time for side in (a, b)]
        difference.pace = counts[1] * times[0] / (counts[0] * times[1]) if counts[0] and times[1] else 1.0
    return difference


_REPEATED = 0.002  # of a step: settled steps of equal work on equal GPUs differ by so much
_PREDICTED = 0.01  # of a step: by so much those differ that are predicted from few steps
_FEW = 3  # steady steps
_LIKELY = 2.0  # standard errors of a mean
_OWN_PRICES = frozenset(("gpu", "torch", "cost_tables"))


def _same_counts(d: Difference) -> bool:
    """Every operator and collective runs as often a step, in the same shapes."""
    other = sum(abs(work.by_count) + abs(work.by_shape) for work in (*d.operators, *d.collectives))
    return other < _REPEATED * d.step.a


def _error(a: Report, b: Report, d: Difference) -> float:
    """ns. Prices of other GPUs are wrong independently: the bars of both steps add up. Those of the same GPU are wrong
    together: only the parts that changed count, and on another cluster all communication that nothing hides."""
    x, y = a.headline, b.headline
    slower, faster = (y, x) if y.step_time > x.step_time else (x, y)
    few = min(x.steps, y.steps) < _FEW
    floor = d.step.a * (_PREDICTED if few or not x.settled or not y.settled else _REPEATED)
    differing = {name for name, _, _ in d.settings}
    if _OWN_PRICES & differing:
        return floor + slower.step_time * (slower.error or 0.0) + faster.step_time * (faster.error_above or 0.0)
    changed = sum(abs(change.change) for change in d.times)
    floor += _LIKELY * math.hypot(*(_of_mean([s.times.time for s in r.steps if not s.note]) for r in (a, b)))
    if "cluster" in differing:
        changed += a.steady.exposed + b.steady.exposed
    return floor + max(x.error or 0.0, y.error or 0.0) * changed


def _of_mean(times: list[float]) -> float:
    """Standard error of the mean of steps, whose times vary with their data: ns."""
    return statistics.stdev(times) / len(times) ** 0.5 if len(times) > 1 else 0.0


def _rates(a: Report, b: Report) -> list[Change]:
    x, y = a.headline, b.headline
    found = []
    if x.throughput is not None and y.throughput is not None:
        for name in ("tokens", "samples"):
            pair = (getattr(side.throughput, f"{name}_per_second") for side in (x, y))
            found.append(Change(f"{name}/s", *pair))
    if x.mfu is not None and y.mfu is not None and x.hfu is not None and y.hfu is not None:
        # The trace of a real run does not tell recomputed layers.
        mixed = (a.metadata["host_mode"] == REAL) != (b.metadata["host_mode"] == REAL)
        recomputed = x.hfu > x.mfu or y.hfu > y.mfu
        found.append(Change("HFU", x.hfu, y.hfu) if mixed and recomputed else Change("MFU", x.mfu, y.mfu))
    if x.energy is not None and y.energy is not None:
        tokens = x.energy.joules_per_token is not None and y.energy.joules_per_token is not None
        unit = "token" if tokens else "step"
        found.append(Change(f"J/{unit}", *(getattr(side.energy, f"joules_per_{unit}") for side in (x, y))))
    return [rate for rate in found if rate.a and rate.b]


SETTINGS = frozenset(
    ("cluster", "gpu", "world_size", "ranks_per_host", "memory_bytes", "mfu_dtype", "torch", "host_mode")
)
"""Settings for people; the others follow from these, or are the simulator's own."""
_RUN_ONLY = frozenset(("command",))  # how the run was started, not what it was


_OF_BOTH = ("gpu", "world_size")  # in traces of real runs as well
_UNKNOWN = ("", "unknown GPU")  # which may be any


def _settings(a: dict[str, Any], b: dict[str, Any], mixed: bool) -> list[tuple[str, Any, Any]]:
    names = _OF_BOTH if mixed else [name for name in a if name not in _RUN_ONLY]
    unknown = {name for name in ("gpu", "memory_bytes") for side in (a, b) if side.get("gpu") in _UNKNOWN}
    return [(name, a[name], b[name]) for name in names if name not in unknown and a[name] != b.get(name)]


_UNSET = "not set"


def _variables(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Values of the environment variables that a run simulates, by name."""
    extra = metadata.get("extra") or {}
    parts = (extra.get("environment") or {}).get("simulated"), (extra.get("nccl") or {}).get("honoured")
    return {name: str(value) for part in parts for name, value in (part or {}).items()}


def _changed_variables(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    x, y = _variables(a), _variables(b)
    pairs = ((name, x.get(name, _UNSET), y.get(name, _UNSET)) for name in sorted({*x, *y}))
    return [(name, p, q) for name, p, q in pairs if p != q]


def _numbered(what: str, a: Mapping[int, float], b: Mapping[int, float]) -> list[Change]:
    return [Change(f"{what} {n}", a[n], b[n]) for n in a if n in b and a[n] != b[n]]


def _changes(a: dict[str, float], b: dict[str, float]) -> list[Change]:
    """Differences, largest first."""
    names = sorted({*a, *b})
    found = [Change(name, a.get(name, 0.0), b.get(name, 0.0)) for name in names]
    return sorted((c for c in found if c.change), key=lambda c: (-abs(c.change), c.name))


def rank_compute(report: Report) -> dict[int, float]:
    """Compute time by rank, in ns, of the steps whose mean is the report's step: their mean is its compute."""
    kept, found = steps_of_mean(report), {}
    for rank in report.ranks:
        steps = [step for step in rank.steps if step.number in kept]
        if steps:
            found[rank.rank] = sum(step.times.compute for step in steps) / len(steps)
    mean = sum(found.values()) / max(1, len(found))
    scale = report.steady.compute / mean if mean else 1.0  # a predicted step's
    return {rank: round(scale * compute, 3) for rank, compute in found.items()}


def by_class(side: Side) -> dict[str, float]:
    """ns of the device a step, by class of work."""
    found: dict[str, float] = {}
    for operation, amount in side.operations.items():
        found[operation.cls or "unknown"] = found.get(operation.cls or "unknown", 0.0) + amount.time
    transfers = sum(amount.time for amount in side.transfers.values())
    return {**found, "communication": found.get("communication", 0.0) + transfers}


def _exposure(report: Report, mixed: bool) -> dict[str, float]:
    """Exposure by collective and group. Simulated groups have no name, so next to a real run the group is left out."""
    found: dict[str, float] = {}
    every = f"ranks 0-{report.metadata['world_size'] - 1}"  # the same group in a job of another size
    for e in report.exposure:
        kind = collective_kind(e.collective)
        name = kind if mixed else f"{kind} of {'all ranks' if e.group == every else e.group}"
        found[name] = found.get(name, 0.0) + e.exposed
    return found


def _memory(report: Report) -> dict[str, float]:
    if not report.details or not report.details.memory:
        return {}
    fullest = max(report.details.memory, key=lambda m: (m.peak_allocated, -m.rank))
    return {"allocated": fullest.peak_allocated, **fullest.by_category}


_PEAKS = {"allocated": "peak_allocated", "reserved": "peak_reserved", "retries": "retries"}


def _peaks(a: Report, b: Report) -> tuple[list[Change], Change | None]:
    found = [report.details.memory if report.details else [] for report in (a, b)]
    if not all(found):
        return [], None
    *peaks, retries = (
        Change(name, *(max(getattr(m, part) for m in ranks) for ranks in found)) for name, part in _PEAKS.items()
    )
    return peaks, retries


def _work(a: dict[Any, Amount], b: dict[Any, Amount]) -> list[WorkChange]:
    """Changes by name (and part of the step): the change of each key split into count, shape and duration; largest
    first."""
    found: dict[tuple[str, str], WorkChange] = {}
    for key in {**a, **b}:
        part = getattr(key, "part", "")
        change = found.setdefault(
            (key.name, part),
            WorkChange(name=key.name, part=part, a=Amount(), b=Amount(), by_count=0.0, by_shape=0.0, by_duration=0.0),
        )
        x, y = a.get(key), b.get(key)
        for total, part in ((change.a, x), (change.b, y)):
            if part is not None:
                total.count += part.count
                total.time += part.time
                total.bytes += part.bytes
        if x is None or y is None:
            change.by_shape += (y.time if y else 0.0) - (x.time if x else 0.0)
        elif not x.count or not y.count:  # further kernels of calls
            change.by_duration += y.time - x.time
        else:
            change.by_count += (y.count - x.count) * x.time / x.count
            change.by_duration += (y.time / y.count - x.time / x.count) * y.count
    differing = [c for c in found.values() if c.by_count or c.by_shape or c.by_duration or c.change]
    return sorted(differing, key=lambda c: (-abs(c.change), c.name))


def to_json(difference: Difference) -> str:
    """As indented JSON."""
    return orjson.dumps(encode(difference), option=orjson.OPT_INDENT_2).decode()
