"""Time of operators that run over and over, as in a benchmark's loop: the simulator's power limit on their prices.

`phantora/sim/engine/gpu/limiter.cpp` is the limit itself; this is its arithmetic for one stream without communication.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from phantora.cost import Price
from phantora.cost.machine import Machine
from phantora.sim.engine.library import KernelProfile, PowerLimit
from phantora.sim.kernel_profile import profile_of

FINE = 8  # steps of the integration within the shorter of the limiter's two times


@dataclass
class Limiter:
    """The mean of what the GPU drew, in W, and its clock as a share of the full one."""

    limit: PowerLimit
    mean: float = 0.0
    clock: float = 1.0

    def run(self, profile: KernelProfile, ns: float) -> float:
        """Duration in ns of a kernel of `ns` at its own clock; it goes on drawing for so long."""
        longer = 1.0 + profile.clock_bound * max(0.0, profile.clock / self.clock - 1.0)
        left = took = ns * longer
        limit, fine = self.limit, min(self.limit.response_ns, self.limit.reaction_ns) / FINE
        while left > 0:
            step = min(left, fine)
            drawn = profile.dynamic_watts * self.clock**limit.exponent + profile.steady_watts
            kept = math.exp(-step / limit.response_ns)
            within = drawn + (self.mean - drawn) * (1 - kept) * limit.response_ns / step
            self.mean = drawn + (self.mean - drawn) * kept
            moved = self.clock + step / limit.reaction_ns * (1 - within / limit.budget_watts)
            self.clock = min(1.0, max(limit.lowest_clock, moved))
            left -= step
        return took

    def rest(self, ns: float) -> None:
        """Nothing runs for `ns`."""
        self.run(KernelProfile(), ns)

    def us_in_replays(self, machine: Machine, call: Sequence[Price], calls: int, replays: int) -> float:
        """Median us of a call in `replays` graphs of `calls` calls, after one that is not counted."""
        kernels = [(profile_of(machine, price), float(sum(price.durations))) for price in call]
        took = [sum(self.run(*kernel) for _ in range(calls) for kernel in kernels) for _ in range(1 + replays)]
        return statistics.median(took[1:]) / calls / 1e3
