"""Runs a script as `phantora trace` does, with fixed costs: kernels 1 ms, copies 0.5 ms, memsets 0.1 ms.

python fixed_costs.py WORLD SCRIPT. Host calls cost nothing, a launch reaches the GPU at once.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from phantora import stubs
from phantora.cost.types import KernelLaunch, L2State, OperatorSignature, Price
from phantora.hardware import device_fields, load_cluster
from phantora.launch.output import Console
from phantora.launch.plan import Plan
from phantora.launch.supervisor import RankSupervisor
from phantora.sim.config import SimulatorConfig
from phantora.sim.simulator import Simulator
from phantora.spec import RankSpec, RunSpec
from phantora.trace.schema import RunMetadata, Tables
from phantora.trace.writer import LogWriter
from phantora.wire.session import Session, SessionConfig

KERNEL, COPY, MEMSET = 1_000_000, 500_000, 100_000


class FixedCosts:
    def operator(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State | None = None
    ) -> Price:
        return Price((KERNEL,) * len(kernels), "other", "analytic", flops=0.0, bytes=0.0)

    def covered(self, kernel: KernelLaunch) -> Price:
        return self.kernel(kernel)

    def kernel(self, kernel: KernelLaunch) -> Price:
        return Price((KERNEL,), "other", "analytic", flops=0.0, bytes=0.0)

    def copy(self, kind: str, size: int) -> Price:
        return Price((COPY,), "copy", "analytic", flops=0.0, bytes=float(size))

    def memset(self, size: int) -> Price:
        return Price((MEMSET,), "memset", "analytic", flops=0.0, bytes=float(size))


def main(world: int, script: str) -> int:
    cluster = load_cluster(f"1x{world}xH100")
    calibration = replace(
        cluster.gpu.calibration,
        kernel_gap_ns=0.0,
        crowded_gap_ns=0.0,
        graph_gap_ns=0.0,
        library_gap_ns=0.0,
        launch_latency_ns=0.0,
    )
    alone = replace(cluster.gpu.interference, classes={})
    gpu = replace(cluster.gpu, calibration=calibration, power_watts=0, interference=alone)
    cluster = replace(cluster, gpu=gpu)
    stub_set = stubs.ensure()
    session = Session.create(SessionConfig(world, world), device_fields(cluster.gpu), {})
    with tempfile.TemporaryDirectory() as directory:
        log = LogWriter(Path(directory) / "run.arrow", RunMetadata(), Tables())
        config = SimulatorConfig(engine=stub_set.engine, cluster=cluster, cost=FixedCosts(), hang_timeout=20)
        simulator = Simulator(session, log, config)
        plan = Plan(spec=RunSpec(script), ranks_per_host=world, ranks=RankSpec(devices=world))
        console = Console(sys.stdout.buffer, sys.stderr.buffer, False)
        supervisor = RankSupervisor(plan, console, stubs=stub_set.directory)
        outcome = supervisor.run(session, simulator)
        log.close({})
    session.close()
    if outcome.message:
        print(outcome.message, file=sys.stderr)
    return outcome.status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
