"""Runs training steps of many kinds of model, with batches that keep a GPU busy. A JSON line for each.

    python -m validation.workloads.run OUT.jsonl [NAME ...]     # on a GPU
    phantora trace --cluster 1x1xH100 -m validation.workloads.run /dev/null NAME

On a real GPU a row also has the kernels of one step: how many of each name, and their ns. Needs transformers, torchvision,
timm and diffusers; nothing is downloaded, weights are random.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch

from validation.charges import SIMULATED
from validation.gpu_work import by_name
from validation.workloads import generative, other, text, vision
from validation.workloads.registry import CASES, VARYING
from validation.workloads.timing import row_of, timed_afresh

WARM, ITERS = (3, 3) if SIMULATED else (5, 10)
MODULES = (text, vision, generative, other)  # they register their cases


def run(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    case = CASES[name]
    torch.set_default_device("cuda" if case.default_device else None)
    step = case.build()
    warm, iters = (5, 10) if VARYING in name else (WARM, ITERS)
    row = row_of(f"varied_{name}", timed_afresh(step, warm, iters), name="varied")
    return row if SIMULATED else {**row, "kernels": by_name(step)}


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name in sys.argv[2:] or CASES:
        begin = time.monotonic()
        try:
            row = run(name)
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            if SIMULATED:
                raise
            row = {"run_id": f"varied_{name}", "error": f"{type(error).__name__}: {error}"[:300]}
        with open(sys.argv[1], "a") as file:
            print(json.dumps(row), file=file)
        if SIMULATED:
            print(json.dumps(row))
        else:
            print(f"{name}: {row.get('median_iter_s', 0) * 1e3:.2f} ms {row.get('error', '')} ({time.monotonic() - begin:.1f} s)", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
