"""Fits the model of power to the clocks of real GPUs in training steps.

    python benchmarks/power_fit.py            # needs scipy

The data are timelines of all ranks (`benchmarks/device/all_ranks.py` on 4 H200; `device/results/all_ranks`): FSDP2 on
4, 2 and 4 times 1 GPU, DDP, tensor parallel. FlashAttention kernels without a NCCL kernel beside them tell the clock:
they take their time at full clock over its share. Along each timeline the model of `stub/core_power.cpp` predicts that
share from what ran before. Fitted: what products, other kernels and NCCL kernels draw, as shares of the dynamic budget
(cap less idle), the time constant, and each GPU's appetite. The power of attention and the exponent are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

RESULTS = Path(__file__).parent / "device" / "results" / "all_ranks"
# Forward and backward kernel at full clock, us: bursts of benchmarks/device/company.py, scaled by tokens x heads x
# length.
FULL_CLOCK = {
    "alone": (498, 1257), "fsdp_L16": (498, 1257), "fsdp_L16_g2": (498, 1257), "fsdp_full": (995, 2510),
    "ddp4": (268, 676), "tp4": (504, 1262),
}  # fmt: skip
ATTENTION = 0.9  # (654 - 150 W) / 553 W, from company.jsonl
EXPONENT = 1.75
PRODUCT_BESIDE_NCCL = 0.7  # of its power: it runs on fewer SMs
KINDS = "product", "attention", "other", "nccl"
_PATTERNS = (
    ("nccl", "nccl"), ("attention", "flash_fwd_kernel|flash_bwd_dq_dk"), ("product", "nvjet|gemm|cutlass|splitK"),
)  # fmt: skip

Floats = npt.NDArray[np.float64]


@dataclass
class Timeline:
    """What runs on one GPU between moments, and its clock at some of them."""

    run: str
    gpu: int
    gaps: Floats
    """ms between moments."""
    running: dict[str, Floats]
    """By kind: 1 from a moment on while such a kernel runs."""
    moments: npt.NDArray[np.int64]
    clocks: Floats
    """Shares of the full clock at `moments`."""


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in _PATTERNS if re.search(pattern, name)), "other")


def read(path: Path) -> Timeline:
    run, gpu = path.stem.rsplit(".", 1)
    with np.load(path) as data:
        names, index, start, end = data["names"], data["name"], data["start"], data["end"]
    kinds = np.array([kind_of(str(name)) for name in names])[index]
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([np.ones(len(start)), -np.ones(len(end))])
    both = np.concatenate([kinds, kinds])
    running = {k: np.minimum(1.0, np.cumsum(np.where(both == k, change, 0.0)[order])) for k in KINDS}
    times = times[order]
    nccl = [(a, b) for a, b in zip(start[kinds == "nccl"], end[kinds == "nccl"], strict=True)]
    moments, clocks = [], []
    for i in np.flatnonzero(kinds == "attention"):
        if any(a < end[i] and b > start[i] for a, b in nccl):
            continue
        full = FULL_CLOCK[run]["bwd" in str(names[index[i]])]
        moments.append(int(np.searchsorted(times, start[i])))
        clocks.append(min(1.0, full * 1e3 / (end[i] - start[i])))
    return Timeline(run, int(gpu), np.diff(times) / 1e6, running, np.array(moments), np.array(clocks))


def predicted(t: Timeline, p: Floats) -> Floats:
    """Clocks at the moments of `t`. `p`: product, other, nccl, ms, logarithms of the first three GPUs' appetites."""
    product, other, nccl, response = p[:4]
    appetite = float(np.exp(np.append(p[4:7], -p[4:7].sum()))[t.gpu])
    beside = np.where(t.running["nccl"] > 0, PRODUCT_BESIDE_NCCL, 1.0)
    dynamic = product * beside * t.running["product"] + ATTENTION * t.running["attention"]
    steady = other * t.running["other"] + nccl * t.running["nccl"]
    kept = np.exp(-t.gaps / response)
    means = np.zeros((2, len(t.gaps) + 1))
    for _ in range(2):  # the steps before were alike
        a, b = means[0, -1], means[1, -1]
        for i, keep in enumerate(kept):
            means[0, i], means[1, i] = a, b
            a, b = dynamic[i] + (a - dynamic[i]) * keep, steady[i] + (b - steady[i]) * keep
        means[0, -1], means[1, -1] = a, b
    room = np.maximum(1.0 - appetite * means[1], 0.05)
    clock: Floats = np.minimum(1.0, (room / np.maximum(appetite * means[0], 1e-9)) ** (1.0 / EXPONENT))
    return clock[t.moments]


def main() -> None:
    timelines = [read(path) for path in sorted(RESULTS.glob("*.npz"))]

    def residuals(p: Floats) -> Floats:
        return np.concatenate([(predicted(t, p) - t.clocks) / np.sqrt(len(t.clocks) + 1) for t in timelines])

    start = np.array([1.5, 0.7, 0.2, 40.0, 0.0, 0.0, 0.0])
    low, high = [0.8, 0.1, 0.0, 5.0, -0.2, -0.2, -0.2], [2.2, 1.2, 0.6, 120.0, 0.2, 0.2, 0.2]
    p = least_squares(residuals, start, bounds=(low, high), diff_step=1e-3, max_nfev=25).x
    print(f"share of the budget: product {p[0]:.2f}, attention {ATTENTION} (given), other {p[1]:.2f}, NCCL {p[2]:.2f}")
    print(f"averaged over {p[3]:.0f} ms; appetites of the GPUs: {np.exp(np.append(p[4:], -p[4:].sum())).round(3)}")
    for line in table(timelines, p):
        print(line)


def table(timelines: list[Timeline], p: Floats) -> Iterator[str]:
    for t in timelines:
        clocks = predicted(t, p)
        off = float(np.sqrt(((clocks - t.clocks) ** 2).mean()))
        yield f"{t.run:14s} GPU {t.gpu}: clock {t.clocks.mean():.3f}, predicted {clocks.mean():.3f}, rms {off:.3f}"


if __name__ == "__main__":
    main()
