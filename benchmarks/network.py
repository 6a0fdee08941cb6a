"""What the network costs: python benchmarks/network.py

The solver of stub/network.cpp on three workloads, beside a plain progressive filling in Python that
solves everything anew at every event (on a smaller one of the same kind, since it takes so long).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.network import Class, Network, simulate

from phantora import stubs

PORT = 370e9


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
    library = stubs.ensure(print).core
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


if __name__ == "__main__":
    main()
