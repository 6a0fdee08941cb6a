"""Puts a simulation together: shared area, prices, log, simulator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phantora.errors import PhantoraError
from phantora.hardware import Cluster, device_fields
from phantora.sim.whatif import WhatIf
from phantora.wire import layout
from phantora.wire.fold import Fold, to_dict
from phantora.wire.session import Session

if TYPE_CHECKING:
    import numpy as np

    from phantora.cost.workspaces import Workspaces
    from phantora.profile.live import LiveProfiler
    from phantora.sim.simulator import Simulator, Stats
    from phantora.trace.recording import Chunk
    from phantora.trace.writer import LogWriter


@dataclass(frozen=True)
class Settings:
    """What decides how a run is simulated."""

    hosts: int
    ranks_per_host: int
    host_time: str = "modelled"
    host_scale: float = 1.0
    unsupported: str = "error"
    null: bool = False
    live: bool = False
    """Measure operators that no table knows on this machine's GPU."""
    hang_timeout: float = 30.0
    """Seconds in which nothing moves before the ranks count as hung."""
    record: bool = True
    """Keep in the log what the ranks said, for `phantora replay`."""
    what_if: WhatIf = field(default_factory=WhatIf)
    flows: bool = False
    """Log the network's flows, and what its links carry."""
    fold: Fold | None = None
    """Which ranks are processes; None: all."""


@dataclass(frozen=True)
class Recorded:
    """A recorded run, in place of ranks."""

    chunks: Sequence[Chunk]
    host_scale: float
    nccl: dict[str, Any]
    """NCCL's variables then, as the metadata have them; those of the environment now come first."""


def _workspaces(cluster: Cluster) -> Workspaces | None:
    from phantora.cost.measured import DATA, cache_folder
    from phantora.cost.workspaces import workspaces_for

    return workspaces_for(cluster.gpu, [cache_folder(), DATA])


def _packed(workspaces: Workspaces) -> np.ndarray[Any, np.dtype[np.void]]:
    from phantora.wire.workspaces import Block, pack

    return pack([Block(**columns) for columns in workspaces.columns()])


def create_session(
    cluster: Cluster, settings: Settings, workspaces: Workspaces | None, *, alone: bool = False, ends: bool = False
) -> Session:
    """The shared memory of a run, for all its ranks.

    `alone`: for rank 0 by itself; `ends`: which ends with its first large communication.
    """
    real = settings.fold.real if settings.fold else None
    return Session.create(
        settings.hosts * settings.ranks_per_host,
        settings.ranks_per_host,
        device_fields(cluster.gpu),
        cluster.host.api_ns,
        host_mode=getattr(layout.HostMode, settings.host_time.upper()),
        host_scale=cluster.host.factor if settings.host_time == "modelled" else settings.host_scale,
        null_mode=layout.CONSTANTS["PH_PROBE"] if ends else int(settings.null),
        unsupported=getattr(layout.Unsupported, settings.unsupported.upper()),
        epoch_ns=int(time.time()) * 1_000_000_000,
        workspaces=_packed(workspaces) if workspaces else None,
        real=(0,) if alone else real,
    )


@dataclass
class Simulation:
    """A simulator and its log. Close it whatever happened."""

    session: Session
    simulator: Simulator | None = None
    log: LogWriter | None = None
    live: LiveProfiler | None = None
    notes: tuple[str, ...] = ()
    """What the user should know of its prices."""
    again: Callable[[Path, Settings, Recorded], Simulation] | None = None
    """The same run from its recording, with the same prices, into a log of its own."""

    def close(self, trailer: dict[str, Any]) -> None:
        """Writes the log's end (`trailer`: what differs between equal runs), closes it, frees the shared memory."""
        try:
            if self.live is not None:
                self.live.close()
            if self.log is not None:
                self.log.close(trailer)
        finally:
            self.session.close()


def _live_profiler(cluster: Cluster, settings: Settings) -> LiveProfiler | None:
    if not settings.live:
        return None
    from phantora.profile.live import LiveProfiler

    return LiveProfiler(cluster.gpu)


def assemble(
    cluster: Cluster,
    settings: Settings,
    log_path: Path,
    metadata: dict[str, Any],
    progress: Callable[[Stats], None] | None,
    engine: Path,
    recorded: Recorded | None = None,
    cost: Any = None,
    notice: Callable[[str], None] | None = None,
) -> Simulation:
    """`metadata` holds fields of ``RunMetadata`` that the cluster does not give; `engine` is the library
    of ``sim/engine``; with `recorded` no ranks are needed; `cost` is a cost model that has prices already; `notice` is
    called with what the user should know meanwhile, in a thread of the simulator."""
    workspaces = _workspaces(cluster)
    session = create_session(cluster, settings, workspaces)
    if settings.null:
        return Simulation(session)
    try:
        from phantora.cost import model_for
        from phantora.cost.measured import cache_folder
        from phantora.sim.collectives import NcclEnvironment
        from phantora.sim.replay import Replayer
        from phantora.sim.simulator import Simulator
        from phantora.trace.schema import RunMetadata, Tables
        from phantora.trace.writer import LogWriter

        live = _live_profiler(cluster, settings)
        cost = cost or model_for(cluster.gpu, cache_folder(), live)
        simulated = cluster.part(settings.hosts, settings.ranks_per_host)
        before: dict[str, Any] = recorded.nccl if recorded else {}
        variables = {**cluster.nccl, **before.get("honoured", {}), **os.environ}  # the ranks inherit the last
        nccl = NcclEnvironment.read(variables, simulated.wiring.nics)
        ignored = {**before.get("ignored", {}), **nccl.ignored}
        heard: dict[str, Any] = {"nccl": {"honoured": nccl.honoured, "ignored": ignored}}
        own = workspaces is not None and workspaces.about.get("gpu") == cluster.gpu.product
        heard["memory_bandwidth"] = cluster.gpu.hbm_bandwidth  # bytes/s, for rooflines
        heard["workspaces"] = {"table": workspaces.described if workspaces else None, "own": own}
        if settings.fold:
            heard["fold"] = to_dict(settings.fold)
        if settings.what_if:
            heard["what_if"] = asdict(settings.what_if)
        described = RunMetadata(
            cluster=cluster.name,
            gpu=cluster.gpu.name,
            world_size=session.world_size,
            ranks_per_host=settings.ranks_per_host,
            peak_flops=dict(cluster.gpu.peak_flops),
            memory_bytes=cluster.gpu.memory_bytes,
            host_mode=settings.host_time,
            launch_latency_ns=round(cluster.gpu.calibration.launch_latency_ns),
            kernel_gap_ns=round(cluster.gpu.calibration.kernel_gap_ns),
            crowded_gap_ns=round(cluster.gpu.calibration.crowded_gap_ns),
            cost_tables=list(getattr(cost, "tables", ())),
            **{**metadata, "extra": {**metadata.get("extra", {}), **heard}},
        )
        tables = Tables()
        log = LogWriter(log_path, described, tables)
        parts = (session, simulated, cost, log, tables, progress)
        options: dict[str, Any] = {
            "library": engine,
            "nccl": nccl,
            "record": settings.record,
            "what_if": settings.what_if,
            "log_flows": settings.flows,
            "fold": settings.fold,
        }
        try:
            if recorded is None:
                simulator = Simulator(*parts, hang_timeout=settings.hang_timeout, notice=notice, **options)
            else:
                simulator = Replayer(*parts, chunks=recorded.chunks, host_scale=recorded.host_scale, **options)
        except PhantoraError:
            log.close({})
            with suppress(OSError):  # one in memory has no name to be taken
                log_path.unlink()
            raise
    except (PhantoraError, OSError):
        session.close()
        raise

    def again(path: Path, changed: Settings, records: Recorded) -> Simulation:
        return assemble(cluster, changed, path, metadata, None, engine, records, cost)

    return Simulation(session, simulator, log, live, tuple(cost.of_other_builds(described.torch)), again)
