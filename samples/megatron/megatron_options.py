"""The command line of the sample: Megatron-LM's options, with short names for the parallel sizes."""

from __future__ import annotations

import argparse
from pathlib import Path

from megatron_shapes import SHAPES

REPLACED = {"layernorm", "moe_act", "mla_up_proj"}
"""Modules whose outputs are freed and computed again, which Megatron-Core can with Transformer Engine only."""


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--model", choices=SHAPES, default="llama2-7b")
    p.add_argument("--num-layers", type=int, help="fewer layers than the model has")
    p.add_argument("--mtp-num-layers", type=int, help="layers that predict further tokens")
    p.add_argument("--seq-length", type=int, help="instead of the model's own")
    p.add_argument("--micro-batch-size", type=int, default=1)
    p.add_argument("--global-batch-size", type=int, help="default: one micro-batch per data-parallel rank")
    p.add_argument("--train-iters", type=int, default=4)
    _parallelism(p.add_argument_group("parallelism"))
    _data_parallelism(p.add_argument_group("data parallelism and optimizer"))
    _layers(p.add_argument_group("activations and attention"))
    g = p.add_argument_group("mixture of experts")
    g.add_argument("--moe-token-dispatcher-type", choices=["alltoall", "allgather", "flex"], default="alltoall")
    g.add_argument("--moe-flex-dispatcher-backend", choices=["deepep", "hybridep"], default="deepep", help="of flex")
    g.add_argument("--overlap-moe-expert-parallel-comm", action="store_true", help="next to other micro-batches")
    g = p.add_argument_group("output")
    g.add_argument("--timing-log-level", type=int, choices=[0, 1, 2], default=0)
    g.add_argument("--save", type=Path, metavar="DIR", help="write a distributed checkpoint at the end")
    g.add_argument("--load", type=Path, metavar="DIR", help="read a distributed checkpoint at the start")
    args = p.parse_args()
    if error := _refused(args):
        p.error(error)
    return args


def _parallelism(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--tp", type=int, default=1, help="tensor parallel size")
    g.add_argument("--sequence-parallel", action="store_true", help="with --tp")
    g.add_argument("--pp", type=int, default=1, help="pipeline parallel size (1F1B)")
    g.add_argument("--tp-comm-overlap", action="store_true", help="with --te, --sequence-parallel: Userbuffers")
    g.add_argument("--vpp", type=int, help="model chunks per pipeline rank (interleaved 1F1B)")
    g.add_argument("--overlap-p2p", action="store_true", help="with --vpp: overlap send and receive with computing")
    g.add_argument("--defer-embedding-wgrad-compute", action="store_true", help="output layer's weight gradients last")
    g.add_argument("--wgrad-deferral-limit", type=int, default=0, help="micro-batches of them; 0: all")
    g.add_argument("--cp", type=int, default=1, help="context parallel size")
    g.add_argument("--cp-comm-type", choices=["p2p", "a2a", "all_gather"], default="p2p", help="of --cp, with --te")
    g.add_argument("--ep", type=int, default=1, help="expert parallel size")
    g.add_argument("--etp", type=int, help="tensor parallel size of the experts (default: --tp)")


def _data_parallelism(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--use-distributed-optimizer", action="store_true")
    g.add_argument("--overlap-grad-reduce", action="store_true")
    g.add_argument("--overlap-param-gather", action="store_true", help="with --use-distributed-optimizer")
    g.add_argument("--ddp-bucket-size", type=int, help="parameters of a bucket of gradients and weights")
    g.add_argument("--align-grad-reduce", action="store_true", help="reduce a chunk's gradients on all stages at once")
    g.add_argument("--align-param-gather", action="store_true", help="gather a chunk's weights on all stages at once")
    g.add_argument("--use-megatron-fsdp", action="store_true", help="Megatron-FSDP instead of DDP")
    strategies = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
    g.add_argument("--data-parallel-sharding-strategy", choices=strategies, default="no_shard", help="of Megatron-FSDP")
    g.add_argument("--init-model-with-meta-device", action="store_true", help="Megatron-FSDP allocates shards only")
    g.add_argument("--fsdp-double-buffer", action="store_true", help="two persistent buffers for gathered parameters")
    g.add_argument("--suggested-communication-unit-size", type=int, help="elements that Megatron-FSDP gathers ahead")
    g.add_argument("--clip-grad", type=float, default=1.0)
    g.add_argument("--use-precision-aware-optimizer", action="store_true", help="Adam keeps the main weights")
    g.add_argument("--optimizer-cpu-offload", action="store_true", help="all states of the optimizer in host memory")
    g.add_argument("--fp16", action="store_true", help="fp16 with a dynamic loss scale instead of bf16")


def _layers(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--recompute-granularity", choices=["full", "selective"])
    g.add_argument("--recompute-modules", nargs="+", default=["core_attn"], help="with selective recomputation")
    g.add_argument("--cpu-offloading-num-layers", type=int, default=0, help="activations in host memory, with --te")
    g.add_argument("--attention", choices=["sdpa", "local"], default="sdpa", help="core attention")
    g.add_argument("--te", action="store_true", help="Transformer Engine's layers and optimizer")
    backends = ["auto", "flash", "fused", "unfused"]
    g.add_argument("--attention-backend", choices=backends, default="auto", help="core attention, with --te")
    recipes = ["delayed", "tensorwise", "blockwise", "mxfp8"]
    g.add_argument("--fp8-recipe", choices=recipes, help="products in FP8, with --te")
    g.add_argument("--fp8-param-gather", action="store_true", help="weights and their gather in FP8")
    g.add_argument("--nvfp4", action="store_true", help="products in NVFP4, with --te")
    g.add_argument("--no-rope-fusion", action="store_true", help="rotary embeddings in torch's operators")
    g.add_argument("--no-gradient-accumulation-fusion", action="store_true", help="as with Megatron-FSDP")
    g.add_argument("--no-bias-swiglu-fusion", action="store_true", help="SwiGLU in torch's operators, not compiled")


def _refused(args: argparse.Namespace) -> str | None:
    """Why Megatron-Core cannot run this."""
    if (args.fp8_recipe or args.nvfp4) and not args.te:
        return "--fp8-recipe and --nvfp4 need --te: Megatron-Core's local layers know neither"
    if args.tp_comm_overlap and not (args.te and args.sequence_parallel):
        return "--tp-comm-overlap needs --te and --sequence-parallel"
    engine = {
        "--cp-comm-type": args.cp_comm_type != "p2p",
        "--cpu-offloading-num-layers": args.cpu_offloading_num_layers,
        "--use-precision-aware-optimizer": args.use_precision_aware_optimizer,
        "--defer-embedding-wgrad-compute": args.defer_embedding_wgrad_compute,
        "--use-megatron-fsdp with --tp": args.use_megatron_fsdp and args.tp > 1,
        "--load": args.load,
        "--init-model-with-meta-device": args.init_model_with_meta_device,
        "--recompute-modules " + " ".join(args.recompute_modules): REPLACED & {*args.recompute_modules},
    }
    for option, given in engine.items():
        if given and not args.te:
            return f"{option} needs --te"
    if args.fp8_param_gather and not args.fp8_recipe:
        return "--fp8-param-gather needs --fp8-recipe"
    if args.init_model_with_meta_device and not args.use_megatron_fsdp:
        return "--init-model-with-meta-device needs --use-megatron-fsdp"
    if args.use_megatron_fsdp and not args.use_distributed_optimizer:
        return "--use-megatron-fsdp needs --use-distributed-optimizer"
    if args.use_megatron_fsdp and (args.pp > 1 or args.save or args.load):
        return "--use-megatron-fsdp takes no --pp, --save and --load"
    if args.optimizer_cpu_offload and not args.use_precision_aware_optimizer:
        return "--optimizer-cpu-offload needs --use-precision-aware-optimizer"
    return None


def reuses_gradients(args: argparse.Namespace) -> bool:
    """Whether weights in MXFP8 are gathered through the buffer of the gradients, as DDP needs it."""
    return bool(args.fp8_param_gather and args.fp8_recipe == "mxfp8" and not args.use_megatron_fsdp)
