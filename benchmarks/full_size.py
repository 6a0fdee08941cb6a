"""Frameworks with whole models on many GPUs: what the run prints, and what it costs this machine (resources.py).

python -m benchmarks.full_size [NAME ...]        without names: all, one after the other
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.resources import Cost, measure, phantora_trace

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
MEGATRON = (str(SAMPLES / "megatron/pretrain_gpt.py"), "--model")
DEEPSPEED = (str(SAMPLES / "deepspeed/decoder.py"), "--model")
TITAN = ("--local-ranks-filter", "0", "-m", "torchtitan.train", "--job.config_file")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
DISTRIBUTED = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")


@dataclass(frozen=True)
class FullSize:
    cluster: str
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    """Patterns of the framework's own lines; the last of each is shown."""


def megatron(cluster: str, model: str, *arguments: str) -> FullSize:
    preload = ("--preload", "megatron.core.models.gpt.gpt_model")
    return FullSize(cluster, (*preload, *MEGATRON, model, *arguments), ("elapsed time per iteration", "max allocated"))


def titan(cluster: str, toml: str, steps: int, *options: str, more: tuple[str, ...] = ()) -> FullSize:
    sample = str(SAMPLES / "torchtitan" / toml)
    arguments = (*options, *TITAN, sample, "--training.steps", str(steps), *more)
    return FullSize(cluster, arguments, (r"step: +\d+ +loss",))


def deepspeed(cluster: str, model: str, *arguments: str) -> FullSize:
    return FullSize(cluster, (*DEEPSPEED, model, *arguments), ("_per_s",))


RUNS = {
    "llama2-7b-tp4": megatron("1x4xH100", "llama2-7b", "--tp", "4", "--sequence-parallel", "--train-iters", "5"),
    "llama2-7b-dp2tp2": megatron(
        "1x4xH100", "llama2-7b", "--tp", "2", "--sequence-parallel", *DISTRIBUTED, "--train-iters", "5"
    ),
    "mixtral-ep8": megatron(
        "1x8xH200", "mixtral-8x7b", "--ep", "8", *DISTRIBUTED, "--recompute-granularity", "full", "--train-iters", "3"
    ),
    "llama2-70b-64": megatron(
        "8x8xA100-80GB",
        "llama2-70b",
        "--tp",
        "8",
        "--pp",
        "8",
        "--sequence-parallel",
        "--global-batch-size",
        "32",
        "--train-iters",
        "3",
    ),
    "llama3-8b-8": titan("1x8xH100", "llama3_8b.toml", 3),
    "llama3-8b-64": titan("8x8xH100", "llama3_8b.toml", 3),
    "llama3-405b-8192": titan(
        "dgx-h100:1024",
        "llama3_8b.toml",
        1,
        "--fold",
        "pp=16,dp=64,tp=8",
        more=(
            *("--model.flavor", "405B", "--training.local_batch_size", "16", "--activation_checkpoint.mode", "full"),
            *("--parallelism.pipeline_parallel_degree", "16", "--parallelism.tensor_parallel_degree", "8"),
            *("--parallelism.data_parallel_shard_degree", "64", "--parallelism.pipeline_parallel_schedule", "1F1B"),
        ),
    ),
    "qwen3-30b-a3b-ep8": titan("1x8xH100", "qwen3_30b_a3b.toml", 3),
    "zero3-llama3-8b-16": deepspeed(
        "2x8xH100",
        "llama3-8b",
        "--config",
        str(SAMPLES / "deepspeed/zero3.json"),
        "--checkpointing",
        "--seq",
        "4096",
        "--steps",
        "2",
    ),
    "published-llama3-8b-8": titan(str(SAMPLES / "torchtitan/published.toml"), "llama3_8b.toml", 5, "--nnodes", "1"),
    "published-llama3-8b-64": titan(str(SAMPLES / "torchtitan/published.toml"), "llama3_8b.toml", 4, "--nnodes", "8"),
    **{
        f"qwen3-8b-seq{sequence}": deepspeed(
            "1x4xH100",
            "qwen3-8b",
            "--config",
            str(SAMPLES / "deepspeed/qwen3_study.json"),
            "--checkpointing",
            "--seq",
            str(sequence),
            "--steps",
            "1",
        )
        for sequence in (512, 1024, 2048, 4096)
    },
}


def paths() -> str:
    """``PYTHONPATH`` of the runs of TorchTitan."""
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(SAMPLES / "torchtitan"))))


def make_assets(directory: str) -> None:
    """Makes what the configurations of TorchTitan read, before the first run in `directory`."""
    assets = Path(directory) / "assets"
    subprocess.run([sys.executable, str(SAMPLES / "torchtitan/make_assets.py"), str(assets)], check=True)


def cost_of(name: str, directory: str, log: Path) -> Cost:
    """Runs it in a folder that has the assets."""
    command = phantora_trace("-o", str(log), "--cluster", RUNS[name].cluster, *RUNS[name].arguments)
    return measure(command, directory, {"PYTHONPATH": paths(), **OFFLINE})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--keep", type=Path, help="a folder for the logs, NAME.arrow")
    args = parser.parse_args()
    unknown = set(args.names) - set(RUNS)
    if unknown:
        parser.error(f"there is no run {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    with tempfile.TemporaryDirectory() as directory:
        make_assets(directory)
        for name in args.names or RUNS:
            run = RUNS[name]
            cost = cost_of(name, directory, (args.keep.absolute() if args.keep else Path(directory)) / f"{name}.arrow")
            print(f"{name:<24} {cost}", flush=True)
            output = re.sub(r"\x1b\[[\d;]*m", "", cost.output)
            for pattern in run.lines:
                found = [line for line in output.splitlines() if re.search(pattern, line)]
                print(f"    {found[-1].strip()}", flush=True)


if __name__ == "__main__":
    main()
