"""Kernels alone and mixed under the power limit of a GPU.

    python -m validation.probes.power_mix OUT [SECONDS]

Plain torch on one GPU. Lines of OUT: `first` has the us of three calls of a kernel after a pause; `alone` and `mixture`
have the us of a call of each kernel, in the second half of SECONDS (3); `smi` has the medians of the clock (MHz) and the
power (W) that nvidia-smi reported meanwhile, if it is installed.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PAUSE_S, FIRST = 1.5, 3


def kernels() -> dict[str, Callable[[], Any]]:
    """Attention of 16,384 tokens with a causal mask, products, and kernels that move memory."""
    q, k, v = (
        torch.randn(1, 16, 16384, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    rows, narrow, wide = (
        torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((16384, 1024), (1024, 3072), (16384, 3072))
    )
    head = torch.randn(1024, 32768, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.randn_like(out)

    def forward() -> Any:
        with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return {
        "attention": forward,
        "attention backward": lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True),
        "product": lambda: rows @ narrow,
        "large product": lambda: rows @ head,
        "elementwise": lambda: wide * wide,
    }


MIXTURES: dict[str, dict[str, int]] = {
    "products and memory": {"product": 4, "elementwise": 6},
    "products and much memory": {"product": 2, "elementwise": 12},
    "attention and memory": {"attention": 1, "elementwise": 20},
    "a step": {"attention": 2, "attention backward": 1, "product": 20, "elementwise": 70},
    "attention and products": {"attention": 1, "attention backward": 1, "product": 40},
}
"""Calls of each kernel in a round."""


def timed(calls: dict[str, int], known: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """us of a call of each kernel, over the second half of `seconds` of rounds."""
    rounds: list[list[tuple[str, torch.cuda.Event]]] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        marks = []
        for name, count in calls.items():
            marks.append((name, event()))
            for _ in range(count):
                known[name]()
        marks.append(("", event()))
        rounds.append(marks)
        if len(rounds) % 4 == 0:
            marks[-1][1].synchronize()
    torch.cuda.synchronize()
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for marks in rounds[len(rounds) // 2 :]:
        for (name, start), (_, end) in pairwise(marks):
            spent[name].append(start.elapsed_time(end) * 1e3 / calls[name])
    return {name: round(statistics.mean(values), 2) for name, values in spent.items()}


def event() -> torch.cuda.Event:
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made


def main() -> None:
    known, seconds = kernels(), float(sys.argv[2]) if len(sys.argv) > 2 else 3.0
    with open(sys.argv[1], "w") as out:
        out.write(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}) + "\n")
        for name, call in known.items():
            call()
            torch.cuda.synchronize()
            time.sleep(PAUSE_S)
            marks = [event()]
            for _ in range(FIRST):
                call()
                marks.append(event())
            torch.cuda.synchronize()
            us = [round(a.elapsed_time(b) * 1e3, 2) for a, b in pairwise(marks)]
            out.write(json.dumps({"kind": "first", "name": name, "us": us}) + "\n")
        for title, calls in {**{name: {name: 1} for name in known}, **MIXTURES}.items():
            time.sleep(PAUSE_S)
            watch = None
            if shutil.which("nvidia-smi"):
                words = [
                    "nvidia-smi",
                    "-i",
                    "0",
                    "--query-gpu=clocks.sm,power.draw",
                    "--format=csv,noheader,nounits",
                    "-lms",
                    "100",
                ]
                watch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            spent = timed(calls, known, seconds)
            row: dict[str, Any] = {"kind": "alone" if len(calls) == 1 else "mixture", "name": title, "us": spent}
            if watch:
                watch.terminate()
                lines = [
                    line.split(",") for line in (watch.communicate()[0] or "").splitlines() if line.count(",") == 1
                ]
                values = [(float(a), float(b)) for a, b in lines[len(lines) // 2 :] if a.strip().isdigit()]
                if values:
                    row["smi"] = {
                        "mhz": statistics.median(v[0] for v in values),
                        "watts": statistics.median(v[1] for v in values),
                    }
            out.write(json.dumps(row) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
