"""Published steps of Megatron, simulated: python -m validation.published.megatron_steps FILE...

Each FILE contains published runs as JSON lines. A run that ``samples/megatron/pretrain_gpt.py`` can express is
simulated with all its layers; every other one is left out with its reason. Nothing is fitted to a row.

Where Transformer Engine is not installed, runs in BF16 take Megatron-Core's local layers. These launch more kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import statistics
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "megatron" / "pretrain_gpt.py"
NAME = re.compile(r"llama3_(?P<size>70b|405b)_(?P<rest>.*)")
FIELD = re.compile(r"(tp|pp|dp|cp|l|mbc|seq)(\d+)")
STEP = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+)")
SEQUENCE = 4096
LIMIT_S = 900


@dataclass(frozen=True)
class Run:
    """A published run that is simulated."""

    name: str
    gpu: str
    gpus: int
    published_s: float
    fold: str
    """Of `phantora trace`: pipelines run whole, since their stages hold different parts of the optimizer."""
    arguments: tuple[str, ...]


def expressed(row: Mapping[str, Any]) -> Run | str:
    """The run of a row, or why it is left out."""
    if "Precision" in row:
        return "a row of Megatron-Bridge: see bridge.py"
    if not str(row.get("framework", "")).startswith("Megatron-Core"):
        return "another framework or benchmark: see training.toml and nccl.json"
    found = NAME.fullmatch(str(row["model"]))
    if found is None:
        return "a model that the sample does not have (multi-head latent attention)"
    n = {key: int(value) for key, value in FIELD.findall(found["rest"])}
    words = [
        "--model", f"llama3-{found['size']}", "--num-layers", str(n["l"]), "--seq-length", str(n.get("seq", SEQUENCE)),
        "--tp", str(n["tp"]), "--pp", str(n["pp"]), "--cp", str(n.get("cp", 1)),
        "--global-batch-size", str(n["mbc"] * n["dp"]), "--use-distributed-optimizer", "--overlap-grad-reduce",
        "--overlap-param-gather", "--train-iters", "3",
    ]  # fmt: skip
    if n["tp"] > 1:
        words.append("--sequence-parallel")
    if importlib.util.find_spec("transformer_engine"):
        words.append("--te")
    elif n.get("cp", 1) > 1:
        return "context parallelism needs Transformer Engine's attention"
    fold = ",".join(f"{axis}={n[axis]}" for axis in ("dp", "tp") if n[axis] > 1) if n["pp"] == 1 else "off"
    return Run(str(row["model"]), str(row["gpu"]), int(row["gpus"]), float(row["step_s"]), fold, tuple(words))


def simulated(run: Run) -> float | None:
    """Seconds of the last step; None where the run failed."""
    cluster = f"{max(1, run.gpus // 8)}x{min(8, run.gpus)}x{run.gpu}"
    with tempfile.TemporaryDirectory() as folder:
        command = (
            *PHANTORA, "trace", "--cluster", cluster, "--fold", run.fold,
            "--no-summary", "-o", f"{folder}/run.arrow", str(SAMPLE), *run.arguments,
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    steps = STEP.findall(done.stdout + done.stderr)
    return float(steps[-1]) / 1e3 if done.returncode == 0 and steps else None


def main() -> None:
    """Prints a line for each run, the mean error by GPU, and why rows are left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="runs whose names contain it")
    args = parser.parse_args()
    reasons: Counter[str] = Counter()
    errors: defaultdict[str, list[float]] = defaultdict(list)
    print(f"{'run':<52}{'GPU':>6}{'published':>12}{'simulated':>12}{'error':>8}")
    for row in (json.loads(line) for file in args.files for line in file.read_text().splitlines()):
        run = expressed(row)
        if isinstance(run, str):
            reasons[run] += 1
            continue
        if args.only not in run.name:
            continue
        seconds = simulated(run)
        if seconds is None:
            reasons[f"the simulation failed: {run.name}"] += 1
            continue
        errors[run.gpu].append(seconds / run.published_s - 1.0)
        print(
            f"{run.name:<52}{run.gpu:>6}{run.published_s:>10.4f} s{seconds:>10.4f} s{errors[run.gpu][-1]:>8.1%}",
            flush=True,
        )
    for gpu, found in errors.items():
        print(f"{gpu}: {len(found)} runs, mean error {statistics.fmean(map(abs, found)):.1%}")
    for reason, count in reasons.most_common():
        print(f"left out, {count}: {reason}")


if __name__ == "__main__":
    main()
