"""Published steps of Megatron-Bridge, simulated: python -m validation.published.bridge FILE... [--only TEXT]

Each FILE contains rows of its performance summary as JSON lines. Every row is printed: tokens per second and GPU as
published and as simulated, or the reason why it is left out. validation/workloads/bridge.py expresses a row.
Settings that the summary does not give follow its recipes (github.com/NVIDIA-NeMo/Megatron-Bridge,
scripts/performance). Nothing is fitted to a row.

A step is affine in its micro-batches, and without a pipeline in its layers. Two values of each give the step:
pipelines have all their layers. A row is folded to one rank of each pipeline stage. The GPUs have 2000 GiB: the
layers keep weights in both layouts, so a run says nothing of memory.

bridge.jsonl has the seconds of the steps that are simulated already. Delete a line to simulate it again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+)")
JOURNAL = Path(__file__).with_name("bridge.jsonl")
LIMIT_S = 1800
PRECISIONS = {"BF16": "bf16", "FP8": "fp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}
MODELS = {
    "LLAMA3_8B": ("llama3-8b", 32), "LLAMA3_70B": ("llama3-70b", 80), "LLAMA3.1_405B": ("llama3-405b", 126),
    "Qwen3_30B_a3B": ("qwen3-30b-a3b", 48), "Qwen3_235B_a22B": ("qwen3-235b-a22b", 94),
}  # fmt: skip
"""Names of the workload and layers."""
ALL_TO_ALL = {
    ("Qwen3_30B_a3B", "H100", 8), ("Qwen3_235B_a22B", "H100", 32), ("Qwen3_235B_a22B", "B200", 8),
    ("Qwen3_235B_a22B", "B300", 8),
}  # fmt: skip
"""Models, GPUs and experts' ranks whose recipes exchange tokens by NCCL; others use HybridEP."""
ONE_KERNEL = [26, 6]
"""The first container whose recipes quantise the rows of all experts in one kernel, in MXFP8."""
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_HIGH_PRIORITY": "1"}
"""Of all recipes."""
NOT_HERE = {
    "DeepSeekV3": "multi-head latent attention", "Kimi_K2": "multi-head latent attention",
    "DeepSeekV4": "sparse attention", "Nemotron": "Mamba layers", "GPT OSS": "attention sinks and biases of experts",
}  # fmt: skip
CLUSTERS = {
    "GB200": ("gb200-nvl72", 4), "GB300": ("gb300-nvl72", 4), "B200": ("dgx-b200", 8), "B300": ("dgx-b300", 8),
    "H100": ("dgx-h100", 8),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A row that is simulated."""

    gpu: str
    gpus: int
    options: tuple[str, ...]
    """Of `phantora trace`."""
    words: tuple[str, ...]
    """Of the workload, without layers and micro-batches."""
    layers: int
    points: tuple[int, ...]
    """Numbers of layers that are simulated."""
    micro: int
    """Micro-batches of a step."""
    rounds: tuple[int, ...]
    """Numbers of micro-batches that are simulated."""
    sequences: int
    """Of all replicas' micro-batches of one number."""
    tokens: int
    """Of a GPU in a step."""

    def command(self, layers: int, micro: int) -> tuple[str, ...]:
        changed = ("--num-layers", str(layers), "--global-batch-size", str(micro * self.sequences))
        return (*self.options, "-m", "validation.workloads.bridge", *self.words, *changed)


def expressed(row: Mapping[str, Any]) -> Run | str:
    """The run of a row, or why it is left out."""
    if row["section"] != "Pre-Training Performance":
        return "fine-tuning: the workload pretrains"
    missing = next((why for name, why in NOT_HERE.items() if row["model"].startswith(name)), None)
    if missing:
        return f"{missing}: the workload does not have it"
    if row["model"] not in MODELS:
        return f"unknown model: {row['model']}"
    if str(row.get("FSDP") or "0") not in ("0", "n/a"):
        return "Megatron-FSDP with activations in host memory: the workload does not have it"
    n = {key: 1 if row[key] == "n/a" else int(row[key]) for key in ("TP", "PP", "CP", "VP", "GBS", "MBS")}
    gpus, sequence = int(row["#-GPUs"]), int(row["Sequence Length"])
    model, layers = MODELS[row["model"]]
    gpu = str(row["System"]).removeprefix("DGX-")
    cluster, host = CLUSTERS[gpu]
    replicas = gpus // (n["TP"] * n["PP"] * n["CP"])
    micro = n["GBS"] // (n["MBS"] * replicas)
    words = [
        "--model", model, "--precision", PRECISIONS[row["Precision"]], "--seq-length", str(sequence),
        "--micro-batch-size", str(n["MBS"]), "--tp", str(n["TP"]), "--pp", str(n["PP"]), "--cp", str(n["CP"]),
        "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--train-iters", "2",
    ]  # fmt: skip
    if n["TP"] > 1:
        words.append("--sequence-parallel")
    if n["VP"] > 1:
        words += ["--vpp", str(n["VP"]), "--overlap-p2p"]
    if row["EP"] != "n/a":
        words += ["--ep", row["EP"], "--etp", "1", *_dispatcher(row["model"], gpu, int(row["EP"]))]
        if row["Precision"] == "MXFP8" and _version(row) >= ONE_KERNEL:
            words.append("--single-weight")
    axes = [f"pp={n['PP']}"] if n["PP"] > 1 else []
    axes += [f"{axis}={size}:first" for axis, size in (("dp", replicas), ("cp", n["CP"]), ("tp", n["TP"])) if size > 1]
    rounds = (micro,) if micro <= 2 * n["PP"] else (n["PP"], 2 * n["PP"]) if n["PP"] > 1 else (1, 2)
    options = ["--cluster", f"{cluster}:{max(1, gpus // host)}", "--fold", ",".join(axes), "--gpu-memory", "2000"]
    points = (layers,) if n["PP"] > 1 else (2, 4)
    tokens = n["GBS"] * sequence // gpus
    sequences = n["MBS"] * replicas
    return Run(gpu, gpus, tuple(options), tuple(words), layers, points, micro, rounds, sequences, tokens)


def _version(row: Mapping[str, Any]) -> list[int]:
    return [int(part) for part in row["container"].split()[0].split(".")]


def _dispatcher(model: str, gpu: str, ranks: int) -> list[str]:
    if (model, gpu, ranks) in ALL_TO_ALL:
        return ["--moe-token-dispatcher-type", "alltoall"]
    return ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "hybridep"]


class Journal:
    """Seconds by command: nothing is simulated twice."""

    def __init__(self, file: Path, closed: bool = False) -> None:
        self.file, self.closed = file, closed
        lines = file.read_text().splitlines() if file.exists() else []
        self.known = {entry["command"]: entry["seconds"] for entry in map(json.loads, lines)}

    def seconds(self, command: tuple[str, ...]) -> float:
        """Raises RuntimeError with the last line of a run that fails."""
        key = shlex.join(command)
        if key not in self.known:
            if self.closed:
                raise RuntimeError("not simulated yet")
            self.known[key] = _simulated(command)
            with self.file.open("a") as out:
                out.write(json.dumps({"command": key, "seconds": self.known[key]}) + "\n")
        return float(self.known[key])


def _simulated(command: tuple[str, ...]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = [*PHANTORA, "trace", "--no-summary", "-o", f"{folder}/run.arrow", *command]
        environment = {**os.environ, **ENVIRONMENT}
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT, env=environment
        )
    steps = STEP.findall(done.stdout + done.stderr)
    if done.returncode or not steps:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError(next((line for line in lines if line.startswith("FAILED")), lines[-1])[:150])
    return float(steps[-1]) / 1e3


def _line(places: tuple[int, ...], values: list[float], at: int) -> float:
    """What lies at `at` on the line through the points; of one point, its value."""
    if len(values) == 1:
        return values[0]
    return values[0] + (at - places[0]) * (values[-1] - values[0]) / (places[-1] - places[0])


def step_seconds(run: Run, journal: Journal) -> float:
    of_layers = []
    for layers in run.points:
        times = [journal.seconds(run.command(layers, micro)) for micro in run.rounds]
        of_layers.append(_line(run.rounds, times, run.micro))
    return _line(run.points, of_layers, run.layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="rows whose label matches this pattern")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="simulated commands, read and extended")
    parser.add_argument("--known", action="store_true", help="simulate nothing: only what the journal has")
    args = parser.parse_args()
    journal = Journal(args.journal, closed=args.known)
    errors: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    print(f"{'row':<64}{'published':>10}{'simulated':>10}{'error':>8}   tokens/s/GPU")
    for row in (json.loads(line) for file in args.files for line in file.read_text().splitlines()):
        axes = " ".join(f"{key}{row[key]}" for key in ("TP", "PP", "CP", "VP", "EP") if row[key] not in ("1", "n/a"))
        version = row["container"].split()[0]
        label = (
            f"{row['model']} {row['#-GPUs']}x{row['System'].removeprefix('DGX-')} {row['Precision']} {axes} {version}"
        )
        if not re.search(args.only, label):
            continue
        run, published = expressed(row), float(row["Tokens / sec / GPU"])
        try:
            if isinstance(run, str):
                raise RuntimeError(run)
            rate = run.tokens / step_seconds(run, journal)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            reason = str(error) if isinstance(error, RuntimeError) else f"more than {LIMIT_S} s"
            reasons[reason] += 1
            print(f"{label:<64}{published:>10,.0f}   left out: {reason}", flush=True)
            continue
        errors[run.gpu, row["Precision"]].append(rate / published - 1.0)
        print(f"{label:<64}{published:>10,.0f}{rate:>10,.0f}{rate / published - 1.0:>+8.1%}", flush=True)
    print("\n| GPU | precision | rows | mean error | mean | largest |\n| --- | --- | --- | --- | --- | --- |")
    for (gpu, precision), found in sorted(errors.items()):
        sizes = list(map(abs, found))
        print(f"| {gpu} | {precision} | {len(found)} | {statistics.fmean(sizes):.1%} | {statistics.fmean(found):+.1%} "
              f"| {max(sizes):.1%} |")  # fmt: skip
    for reason, count in reasons.most_common():
        print(f"left out, {count}: {reason}")


if __name__ == "__main__":
    main()
