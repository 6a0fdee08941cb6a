"""A spec whose texts have been read."""

from __future__ import annotations

from dataclasses import dataclass, field

from phantora.fold.mesh import Fold
from phantora.hardware import Cluster
from phantora.sim.whatif import WhatIf
from phantora.spec import RunSpec


@dataclass(frozen=True)
class Setup:
    """A simulation to run: the spec, the cluster that it names, and the ranks that are processes."""

    spec: RunSpec
    cluster: Cluster
    hosts: int
    ranks_per_host: int
    what_if: WhatIf = field(default_factory=WhatIf)
    fold: Fold | None = None
    """The fold that selects the processes; None: all ranks are processes."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host
