"""Legal points of a space, reasons for leaving others out, and the least time and memory of each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from phantora.errors import PhantoraError
from phantora.hardware import Cluster, load_cluster
from phantora.json_data import Bytes, Ns, encode
from phantora.spec import RunSpec
from phantora.sweeps.expressions import Value
from phantora.sweeps.space import CLUSTER, Space, filled, run_with, spelled, text_of
from phantora.units import GIB

MOST_COMBINATIONS = 200_000  # that are enumerated: some seconds


@dataclass(frozen=True, kw_only=True)
class Point:
    """A combination that the rules allow."""

    number: int
    """Number in the order of the space, from 1."""
    values: dict[str, Value]
    """Values of the axes."""
    spec: RunSpec
    """Run of the point, with the arguments that all points share."""
    hosts: int
    gpus_per_host: int
    gpu: str
    capacity: int
    """Bytes of a GPU."""
    arguments: tuple[str, ...]
    """Arguments of the script, after those that all points share."""
    environment: dict[str, str]
    tokens: float | None
    """Tokens of a step."""
    least_memory: float
    """Bytes that a GPU needs for sure; 0 if nothing is known."""
    least_time: float
    """ns that a step takes for sure."""
    likely_time: float = 0.0
    """ns that a step may take, but for a factor that points share; 0 if nothing is known."""
    likely_memory: float = 0.0
    """Bytes that a GPU may need, but for such a factor."""
    fold: str = ""
    """The axes of its mesh, if they are known."""

    @property
    def cluster(self) -> str:
        """Cluster of the run."""
        return self.spec.cluster

    @property
    def world(self) -> int:
        """Number of GPUs."""
        return self.hosts * self.gpus_per_host

    @property
    def fits(self) -> bool:
        """False where it is known before a run that it does not fit."""
        return self.least_memory <= self.capacity

    def label(self, axes: Sequence[str] | None = None) -> str:
        """``tp=2 pp=1``: the values of `axes`, or of all."""
        names = self.values if axes is None else axes
        return " ".join(f"{name}={text_of(self.values[name])}" for name in names if name in self.values)


@dataclass(frozen=True)
class LeftOut:
    """A combination that a rule forbids."""

    values: dict[str, Value]
    rule: str
    known: str = ""
    """Values of the rule's computed names."""

    @property
    def reason(self) -> str:
        """Why the point is left out: the rule, and the values it saw."""
        return f"not {self.rule}" + (f" (with {self.known})" if self.known else "")


@dataclass
class Plan:
    """A space's combinations, judged."""

    space: Space
    points: list[Point] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def axes(self) -> list[str]:
        """Names that differ between points, in the space's order; all, if there is one point only."""
        names = list(dict.fromkeys(name for point in self.points for name in point.values))
        varying = [n for n in names if len({repr(point.values.get(n)) for point in self.points}) > 1]
        return varying or names


def make_plan(space: Space) -> Plan:
    """Every combination, judged. Raises PhantoraError for a matrix that is empty or too large, and where the rules
    leave nothing."""
    count = combinations(space)
    if count > MOST_COMBINATIONS:
        raise PhantoraError(
            f"{space.where}: {count:,} combinations are too many to try each; look for the best with --search N, or "
            "fix axes with --set NAME=VALUE"
        )
    plan = Plan(space)
    for values in _combinations(space):
        found = judge(space, values, len(plan.points) + 1)
        if isinstance(found, Point):
            plan.points.append(found)
        else:
            plan.left_out.append(found)
    if not plan.points:
        rules = Counter(left.rule for left in plan.left_out).most_common(3)
        reasons = "; ".join(f"{rule} forbids {n} of {count}" for rule, n in rules)
        raise PhantoraError(f"{space.where}: the rules leave no point: {reasons}")
    return plan


def combinations(space: Space) -> int:
    """Number of points before the rules. Raises PhantoraError if there are none."""
    if not space.axes and not space.listed:
        raise PhantoraError(f"{space.where}: nothing to try: give axes in [matrix], or points as [[list]]")
    axes = space.axes.items()
    return sum(math.prod(len(v) for name, v in axes if name not in point) for point in space.listed or ({},))


def _combinations(space: Space) -> Iterator[dict[str, Value]]:
    for point in space.listed or ({},):
        axes = {name: values for name, values in space.axes.items() if name not in point}
        for chosen in itertools.product(*axes.values()):
            yield {**point, **dict(zip(axes, chosen, strict=True))}


def judge(space: Space, values: dict[str, Value], number: int) -> Point | LeftOut:
    """The point with these values of the axes, or why there is none. Raises PhantoraError for an expression that has no
    value, and a cluster that cannot be."""
    cluster = _cluster(text_of(values.get(CLUSTER, RunSpec.cluster)))
    names: dict[str, Value] = {
        **values,
        CLUSTER: cluster.name,
        "world": cluster.world_size,
        "hosts": cluster.hosts,
        "gpus_per_host": cluster.gpus_per_host,
        "nvlink_gpus": cluster.domains().gpus_per_host,
        "gpu_memory": _capacity(space.shared_run, cluster),
        "gpu": cluster.gpu.name,
        "capability": cluster.gpu.compute_capability[0],
        "peak": cluster.gpu.peak_flops["bfloat16"],
        "nvlink_rate": cluster.intra.bandwidth,
        "nic_rate": cluster.inter.bandwidth,
    }
    needed = _needed(space)
    pending = list(space.rules)
    for name in (None, *space.let):
        if name is not None:
            names[name] = space.let[name].value(names)
        for rule in [rule for rule in pending if needed[rule.text] <= names.keys()]:
            pending.remove(rule)
            if not rule.satisfied(names):
                known = ", ".join(f"{n} {text_of(names[n])}" for n in sorted(rule.names) if n not in values)
                return LeftOut(values, rule.text, known)
    for rule in pending:
        rule.value(names)  # names what is missing
    return _point(space, values, names, cluster, number)


def _needed(space: Space) -> dict[str, frozenset[str]]:
    return {rule.text: rule.names for rule in space.rules}


def _point(space: Space, values: dict[str, Value], names: Mapping[str, Value], cluster: Cluster, number: int) -> Point:
    def words(table: str) -> tuple[str, ...]:
        return tuple(
            word for name, spelling in getattr(space, table).items() for word in spelled(spelling, name, names)
        )

    environment: dict[str, str] = {}
    for name, spelling in space.environment.items():
        spelling_words = spelled(f"{spelling}=" if isinstance(spelling, str) else spelling, name, names)
        environment |= dict(_assignment(word, name) for word in spelling_words)
    bounds = space.bounds
    spec = replace(run_with(space, words("options")), cluster=text_of(values.get(CLUSTER, RunSpec.cluster)))
    return Point(
        number=number,
        values=values,
        spec=spec,
        hosts=cluster.hosts,
        gpus_per_host=cluster.gpus_per_host,
        gpu=cluster.gpu.name,
        capacity=_capacity(spec, cluster),
        arguments=words("arguments"),
        environment=environment,
        tokens=space.tokens.number(names) if space.tokens else None,
        least_memory=bounds.memory.number(names) if bounds.memory else 0.0,
        least_time=_least_time(space, names, cluster),
        likely_time=bounds.time.number(names) * 1e9 if bounds.time else 0.0,
        likely_memory=bounds.likely_memory.number(names) if bounds.likely_memory else 0.0,
        fold=filled(space.fold, names),
    )


def _capacity(spec: RunSpec, cluster: Cluster) -> int:
    """Bytes of a GPU."""
    return cluster.gpu.memory_bytes if spec.gpu_memory is None else round(spec.gpu_memory * GIB)


def _least_time(space: Space, names: Mapping[str, Value], cluster: Cluster) -> float:
    """ns: no kernel is faster than the GPU's peak, none moves more than its memory does."""
    bounds, peaks = space.bounds, cluster.gpu.peak_flops
    least = 0.0
    if bounds.flops:
        found = bounds.format.value(names) if bounds.format else max(peaks, key=lambda name: peaks[name])
        if found not in peaks:
            raise PhantoraError(f"{space.where}: [bounds] format: {found!r} is none of {', '.join(peaks)}")
        least = bounds.flops.number(names) / cluster.world_size / peaks[str(found)] * 1e9
    if bounds.bytes:
        least = max(least, bounds.bytes.number(names) / cluster.gpu.hbm_bandwidth * 1e9)
    return least


def _assignment(word: str, name: str) -> tuple[str, str]:
    variable, equals, value = word.partition("=")
    if not equals:
        raise PhantoraError(f"[environment] {name}: {word!r} is no NAME=VALUE")
    return variable, value


@cache
def _cluster(text: str) -> Cluster:
    return load_cluster(text)


@dataclass(frozen=True)
class PlannedPoint:
    """A point of a dry run. The values of the axes come first in its JSON."""

    least_memory: Bytes
    least_time: Ns
    fits: bool


@dataclass(frozen=True)
class Planned:
    """Output of ``--dry-run --json``."""

    points: list[dict[str, Any]]
    """The axes, and a `PlannedPoint`."""
    left_out: list[dict[str, Any]]
    """The axes and a ``reason``."""


def planned(plan: Plan) -> Planned:
    """For ``--dry-run --json``."""
    points = [
        {**point.values, **encode(PlannedPoint(round(point.least_memory), point.least_time, point.fits))}
        for point in plan.points
    ]
    return Planned(points, [{**left.values, "reason": left.reason} for left in plan.left_out])
