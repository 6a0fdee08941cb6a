"""Fits the model of power to what real GPUs draw and to their clocks in training steps.

    python benchmarks/power_fit.py            # needs scipy

Products and attention back to back tell what they draw (`benchmarks/device/interference.py` on H200;
`device/results/interference_h200x4.jsonl`): heated, their clock is that at which they draw the cap; in a burst, that of
the faster limit.

The rest comes from timelines of all ranks (`benchmarks/device/all_ranks.py` on 4 H200; `device/results/all_ranks`):
FSDP2 on 4, 2 and 4 times 1 GPU, DDP, tensor parallel. FlashAttention kernels without a NCCL kernel beside them tell
the clock: they take their time at full clock over its share. Along each timeline the limiter of
`phantora/sim/engine/power.cpp` predicts that share from what ran before. Fitted: what products (here all alike), other
kernels and NCCL kernels draw, as shares of the dynamic budget (cap less idle), the limiter's two times, and each GPU's
factor. Attention's power and the exponent are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from phantora.hardware import load_gpu

RESULTS = Path(__file__).parent / "device" / "results" / "all_ranks"
INTERFERENCE = RESULTS.parent / "interference_h200x4.jsonl"
# Forward and backward kernel at full clock, us: bursts of benchmarks/device/interference.py, scaled by tokens x heads x
# length.
FULL_CLOCK = {
    "alone": (498, 1257), "fsdp_L16": (498, 1257), "fsdp_L16_g2": (498, 1257), "fsdp_full": (995, 2510),
    "ddp4": (268, 676), "tp4": (504, 1262),
}  # fmt: skip
GPU = load_gpu("H200")
CAP, PEAK, FULL_MHZ = float(GPU.power_watts), GPU.peak_flops["bfloat16"], GPU.clock_khz / 1e3
IDLE = GPU.power.idle * CAP
ATTENTION = 0.9  # (654 - 150 W) / 553 W, from interference_h200x4.jsonl
# 1.75 to 2.7 fit nearly as well; with 2.0 the attention of the timelines draws what it draws alone.
EXPONENT = GPU.power.exponent
PRODUCT_BESIDE_NCCL = 0.72  # of its power: it runs on fewer SMs
ATTENTION_FLOPS = 4.0 * 32 * 128 * 4096**2  # forward, of interference.py, without a mask
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
    """Clocks at the moments of `t`. `p`: product, other, nccl, response and reaction in ms, logarithms of the first
    three GPUs' factors."""
    product, other, nccl, response, reaction = p[:5]
    factor = float(np.exp(np.append(p[5:8], -p[5:8].sum()))[t.gpu])
    beside = np.where(t.running["nccl"] > 0, PRODUCT_BESIDE_NCCL, 1.0)
    dynamic = factor * (product * beside * t.running["product"] + ATTENTION * t.running["attention"])
    steady = factor * (other * t.running["other"] + nccl * t.running["nccl"])
    kept = np.exp(-t.gaps / response).tolist()
    rows = list(zip(dynamic.tolist(), steady.tolist(), kept, t.gaps.tolist(), strict=False))
    clocks, mean, clock = [1.0] * (len(rows) + 1), 0.7, 1.0
    for _ in range(2):  # the steps before were alike
        for i, (falls, stays, keep, gap) in enumerate(rows):
            clocks[i] = clock
            drawn = falls * clock**EXPONENT + stays
            mean = drawn + (mean - drawn) * keep
            clock = min(1.0, max(0.3, clock + gap / reaction * (1.0 - mean)))
        clocks[-1] = clock
    return np.array(clocks)[t.moments]


def heated() -> Iterator[tuple[str, float, float, float]]:
    """Of each kernel run back to back: (name, share of the peak at full clock, what it draws then beside the idle
    GPU's, what the GPU draws in a burst), in shares of the cap."""
    rows = [json.loads(line) for line in INTERFERENCE.read_text().splitlines()]
    alone = [row for row in rows if row["beside"] == "alone" and re.match("mm|flash", row["kernel"])]
    bursts = {row["kernel"]: row["alone_us"] for row in alone if row["mode"] == "burst"}
    for row in alone:
        if row["mode"] != "heated":
            continue
        clock = row["sm_mhz"] / FULL_MHZ
        watts = (row["watts"] - IDLE) / CAP / clock**EXPONENT
        burst = min(1.0, clock * row["alone_us"] / bursts[row["kernel"]])
        words = row["kernel"].split()
        if words[0] == "mm":
            flops = 2.0 * float(np.prod([float(word) for word in words[2:]]))
        else:
            flops = ATTENTION_FLOPS * (2.5 if words[1] == "backward" else 1.0)
        share = flops / (row["alone_us"] * 1e-6) / clock / PEAK
        yield row["kernel"], share, watts, watts * burst**EXPONENT + IDLE / CAP


def main() -> None:
    found = list(heated())
    for name, share, watts, burst in found:
        ratio = watts / share
        print(f"{name:20s} {share:.2f} of the peak draws {watts:.2f} of the cap: {ratio:.2f}; burst {burst:.2f}")
    products = [(watts / share, burst) for name, share, watts, burst in found if name.startswith("mm")]
    print("products, mean: tensor {:.2f}, burst {:.2f}".format(*np.mean(products, axis=0)))
    timelines = [read(path) for path in sorted(RESULTS.glob("*.npz"))]

    def residuals(p: Floats) -> Floats:
        return np.concatenate([(predicted(t, p) - t.clocks) / np.sqrt(len(t.clocks) + 1) for t in timelines])

    start = np.array([1.5, 0.8, 0.2, 20.0, 60.0, 0.0, 0.0, 0.0])
    low, high = [0.8, 0.1, 0.0, 2.0, 5.0, -0.2, -0.2, -0.2], [2.2, 1.2, 0.6, 120.0, 400.0, 0.2, 0.2, 0.2]
    p = least_squares(residuals, start, bounds=(low, high), diff_step=1e-3, max_nfev=12).x
    print(f"share of the budget: product {p[0]:.2f}, attention {ATTENTION} (given), other {p[1]:.2f}, NCCL {p[2]:.2f}")
    factors = np.exp(np.append(p[5:], -p[5:].sum())).round(3)
    print(f"averaged over {p[3]:.0f} ms, reacts in {p[4]:.0f} ms; power factors of the GPUs: {factors}")
    for line in table(timelines, p):
        print(line)


def table(timelines: list[Timeline], p: Floats) -> Iterator[str]:
    for t in timelines:
        clocks = predicted(t, p)
        off = float(np.sqrt(((clocks - t.clocks) ** 2).mean()))
        yield f"{t.run:14s} GPU {t.gpu}: clock {t.clocks.mean():.3f}, predicted {clocks.mean():.3f}, rms {off:.3f}"


if __name__ == "__main__":
    main()
