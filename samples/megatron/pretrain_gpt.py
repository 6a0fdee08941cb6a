"""Pretrains a decoder of published size with Megatron-Core: its local layers, or with --te those of Transformer Engine.

torchrun --nproc-per-node 4 samples/megatron/pretrain_gpt.py --model llama2-7b --tp 4 --sequence-parallel
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.enums import ModelType
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.timers import Timers
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank
from megatron_options import parse, reuses_gradients

from megatron_layers import add_gradients_in_products, engine_spec, local_spec
from megatron_shapes import SHAPES, Shape

Batch = dict[str, torch.Tensor]
METADATA = {"distrib_optim_sharding_type": "dp_reshardable"}
"""Of checkpoints."""


def initialize(args: argparse.Namespace) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        virtual_pipeline_model_parallel_size=args.vpp,
        context_parallel_size=args.cp,
        expert_model_parallel_size=args.ep,
        expert_tensor_parallel_size=args.etp,
        create_gloo_process_groups=False,
    )
    torch.manual_seed(1234 + parallel_state.get_data_parallel_rank())
    model_parallel_cuda_manual_seed(1234)


def initialize_userbuffers(args: argparse.Namespace, shape: Shape) -> None:
    """Buffers for the communication of tensor parallelism that overlaps products, as Megatron-LM makes them."""
    from transformer_engine.pytorch.module.base import UserBufferQuantizationMode, initialize_ub

    mode = UserBufferQuantizationMode.FP8 if args.fp8_recipe else UserBufferQuantizationMode.NONE
    tokens = shape.seq * args.micro_batch_size // args.cp
    initialize_ub([tokens, shape.hidden], args.tp, quantization_modes=[mode], bootstrap_backend="nccl")


def megatron_timers(level: int) -> Timers:
    """Timers that print to stdout, as Megatron-LM sets them up."""
    logger = logging.getLogger("megatron.core.timers")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stdout))
    return Timers(level, "minmax")


def transformer_config(args: argparse.Namespace, shape: Shape, timers: Timers) -> TransformerConfig:
    dtype = torch.float16 if args.fp16 else torch.bfloat16
    if args.te:
        add_gradients_in_products()
    moe = {}
    if shape.experts:
        moe = {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.top_k,
            "moe_ffn_hidden_size": shape.ffn,
            "moe_token_dispatcher_type": args.moe_token_dispatcher_type,
            "moe_flex_dispatcher_backend": args.moe_flex_dispatcher_backend,
            "moe_router_dtype": "fp32" if args.moe_token_dispatcher_type == "flex" else None,
            "moe_router_load_balancing_type": "aux_loss",
            "moe_aux_loss_coeff": 1e-2,
            "expert_model_parallel_size": args.ep,
            "expert_tensor_parallel_size": args.etp,
            "overlap_moe_expert_parallel_comm": args.overlap_moe_expert_parallel_comm,
        }
    if shape.experts and args.te:
        moe["moe_grouped_gemm"] = True
    fp8 = {"fp8": "hybrid", "fp8_recipe": args.fp8_recipe} if args.fp8_recipe else {}
    if args.fp8_recipe in ("blockwise", "mxfp8"):
        fp8["fp8"] = "e4m3"
    if args.nvfp4:
        fp8 = {"fp4": "e2m1", "fp4_recipe": "nvfp4"}
    if args.fp8_param_gather:
        fp8["fp8_param"] = True
    recompute = {}
    if args.recompute_granularity == "full":
        recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    elif args.recompute_granularity == "selective":
        recompute = {"recompute_granularity": "selective", "recompute_modules": args.recompute_modules}
    return TransformerConfig(
        num_layers=shape.layers,
        mtp_num_layers=args.mtp_num_layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        qk_layernorm=shape.qk_norm,
        normalization="RMSNorm",
        gated_linear_unit=shape.gated,
        activation_func=F.silu if shape.gated else F.gelu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_backend=AttnBackend[args.attention_backend],
        tensor_model_parallel_size=args.tp,
        sequence_parallel=args.sequence_parallel,
        tp_comm_overlap=args.tp_comm_overlap and args.tp > 1,
        pipeline_model_parallel_size=args.pp,
        virtual_pipeline_model_parallel_size=args.vpp,
        context_parallel_size=args.cp,
        cp_comm_type=args.cp_comm_type,
        defer_embedding_wgrad_compute=args.defer_embedding_wgrad_compute,
        wgrad_deferral_limit=args.wgrad_deferral_limit,
        cpu_offloading=args.cpu_offloading_num_layers > 0,
        cpu_offloading_num_layers=args.cpu_offloading_num_layers,
        overlap_p2p_comm=args.overlap_p2p,
        batch_p2p_comm=not args.overlap_p2p,
        bf16=not args.fp16,
        fp16=args.fp16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        gradient_accumulation_fusion=args.te and not (args.no_gradient_accumulation_fusion or args.use_megatron_fsdp),
        apply_rope_fusion=args.te and not args.no_rope_fusion,
        bias_activation_fusion=args.te and shape.gated and not args.no_bias_swiglu_fusion,
        persist_layer_norm=False,
        init_model_with_meta_device=args.init_model_with_meta_device,
        timers=timers,
        **moe,
        **fp8,
        **recompute,
    )


def build_model(args: argparse.Namespace, shape: Shape, config: TransformerConfig) -> list[DistributedDataParallel]:
    """One chunk per virtual pipeline stage of this rank."""
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        fp8_param_gather=args.fp8_param_gather,
        reuse_grad_buf_for_mxfp8_param_ag=reuses_gradients(args),
        overlap_grad_reduce=args.overlap_grad_reduce,
        overlap_param_gather=args.overlap_param_gather,
        align_param_gather=args.align_param_gather,
        bucket_size=args.ddp_bucket_size,
        use_distributed_optimizer=args.use_distributed_optimizer,
        use_megatron_fsdp=args.use_megatron_fsdp,
        data_parallel_sharding_strategy=args.data_parallel_sharding_strategy,
        fsdp_double_buffer=args.fsdp_double_buffer,
        suggested_communication_unit_size=args.suggested_communication_unit_size,
    )
    wrapper = FullyShardedDataParallel if args.use_megatron_fsdp else DistributedDataParallel
    chunks = []
    for i in range(args.vpp or 1):
        stage = i if args.vpp else None
        spec = engine_spec(config, stage) if args.te else local_spec(config, stage, args.attention == "sdpa")
        with torch.device("meta") if args.init_model_with_meta_device else nullcontext():
            model = GPTModel(
                config=config,
                transformer_layer_spec=spec,
                mtp_block_spec=get_gpt_mtp_block_spec(config, spec, args.te, stage),
                vocab_size=shape.vocab,
                max_sequence_length=shape.seq,
                pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                share_embeddings_and_output_weights=False,
                position_embedding_type="rope",
                rotary_base=shape.rotary_base,
                vp_stage=stage,
            )
        model.model_type = ModelType.encoder_or_decoder
        if not args.init_model_with_meta_device:
            model.cuda()
        chunks.append(wrapper(config, ddp_config, Float16Module(config, model), disable_bucketing=i > 0))
    if not args.use_megatron_fsdp:
        for chunk in chunks:
            chunk.broadcast_params()
    return chunks


def build_optimizer(
    args: argparse.Namespace, config: TransformerConfig, model: list[DistributedDataParallel]
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=3e-4,
            min_lr=3e-5,
            weight_decay=0.1,
            adam_beta1=0.9,
            adam_beta2=0.95,
            clip_grad=args.clip_grad,
            bf16=not args.fp16,
            fp16=args.fp16,
            params_dtype=config.params_dtype,
            initial_loss_scale=2**16,
            min_loss_scale=1.0,
            loss_scale_window=1000,
            hysteresis=2,
            use_distributed_optimizer=args.use_distributed_optimizer,
            overlap_param_gather=args.overlap_param_gather,
            use_precision_aware_optimizer=args.use_precision_aware_optimizer,
            optimizer_cpu_offload=args.optimizer_cpu_offload,
            optimizer_offload_fraction=float(args.optimizer_cpu_offload),
            fp8_recipe=args.fp8_recipe,
            reuse_grad_buf_for_mxfp8_param_ag=reuses_gradients(args),
            timers=config.timers,
        ),
        model,
        use_gloo_process_groups=False,
    )
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=3e-4,
        min_lr=3e-5,
        lr_warmup_steps=0,
        lr_decay_steps=1_000_000,
        lr_decay_style="cosine",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=1,
        wd_incr_style="constant",
    )
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in model]
        config.no_sync_func = no_sync if len(model) > 1 else no_sync[0]
        if args.align_grad_reduce:
            reduce = [chunk.start_grad_sync for chunk in model]
            config.grad_sync_func = reduce if len(model) > 1 else reduce[0]
    if args.overlap_param_gather and args.align_param_gather:
        gather = [chunk.start_param_sync for chunk in model]
        config.param_sync_func = gather if len(model) > 1 else gather[0]
    return optimizer, scheduler


def batches(args: argparse.Namespace, shape: Shape) -> Iterator[Batch]:
    """Random tokens; this rank's part of their sequence under context parallelism."""
    positions = torch.arange(shape.seq, device="cuda").expand(args.micro_batch_size, -1)
    asked = inspect.signature(get_batch_on_this_cp_rank).parameters
    kind = {"is_hybrid_cp": False} if "is_hybrid_cp" in asked else {}  # behind 0.16
    while True:
        text = torch.randint(0, shape.vocab, (args.micro_batch_size, shape.seq + 1), device="cuda")
        batch = {"tokens": text[:, :-1].contiguous(), "labels": text[:, 1:].contiguous(), "positions": positions}
        yield get_batch_on_this_cp_rank(batch, cp_group=parallel_state.get_context_parallel_group(), **kind)


def causal_mask(args: argparse.Namespace, shape: Shape) -> torch.Tensor | None:
    if args.te or args.attention == "sdpa":
        return None
    return torch.ones((1, 1, shape.seq, shape.seq), dtype=torch.bool, device="cuda").triu(1)


def loss_func(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean over the tokens of the sequence, of which this rank has a part under context parallelism."""
    group = parallel_state.get_context_parallel_group()
    loss = losses.float().mean()
    mean = loss.detach().clone()
    if group.size() > 1:
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    return loss, {"lm loss": mean}


class Trainer:
    """Megatron-LM's training loop: train_step and training_log."""

    def __init__(self, args: argparse.Namespace, shape: Shape) -> None:
        self.args, self.shape = args, shape
        self.timers = megatron_timers(args.timing_log_level)
        self.config = transformer_config(args, shape, self.timers)
        self.model = build_model(args, shape, self.config)
        self.optimizer, self.scheduler = build_optimizer(args, self.config, self.model)
        self.iterators = [batches(args, shape) for _ in self.model]
        self.mask = causal_mask(args, shape)
        self.forward_backward: Callable[..., Any] = get_forward_backward_func()
        data_parallel = parallel_state.get_data_parallel_world_size()
        self.global_batch = args.global_batch_size or args.micro_batch_size * data_parallel
        self.micro_batches, rest = divmod(self.global_batch, args.micro_batch_size * data_parallel)
        if rest or not self.micro_batches:
            raise SystemExit(
                f"--global-batch-size {self.global_batch} is no multiple of --micro-batch-size "
                f"{args.micro_batch_size} times {data_parallel} data-parallel ranks"
            )
        self.skipped = 0

    def forward_step(
        self, data: Iterator[Batch], model: torch.nn.Module, return_schedule_plan: bool = False
    ) -> tuple[Any, Callable[..., Any]]:
        """The losses; with `return_schedule_plan` the parts of the forward pass, to run next to a backward pass."""
        batch = next(data)
        forward = model.build_schedule_plan if return_schedule_plan else model
        return forward(batch["tokens"], batch["positions"], self.mask, labels=batch["labels"]), loss_func

    def train_step(self) -> tuple[float, float | None]:
        """Returns the mean loss (0 on all but the last pipeline stage) and the norm of the gradients."""
        timers = self.timers
        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = self.forward_backward(
            forward_step_func=self.forward_step,
            data_iterator=self.iterators if self.args.vpp else self.iterators[0],
            model=self.model if self.args.vpp else self.model[0],
            num_microbatches=self.micro_batches,
            seq_length=self.shape.seq,
            micro_batch_size=self.args.micro_batch_size,
            forward_only=False,
        )
        timers("optimizer", log_level=1).start(barrier=True)
        updated, grad_norm, _ = self.optimizer.step()
        timers("optimizer").stop()
        if updated:
            self.scheduler.step(increment=self.global_batch)
        else:
            self.skipped += 1
        loss = torch.stack([each["lm loss"] for each in losses]).mean() if losses else torch.zeros((), device="cuda")
        dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=parallel_state.get_data_parallel_group())
        return loss.item(), grad_norm

    def train(self) -> None:
        if self.args.load:
            self.load(self.args.load)
        for iteration in range(1, self.args.train_iters + 1):
            self.timers("interval-time", log_level=0).start(barrier=True)
            loss, grad_norm = self.train_step()
            elapsed = self.timers("interval-time").elapsed(barrier=True)
            self.timers("interval-time").stop()
            self.log(iteration, elapsed, loss, grad_norm)
            if iteration in (2, self.args.train_iters):
                self.report_memory(iteration)
        if self.args.save:
            self.save(self.args.save)

    def log(self, iteration: int, elapsed: float, loss: float, grad_norm: float | None) -> None:
        tflops = self.shape.flops(self.global_batch) / elapsed / dist.get_world_size() / 1e12
        fields = [
            f"iteration {iteration:8d}/{self.args.train_iters:8d}",
            f"consumed samples: {iteration * self.global_batch:12d}",
            f"elapsed time per iteration (ms): {elapsed * 1000:.1f}",
            f"throughput per GPU (TFLOP/s/GPU): {tflops:.1f}",
            f"learning rate: {self.optimizer.param_groups[0]['lr']:.6E}",
            f"global batch size: {self.global_batch:5d}",
            f"lm loss: {loss:.6E}",
            f"loss scale: {self.optimizer.get_loss_scale().item():.1f}",
            *([f"grad norm: {float(grad_norm):.3f}"] if grad_norm is not None else []),
            f"number of skipped iterations: {self.skipped:3d}",
        ]
        if dist.get_rank() == dist.get_world_size() - 1:
            print(f" [{datetime.now():%Y-%m-%d %H:%M:%S.%f}] " + " | ".join(fields) + " |", flush=True)
        names = list(self.timers._timers)
        names.remove("interval-time")
        self.timers.log(names)

    def report_memory(self, iteration: int) -> None:
        if parallel_state.get_data_parallel_rank() != 0:
            return
        mega = 1024 * 1024
        print(
            f"[Rank {dist.get_rank()}] (after {iteration} iterations) memory (MB)"
            f" | allocated: {torch.cuda.memory_allocated() / mega}"
            f" | max allocated: {torch.cuda.max_memory_allocated() / mega}"
            f" | reserved: {torch.cuda.memory_reserved() / mega}"
            f" | max reserved: {torch.cuda.max_memory_reserved() / mega}",
            flush=True,
        )

    def save(self, directory: Path) -> None:
        """A checkpoint of model and optimizer; any number of data-parallel ranks can load it."""
        directory.mkdir(parents=True, exist_ok=True)
        dist_checkpointing.save(self.state(), str(directory), content_metadata=METADATA)

    def state(self, loads: bool = False) -> dict[str, Any]:
        """The shards of this rank, which a checkpoint has or gets into."""
        state: dict[str, Any] = {}
        for i, chunk in enumerate(self.model):
            state[f"model{i}" if len(self.model) > 1 else "model"] = chunk.module.sharded_state_dict(metadata=METADATA)
        state["optimizer"] = self.optimizer.sharded_state_dict(state, is_loading=loads, metadata=METADATA)
        return state

    def load(self, directory: Path) -> None:
        state = dist_checkpointing.load(self.state(loads=True), str(directory))
        for i, chunk in enumerate(self.model):
            chunk.load_state_dict(state[f"model{i}" if len(self.model) > 1 else "model"])
        self.optimizer.load_state_dict(state["optimizer"])


def main() -> None:
    args = parse()
    shape = SHAPES[args.model]
    changes = {"layers": args.num_layers, "seq": args.seq_length}
    shape = dataclasses.replace(shape, **{name: value for name, value in changes.items() if value is not None})
    initialize(args)
    if args.tp_comm_overlap and args.tp > 1:
        initialize_userbuffers(args, shape)
    Trainer(args, shape).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
