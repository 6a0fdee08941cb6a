"""The configuration of a simulation: one object for the simulator and its prices."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora.cost.types import CostModel, Price
from phantora.fold.mesh import Fold
from phantora.hardware import Cluster
from phantora.sim.collectives import NcclEnvironment
from phantora.sim.measured import Measured
from phantora.sim.whatif import WhatIf
from phantora.wire.places import Places


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Progress of a simulation, and its own cost."""

    virtual_ns: int
    records: int
    rows: int
    alive: int
    exited: int
    optimizer_steps: int
    late: int
    releases: int
    """Times that ranks asleep outside CUDA were moved forward."""
    device_peak: int
    host_memory: int
    """Bytes of the host that had most."""
    host_pinned: int
    cpu_seconds: float
    data: tuple[int, int, int] = (0, 0, 0)
    """``data_cpu``, ``data_counted`` and ``data_apart`` of the rank that decides (``wire.layout.Control``)."""
    data_rank: int | None = None
    """Number of that rank, if its data take longer than the others' by far, or others load none."""
    loader: dict[str, int] = field(default_factory=dict)
    """As :meth:`phantora.wire.session.Session.loader`."""
    uncounted: int = 0
    """As :meth:`phantora.wire.session.Session.uncounted`."""

    def facts(self) -> dict[str, Any]:
        """Fields of a :class:`phantora.result.RunReport`."""
        return {
            "simulated_seconds": self.virtual_ns * 1e-9,
            "records": self.records,
            "simulator_cpu_seconds": round(self.cpu_seconds, 3),
            "sleepers_released": self.releases,
            "late_launches": self.late,
            "device_memory_bytes": self.device_peak,
            "host_memory_bytes": self.host_memory,
            "host_pinned_bytes": self.host_pinned,
        }


@dataclass(frozen=True, kw_only=True)
class SimulatorConfig:
    """Configuration of a simulation. Times are in seconds."""

    engine: Path
    """The library of ``sim/engine``."""
    cluster: Cluster
    cost: CostModel
    other_costs: tuple[CostModel, ...] = ()
    """Cost models of the further kinds of GPUs of the cluster."""
    prices: dict[Hashable, Price] = field(default_factory=dict)
    """Prices of `cost` by all that they depend on: a run shares them with its replays."""
    nccl: NcclEnvironment | None = None
    what_if: WhatIf = field(default_factory=WhatIf)
    fold: Fold | None = None
    """The fold that selects the processes; None: all ranks are processes."""
    measured: Measured | None = None
    """Measurements of a real run's recording."""
    flows: bool = False
    """Log the network's flows, and what its links carry."""
    brief: bool = False
    """Log no memory, no recorded events, and no streams that wait for them."""
    record: bool = True
    """Keep in the log what the ranks did, for `phantora replay`."""
    hang_timeout: float = 30.0
    progress: Callable[[Stats], None] | None = None
    """Called a few times a second."""
    notice: Callable[[str], None] | None = None
    """Called in the simulator's thread with what the user should know meanwhile."""
    places: Places | None = None
    """The GPU of each rank, where several share one."""
