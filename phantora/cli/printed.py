"""Data classes and schemas of ``--json``, where no other package has a class for a command's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phantora.cli.script_needs import Need
from phantora.hardware.topology import NetworkLink
from phantora.hardware.types import Fabric, Wiring
from phantora.jobs.answer import Answer as Goodput
from phantora.json_data import Bytes, Dollars, GbPerSecond, Ns, Schemas, Seconds, Us
from phantora.launch.daemon import Daemon
from phantora.result import RunReport
from phantora.stubs.doctor import Report as Stubs
from phantora.sweeps.answer import Record
from phantora.sweeps.plan import Planned, PlannedPoint
from phantora.sweeps.questions import Fits
from phantora.trace.analysis.report import Report
from phantora.trace.diff.compare import Difference
from phantora.trace.diff.validation import Validation
from phantora.trace.diff.verdict import Verdict


@dataclass(frozen=True)
class CollectiveTime:
    """NCCL's estimate for 1 GiB over all GPUs."""

    collective: str
    algorithm: str
    """Name with protocol and channels."""
    time: Us
    bus: GbPerSecond


@dataclass(frozen=True, kw_only=True)
class ShownCluster:
    """Output of ``phantora cluster show``."""

    name: str
    hosts: int
    gpus_per_host: int
    gpu: str
    wiring: Wiring
    fabric: Fabric
    links: list[NetworkLink]
    """Bandwidths are of payload."""
    routes: dict[str, str]
    all_gpus_1_gib: list[CollectiveTime]


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One size of a cluster."""

    cluster: str
    gpus: int
    rate_per_second: float | None
    """Tokens; samples or steps where the log shows no tokens."""
    time: Seconds | None
    """For the work that was asked for."""
    cost: Dollars | None
    status: str


@dataclass(frozen=True)
class Plan:
    """Output of ``phantora plan``."""

    enough: str | None
    """The smallest cluster that is enough."""
    offers: list[PlanRow]


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """One machine with one value of the varied option."""

    cluster: str
    gpus: int
    value: str | None
    status: str
    memory: Bytes | None
    """Memory of the fullest GPU."""
    capacity: Bytes
    step_time: Ns | None
    error: float | None
    """Relative error bar of the step, downwards."""
    error_above: float | None
    """Upwards."""
    rate: float | None
    """`unit` per second."""
    unit: str
    mfu: float | None
    watts: float | None
    """Power of a GPU."""
    joules: float | None
    """Energy of all GPUs for one of `unit`."""
    dollars_per_hour: Dollars | None
    """Price of all GPUs."""
    dollars_per_million: Dollars | None
    """For a million of `unit`, without failures."""
    time: Seconds | None
    """Time of the job's tokens, with failures."""
    dollars: Dollars | None
    speedup: float | None
    """Rate over that of the first machine with the same value."""
    speedup_error: float | None
    """Relative error bar of `speedup`, downwards."""
    speedup_error_above: float | None
    """Upwards."""
    parts: dict[str, float]
    """Shares of a step by its limiting parts."""


@dataclass(frozen=True)
class Compared:
    """Output of ``phantora compare``."""

    verdict: list[str]
    """A sentence for each value of the varied option; then ``overall``, ``widest error`` and ``unused`` memory."""
    best: list[str]
    """The chosen machines."""
    machines: list[ComparedRow]


@dataclass(frozen=True)
class WhyLine:
    """A line of an answer."""

    word: str
    """``HANG``, ``OOM``, ``FAILED``, ``STEP``, ``NEXT``."""
    text: str


@dataclass(frozen=True)
class Why:
    """Output of ``phantora why``."""

    question: str
    """``hang``, ``memory`` or ``speed``; ``failure`` of a run that failed otherwise."""
    lines: list[WhyLine]


@dataclass(frozen=True)
class Machine:
    """Output of ``phantora doctor``, without the report of the stubs."""

    fixed_addresses: bool
    """Each run has the same addresses."""
    tables: dict[str, str]
    """Each table of kernel times: its versions, and their distance from the installed torch."""
    daemons: list[Daemon]


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of one of ``cli.schema.COMMANDS``."""
    schemas = Schemas()
    of: dict[str, Callable[[], dict[str, Any]]] = {
        "analyze": lambda: _analyze(schemas),
        "cluster-show": lambda: schemas.object(ShownCluster),
        "compare": lambda: schemas.object(Compared),
        "diff": lambda: _diff(schemas),
        "doctor": lambda: _doctor(schemas),
        "fits": lambda: schemas.object(Fits),
        "goodput": lambda: schemas.object(Goodput),
        "plan": lambda: schemas.object(Plan),
        "query": lambda: {"type": "array", "items": {"type": "object"}},
        "replay": lambda: _trace(schemas),
        "sweep": lambda: {"type": "array", "items": schemas.object(Record, more=True)},
        "sweep-dry-run": lambda: _dry_run(schemas),
        "trace": lambda: _trace(schemas),
        "why": lambda: schemas.object(Why),
    }
    return schemas.whole(f"phantora {command.replace('-', ' ', 1)} --json", of[command]())


def _joined(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """An object with the keys of both."""
    return {**a, "properties": {**a["properties"], **b["properties"]}, "required": [*a["required"], *b["required"]]}


def _doctor(schemas: Schemas) -> dict[str, Any]:
    """The report on a machine; with a script, a list of packages."""
    machine = _joined(schemas.object(Stubs), schemas.object(Machine))
    return {"anyOf": [machine, {"type": "array", "items": schemas.of(Need)}]}


def _diff(schemas: Schemas) -> dict[str, Any]:
    """One difference, or a list where more than two logs are compared; a verdict with ``--fail-above``. Of dumps and
    snapshots lines of text."""
    one = schemas.object(Difference)
    one["properties"]["verdict"] = schemas.of(Verdict)
    return {"anyOf": [one, {"type": "array", "items": one}, schemas.object(Why)]}


def _trace(schemas: Schemas) -> dict[str, Any]:
    top = schemas.object(RunReport, required=False)
    top["properties"] |= {"reason": {"type": "string"}, "analysis": schemas.of(Report)}
    top["properties"]["validation"] = schemas.of(Validation)
    return {**top, "required": ["status", "ranks", "reason"]}


def _analyze(schemas: Schemas) -> dict[str, Any]:
    """The report, with ``--validate`` also its comparison with a real run."""
    top = schemas.object(Report)
    top["properties"]["validation"] = schemas.of(Validation)
    return top


def _dry_run(schemas: Schemas) -> dict[str, Any]:
    """The values of the axes stand next to the named keys."""
    top = schemas.object(Planned)
    top["properties"]["points"] = {"type": "array", "items": schemas.object(PlannedPoint, more=True)}
    return top
