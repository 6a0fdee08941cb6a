"""Cost of the network model: python -m benchmarks.network

The solver of sim/engine/network/network.cpp on three workloads, next to a plain progressive filling in Python that
solves everything anew at every event (on a smaller one of the same kind, since it takes so long); the first
price of an all-reduce of 1,024 ranks, with its routes; and what sharing the links adds to a training step of 256
ranks (network_step.py), next to what the ranks themselves cost under stubs that do nothing.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.network_step import LAYERS
from benchmarks.network_step import simulate as simulate_step
from benchmarks.resources import measure as measure_process
from benchmarks.resources import phantora_trace
from phantora import stubs
from phantora.hardware import load_cluster
from phantora.sim.collectives import CollectiveModel
from phantora.wire.layout import Coll
from tests.support.network import Class, Network, simulate

PORT = 370e9
SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "llama_fsdp2.py"


def all_to_all(ranks: int) -> tuple[list[float], list[Class]]:
    chooser = random.Random(1)
    flows = [
        Class((a, ranks + b), chooser.uniform(1e6, 2e6), PORT) for a in range(ranks) for b in range(ranks) if a != b
    ]
    return [PORT] * (2 * ranks), flows


def ring(ranks: int) -> tuple[list[float], list[Class]]:
    return [PORT] * (2 * ranks), [Class((r, ranks + (r + 1) % ranks), 1e6, 0.8 * PORT) for r in range(ranks)]


def spine(ranks: int) -> tuple[list[float], list[Class]]:
    """Pairs over one link that has room for a quarter of them."""
    return [PORT * ranks / 8], [Class((0,), 1e6 * (1 + r), PORT) for r in range(ranks // 2)]


def measure(action: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    library = stubs.ensure(print).engine
    print(f"{'workload':<28}{'classes':>9}{'seconds':>10}{'plain, ranks':>16}{'seconds':>10}")
    for name, make, ranks, few in (
        ("all-to-all, distinct sizes", all_to_all, 64, 24),
        ("ring all-reduce", ring, 1024, 64),
        ("one spine", spine, 1024, 64),
    ):
        bandwidths, classes = make(ranks)

        def fast(bandwidths: list[float] = bandwidths, classes: list[Class] = classes) -> None:
            network = Network(library, bandwidths)
            network.begin(0, classes)
            assert len(network.run()) == len(classes)

        small = make(few)
        plain = measure(lambda small=small: simulate(small[0], [0] * len(small[1]), small[1]), 1)  # type: ignore[misc]
        print(f"{name:<28}{len(classes):>9}{measure(fast, 5):>10.4f}{few:>16}{plain:>10.4f}")

    print()
    everybody = tuple(range(1024))
    for size in (1 << 20, 1 << 30):
        first = []
        for _ in range(5):
            model = CollectiveModel(load_cluster("dgx-h100:128"))
            began = time.process_time()
            price = model.collective(Coll.ALL_REDUCE, everybody, size, 9)
            first.append(time.process_time() - began)
        what = f"first price, all-reduce of {size >> 20} MiB, 1,024 ranks of dgx-h100 ({price.algorithm})"
        print(f"{what:<76}{1e3 * min(first):>7.1f} to {1e3 * max(first):.1f} ms of CPU")
    shared, fixed = (min(simulate_step(library, 32, 2, fluid).cpu / 2 for _ in range(3)) for fluid in (True, False))
    rank = rank_step()
    run = 256 * rank + fixed
    print(f"a step of 256 ranks, FSDP over 32 hosts x TP 8, {LAYERS} layers, CPU:")
    print(f"  the engine {shared:.2f} s with shared links, {fixed:.2f} s with fixed times;")
    print(f"  the ranks under stubs that do nothing 256 x {rank:.3f} s")
    print(f"  shared links add {(shared - fixed) / run:.1%} to the run")


def rank_step() -> float:
    """CPU seconds of one rank in one step under stubs that do nothing."""
    spent = {}
    with tempfile.TemporaryDirectory() as directory:
        for steps in (1, 9):
            script = [str(SAMPLE), "--layers", str(LAYERS), "--steps", str(steps), "--warmup", "0"]
            command = phantora_trace("--null", "--cluster", "1x2xH100", *script)
            spent[steps] = min(measure_process(command, directory).cpu for _ in range(2))
    return (spent[9] - spent[1]) / 8 / 2


if __name__ == "__main__":
    main()
