"""Trains a decoder of transformers with DeepSpeed on random tokens.

torchrun --nproc-per-node 8 samples/deepspeed/decoder.py --model llama3-8b --config samples/deepspeed/zero3.json
"""

from __future__ import annotations

import argparse
import os

import deepspeed
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, PreTrainedConfig, Qwen3Config

from training import add_arguments, dtype_of, settings_of, train

LLAMA2 = {"vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
LLAMA3 = {
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
# As published with each model's weights.
MODELS: dict[str, PreTrainedConfig] = {
    "llama2-7b": LlamaConfig(
        **LLAMA2, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
    ),
    "llama2-13b": LlamaConfig(
        **LLAMA2, hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40
    ),
    "llama2-70b": LlamaConfig(
        **LLAMA2,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    ),
    "llama3-8b": LlamaConfig(
        **LLAMA3, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32
    ),
    "llama3-70b": LlamaConfig(
        **LLAMA3, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64
    ),
    "qwen3-8b": Qwen3Config(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
    ),
    "gpt-oss-20b": GptOssConfig(num_hidden_layers=24, num_local_experts=32),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser, "zero3.json")
    parser.add_argument("--model", choices=MODELS, default="llama3-8b")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--vocab", type=int, help="a smaller vocabulary than the model has")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--checkpointing", action="store_true", help="recompute every layer in the backward pass")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    settings = settings_of(args)
    config = MODELS[args.model]
    config.use_cache = False
    config.vocab_size = args.vocab or config.vocab_size
    if args.layers:
        config.num_hidden_layers = args.layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: args.layers]

    deepspeed.init_distributed()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1234 + torch.distributed.get_rank())
    sharded = settings["zero_optimization"]["stage"] == 3
    with deepspeed.zero.Init(config_dict_or_path=settings) if sharded else device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype_of(settings))
    if args.checkpointing:
        model.gradient_checkpointing_enable()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    batch = engine.train_micro_batch_size_per_gpu()

    def loss_of() -> torch.Tensor:
        tokens = torch.randint(0, config.vocab_size, (batch, args.seq), device=device)
        return engine(input_ids=tokens, labels=tokens).loss

    train(engine, args, loss_of, "tokens", args.seq)


if __name__ == "__main__":
    main()
