"""A spec whose texts have been read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from phantora.fold.mesh import Fold
from phantora.hardware import Cluster, limited
from phantora.sim.whatif import WhatIf
from phantora.spec import RunSpec, WhatIfSpec
from phantora.wire.places import Places


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A simulation to run: the spec, the cluster that it names, and the ranks that are processes."""

    spec: RunSpec
    cluster: Cluster
    hosts: int
    ranks_per_host: int
    what_if: WhatIf = field(default_factory=WhatIf)
    fold: Fold | None = None
    """The fold that selects the processes; None: all ranks are processes."""
    mps: bool = False
    """Processes that share a GPU use MPS."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host

    @property
    def places(self) -> Places:
        """The GPU of each rank."""
        gpus = min(self.ranks_per_host, self.cluster.gpus_per_host)
        return Places(self.ranks_per_host, gpus, self.mps)

    @property
    def used(self) -> Cluster:
        """The part of the cluster that the ranks have."""
        return self.cluster.part(self.hosts, self.places.gpus_per_host)


def capped(cluster: Cluster, what_if: WhatIfSpec) -> Cluster:
    """The cluster with the power limit of ``--power-cap``. Raises PhantoraError."""
    if what_if.power_cap is None:
        return cluster
    watts = what_if.power_cap
    return cluster.each(lambda one: replace(one, gpu=limited(one.gpu, watts, "--power-cap")))
