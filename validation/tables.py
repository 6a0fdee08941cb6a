"""Writes the tables of ``validation/tables``: what the comparisons print that need no GPU and no other files.

python -m validation.tables [NAME ...]
"""

from __future__ import annotations

import subprocess
import sys

from validation.data import HERE

TABLES = {
    "real-runs": "validation.compare.runs",
    "error-bars": "validation.compare.bars validation/compare/bars.jsonl",
    "spread": "validation.compare.spread",
    "jitter": "validation.fits.jitter",
    "layout-order": "validation.compare.sweep_order",
    "kernels": "validation.compare.kernels",
    "collectives": "validation.compare.collectives",
    "leave-out-h200": "validation.compare.leave_out --gpu H200 --other H100",
    "published-kernels": "validation.published.kernels",
    "published-collectives": "validation.published.collectives",
    "published-training": "validation.published.training table",
    "published-mlperf": "validation.published.mlperf all --known",
    "published-mlperf-memory": "validation.published.mlperf_memory all --known",
    "transformer-engine": "validation.fits.transformer_engine",
    "sparse": "validation.compare.sparse",
    "triton": "validation.compare.triton",
    "calibration": "validation.calibration.compare",
    "public-programs": "validation.compare.public_programs",
    "script-threads": "validation.compare.script_threads",
}


def main() -> None:
    folder = HERE / "tables"
    folder.mkdir(exist_ok=True)
    for name in sys.argv[1:] or TABLES:
        command = f"python -m {TABLES[name]}"
        done = subprocess.run(
            [sys.executable, *command.split()[1:]], cwd=HERE.parent, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1) or not done.stdout:
            sys.exit(f"{command}: {done.stderr[-1000:]}")
        lines = "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())
        (folder / f"{name}.md").write_text(f"`{command}`\n\n```\n{lines}\n```\n")
        print(f"{name}: {len(lines)} bytes")


if __name__ == "__main__":
    main()
