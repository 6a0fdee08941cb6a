"""Replays of one recorded run next to fresh simulations of it, on ten clusters.

Prints the median step (ms, of the script's own clock in the fresh run, of the log's optimizer steps in
both), their difference, and the seconds that each took.

python -m benchmarks.replay [--layers N] [--steps N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phantora.run_process import PHANTORA
from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "llama_fsdp2.py"
RECORDED = "1x4xH100"
WIRED = """hosts = 2
gpus_per_host = 2
gpu = "H100"
[inter]
bandwidth = {bandwidth}
"""
CLUSTERS = (
    "1x4xH100",
    "1x4xH200",
    "1x4xA100-80GB",
    "1x4xA100-40GB",
    "1x4xB200",
    "1x4xH100-PCIe",
    "2x2xH100",
    "4x1xH100",
)
NETWORKS = {"slow-network.toml": 12.5e9, "fast-network.toml": 100e9}


def phantora(directory: Path, *arguments: str) -> float:
    """Wall seconds."""
    began = time.monotonic()
    done = subprocess.run([*PHANTORA, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return time.monotonic() - began


def step_ms(log: Path) -> float:
    """Median step, without the first."""
    steps = analyze(open_log(log), details=False).steps[1:]
    return statistics.median(step.times.time for step in steps) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    script = [str(SAMPLE), "--layers", str(args.layers), "--steps", str(args.steps), "--warmup", "0"]
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        for name, bandwidth in NETWORKS.items():
            (directory / name).write_text(WIRED.format(bandwidth=bandwidth))
        phantora(directory, "trace", "-q", "-o", "run.arrow", "--cluster", RECORDED, *script)
        print(f"recorded on {RECORDED}")
        print("cluster               fresh ms replay ms  differs  fresh s replay s", flush=True)
        for cluster in (*CLUSTERS, *NETWORKS):
            fresh = phantora(directory, "trace", "-q", "-o", "fresh.arrow", "--cluster", cluster, *script)
            again = phantora(directory, "replay", "run.arrow", "-q", "-o", "again.arrow", "--cluster", cluster)
            a, b = step_ms(directory / "fresh.arrow"), step_ms(directory / "again.arrow")
            worst = max(worst, abs(b / a - 1))
            print(f"{cluster:<20} {a:9.2f} {b:9.2f} {b / a - 1:+8.2%} {fresh:8.1f} {again:8.1f}", flush=True)
    print(f"largest difference {worst:.2%}")


if __name__ == "__main__":
    main()
