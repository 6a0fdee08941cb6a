"""CPU time and memory of a simulated run, beside the same script under stubs that do nothing (`--null`).

python benchmarks/overhead.py [--ranks 4] [--layers 32] [--steps 10] [--repeat 3]

Prints one line per run and the ratio of the best of each. CPU time is user and system of all
processes; memory is the largest sum of proportional set sizes seen (shared pages counted once).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "llama_fsdp2.py"


def descendants(pid: int) -> list[int]:
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += descendants(int(child))
    except OSError:
        pass
    return found


def proportional_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def run(arguments: list[str], directory: str) -> tuple[float, float, int]:
    """(CPU seconds, wall seconds, peak bytes) of one `phantora trace`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "phantora", "trace", "--no-summary", *arguments],
        cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    peak = 0
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(1.0):
            peak = max(peak, sum(proportional_bytes(pid) for pid in descendants(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, errors = process.communicate()
    stop.set()
    watcher.join()
    if process.returncode:
        sys.exit(errors.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - begin, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    script = [str(SAMPLE), "--layers", str(args.layers), "--steps", str(args.steps), "--warmup", "0"]
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(args.repeat):
            for name, options in (("null", ["--null"]), ("simulated", [])):
                cpu, wall, peak = run([*options, "--cluster", f"1x{args.ranks}xH100", *script], directory)
                best[name] = min(best.get(name, cpu), cpu)
                print(f"{name:<10} {cpu:7.1f} s CPU {wall:7.1f} s wall {peak / 2**30:6.2f} GiB", flush=True)
    print(f"simulated / null: {best['simulated'] / best['null']:.2f}")


if __name__ == "__main__":
    main()
