"""Resources of a simulation of many GPUs: a step of a decoder by FSDP2, folded and not. More than 1,024 GPUs are copies
of 512 (HSDP): a matrix of 4,096 rows has no part for each of more than 4,096.

    python -m benchmarks.scale --layers 32 --gpus 8 64 512 1024 8192 --unfolded 8 16

Each line: GPUs, processes, CPU and wall seconds, memory (proportional set sizes), the step that the script printed.
With `--replay` the run is recorded and replayed as well: CPU seconds of the replay, and of each recorded process (what
the command takes for a log of one GPU taken off).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

from benchmarks.resources import measure, phantora_trace
from phantora.run_process import PHANTORA

SHARDED, COPY = 1024, 512  # GPUs over which a model is sharded at most; then of each copy
SCRIPT = str(Path(__file__).resolve().parents[1] / "samples" / "llama_fsdp2.py")


def replayed(folder: str) -> float:
    """CPU seconds of a replay of the run in `folder`."""
    command = [*PHANTORA, "replay", "run.arrow", "-q", "-o", "again.arrow"]
    return measure(command, folder).cpu


def run(gpus: int, fold: str, arguments: list[str], base: float | None = None) -> str:
    """A line. `base`: the run is replayed too, and this is what a replay of one GPU takes."""
    copies = gpus // COPY if gpus > SHARDED else 1
    arguments = [*arguments, f"--replicate={copies}"]
    hosts, per_host = (gpus // 8, 8) if gpus >= 8 else (1, gpus)
    with tempfile.TemporaryDirectory(prefix="phantora-scale-") as folder:
        recorded = [] if base is not None else ["--no-recording"]
        command = phantora_trace("--cluster", f"{hosts}x{per_host}xH100", "--fold", fold, *recorded, SCRIPT)
        cost = measure([*command, *arguments], folder)
        log = Path(folder, "run.arrow").stat().st_size
        again = replayed(folder) if base is not None else None
    found = json.loads(re.findall(r"\{.*\}", cost.output)[-1])
    processes = re.search(r"folded: (\d+) of", cost.output)
    count = int(processes.group(1)) if processes else gpus
    reported = ""
    if again is not None and base is not None:
        reported = f"  replay {again:.1f} s CPU, {(again - base) / count:.2f} a process"
    return (
        f"{gpus:7,} GPUs {count:5,} processes {cost}  log {log / 2**20:7.1f} MiB  "
        f"step {found['median_step_s'] * 1e3:9.2f} ms  {found['tokens_per_s']:14,.0f} tokens/s  MFU {found['mfu']:.1%}"
        f"{reported}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="*", default=[8, 64, 512, 1024, 8192], help="folded runs")
    parser.add_argument("--unfolded", type=int, nargs="*", default=[8], help="runs of all ranks")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--replay", action="store_true", help="replay each run as well")
    args = parser.parse_args()
    arguments = [f"--layers={args.layers}", f"--steps={args.steps}", f"--warmup={args.warmup}"]
    base = None
    if args.replay:
        with tempfile.TemporaryDirectory(prefix="phantora-scale-") as folder:
            one = phantora_trace("--cluster", "1x1xH100", SCRIPT, "--layers=1", "--steps=1", "--warmup=0")
            measure(one, folder)
            base = replayed(folder)
        print(f"a replay of one GPU and one layer: {base:.1f} s CPU", flush=True)
    for gpus in args.unfolded:
        print("all   ", run(gpus, "off", arguments, base), flush=True)
    for gpus in args.gpus:
        fold = f"dp={gpus}" if gpus <= SHARDED else f"replicate={gpus // COPY},shard={COPY}"
        print("folded", run(gpus, fold, arguments, base), flush=True)


if __name__ == "__main__":
    main()
