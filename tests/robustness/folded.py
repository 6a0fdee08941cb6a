"""Folded runs next to runs of all ranks: last steps and peaks of memory of every process, by framework and layout.

    python -m tests.robustness.folded [--only TEXT] [--list]

Each case is run twice. A row says by how much the processes' last two steps differ at most from those of the same ranks
in the run of all, and whether the peaks of allocated and reserved memory are equal.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phantora.run_process import PHANTORA
from phantora.trace.analysis.steps import find_steps
from phantora.trace.reader import Log, open_log

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples"


@dataclass(frozen=True)
class Case:
    name: str
    gpus: int
    fold: str
    command: str
    """Behind `phantora trace`; {samples} and {tests} are folders."""
    options: str = ""
    """Options of both runs."""
    real_ranks: str = ""
    """Further processes of the folded run."""


MEGATRON = "{samples}/megatron/pretrain_gpt.py --num-layers 2 --seq-length 512 --train-iters 4"
MIXTRAL = " --model mixtral-8x7b --ep 2"
TENSOR = MEGATRON + " --tp 2 --sequence-parallel"
LLAMA = "{samples}/llama_fsdp2.py --layers 2 --steps 3 --warmup 1"
DEEPSPEED = "{samples}/deepspeed/decoder.py --steps 3 --stage "
SMALL = " --seq 512 --layers 2"
PROGRAM = "{tests}/integration/folded_program.py "
CASES = [
    Case("DDP", 8, "dp=8", PROGRAM + "ddp"),
    Case("HSDP (FSDP2)", 16, "replicate=4,shard=4", PROGRAM + "hsdp"),
    Case("Megatron DP", 8, "dp=8", MEGATRON),
    Case("Megatron DP, overlapped", 8, "dp=8", MEGATRON + " --overlap-grad-reduce"),
    Case("Megatron TP x DP", 8, "dp=4,tp=2", TENSOR),
    Case(
        "Megatron PP x DP x TP",
        16,
        "pp=2,dp=4,tp=2",
        MEGATRON + " --pp 2 --tp 2 --sequence-parallel --global-batch-size 16",
    ),
    Case("Megatron CP x DP", 8, "dp=4,cp=2", MEGATRON + " --cp 2"),
    Case("Megatron distributed optimizer", 8, "dp=8:uneven", MEGATRON + " --use-distributed-optimizer"),
    Case(
        "Megatron distributed optimizer, overlapped",
        16,
        "dp=16:uneven",
        MEGATRON + " --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --num-layers 6",
    ),
    Case(
        "Megatron distributed optimizer, TP x DP",
        16,
        "dp=8:uneven,tp=2",
        TENSOR + " --use-distributed-optimizer --num-layers 4",
    ),
    Case("Megatron EP", 8, "dp=4,ep=2", MEGATRON + MIXTRAL),
    Case("DeepSpeed ZeRO-1", 8, "dp=8:uneven", DEEPSPEED + "1" + SMALL),
    Case("DeepSpeed ZeRO-2", 8, "dp=8:uneven", DEEPSPEED + "2" + SMALL),
    Case("DeepSpeed ZeRO-1, six layers", 16, "dp=16:uneven", DEEPSPEED + "1 --seq 512 --layers 6"),
    Case("DeepSpeed ZeRO-3", 8, "dp=8", DEEPSPEED + "3" + SMALL),
    Case("FSDP2, a straggler", 16, "dp=16", LLAMA, "--straggler rank=11:1.5", "11"),
    Case("FSDP2, a slow NIC of a host", 16, "dp=16", LLAMA, "--degrade h1.nic3>*=0.05"),
    Case("Megatron TP x DP, a straggler", 16, "dp=8,tp=2", TENSOR, "--straggler rank=11:1.5", "11"),
    Case("Megatron TP x DP, a slow NIC", 16, "dp=8,tp=2", TENSOR, "--degrade h1.nic3>*=0.05"),
    Case("Megatron CP x DP, two hosts", 16, "dp=8,cp=2", MEGATRON + " --cp 2"),
    Case("Megatron EP, two hosts", 16, "dp=8,ep=2", MEGATRON + MIXTRAL),
    Case("DeepSpeed ZeRO-3, two hosts", 16, "dp=16", DEEPSPEED + "3" + SMALL),
    Case(
        "Megatron PP x DP, interleaved",
        16,
        "pp=2,dp=8",
        MEGATRON + " --num-layers 4 --pp 2 --vpp 2 --global-batch-size 32",
    ),
    Case("FSDP2, eight hosts", 64, "dp=64", LLAMA),
    Case(
        "Megatron PP x DP x TP, eight hosts",
        64,
        "pp=2,dp=8,tp=4",
        MEGATRON + " --pp 2 --tp 4 --sequence-parallel --global-batch-size 32",
    ),
    Case(
        "Megatron PP x DP x TP, full sequences",
        64,
        "pp=2,dp=8,tp=4",
        MEGATRON + " --pp 2 --tp 4 --sequence-parallel --global-batch-size 64 --seq-length 4096",
    ),
    Case(
        "Megatron PP x DP, full sequences",
        32,
        "pp=4,dp=8",
        MEGATRON + " --num-layers 4 --pp 4 --global-batch-size 64 --seq-length 4096",
    ),
    Case(
        "Megatron PP x DP, full sequences, two stages",
        32,
        "pp=2,dp=16",
        MEGATRON + " --num-layers 4 --pp 2 --global-batch-size 64 --seq-length 4096",
    ),
    Case(
        "Megatron PP x DP, interleaved, full sequences",
        16,
        "pp=2,dp=8",
        MEGATRON + " --num-layers 4 --pp 2 --vpp 2 --global-batch-size 32 --seq-length 4096",
    ),
    Case(
        "Megatron PP x DP, interleaved, four full stages",
        32,
        "pp=4,dp=8",
        MEGATRON + " --num-layers 16 --pp 4 --vpp 2 --global-batch-size 64 --seq-length 4096",
    ),
    Case("Megatron EP, uneven routing", 8, "dp=4,ep=2", MEGATRON + MIXTRAL, "--moe-routing zipf:1.0"),
]


def run(case: Case, fold: str, folder: Path) -> Log:
    """Raises SystemExit with what phantora said."""
    path = folder / f"{'few' if fold != 'off' else 'all'}.arrow"
    command = case.command.format(samples=SAMPLES, tests=ROOT / "tests").split()
    cluster = ["--cluster", f"{case.gpus // 8}x8xH100", "--fold", fold, *case.options.split()]
    if fold != "off" and case.real_ranks:
        cluster += ["--real-ranks", case.real_ranks]
    options = ["--no-recording", "--no-summary", "-o", str(path), *cluster]
    ran = subprocess.run(
        [*PHANTORA, "trace", *options, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    if ran.returncode:
        said = re.findall(r"^phantora: .*", ran.stderr, re.MULTILINE)
        raise SystemExit(said[-1] if len(said) > 1 else ran.stdout[-3000:] + ran.stderr[-3000:])
    return open_log(path)


def peaks(log: Log) -> dict[int, tuple[int, int]]:
    """Most bytes allocated and reserved, by rank."""
    found: dict[int, tuple[int, int]] = {}
    for batch in log.batches(("rank", "value", "bytes"), kinds=("memory",)):
        for rank in np.unique(batch["rank"]):
            mine = batch["rank"] == rank
            most = int(batch["value"][mine].max()), int(batch["bytes"][mine].max())
            before = found.get(int(rank), (0, 0))
            found[int(rank)] = max(before[0], most[0]), max(before[1], most[1])
    return found


def compare(case: Case) -> str:
    with tempfile.TemporaryDirectory(prefix="phantora-folded-") as folder:
        try:
            few, every = run(case, case.fold, Path(folder)), run(case, "off", Path(folder))
        except SystemExit as refused:
            return f"| {case.name} | {case.gpus} | `{case.fold}` | {refused} |"
        steps, real = find_steps(few).of_rank, find_steps(every).of_rank
        apart = max(
            abs((a.end - a.start) / (b.end - b.start) - 1)
            for rank in steps
            for a, b in zip(steps[rank][-2:], real[rank][-2:], strict=True)
        )
        here, there = peaks(few), peaks(every)
        unequal = [rank for rank in here if here[rank] != there[rank]]
        last = steps[min(steps)][-1]
        memory = "equal" if not unequal else f"unequal on ranks {unequal}"
        return (
            f"| {case.name} | {case.gpus} | `{case.fold}` | {len(steps)} | {(last.end - last.start) / 1e6:.2f} ms "
            f"| {apart:.4%} | {memory} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="the cases and their commands")
    args = parser.parse_args()
    if not args.list:
        print("| layout | GPUs | `--fold` | processes | step | steps differ at most | peaks |")
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for case in CASES:
        if args.only not in case.name:
            continue
        of_it = f"{case.name}: {case.gpus} GPUs, --fold {case.fold}: {case.command}"
        print(of_it if args.list else compare(case), flush=True)


if __name__ == "__main__":
    main()
