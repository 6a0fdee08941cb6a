"""What is simulated of a result of MLPerf Training: the run of validation/workloads/bridge.py of a row.

Settings that a row does not give follow the configurations of NVIDIA's submissions of its round in
github.com/mlcommons/training_results_v4.0 to v5.1 and v6.0: `config_common.sh` of each benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from validation.published.bridge_rows import HYBRID, Run

MODELS = {
    "llama31_8b": ("llama3-8b", 32, 8192),
    "llama31_405b": ("llama3-405b", 126, 8192),
    "llama2_70b_lora": ("llama2-70b", 80, 8192),
    "gpt3": ("gpt3-175b", 96, 2048),
    "deepseekv3_671b": ("deepseek-v3", 61, 4096),
    "gpt_oss_20b": ("gpt-oss-20b", 24, 8192),
}
"""Name of the workload, layers and tokens of a sequence, by benchmark."""
NOT_HERE = {"bert": "BERT: its kernels for packed sequences are those of a package that is not public"}
DIFFUSION = "validation.workloads.diffusion"
FLUX_BLOCKS = 57
GPUS = {
    "A30": "A30",
    "L40S": "L40S",
    "GB200": "GB200",
    "GB300": "GB300",
    "B200": "B200",
    "B300": "B300",
    "H200-NVL": "H200-NVL",
    "H200": "H200",
    "H100": "H100",
}
"""First match of a row's name."""
CLUSTERS = {
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "B200": "dgx-b200",
    "B300": "dgx-b300",
    "H200": "dgx-h200",
    "H100": "dgx-h100",
}
SEGMENTS, SEGMENT = "validation/published/{}_256.toml", 16
"""Clusters with 16 hosts of each rack, as submissions on more than one rack ask the scheduler for (`SEGMENT=16`)."""
WHOLE = 32
"""Layers: models of as many run whole. A few layers do not tell how a step of 50 ms overlaps with communication."""
CHUNKS = 16
"""Of the pipeline of DeepSeek-V3's layout."""


def named(row: Mapping[str, Any], number: int) -> str:
    """Row `number` in a line of a table."""
    axes = " ".join(f"{name}{size}" for name, size in row["parallelism"].items() if size not in (None, 1))
    return f"{number} {row['benchmark']} {row['round']} {row['gpus']}x{gpu_of(row)} {axes} {row['org']}"


def gpu_of(row: Mapping[str, Any]) -> str:
    """A GPU's name as `phantora` knows it."""
    return next(name for part, name in GPUS.items() if part in row["gpu"])


def precision_of(row: Mapping[str, Any]) -> str:
    """Of the products; fp8 is what most submissions of a benchmark use where the row does not say."""
    given = str(row.get("precision"))
    known = {"fp8 delayed": "delayed", "fp8 tensorwise": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
    found = next((name for text, name in known.items() if given.startswith(text)), "")
    return found or ("delayed" if row["benchmark"] in ("llama2_70b_lora", "gpt3") else "fp8")


def expressed(row: Mapping[str, Any]) -> Run | str:
    """The run of a row, or why it is left out."""
    if row["benchmark"] in DIFFUSERS:
        return DIFFUSERS[row["benchmark"]](row)
    if row["benchmark"] not in MODELS:
        return NOT_HERE.get(row["benchmark"], f"unknown benchmark: {row['benchmark']}")
    model, layers, sequence = MODELS[row["benchmark"]]
    gpu, gpus, env = gpu_of(row), int(row["gpus"]), row.get("config_env") or {}
    n = {name: size or 1 for name, size in row["parallelism"].items()}
    tp, pp, cp, vp = n["tp"], n["pp"], n["cp"], _chunks(row, n)
    replicas, size = gpus // (tp * pp * cp), int(row.get("micro_batch") or 1)
    micro, rest = divmod(int(row["global_batch"]), size * replicas)
    if rest:
        return f"a batch of {row['global_batch']} is no multiple of {size} for {replicas} replicas"
    if "deepseek" in model and pp * vp != CHUNKS:
        return f"DeepSeek-V3 in {pp * vp} pipeline chunks: its layout is not known"
    precision = precision_of(row)
    words = ["--model", model, "--precision", precision, "--seq-length", sequence, "--micro-batch-size", size]
    words += ["--tp", tp, "--pp", pp, "--cp", cp, "--use-distributed-optimizer"]
    words += ["--overlap-grad-reduce", "--overlap-param-gather"]
    words += ["--ddp-bucket-size", env["BUCKET_SIZE"]] if "BUCKET_SIZE" in env else []
    whole = _whole_graph(env, row)
    words += ["--train-iters", *((4, "--cuda-graphs", "full_iteration") if whole else (2,))]
    if tp > 1:
        words.append("--sequence-parallel")
        words += ["--exposed-tp"] if env.get("TP_COMM_OVERLAP") == "False" else []
    if vp > 1:
        words += ["--vpp", vp, "--overlap-p2p", "--align-grad-reduce", "--align-param-gather"]
    words += _attention(row, precision)
    words += ["--finetune", "adapters"] if model == "llama2-70b" else []
    words += _experts(row, model)
    axes = [f"pp={pp}"] if pp > 1 else []
    axes += [f"{axis}={many}:first" for axis, many in (("dp", replicas), ("cp", cp), ("tp", tp)) if many > 1]
    first = max(pp, 2 if "--overlap-experts" in words else 1)
    rounds = (micro,) if micro <= 2 * first else (first, first + pp)
    fold = ["--fold", ",".join(axes)] if axes else []
    options = ["--cluster", _cluster(row, gpu), *fold, "--gpu-memory", "2000"]
    options += ["--host-time", "none"] if _graphed_experts(env) else []
    tokens = int(row["global_batch"]) * sequence // gpus
    points = (layers,) if pp > 1 or layers <= WHOLE else (2, 4)
    return Run(
        gpu, gpus, tuple(options), tuple(map(str, words)), layers, points, micro, rounds, size * replicas, tokens
    )


def _chunks(row: Mapping[str, Any], n: Mapping[str, int]) -> int:
    """Model chunks of a pipeline stage. Submissions of round 3.1 name none; their common configuration has 12."""
    given = row["parallelism"]["vp"]
    return 12 if row["benchmark"] == "gpt3" and not given and n["pp"] == 8 else given or 1


def _graphed_experts(env: Mapping[str, str]) -> bool:
    """Whether the passes of a step with experts are one CUDA graph: it leaves the host no work."""
    return env.get("CUDA_GRAPH_SCOPE") == "full_iteration" or "CUDA_GRAPH" in env


def _whole_graph(env: Mapping[str, str], row: Mapping[str, Any]) -> bool:
    """Whether a step's passes are one CUDA graph. Experts here read the counts of their tokens: `_graphed_experts`."""
    if _graphed_experts(env):
        return False
    given = [env[name] for name in ("FULL_CUDA_GRAPH", "MCORE_CUDA_GRAPH", "LAYER_CUDA_GRAPH") if name in env]
    usual = row["benchmark"] in ("llama31_8b", "llama31_405b") and row["round"] >= "v5.1"
    return any(value in ("1", "True") for value in given) if given else usual


def _attention(row: Mapping[str, Any], precision: str) -> list[str]:
    env = row.get("config_env") or {}
    lora = row["benchmark"] == "llama2_70b_lora"
    exchange = env.get("CP_COMM_TYPE", "a2a" if lora and row["round"] >= "v5.0" else "p2p")  # its default since then
    words = ["--heads-apart"] if exchange == "a2a" and (row["parallelism"]["cp"] or 1) > 1 else []
    given = env.get("FP8_DPA", "1" if lora else "0")
    if given not in ("1", "True") or env.get("NVTE_DPA_FP8_RECIPE") == "F16":
        return words
    recipes = {"DelayedScaling": "delayed", "Float8CurrentScaling": "fp8"}
    kind = recipes.get(str(env.get("NVTE_DPA_FP8_RECIPE")), "delayed" if precision == "nvfp4" else precision)
    return [*words, "--narrow-attention", kind]


def _experts(row: Mapping[str, Any], model: str) -> list[str]:
    env, degree = row.get("config_env") or {}, row["parallelism"]["ep"] or 1
    if model not in ("deepseek-v3", "gpt-oss-20b"):
        return []
    words = ["--ep", str(degree), "--etp", "1", "--fused-experts", *(HYBRID if degree > 1 else ())]
    if env.get("OVERLAP_MOE_EXPERT_PARALLEL_COMM") == "True":
        words.append("--overlap-experts")
    words += ["--recompute", env["RECOMPUTE_MODULES"]] if env.get("RECOMPUTE_MODULES") else []
    words += ["--narrow-output"] if env.get("FP8_OUTPUT_PROJ") == "True" else []
    return words + (["--layout", env["PIPELINE_LAYOUT"]] if "PIPELINE_LAYOUT" in env else [])


def _cluster(row: Mapping[str, Any], gpu: str) -> str:
    hosts, each = max(1, int(row["hosts"])), int(row["gpus_per_host"])
    if gpu in ("GB200", "GB300") and each == 4 and hosts > SEGMENT and not hosts % SEGMENT:
        return f"{SEGMENTS.format(gpu.lower())}:{hosts}"
    if gpu in CLUSTERS and each == (4 if gpu.startswith("GB") else 8):
        return f"{CLUSTERS[gpu]}:{hosts}"
    return f"{hosts}x{each}x{gpu}"


def _unet(row: Mapping[str, Any]) -> Run:
    """Stable Diffusion: cuDNN's attention from round 4.1 on (`USE_TE_DPA`); a step of 3.1 encodes its captions."""
    size = int(row.get("minibatch_per_replica") or row.get("micro_batch") or 1)
    words = ["stable-diffusion", "--micro-batch-size", str(size)]
    words += ["--cudnn-attention"] if row["round"] >= "v4.1" else []
    words += ["--text-encoder"] if row["round"] < "v4.0" else []
    return _diffusion(row, size, words, layers=1, points=(1,))


def _flux(row: Mapping[str, Any]) -> Run | str:
    """FLUX.1. Its steps are one CUDA graph, which leaves the host no work."""
    if (row["parallelism"]["tp"] or 1) > 1:
        return "FLUX.1 with tensor parallelism: its blocks here have none"
    size, env = int(row["micro_batch"]), row.get("config_env") or {}
    recipe = str(env.get("FP8_RECIPE", "")).strip('"') or "bf16"
    words = ["flux", "--micro-batch-size", str(size), "--precision", recipe]
    return _diffusion(row, size, words, "--host-time", "none", layers=FLUX_BLOCKS, points=(3, 6))


def _diffusion(
    row: Mapping[str, Any], size: int, words: list[str], *options: str, layers: int, points: tuple[int, ...]
) -> Run:
    gpu, gpus = gpu_of(row), int(row["gpus"])
    own = ("--cluster", _cluster(row, gpu), "--fold", f"dp={gpus}:first", "--gpu-memory", "2000", *options)
    return Run(
        gpu,
        gpus,
        own,
        tuple(words),
        layers,
        points,
        1,
        rounds=(1,),
        sequences=size * gpus,
        tokens=size,
        program=DIFFUSION,
    )


DIFFUSERS: dict[str, Callable[[Mapping[str, Any]], Run | str]] = {"stable_diffusion": _unet, "flux1": _flux}
