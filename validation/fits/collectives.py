"""Fits the constants of the model of collectives to measurements, and predicts what was left out.

    python -m validation.fits.collectives [--only 4] [--rounds 12]

Without ``--only`` all samples are used and the constants printed, to be copied to
``phantora/sim/collectives/timing.py``. With it, only those with N GPUs; the errors of the others
are then of predictions. Least squares of the logarithm of the ratio, by a search along one constant
after the other, from the constants in use, or, with ``--only``, from ones that know nothing of any sample.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import fields, replace

from phantora.hardware import load_cluster
from phantora.sim.collectives import CollectiveModel
from phantora.sim.collectives.timing import Constants
from validation.compare.collectives import Sample, predict, read

CLUSTER = load_cluster("1x4xH200")
ELSEWHERE = ("pcie_share", "nvls_base", "nvls_ramp", "nvls_ramp_half", "network_ll")  # not in these samples
FITTED = [field.name for field in fields(Constants) if field.name not in ELSEWHERE]


def errors(constants: Constants, samples: list[Sample]) -> list[float]:
    model = CollectiveModel(CLUSTER, constants=constants)
    return [predict(model, sample).duration_ns / 1e3 / sample.us - 1 for sample in samples]


def loss(constants: Constants, samples: list[Sample]) -> float:
    return sum(math.log1p(error) ** 2 for error in errors(constants, samples))


def ignorant() -> Constants:
    """A start that knows nothing of the samples: the steps that NCCL's own model has, all else 25 % off."""
    steps = {"ll_step": 0.6, "ll128_step": 1.9, "simple_step": 3.4}
    off = {name: getattr(Constants(), name) * 1.25 for name in FITTED if name != "fanout_share"}
    return replace(Constants(), **{**off, **steps, "fanout_share": 1.0})


def fit(samples: list[Sample], rounds: int, best: Constants) -> Constants:
    least, step = loss(best, samples), 0.1
    for _ in range(rounds):
        before = least
        for name in FITTED:
            for factor in (1 + step, 1 / (1 + step)):
                tried = replace(best, **{name: getattr(best, name) * factor})
                value = loss(tried, samples)
                if value < least:
                    best, least = tried, value
                    break
        if before - least < 1e-3 * before:
            step /= 2
    return best


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--only", type=int, help="fit to samples with N GPUs")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    samples = read()
    used = [sample for sample in samples if arguments.only in (None, sample.members)]
    constants = fit(used, arguments.rounds, ignorant() if arguments.only else Constants())
    for name in FITTED:
        print(f"    {name}: float = {getattr(constants, name):.4g}  # was {getattr(Constants(), name):.4g}")
    left_out = [sample for sample in samples if sample not in used]
    for what, group in (("fitted", used), ("left out", left_out)):
        if group:
            sizes = [abs(error) for error in errors(constants, group)]
            print(
                f"{what}: {len(group)} samples, median error {statistics.median(sizes):.1%}, largest {max(sizes):.1%}"
            )


if __name__ == "__main__":
    main()
