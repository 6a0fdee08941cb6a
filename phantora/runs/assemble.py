"""Puts a simulation together: shared area, prices, log, simulator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phantora.errors import PhantoraError
from phantora.fold.mesh import to_dict
from phantora.hardware import Cluster, device_fields
from phantora.runs.setup import Setup
from phantora.spec import LIVE
from phantora.version import version
from phantora.wire import layout
from phantora.wire.session import Session, SessionConfig

if TYPE_CHECKING:
    import numpy as np

    from phantora.cost.types import CostModel, Price
    from phantora.cost.workspaces import Workspaces
    from phantora.profile.live import LiveProfiler
    from phantora.sim.collectives import NcclEnvironment
    from phantora.sim.config import Stats
    from phantora.sim.measured import Measured
    from phantora.sim.noise import Noise
    from phantora.sim.replay import Powers
    from phantora.sim.simulator import Simulator
    from phantora.trace.recording import Records
    from phantora.trace.schema import RunMetadata
    from phantora.trace.writer import LogWriter


SETTLING = 5  # times the limiter's two times: what is left of its first state then is below 0.1 % of a step


@dataclass(frozen=True)
class About:
    """Facts of a run for its log that the cluster does not give."""

    command: list[str]
    torch: str
    """Version."""
    extra: Mapping[str, Any]
    """Anything else, JSON types only."""


@dataclass(frozen=True)
class Recorded:
    """A recorded run, in place of ranks."""

    records: Mapping[int, Iterable[Records]]
    """Records by rank."""
    host_scale: float
    nccl: Mapping[str, Any]
    """NCCL's variables then, as the metadata have them; those of the environment now come first."""
    _: KW_ONLY
    power: Powers | None = None
    """State of each rank's power limiter at the end of its first step, from which it continues."""
    noise: Noise | None = None
    """Noise of a sample of the run; None: the typical run."""
    brief: bool = False
    """Only the rows that tell the steps are read: as :class:`SimulatorConfig`."""
    measured: Measured | None = None
    """Place where the launches were measured, if the run was a real one."""


def _workspaces(cluster: Cluster) -> Workspaces | None:
    from phantora.cost.table_files import DATA, cache_folder
    from phantora.cost.workspaces import workspaces_for

    return workspaces_for(cluster.gpu, [cache_folder(), DATA])


def _packed(workspaces: Workspaces) -> np.ndarray[Any, np.dtype[np.void]]:
    from phantora.wire.workspaces import Block, pack

    return pack([Block(**columns) for columns in workspaces.columns()])


def create_session(setup: Setup, workspaces: Workspaces | None, *, alone: bool = False, ends: bool = False) -> Session:
    """The shared memory of a run, for all its ranks.

    `alone`: for rank 0 by itself; `ends`: which ends with its first large communication.
    """
    spec, cluster = setup.spec, setup.cluster
    real = setup.fold.real if setup.fold else None
    host, places = cluster.host.slower(pace_of(setup)), setup.places
    config = SessionConfig(
        setup.world_size,
        setup.ranks_per_host,
        host_mode=getattr(layout.HostMode, spec.host_time.upper()),
        host_scale=host.factor if spec.host_time == "modelled" else spec.host_scale,
        null_mode=layout.CONSTANTS["PH_PROBE"] if ends else int(spec.null),
        unsupported=getattr(layout.Unsupported, spec.unsupported.upper()),
        epoch_ns=int(time.time()) * 1_000_000_000,
        real=(0,) if alone else real,
        gpus_per_host=places.gpus_per_host if places.shared else 0,
        mps=places.mps,
        other_devices=[device_fields(part.gpu) for part in cluster.kinds[1:]],
        kinds=[cluster.kind_of(rank // setup.ranks_per_host) for rank in range(setup.world_size)],
    )
    blocks = _packed(workspaces) if workspaces else None
    return Session.create(config, device_fields(cluster.gpu), host.api_ns, blocks)


@dataclass(frozen=True)
class Prices:
    """A cost model, and the prices that it has given."""

    models: tuple[CostModel, ...]
    """By kind of GPU."""
    known: dict[Hashable, Price]


@dataclass(kw_only=True)
class Simulation:
    """A simulator and its log. Close it whatever happened."""

    session: Session
    simulator: Simulator | None = None
    log: LogWriter | None = None
    live: LiveProfiler | None = None
    notes: tuple[str, ...] = ()
    """Notes for the user about its prices."""
    again: Callable[[Path, Setup, Recorded], Simulation] | None = None
    """Simulates the run again from its recording, with the same prices, into a log of its own."""

    @property
    def powers(self) -> Powers:
        """As :attr:`Simulator.powers`; empty under ``--null``."""
        return self.simulator.powers if self.simulator is not None else {}

    def close(self, trailer: Mapping[str, Any]) -> None:
        """Writes the log's end (`trailer`: what differs between equal runs), closes it, frees the shared memory."""
        try:
            if self.live is not None:
                self.live.close()
            if self.log is not None:
                self.log.close(dict(trailer))
        finally:
            self.session.close()


def _live_profiler(setup: Setup) -> LiveProfiler | None:
    if setup.spec.profile != LIVE:
        return None
    from phantora.profile.live import LiveProfiler

    return LiveProfiler(setup.cluster.gpu)


def assemble(
    setup: Setup,
    log_path: Path,
    about: About,
    engine: Path,
    *,
    recorded: Recorded | None = None,
    prices: Prices | None = None,
    progress: Callable[[Stats], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Simulation:
    """`engine` is the library of ``sim/engine``; with `recorded` no ranks are needed; `prices` are those of
    another run on these GPUs; `progress` and `notice` are those of :class:`SimulatorConfig`. Raises PhantoraError."""
    workspaces = _workspaces(setup.cluster)
    session = create_session(setup, workspaces if recorded is None else None)
    if setup.spec.null:
        return Simulation(session=session)
    try:
        from phantora.cost import model_for
        from phantora.cost.table_files import cache_folder
        from phantora.runs.memory import keep_memory
        from phantora.sim.config import SimulatorConfig
        from phantora.sim.replay import Replayer
        from phantora.sim.simulator import Simulator
        from phantora.trace.schema import Tables
        from phantora.trace.writer import LogWriter

        keep_memory()
        cluster, output = setup.cluster, setup.spec.output
        live = _live_profiler(setup)
        if prices is None:
            prices = Prices(tuple(model_for(part.gpu, cache_folder(), live) for part in cluster.parts), {})
        model = prices.models[0]
        nccl, facts = _nccl(setup, recorded)
        facts = {**facts, **_facts(setup, workspaces), "common_shares": getattr(model, "common_shares", {})}
        if getattr(model, "by_specification", False):
            facts["specification"] = cluster.gpu.name
        described = _metadata(setup, about, facts, getattr(model, "tables", ()))
        if recorded is not None and recorded.measured is not None and not recorded.measured.known:
            described.peak_flops = {}  # of the model that stands for the GPU
        config = SimulatorConfig(
            engine=engine,
            cluster=setup.used,
            cost=model,
            other_costs=prices.models[1:],
            prices=prices.known,
            nccl=nccl,
            what_if=setup.what_if,
            fold=setup.fold,
            measured=recorded.measured if recorded else None,
            flows=output.flows,
            brief=recorded is not None and recorded.brief,
            record=output.recording,
            hang_timeout=setup.spec.hang_timeout,
            progress=progress,
            notice=notice,
            places=setup.places if setup.places.shared else None,
        )
        log = LogWriter(log_path, described, Tables())
        try:
            if recorded is None:
                simulator = Simulator(session, log, config)
            else:
                simulator = Replayer(
                    session, log, config, recorded.records, recorded.host_scale, recorded.power, recorded.noise
                )
        except PhantoraError:
            log.close({})
            with suppress(OSError):  # one in memory has no name to be taken
                log_path.unlink()
            raise
    except (PhantoraError, OSError):
        session.close()
        raise

    def again(path: Path, changed: Setup, records: Recorded) -> Simulation:
        return assemble(changed, path, about, engine, recorded=records, prices=prices)

    notes = tuple(model.of_other_builds(about.torch)) if hasattr(model, "of_other_builds") else ()
    return Simulation(session=session, simulator=simulator, log=log, live=live, notes=notes, again=again)


def _nccl(setup: Setup, recorded: Recorded | None) -> tuple[NcclEnvironment, dict[str, Any]]:
    """NCCL's variables, and their facts for the log."""
    from phantora.sim.collectives import NcclEnvironment
    from phantora.sim.variables import Variables

    cluster = setup.cluster
    before: Mapping[str, Any] = recorded.nccl if recorded else {}
    variables = {**cluster.nccl, **before.get("honoured", {}), **os.environ}  # the ranks inherit the last
    nccl = NcclEnvironment.read(variables, setup.used.wiring.nics)
    others = Variables.read({} if recorded else os.environ)
    return nccl, {
        "nccl": {"honoured": nccl.honoured, "ignored": {**before.get("ignored", {}), **nccl.ignored}},
        "environment": {"simulated": others.simulated, "ignored": others.ignored},
    }


def _facts(setup: Setup, workspaces: Workspaces | None) -> dict[str, Any]:
    """Facts for the log: the cluster's prices, the fold and what is changed."""
    gpu = setup.cluster.gpu
    own = workspaces is not None and workspaces.about.get("gpu") == gpu.product
    found: dict[str, Any] = {"memory_bandwidth": gpu.hbm_bandwidth}  # bytes/s, for rooflines
    found["workspaces"] = {"table": workspaces.described if workspaces else None, "own": own}
    found["settling_ns"] = SETTLING * (gpu.power.response_ns + gpu.power.reaction_ns)
    if setup.cluster.kinds:
        found["kinds"] = [
            {"gpu": part.gpu.name, "hosts": part.hosts, "memory_bytes": part.gpu.memory_bytes}
            for part in setup.used.parts
        ]
    if gpu.power_watts:
        found["power_cap"] = gpu.limit_watts or gpu.power_watts  # W
    if gpu.limit_watts:
        found["power_limit"] = gpu.limit_watts  # W
    if setup.fold:
        found["fold"] = to_dict(setup.fold)
    if setup.places.shared:
        found["sharing"] = {"gpus_per_host": setup.places.gpus_per_host, "mps": setup.mps}
    if setup.what_if:
        found["what_if"] = asdict(setup.what_if)
    return found


def _metadata(setup: Setup, about: About, facts: Mapping[str, Any], tables: Sequence[str]) -> RunMetadata:
    from phantora.trace.schema import RunMetadata

    gpu = setup.cluster.gpu
    return RunMetadata(
        phantora=version(),
        command=about.command,
        torch=about.torch,
        cluster=setup.cluster.name,
        gpu=gpu.name,
        world_size=setup.world_size,
        ranks_per_host=setup.ranks_per_host,
        peak_flops=_mean_peaks(setup.used),
        memory_bytes=min(part.gpu.memory_bytes for part in setup.used.parts),
        host_mode=setup.spec.host_time,
        launch_latency_ns=round(gpu.calibration.launch_latency_ns),
        kernel_gap_ns=round(gpu.calibration.kernel_gap_ns),
        crowded_gap_ns=round(gpu.calibration.crowded_gap_ns),
        cost_tables=list(tables),
        extra={**about.extra, **facts, "host_memory_bytes": setup.cluster.host_memory},
    )


def _mean_peaks(cluster: Cluster) -> dict[str, float]:
    """Peaks by format that all kinds have: of kinds the mean of the GPUs."""
    common = [name for name in cluster.gpu.peak_flops if all(name in part.gpu.peak_flops for part in cluster.parts)]
    hosts = sum(part.hosts for part in cluster.parts)
    return {name: sum(p.gpu.peak_flops[name] * p.hosts for p in cluster.parts) / hosts for name in common}


def pace_of(setup: Setup) -> float:
    """Pace of a host's ranks: :meth:`HostProfile.pace`."""
    return setup.cluster.host.pace(min(setup.world_size, setup.ranks_per_host))


def host_facts(setup: Setup) -> dict[str, Any]:
    """Facts about the host for a log's metadata."""
    host = setup.cluster.host
    return {
        "name": host.name,
        "factor": host.factor,
        "spread": list(host.spread),
        "measured": host.measured,
        "pace": round(pace_of(setup), 3),
    }
