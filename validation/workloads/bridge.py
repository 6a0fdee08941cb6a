"""A step of Megatron-Bridge's recipes with Megatron-Core alone: the layers of validation/workloads/narrow_layers.py.

    phantora trace --cluster 1x2xGB200 -m validation.workloads.bridge --precision mxfp8 --model llama3-70b --num-layers 4 --tp 2

The training loop and all further options are those of samples/megatron/pretrain_gpt.py. Transformer Engine is not
needed. Steps have the time of a training, not its values.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "samples" / "megatron"))

import pretrain_gpt
import torch
import torch.distributed as dist
from megatron.core import optimizer
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

import megatron_layers
from validation.workloads import bridge_models, narrow_experts, narrow_layers
from validation.workloads.ring_attention import RingAttention


def spec(config: TransformerConfig, vp_stage: int | None, sdpa: bool) -> TransformerBlockSubmodules:
    """The sample's local layers, with narrow products."""
    block = megatron_layers.local_spec(config, vp_stage, sdpa)
    block.layer_norm = narrow_layers.Norm
    for layer in block.layer_specs:
        parts = layer.submodules
        attention, mlp = parts.self_attention.submodules, parts.mlp.submodules
        attention.linear_qkv, attention.linear_proj = narrow_layers.NarrowColumn, narrow_layers.NarrowRow
        parts.input_layernorm = parts.pre_mlp_layernorm = narrow_layers.Norm
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = narrow_layers.Norm
        if config.context_parallel_size > 1:
            attention.core_attention = RingAttention
        if config.num_moe_experts:
            mlp.experts = ModuleSpec(module=narrow_experts.NarrowExperts)
        else:
            mlp.linear_fc1, mlp.linear_fc2 = narrow_layers.NarrowColumn, narrow_layers.NarrowRow
    return block


class Adam(torch.optim.AdamW):
    """One kernel for the state of a parameter, as Transformer Engine's optimizer."""

    def __init__(self, *args: Any, adam_w_mode: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "fused": True})


def data_parallel(**given: Any) -> DistributedDataParallelConfig:
    """Gradients in bfloat16, averaged inside of the collective, as in Megatron-Bridge's performance recipes."""
    return DistributedDataParallelConfig(**given | {"grad_reduce_in_fp32": False, "average_in_collective": True})


class Trainer(pretrain_gpt.Trainer):
    """Rank 0 prints the step: the last rank is no process of a folded run."""

    def log(self, iteration: int, elapsed: float, loss: float, grad_norm: float | None) -> None:
        if dist.get_rank() == 0:
            print(f"iteration {iteration}: elapsed time per iteration (ms): {elapsed * 1000:.2f}", flush=True)


def own_keys(into: list[Any], own: Any, **_: Any) -> None:
    """Every rank has the same kinds of parameters, so a folded run needs no exchange of them."""
    into[:] = [own] * len(into)


def settings(**given: Any) -> dict[str, Any]:
    """Of the sample's configuration, with the fusions that Transformer Engine brings.

    Where layers do not divide into chunks, embedding and loss count as a layer each, as in Megatron-Bridge's recipes.
    """
    given |= {"gradient_accumulation_fusion": True, "apply_rope_fusion": True, "bias_activation_fusion": True,
              "cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}  # fmt: skip
    if given.get("num_moe_experts"):
        given |= bridge_models.EXPERTS
    stages, chunks = given["pipeline_model_parallel_size"], given["virtual_pipeline_model_parallel_size"] or 1
    if given["num_layers"] % (stages * chunks):
        given |= {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    return given


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--precision", choices=["bf16", "fp8", "mxfp8", "nvfp4"], default="bf16")
    parser.add_argument("--single-weight", action="store_true", help="one weight for all experts of a layer and rank")
    own, rest = parser.parse_known_args()
    narrow_experts.NarrowExperts.single = own.single_weight
    sys.argv[1:] = rest
    torch.backends.cuda.matmul.allow_tf32 = True  # as in Transformer Engine's products of float32
    narrow_layers.install(own.precision)
    narrow_experts.install()
    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = Adam, False
    pretrain_gpt.DistributedDataParallelConfig = data_parallel
    dist.all_gather_object = own_keys  # type: ignore[assignment]
    pretrain_gpt.Trainer = Trainer
    pretrain_gpt.local_spec = spec
    pretrain_gpt.TransformerConfig = lambda **given: TransformerConfig(**settings(**given))
    pretrain_gpt.main()


if __name__ == "__main__":
    main()
