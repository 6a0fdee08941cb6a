"""Runs a training script and notes, after each optimizer step, its CPU time and what the simulated host was charged.

    phantora trace [--null] host_script.py OUT.jsonl CALLS train.py ARGS...

Under `--null` the CPU time counts: all of the script's own work, without CUDA. Under simulation the charges count. Only
the first rank writes. Used by :mod:`phantora.profile.script`.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def charged(calls: int) -> list[int]:
    """Number of charges so far of each of the host's `calls` costs."""
    charges = ctypes.CDLL(None).ph_charges
    charges.restype = ctypes.POINTER(ctypes.c_uint64)
    return list(charges()[:calls])


def main() -> None:
    """Runs the script named in sys.argv as Python would."""
    out, calls, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    from torch.optim.optimizer import register_optimizer_step_post_hook

    marks: list[tuple[int, list[int]]] = []

    def mark(*_: Any) -> None:
        marks.append((time.process_time_ns(), charged(calls)))

    register_optimizer_step_post_hook(mark)
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        if os.environ.get("RANK", "0") == "0":
            with open(out, "w", encoding="utf-8") as file:
                for cpu_ns, charges in marks:
                    print(json.dumps({"cpu_ns": cpu_ns, "charges": charges}), file=file)


if __name__ == "__main__":
    main()
