"""Trains a Llama in pipeline stages (DeepSpeed's 1F1B) times data parallelism, on random tokens.

torchrun --nproc-per-node 8 samples/deepspeed/pipeline.py --model llama2-7b --stages 4
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, PipelineModule
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from decoder import MODELS
from training import add_arguments, dtype_of, report, settings_of


class Layer(nn.Module):
    """A decoder layer that takes and gives hidden states only, as a pipeline sends them."""

    def __init__(self, config: LlamaConfig, index: int) -> None:
        super().__init__()
        self.body = LlamaDecoderLayer(config, index)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        output: torch.Tensor = self.body(hidden, position_embeddings=self.rotary(hidden, positions))
        return output


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser, "pipeline.json")
    parser.add_argument("--model", choices=[name for name in MODELS if "llama" in name], default="llama2-7b")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--vocab", type=int, help="another vocabulary than the model's")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--checkpointing", action="store_true", help="recompute every layer in the backward pass")
    args = parser.parse_args()
    settings = settings_of(args)
    config = MODELS[args.model]
    config._attn_implementation = "sdpa"
    config.num_hidden_layers = args.layers or config.num_hidden_layers
    config.vocab_size = args.vocab or config.vocab_size

    deepspeed.init_distributed()
    torch.manual_seed(1234 + torch.distributed.get_rank())
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.set_default_dtype(dtype_of(settings))
    layers = [
        LayerSpec(nn.Embedding, config.vocab_size, config.hidden_size),
        *(LayerSpec(Layer, config, index) for index in range(config.num_hidden_layers)),
        LayerSpec(LlamaRMSNorm, config.hidden_size, config.rms_norm_eps),
        LayerSpec(nn.Linear, config.hidden_size, config.vocab_size, bias=False),
    ]
    model = PipelineModule(
        layers,
        num_stages=args.stages,
        loss_fn=loss_of,
        partition_method="type:Layer",
        activation_checkpoint_interval=int(args.checkpointing),
    )
    torch.set_default_dtype(torch.float32)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    shape = engine.train_micro_batch_size_per_gpu(), args.seq

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in itertools.count():
            tokens = torch.randint(0, config.vocab_size, shape, device=device)
            yield tokens, tokens

    data = batches()
    engine.train_batch(data)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(args.steps):
        loss = engine.train_batch(data)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / args.steps
    parameters = torch.tensor(sum(p.numel() for p in model.parameters()), device=device)
    torch.distributed.all_reduce(parameters, group=engine.grid.get_pipe_parallel_group())
    if engine.global_rank == 0:
        report(seconds, engine.train_batch_size() * args.seq, "tokens", int(parameters), loss)
    if args.save:
        engine.save_checkpoint(args.save)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
