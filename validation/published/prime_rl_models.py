"""Models of prime-rl's benchmarks: configurations of Hugging Face, with a tokenizer of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
_QWEN3_MOE = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
_GLM4_MOE = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "dtype": "bfloat16",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151552,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "use_qk_norm": False,
    "partial_rotary_factor": 0.5,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
}


def _sized(base: dict[str, Any], hidden: int, inner: int, layers: int, heads: int, positions: int, theta: float) -> Any:
    return base | {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        "rope_theta": theta,
    }


CONFIGURATIONS = {
    "Qwen/Qwen3-0.6B": _sized(_QWEN3, 1024, 3072, 28, 16, 40960, 1e6),
    "Qwen/Qwen3-4B-Instruct-2507": _sized(_QWEN3, 2560, 9728, 36, 32, 262144, 5e6),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": _sized(_QWEN3_MOE, 2048, 6144, 48, 32, 262144, 1e7),
    "PrimeIntellect/INTELLECT-3": _sized(_GLM4_MOE, 4096, 10944, 46, 96, 131072, 1e6),
}
"""By name on the hub, as their config.json there."""
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"<eos>": 0, "word": 1}, "unk_token": "<eos>"},
}


def write(folder: Path, model: str) -> Path:
    """Writes the files of `model` without weights; returns `folder`."""
    folder.mkdir(parents=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    files = {"config": CONFIGURATIONS[model], "tokenizer": TOKENIZER, "tokenizer_config": settings}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
