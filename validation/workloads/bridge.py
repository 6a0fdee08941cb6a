"""A step of Megatron-Bridge's recipes with Megatron-Core alone: the layers of validation/workloads/narrow_layers.py.

    phantora trace --cluster 1x2xGB200 -m validation.workloads.bridge --precision mxfp8 --model llama3-70b --num-layers 4 --tp 2

The training loop and all further options are those of samples/megatron/pretrain_gpt.py. Transformer Engine is only
needed for `--te`, which takes its layers: their Python counts as host time. Steps have the time of a training, not its
values.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "samples" / "megatron"))

import pretrain_gpt
import torch
import torch.distributed as dist
from megatron.core import optimizer, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer
from megatron.core.full_cuda_graph import FullCudaGraphWrapper
from megatron.core.models.gpt import gpt_model
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.tensor_parallel import random
from megatron.core.transformer import attention, multi_latent_attention
from megatron.core.transformer.cuda_graphs import TECudaGraphHelper
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

import megatron_layers
from validation.workloads import (
    bridge_models,
    engine_adapters,
    finetune,
    mamba_parts,
    muon,
    narrow_attention,
    narrow_experts,
    narrow_layers,
)
from validation.workloads.heads_apart import heads_of
from validation.workloads.narrow_attention import NarrowAttention, NarrowWindowAttention
from validation.workloads.ring_attention import NarrowRing, RingAttention
from validation.workloads.window_attention import WindowAttention


class Kernels:
    """Of the run."""

    adjust: Callable[[torch.nn.Module], None] = staticmethod(lambda _: None)
    """Changes single layers of the model."""
    narrow_attention = False
    heads_apart = False
    """Context parallelism exchanges heads for tokens."""
    muon = False
    engine = False
    """Transformer Engine's layers."""
    finetune = ""
    """Kind of fine-tuning."""


def spec(config: TransformerConfig, vp_stage: int | None, sdpa: bool) -> TransformerBlockSubmodules:
    """The sample's local layers, with narrow products."""
    block = megatron_layers.local_spec(config, vp_stage, sdpa)
    block.layer_norm = narrow_layers.Norm
    block.layer_specs = [copy.deepcopy(layer) for layer in block.layer_specs]  # layers of a kind share one
    for index, layer in enumerate(block.layer_specs):
        _adapt(layer.submodules, config)
        attends = layer.submodules.self_attention.submodules
        if Kernels.narrow_attention:
            attends.core_attention = NarrowAttention
        if Kernels.finetune in ("sft", "lora"):
            attends.core_attention = finetune.PackedAttention
        if Kernels.finetune == "lora":
            attends.linear_qkv = finetune.AdaptedColumn
        if Kernels.finetune == "adapters":
            attends.linear_qkv, attends.linear_proj = finetune.DroppedColumn, finetune.AdaptedRow
        if WindowAttention.window and index % 2 == 0:
            attends.core_attention = NarrowWindowAttention if Kernels.narrow_attention else WindowAttention
        if config.context_parallel_size > 1:
            if Kernels.heads_apart:
                attends.core_attention = heads_of(attends.core_attention)
            else:
                attends.core_attention = NarrowRing if Kernels.narrow_attention else RingAttention
    return block


def _adapt(parts: Any, config: TransformerConfig) -> None:
    attends, mlp = parts.self_attention.submodules, _submodules(parts.mlp)
    parts.input_layernorm = parts.pre_mlp_layernorm = narrow_layers.Norm
    for name in vars(attends):
        if name.startswith("linear"):
            setattr(attends, name, narrow_layers.NarrowColumn)
        elif name.endswith("layernorm") and config.qk_layernorm:
            setattr(attends, name, narrow_layers.Norm)
    attends.linear_proj = narrow_layers.NarrowRow
    if hasattr(mlp, "experts"):
        experts = narrow_experts.NarrowExperts
        mlp.experts = ModuleSpec(module=experts) if isinstance(parts.mlp, ModuleSpec) else experts
        mlp = _submodules(mlp.shared_experts)
    mlp.linear_fc1, mlp.linear_fc2 = narrow_layers.NarrowColumn, narrow_layers.NarrowRow


def _submodules(part: Any) -> Any:
    """Of a layer's part: a ModuleSpec in Megatron-Core 0.16, a partial call of its class in 0.19."""
    return part.submodules if isinstance(part, ModuleSpec) else part.keywords["submodules"]


def model(**given: Any) -> GPTModel:
    """With norms of the layers that predict further tokens for sequence parallelism."""
    config, further = given["config"], given["mtp_block_spec"]
    if config.is_hybrid_model:
        given["position_embedding_type"] = "none"
    for layer in further.layer_specs if further and config.sequence_parallel and not Kernels.engine else ():
        layer.submodules.enorm = layer.submodules.hnorm = layer.submodules.layer_norm = narrow_layers.Norm
    made = GPTModel(**given)
    Kernels.adjust(made)
    return made


class Adam(torch.optim.AdamW):
    """One kernel for the state of a parameter, as Transformer Engine's optimizer."""

    def __init__(self, *args: Any, adam_w_mode: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "fused": True})


def data_parallel(**given: Any) -> DistributedDataParallelConfig:
    """Gradients in bfloat16, averaged inside of DDP's collectives, as in Megatron-Bridge's performance recipes."""
    averaged = not given["use_megatron_fsdp"]
    return DistributedDataParallelConfig(**given | {"grad_reduce_in_fp32": False, "average_in_collective": averaged})


def on_its_own_stream(made: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron-LM's way to keep gradients off the default stream, which a capture of CUDA graphs does not allow."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return made(*args, **kwargs)

    return call


class TransformerEngineLinear:
    """No layer is one."""


class Trainer(pretrain_gpt.Trainer):
    """Rank 0 prints the step: the last rank is no process of a folded run."""

    forward_backward: Callable[..., Any]
    graphs: TECudaGraphHelper | None = None
    stepped = False
    whole = False
    """Forward and backward passes of a step are one CUDA graph, captured in the second step."""

    def capture(self) -> None:
        """CUDA graphs of the layers' parts that the configuration names, as Megatron-LM's training loop takes them."""
        init_num_microbatches_calculator(
            dist.get_rank(), None, self.global_batch, self.args.micro_batch_size,
            parallel_state.get_data_parallel_world_size(),
        )
        self.graphs = TECudaGraphHelper(
            self.model, self.config, self.shape.seq, self.args.micro_batch_size, [self.optimizer]
        )
        for chunk in self.model:
            chunk.disable_forward_pre_hook(param_sync=False)
        self.graphs.create_cudagraphs()
        for chunk in self.model:
            chunk.enable_forward_pre_hook()
        self.graphs.cuda_graph_set_manual_hooks()

    def train_step(self) -> tuple[float, float | None]:
        """With Muon's products behind the optimizer's. The second step begins with the capture of CUDA graphs."""
        if self.whole and not isinstance(self.forward_backward, FullCudaGraphWrapper):
            self.forward_backward = FullCudaGraphWrapper(self.forward_backward)
        if self.config.cuda_graph_impl == "transformer_engine":
            if self.stepped and not self.graphs:
                self.capture()
            self.stepped = True
        made: tuple[float, float | None] = super().train_step()
        for chunk in self.model if Kernels.muon else []:
            for shape in muon.matrices(chunk):
                muon.orthogonalise(shape)
        return made

    def log(self, iteration: int, elapsed: float, loss: float, grad_norm: float | None) -> None:
        if dist.get_rank() == 0:
            print(f"iteration {iteration}: elapsed time per iteration (ms): {elapsed * 1000:.2f}", flush=True)


def own_keys(into: list[Any], own: Any, **_: Any) -> None:
    """Every rank has the same kinds of parameters, so a folded run needs no exchange of them."""
    into[:] = [own] * len(into)


def settings(name: str, own: argparse.Namespace, **given: Any) -> dict[str, Any]:
    """Of the sample's configuration, with the fusions that Transformer Engine brings.

    Where layers do not divide into chunks, embedding and loss count as a layer each, as in Megatron-Bridge's recipes.
    """
    given |= {"apply_rope_fusion": True, "bias_activation_fusion": True, "cross_entropy_loss_fusion": True,
              "cross_entropy_fusion_impl": own.cross_entropy, **finetune.SETTINGS.get(Kernels.finetune, {})}
    given["deallocate_pipeline_outputs"] = Kernels.engine  # as Megatron-LM and NeMo set it; stand-ins show no memory
    if own.cross_entropy == "apart":
        given |= {"cross_entropy_loss_fusion": False, "cross_entropy_fusion_impl": "native"}
    given["gradient_accumulation_fusion"] |= not Kernels.engine
    if Kernels.engine:
        given |= {"fp8_dot_product_attention": bool(own.narrow_attention),
                  "activation_func_fp8_input_store": own.narrow_activations}
    if given.get("num_moe_experts"):
        given |= {**bridge_models.EXPERTS, "overlap_moe_expert_parallel_comm": own.overlap_experts,
                  "delay_wgrad_compute": own.overlap_experts and Kernels.engine, "moe_grouped_gemm": True}
    given |= bridge_models.SETTINGS.get(name, {})
    if Kernels.engine and name in bridge_models.PATTERNS:
        given["quant_recipe"] = bridge_models.precisions(name, given["num_layers"], own.precision)
    dense = given.pop("dense", 0)
    if dense:
        given["moe_layer_freq"] = [0] * dense + [1] * (given["num_layers"] - dense)
    if own.cuda_graphs and not Trainer.whole:
        given |= {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": own.cuda_graphs,
                  "cuda_graph_warmup_steps": 10}  # done: none within the capture, which no step contains
    if own.recompute:
        given |= {"recompute_granularity": "selective", "recompute_modules": own.recompute}
    stages, chunks = given["pipeline_model_parallel_size"], given["virtual_pipeline_model_parallel_size"] or 1
    if own.layout:
        given |= {"pipeline_model_parallel_layout": own.layout, "mtp_num_layers": own.layout.count("m") or None}
    elif given["num_layers"] % (stages * chunks):
        given |= {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    return given


def configuration(name: str, own: argparse.Namespace, **given: Any) -> TransformerConfig:
    """Of the model `name`."""
    made = settings(name, own, **given)
    return MLATransformerConfig(**made) if made.get("multi_latent_attention") else TransformerConfig(**made)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--precision", choices=["bf16", "fp8", "delayed", "mxfp8", "nvfp4"], default="bf16")
    parser.add_argument("--fused-experts", action="store_true", help="one kernel for the experts of a rank and their gate")
    parser.add_argument(
        "--narrow-attention", nargs="?", const="mxfp8", choices=["mxfp8", "fp8", "delayed"], help="format of core attention"
    )
    parser.add_argument(
        "--cross-entropy", choices=["te", "native", "apart"], default="te", help="its kernels; apart: not fused"
    )
    parser.add_argument("--narrow-activations", action="store_true", help="inputs of activations in FP8, with --te")
    parser.add_argument("--heads-apart", action="store_true", help="context parallelism by all-to-all (a2a)")
    parser.add_argument("--exposed-tp", action="store_true", help="tensor parallelism's communication without overlap")
    parser.add_argument("--narrow-output", action="store_true", help="output layer in the precision of the others")
    parser.add_argument("--overlap-experts", action="store_true", help="exchange tokens during other micro-batches")
    parser.add_argument("--muon", action="store_true", help="the products of Muon behind those of Adam")
    parser.add_argument("--recompute", nargs="+", default=[], help="modules that run again in the backward pass")
    parser.add_argument(
        "--cuda-graphs", nargs="+", default=[], help="parts of layers that are CUDA graphs, with --te; or full_iteration"
    )
    parser.add_argument("--layout", help="layers of each pipeline chunk, as Megatron-Core writes them")
    parser.add_argument("--finetune", choices=["sft", "lora", "adapters"], default="", help="validation/workloads/finetune.py")
    own, rest = parser.parse_known_args()
    name = rest[rest.index("--model") + 1]
    Trainer.whole = own.cuda_graphs == ["full_iteration"]
    changes = _engine(own, rest, name) if "--te" in rest else _stand_ins(own, rest, name)
    sys.argv[1:] = rest
    dist.all_gather_object = own_keys  # type: ignore[assignment]
    param_and_grad_buffer.validate_uneven_dtensor = lambda _: None  # it compares shards of all ranks
    changes |= {
        "DistributedDataParallelConfig": data_parallel, "Trainer": Trainer,
        "TransformerConfig": partial(configuration, name, own),
    }
    for changed, made in changes.items():
        setattr(pretrain_gpt, changed, made)
    pretrain_gpt.main()


def _engine(own: argparse.Namespace, rest: list[str], name: str) -> dict[str, Any]:
    """Transformer Engine's layers, in the recipe of the precision; the changes to the sample's module."""
    Kernels.engine = True
    if own.finetune:
        if own.finetune != "adapters":
            raise SystemExit(f"--finetune {own.finetune} has no layers of Transformer Engine here")
        Kernels.adjust, Kernels.finetune = engine_adapters.adapt, own.finetune
    if own.heads_apart:
        rest += ["--cp-comm-type", "a2a"]
    if name in bridge_models.PATTERNS:
        mamba_parts.install()
        from validation.workloads import hybrid_model

        hybrid_model.install(bridge_models.PATTERNS[name])
    recipes = {"bf16": [], "fp8": ["--fp8-recipe", "tensorwise"], "mxfp8": ["--fp8-recipe", "mxfp8"],
               "delayed": ["--fp8-recipe", "delayed"]}
    rest += recipes.get(own.precision, ["--nvfp4"])
    if own.cuda_graphs:
        pretrain_gpt.DistributedDataParallel = on_its_own_stream(pretrain_gpt.DistributedDataParallel)
    seed = partial(random.model_parallel_cuda_manual_seed, te_rng_tracker=bool(own.cuda_graphs))
    return {
        "GPTModel": model, "add_gradients_in_products": narrow_layers.add_gradients_in_products,
        "model_parallel_cuda_manual_seed": seed,
    }


def _stand_ins(own: argparse.Namespace, rest: list[str], name: str) -> dict[str, Any]:
    """Megatron-Core's layers with Transformer Engine's kernels; the changes to the sample's module."""
    narrow_experts.NarrowExperts.fused = own.fused_experts
    narrow_experts.NarrowExperts.biased = name in bridge_models.BIASED
    WindowAttention.window = NarrowWindowAttention.window = bridge_models.WINDOWS.get(name, 0)
    Kernels.narrow_attention, Kernels.muon, Kernels.heads_apart = bool(own.narrow_attention), own.muon, own.heads_apart
    narrow_attention.Format.name = own.narrow_attention or "mxfp8"
    narrow_layers.NarrowColumn.overlaps = narrow_layers.NarrowRow.overlaps = not own.exposed_tp
    Kernels.finetune = own.finetune
    if own.finetune in ("lora", "adapters"):
        Kernels.adjust = finetune.freeze
    if own.narrow_output:
        narrow = {"ColumnParallelLinear": narrow_layers.NarrowColumn}
        gpt_model.tensor_parallel = SimpleNamespace(**vars(tensor_parallel) | narrow)
    torch.backends.cuda.matmul.allow_tf32 = True  # as in Transformer Engine's products of float32
    narrow_layers.install(own.precision)
    narrow_experts.install()
    if name in bridge_models.PATTERNS:
        mamba_parts.install()
        from validation.workloads import hybrid_model

        Kernels.adjust = hybrid_model.set_precisions
        hybrid_model.install_stand_ins(bridge_models.PATTERNS[name])
    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = Adam, False
    multi_latent_attention.ColumnParallelLinear = narrow_layers.NarrowColumn  # which it knows by name
    multi_latent_attention.TELinear = attention.TELinear = TransformerEngineLinear
    changes: dict[str, Any] = {"GPTModel": model, "local_spec": spec}
    if Trainer.whole:
        pretrain_gpt.DistributedDataParallel = on_its_own_stream(pretrain_gpt.DistributedDataParallel)
        changes["model_parallel_cuda_manual_seed"] = partial(random.model_parallel_cuda_manual_seed, use_cudagraphable_rng=True)
    return changes


if __name__ == "__main__":
    main()
