"""Simulates a recorded run again, on another cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phantora.errors import PhantoraError, Reason
from phantora.fold.mesh import from_dict
from phantora.hardware import Cluster, load_calibration, load_cluster
from phantora.result import RunReport, RunResult
from phantora.runs.assemble import About, Recorded, assemble, host_facts, pace_of
from phantora.runs.outputs import Logged, Outputs, with_timeline
from phantora.runs.setup import Setup, capped
from phantora.runs.stragglers import without_stragglers
from phantora.sim.whatif import parse_what_if
from phantora.spec import OutputSpec, RunSpec, WhatIfSpec

if TYPE_CHECKING:
    from phantora.sim.measured import Measured
    from phantora.trace.reader import Log
    from phantora.trace.recording import Chunk


_STAND_IN = "H100-SXM"


@dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """A replay: the recorded run, and the changes."""

    log: Path
    """Log of the recorded run."""
    cluster: str | None = None
    """None: the run's."""
    gpu: str | None = None
    """Another GPU in the same hosts, with its own links."""
    host: str | None = None
    """None: as recorded."""
    host_scale: float = 1.0
    """Factor on the recorded host time; 0: the host costs nothing."""
    stragglers: bool = True
    """Keep the stragglers of a real run; without them every launch takes the time of similar launches."""
    what_if: WhatIfSpec = field(default_factory=WhatIfSpec)
    output: OutputSpec = field(default_factory=OutputSpec)

    @property
    def unchanged(self) -> bool:
        """True for a replay of the run as it was."""
        return replace(self, output=OutputSpec()) == ReplaySpec(log=self.log)


_AGREES = 0.01  # of a step: a replay of a real run as it was is as exact


def _check_agreement(real: Log, replayed: Path) -> None:
    """Raises PhantoraError if the replay of the run as it was has another step than its trace; it is deleted."""
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.analysis.units import duration
    from phantora.trace.reader import open_log

    traced, again = (analyze(log, details=False).headline.step_time for log in (real, open_log(replayed)))
    if abs(again - traced) <= _AGREES * traced:
        return
    replayed.unlink(missing_ok=True)
    raise PhantoraError(
        f"{real.path}: cannot be replayed: its own step takes {duration(traced)} and its replay {duration(again)}; the "
        "trace does not tell what its launches wait for: profile more steps, with enable_cuda_sync_events"
    )


def replay(spec: ReplaySpec, logged: Logged | None = None) -> RunResult:
    """Simulates the recording again and writes the new log. Raises PhantoraError."""
    from phantora.trace.reader import open_log
    from phantora.trace.recording import by_rank

    log = open_log(spec.log)
    chunks = whole_recording(log)
    measured = _measured(log)
    if not spec.stragglers:
        if measured is None:
            raise PhantoraError(f"{log.path}: --stragglers none needs the log of a real run, made by `phantora import`")
        chunks = without_stragglers(chunks)
    if measured is not None and not measured.known:
        cluster = _unscaled(log, spec, measured.cluster)
    else:
        cluster = chosen_cluster(log, spec.cluster, spec.gpu)
    if measured is not None and spec.what_if.power_cap is not None:
        raise PhantoraError(
            f"{log.path}: --power-cap needs a simulated run: durations of a real one hold its own limit"
        )
    if measured is not None and spec.output.samples:
        raise PhantoraError(f"{log.path}: --samples needs a simulated run: steps of a real one have their own spread")
    if unmatched := log.metadata.extra.get("imported", {}).get("unmatched"):
        print(f"phantora: note: {unmatched:,} collectives, not matched across ranks, keep their time", file=sys.stderr)
    cluster = capped(cluster, spec.what_if)
    if spec.host is not None:
        cluster = load_calibration(spec.host).applied(cluster)
    outputs = Outputs.at(spec.output.path or "replay.arrow", spec.output.force)
    if outputs.log.resolve() == spec.log.resolve():
        raise PhantoraError(f"{spec.log}: a replay cannot write over the log it reads; name another place with -o")
    setup = _setup(log, cluster, spec)
    ratio = host_ratio(log, setup, spec.host)
    recorded = Recorded(by_rank(chunks), spec.host_scale * ratio, log.metadata.extra.get("nccl", {}), measured=measured)
    report = _simulate(log, setup, recorded, outputs.written, other_host=spec.host is not None)
    if measured is not None and spec.unchanged:
        _check_agreement(log, outputs.written)
    target = outputs.settle(True, report.rows or 0)
    report = replace(report, log=str(target) if target else "")
    return with_timeline(RunResult(0, Reason.OK, "", target, report), outputs, logged)


def _measured(log: Log) -> Measured | None:
    """Place of the measurement of a real run's launches; None for a simulated run."""
    about = log.metadata.extra.get("imported")
    if about is None:
        return None
    from phantora.cost import model_for
    from phantora.cost.table_files import cache_folder
    from phantora.sim.collectives import NcclEnvironment
    from phantora.sim.measured import Measured

    cluster, known = _cluster_of_real(about)
    nccl = NcclEnvironment.read(dict(cluster.nccl), cluster.wiring.nics)
    return Measured(
        cluster=cluster, cost=model_for(cluster.gpu, cache_folder(), None), nccl=nccl, known=known, **about["floors"]
    )


def _unscaled(log: Log, spec: ReplaySpec, cluster: Cluster) -> Cluster:
    """The run's own cluster, where its GPU is not known. Raises if another one was asked for."""
    if spec.cluster is not None or spec.gpu is not None or spec.what_if.degrade or spec.what_if.fault:
        raise PhantoraError(
            f"{log.path}: the run's GPU {cluster.gpu.name!r} has no prices here, so its durations cannot be scaled; "
            "replay it without --cluster, --gpu, --degrade and --fault"
        )
    return cluster


def _cluster_of_real(about: Mapping[str, Any]) -> tuple[Cluster, bool]:
    """The cluster of a real run, and whether its GPU is known. Another model stands for one that is not: its numbers
    are not used."""
    hosts, per_host, gpu = str(about["cluster"]).split("x", 2)
    try:
        return load_cluster(about["cluster"]), True
    except PhantoraError:
        cluster = load_cluster(f"{hosts}x{per_host}x{_STAND_IN}")
        return replace(cluster, name=about["cluster"], gpu=replace(cluster.gpu, name=gpu)), False


def _setup(log: Log, cluster: Cluster, spec: ReplaySpec) -> Setup:
    run = log.metadata
    part_of_it = run.world_size < cluster.world_size
    here = run.ranks_per_host if part_of_it or run.places.shared else cluster.gpus_per_host
    if run.places.shared and cluster.gpus_per_host != run.places.gpus_per_host:
        raise PhantoraError(
            f"{log.path}: its processes share the {run.places.gpus_per_host} GPUs of a host; name a cluster that has "
            "as many in a host"
        )
    again = RunSpec(
        run.command[0] if run.command else "",
        tuple(run.command[1:]),
        host_time="measured" if run.real else run.host_mode,
        output=spec.output,
    )
    what_if = parse_what_if(spec.what_if.degrade, spec.what_if.straggler, spec.what_if.background, spec.what_if.fault)
    if disks := [fault.text for fault in what_if.fault if fault.disks]:
        raise PhantoraError(
            f"--fault {disks[0]}: a recording has the time of its files; give the fault to phantora trace"
        )
    fold = from_dict(run.extra["fold"]) if run.extra.get("fold") else None
    return Setup(
        spec=again,
        cluster=cluster,
        hosts=run.world_size // here,
        ranks_per_host=here,
        what_if=what_if,
        fold=fold,
        mps=run.places.mps,
    )


def chosen_cluster(log: Log, spec: str | None, gpu: str | None) -> Cluster:
    """The cluster that was asked for, or the run's own. Raises if the run does not fit on it."""

    run = log.metadata
    if spec is None:
        try:
            cluster = load_cluster(run.cluster)
        except PhantoraError:
            raise PhantoraError(
                f"{log.path}: the run's cluster {run.cluster!r} came from a file; name it again with --cluster"
            ) from None
    else:
        cluster = load_cluster(spec)
    if gpu is not None:
        if spec is not None and spec.endswith(".toml"):
            raise PhantoraError(f"--gpu and {spec}: set the GPU in the file")
        cluster = load_cluster(f"{cluster.hosts}x{cluster.gpus_per_host}x{gpu}")
    if spec is None and run.world_size <= cluster.world_size:
        return cluster
    if cluster.world_size != run.world_size:
        raise PhantoraError(
            f"{log.path}: the run had {run.world_size} ranks, one a GPU, and {cluster.name} has {cluster.world_size} "
            "GPUs; what each rank does depends on their number: run `phantora trace` on that cluster"
        )
    return cluster


def host_ratio(log: Log, setup: Setup, asked: str | None) -> float:
    """Time of the host of `setup` over that of the recorded one; 1 if none was `asked` for. Single costs of a host file
    do not count: a recording contains the host's time between calls, not its causes."""
    if asked is None:
        return 1.0
    if log.metadata.host_mode != "modelled":
        raise PhantoraError(
            f"{log.path}: --host needs a run with --host-time modelled, and this one was {log.metadata.host_mode}; "
            "scale its host time with --host-scale"
        )
    recorded = log.metadata.extra.get("host", {})
    before = float(recorded.get("factor", 1.0)) * float(recorded.get("pace", 1.0))
    return setup.cluster.host.factor * pace_of(setup) / before


def whole_recording(log: Log) -> list[Chunk]:
    """The recording of every rank to its end. Raises if there is none."""
    if missing := log.metadata.extra.get("imported", {}).get("no_replay"):
        raise PhantoraError(f"{log.path}: cannot be replayed: {missing}")
    chunks = log.recording()
    why = ""
    if not log.complete:
        why = "the run was killed"
    elif not chunks:
        why = "the run kept no recording (--no-recording)"
    elif log.trailer.get("status"):
        why = f"the run failed (status {log.trailer['status']})"
    if why:
        raise PhantoraError(f"{log.path}: cannot be replayed: {why}; run `phantora trace` again")
    return chunks


def _simulate(log: Log, setup: Setup, recorded: Recorded, target: Path, *, other_host: bool) -> RunReport:
    """Writes the new log. `other_host`: the cluster's host was chosen in place of the recorded one."""
    from phantora import stubs

    run = log.metadata
    extra: dict[str, Any] = dict(run.extra)
    if recorded.host_scale != 1:
        extra["host_scale"] = recorded.host_scale
    if other_host:
        extra["host"] = host_facts(setup)
    engine = stubs.ensure(lambda line: print(f"phantora: {line}", file=sys.stderr)).engine
    began = time.monotonic()
    simulation = assemble(setup, target, About(run.command, run.torch, extra), engine, recorded=recorded)
    simulator = simulation.simulator
    assert simulator is not None and simulation.log is not None
    report = RunReport(1, run.world_size)
    more: dict[str, Any] = {}
    try:
        simulator.run()
        seconds = round(time.monotonic() - began, 3)
        facts = simulator.stats().facts()
        report = RunReport(0, run.world_size, wall_seconds=seconds, log=str(target), **facts)
        if recorded.measured is None:  # measured durations hold what power costs
            from phantora.runs.sensitivity import simulated_again

            more = simulated_again(simulation, setup, recorded, log, hosts=False)
        if log.trailer.get("data_slowdown", 1.0) > 1 or {"uncounted_cpu", "loader"} & log.trailer.keys():
            from phantora.trace.analysis.analyze import analyze
            from phantora.trace.analysis.data import data_of

            head = analyze(log, details=False).headline
            more |= data_of(log.trailer, head.without_data or head.step_time, recorded.host_scale)
    finally:
        operators = [asdict(entry) for entry in simulator.operators()]
        simulation.close({**report.as_data(), "replayed": str(log.path), "operators": operators, **more})
    return replace(report, rows=simulation.log.rows)
