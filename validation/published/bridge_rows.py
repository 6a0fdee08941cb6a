"""What is simulated of a row of Megatron-Bridge's performance summary.

Settings that the summary does not give follow the recipes of the row's container in
github.com/NVIDIA-NeMo/Megatron-Bridge: scripts/performance/configs at v0.3.0 (26.02), v0.4.0
(26.04), v0.4.2 (26.04.01) and v0.5.0 (26.06), src/megatron/bridge/perf_recipes at r0.6.0 (26.08).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

PRECISIONS = {"BF16": "bf16", "FP8": "fp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}
MODELS = {
    "LLAMA3_8B": ("llama3-8b", 32),
    "LLAMA3_70B": ("llama3-70b", 80),
    "LLAMA3.1_405B": ("llama3-405b", 126),
    "Qwen3_30B_a3B": ("qwen3-30b-a3b", 48),
    "Qwen3_235B_a22B": ("qwen3-235b-a22b", 94),
    "GPT OSS 120B": ("gpt-oss-120b", 36),
    "DeepSeekV3": ("deepseek-v3", 61),
    "Kimi_K2": ("kimi-k2", 61),
    "Nemotron_3_Nano": ("nemotron-3-nano", 52),
    "Nemotron_3_Super": ("nemotron-3-super", 88),
    "Nemotron_3_5_Lightning": ("nemotron-3.5-lightning", 52),
}
"""Names of the workload and layers."""
LAYOUTS = {"DeepSeekV3": "Et*4|(t*4|)*14tmL", "Kimi_K2": "Et*4|(t*4|)*14tL"}
"""Of pipelines with 16 chunks: embedding (E), layers (t), a second token's layer (m) and the loss (L)."""
NARROW_FROM = [26, 6]
"""The first container whose recipes in MXFP8 fuse the experts of a rank, exchange tokens while other micro-batches
compute, and have attention in MXFP8 (DeepSeek-V3 on GB200 has not), as full-iteration CUDA graphs."""
FUSED = {
    "GPT OSS 120B": ("GB200", "GB300"),
    "DeepSeekV3": ("GB200", "GB300"),
    "Qwen3_235B_a22B": ("GB200", "GB300"),
    "Qwen3_30B_a3B": ("GB200", "GB300", "B300"),
}
"""GPUs whose recipes do so, by model."""
NARROW_OUTPUT = ("DeepSeekV3", "GPT OSS 120B")
"""Models whose output layer is MXFP8 there."""
HYBRID_FUSED_FROM = [26, 8]
"""The first container whose recipes in MXFP8 fuse the experts of Nemotron 3 on GB200 and GB300."""
HYBRID_RECOMPUTE = {
    ("Nemotron_3_Nano", "H100", "FP8"): ("moe", "layernorm", "core_attn", "moe_act"),
    ("Nemotron_3_Super", "B200", "MXFP8"): ("moe_act", "layernorm"),
    ("Nemotron_3_Super", "B300", "NVFP4"): ("moe_act", "layernorm"),
}
"""What runs again in the backward pass, by model, GPU and precision."""
ENGINE = {"Qwen3_30B_a3B": ("H100", "B200", "B300", "GB200", "GB300"), "Qwen3_235B_a22B": ("H100", "B200")}
"""GPUs on which a model has Transformer Engine's layers, where its experts are not fused. Their Python is host time."""
LAYERS = ("attn", "mamba", "moe_router", "moe_preprocess")
HYBRID_GRAPHS = {("Nemotron_3_Nano", "H100", "FP8"): LAYERS[1:2], ("Nemotron_3_Super", "B200", "MXFP8"): ()}
"""Parts of layers that are CUDA graphs, by model, GPU and precision, where they are not all of `LAYERS`. Hybrid models
run with Transformer Engine itself, but with fused experts."""
PERIODS = {"nemotron-3-nano": (7, 16), "nemotron-3.5-lightning": (7, 16), "nemotron-3-super": (11, 22)}
"""Numbers of layers of hybrid models: the layers between them have the mix of those behind them."""
FINETUNE = {"SFT Performance": "sft", "LoRA Performance": "lora"}
"""Kind of fine-tuning, by section."""
OFFLOADED = {
    ("GB200", "BF16"): 20,
    ("GB200", "FP8"): 40,
    ("GB300", "BF16"): 30,
    ("GB300", "FP8"): 20,
    ("B200", "FP8"): 5,
}
"""Layers of Llama 3 70B with activations in host memory, by GPU and precision, under Megatron-FSDP."""
NOT_HERE = {
    "DeepSeekV4": "sparse attention",
    "Nemotron_3_Ultra": "Megatron-FSDP with fused experts, and activations in host memory",
}
CLUSTERS = {
    "GB200": ("gb200-nvl72", 4),
    "GB300": ("gb300-nvl72", 4),
    "B200": ("dgx-b200", 8),
    "B300": ("dgx-b300", 8),
    "H100": ("dgx-h100", 8),
}


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
    offloaded: float = 0.0
    """Part of the layers with activations in host memory."""
    program: str = "validation.workloads.bridge"

    def command(self, layers: int, micro: int) -> tuple[str, ...]:
        changed = ["--num-layers", str(layers), "--global-batch-size", str(micro * self.sequences)]
        if self.offloaded:
            changed += ["--cpu-offloading-num-layers", str(round(layers * self.offloaded))]
        return (*self.options, "-m", self.program, *self.words, *changed)


def expressed(row: Mapping[str, Any]) -> Run | str:
    """The run of a row, or why it is left out."""
    if row["section"] not in ("Pre-Training Performance", *FINETUNE):
        return f"unknown section: {row['section']}"
    if "[^" in row["Model TFLOP / sec / GPU"]:
        return "a slow kernel of that container, says a footnote (NVIDIA/cudnn-frontend issue 256)"
    missing = next((why for name, why in NOT_HERE.items() if row["model"].startswith(name)), None)
    if missing:
        return f"{missing}: the workload does not have it"
    if row["model"] not in MODELS:
        return f"unknown model: {row['model']}"
    fsdp = str(row.get("FSDP") or "0") not in ("0", "n/a")
    if fsdp and (row["model"] != "LLAMA3_70B" or row["TP"] != "1" or row["Precision"] not in ("BF16", "FP8")):
        return "Megatron-FSDP with settings that are not known"
    n = {key: 1 if row[key] == "n/a" else int(row[key]) for key in ("TP", "PP", "CP", "VP", "GBS", "MBS")}
    gpus, sequence = int(row["#-GPUs"]), int(row["Sequence Length"])
    model, layers = MODELS[row["model"]]
    gpu = str(row["System"]).removeprefix("DGX-")
    cluster, host = CLUSTERS[gpu]
    replicas = gpus // (n["TP"] * n["PP"] * n["CP"])
    micro = n["GBS"] // (n["MBS"] * replicas)
    words = [
        "--model",
        model,
        "--precision",
        PRECISIONS[row["Precision"]],
        "--seq-length",
        str(sequence),
        "--micro-batch-size",
        str(n["MBS"]),
        "--tp",
        str(n["TP"]),
        "--pp",
        str(n["PP"]),
        "--cp",
        str(n["CP"]),
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
    ]
    engine = ["--te"] if fsdp else _engine(row, gpu)
    words += ["--train-iters", "3" if "--cuda-graphs" in engine else "2", *engine]
    if fsdp:
        words += [*FSDP, *(["--fp8-param-gather"] if row["Precision"] == "FP8" else [])]
    if row["section"] in FINETUNE:
        words += ["--finetune", FINETUNE[row["section"]]]
    if n["TP"] > 1:
        words.append("--sequence-parallel")
    if n["VP"] > 1:
        words += ["--vpp", str(n["VP"]), "--overlap-p2p", "--align-grad-reduce", "--align-param-gather"]
    if row["EP"] != "n/a":
        words += ["--ep", row["EP"], "--etp", "1", *_experts(row, gpu)]
    if row["model"] in LAYOUTS:
        if n["PP"] * n["VP"] != 16:
            return f"{row['model']} in {n['PP'] * n['VP']} pipeline chunks: its layout is not known"
        words += ["--layout", LAYOUTS[row["model"]]]
    blocks = row["Precision"] in ("MXFP8", "NVFP4")
    # No fold: Transformer Engine's layers gather scales of blocks, Nemotron's token numbers to predict further tokens.
    whole = (engine or "nemotron" in model) and blocks and n["TP"] > 1
    axes = [f"pp={n['PP']}" + (":all" if whole else "")] if n["PP"] > 1 else []
    axes += [f"{axis}={size}:first" for axis, size in (("dp", replicas), ("cp", n["CP"])) if size > 1]
    if n["TP"] > 1:
        axes.append(f"tp={n['TP']}" + ("" if whole else ":first"))
    first = max(n["PP"], 2 if "--overlap-experts" in words else 1)
    rounds = (micro,) if micro <= 2 * first else (first, first + n["PP"])
    name = f"{cluster}:{max(1, gpus // host)}"
    if host == 4 and gpus == 256:  # a number of hosts of each rack that groups of ranks divide
        name = f"validation/published/{gpu.lower()}_256.toml"
    options = ["--cluster", name, "--fold", ",".join(axes), "--gpu-memory", "2000"]
    points = (layers,) if n["PP"] > 1 else PERIODS.get(model, (2, 4))
    offloaded = OFFLOADED.get((gpu, row["Precision"]), 0) if fsdp else 0
    if fsdp:  # numbers of layers of which the same part can be offloaded
        fewest = max(4, layers // gcd(layers, offloaded))
        points = (fewest, 2 * fewest)
    if "nvfp4" in words and model == "nemotron-3-super":  # 14 layers at the end have another precision
        points = (22, 33)
    tokens = n["GBS"] * sequence // gpus
    sequences = n["MBS"] * replicas
    times = (layers, points, micro, rounds, sequences, tokens, offloaded / layers)
    return Run(gpu, gpus, tuple(options), tuple(words), *times)


def _version(row: Mapping[str, Any]) -> list[int]:
    return [int(part) for part in row["container"].split()[0].split(".")]


def _engine(row: Mapping[str, Any], gpu: str) -> list[str]:
    """Whether layers are Transformer Engine's, and which parts of them are CUDA graphs."""
    if "--fused-experts" in _experts(row, gpu):
        return []
    graphs: tuple[str, ...] = ()
    if row["model"].startswith("Nemotron"):
        graphs = HYBRID_GRAPHS.get((row["model"], gpu, row["Precision"]), LAYERS)
    elif gpu not in ENGINE.get(row["model"], ()):
        return []
    elif row["model"] == "Qwen3_30B_a3B" and gpu != "H100":
        attention = LAYERS[:1] if gpu == "B200" and row["MBS"] != "1" else ()
        graphs = (*attention, *LAYERS[2:])
        if ALL_TO_ALL[-1] in _experts(row, gpu):  # which reads counts of tokens that a graph does not compute
            graphs = LAYERS[2:3]
    return ["--te", "--cuda-graphs", *graphs] if graphs else ["--te"]


def _experts(row: Mapping[str, Any], gpu: str) -> list[str]:
    """How ranks exchange tokens, and what of it runs next to other work."""
    version, model = _version(row), row["model"]
    fused: list[str] = []
    if row["Precision"] == "MXFP8" and version >= NARROW_FROM and gpu in FUSED.get(model, ()):
        fused = ["--fused-experts", "--overlap-experts"]
        fused += ["--narrow-attention"] if (model, gpu) != ("DeepSeekV3", "GB200") else []
        fused += ["--narrow-output"] if model in NARROW_OUTPUT else []
    apart = not fused
    if model.startswith("Nemotron"):
        modules = HYBRID_RECOMPUTE.get((model, gpu, row["Precision"]), ())
        fused = ["--recompute", *modules] if modules else []
        if row["Precision"] == "MXFP8" and version >= HYBRID_FUSED_FROM and gpu in ("GB200", "GB300"):
            fused += ["--fused-experts", "--narrow-attention"]
        hybrid = True
    elif model == "GPT OSS 120B":
        hybrid = not apart or (gpu != "GB300" and version == [26, 4]) or (gpu == "B300" and version > [26, 4])
        if gpu == "GB200" and apart and version >= [26, 4]:
            fused = ["--overlap-experts"]
        if gpu in ("GB200", "B200") and apart:
            fused += ["--recompute", "layernorm", "moe_act"]
    elif (model, gpu, row["EP"]) == ("DeepSeekV3", "B200", "32"):
        return ["--overlap-experts", "--recompute", "mla_up_proj", "mlp", *DEEP]
    elif model in LAYOUTS:
        hybrid, again = True, "mla_up_proj"
        if not apart:
            again = "mla_up_proj" if gpu == "GB200" else ""
        elif (model, gpu) == ("DeepSeekV3", "GB200"):
            again = "mlp"
        fused += ["--recompute", again] if again else []
        fused += ["--muon"] if model == "Kimi_K2" else []
    elif model == "Qwen3_30B_a3B":
        if gpu == "H100" and row["EP"] == "8":
            return ["--overlap-experts", *DEEP]
        hybrid = gpu != "B200" or row["MBS"] != "1"
    else:
        hybrid = gpu in ("GB200", "GB300")
        if gpu == "H100":
            fused = ["--overlap-experts"]
    return [*fused, *(HYBRID if hybrid else ALL_TO_ALL)]


FSDP = [
    "--use-megatron-fsdp",
    "--data-parallel-sharding-strategy",
    "optim_grads_params",
    "--init-model-with-meta-device",
    "--fsdp-double-buffer",
    "--suggested-communication-unit-size",
    "800000000",
]
HYBRID = ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "hybridep"]
DEEP = ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "deepep"]
ALL_TO_ALL = ["--moe-token-dispatcher-type", "alltoall"]
