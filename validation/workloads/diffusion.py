"""A training step of MLPerf's diffusion models: Stable Diffusion 2's UNet, and FLUX.1's transformer.

    phantora trace --cluster dgx-h100:8 --fold dp=64:first -m validation.workloads.diffusion stable-diffusion --micro-batch-size 16

Sizes and settings follow NVIDIA's configurations in github.com/mlcommons/training_results_v3.1, v4.0 and v5.1: latents
and, but for `--text-encoder`, captions are encoded beforehand; Stable Diffusion trains in float16 with channels last,
compiled but for Apex's norms, its passes in one CUDA graph; FLUX.1 has images of 256x256 pixels, and products in
`--precision`. The models are those of diffusers. Steps have the time of a training, not its values.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import CLIPTextConfig, CLIPTextModel

from validation.workloads.narrow_linear import narrow
from validation.workloads.sharded_adam import ShardedAdam

LATENT, TOKENS = 64, 77
"""Side of a latent image of 512x512 pixels, and tokens of a caption, of Stable Diffusion."""
PATCHES, WORDS = 256, 256
"""Of an image of 256x256 pixels and of its caption, of FLUX.1."""
JOINT, SINGLE = 19, 38
"""Blocks of FLUX.1 of both kinds, in the ratio that fewer layers keep."""

Step = Callable[[], None]


@torch.library.custom_op("diffusion::norm", mutates_args=())
def normed(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """For its time only: Apex's norm of groups, with its activation, reads and writes each element once."""
    return given * 1.0


@torch.library.custom_op("diffusion::norm_back", mutates_args=())
def normed_back(gradient: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The gradient of its input: reads both tensors and writes one. Those of weight and bias are small."""
    return torch.add(given, gradient)


@normed.register_fake
def _(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(given)


@normed_back.register_fake
def _(gradient: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(given)


def _kept(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    given, weight, bias = ctx.saved_tensors
    return normed_back(gradient, given), torch.zeros_like(weight), torch.zeros_like(bias)


normed.register_autograd(_gradients, setup_context=_kept)


class ApexNorm(torch.nn.GroupNorm):
    """Apex's norm of groups, which keeps channels last and has the activation behind it."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = normed(given, self.weight, self.bias)
        return made


def with_apex_norms(unet: torch.nn.Module) -> None:
    """Norms of groups in `unet` are Apex's, as in the submissions; torch.compile's write channels first."""
    for part in unet.modules():
        if type(part) is torch.nn.GroupNorm:
            part.__class__ = ApexNorm
        for name in ("nonlinearity", "conv_act"):
            if isinstance(getattr(part, name, None), torch.nn.SiLU):
                setattr(part, name, torch.nn.Identity())


def stable_diffusion(args: argparse.Namespace) -> Step:
    """The UNet of 865M parameters; gradients are reduced behind the backward pass, as the submissions do."""
    size, noise_of = args.micro_batch_size, partial(torch.randn, dtype=torch.float16, device="cuda")
    unet = UNet2DConditionModel(
        sample_size=LATENT,
        attention_head_dim=(5, 10, 20, 20),
        cross_attention_dim=1024,
        use_linear_projection=True,
        norm_num_groups=16,
    )
    unet = unet.to("cuda", torch.float16, memory_format=torch.channels_last)
    with_apex_norms(unet)
    optimizer = ShardedAdam(unet)
    compiled = torch.compile(unet, dynamic=False)
    noisy = noise_of(size, 4, LATENT, LATENT).to(memory_format=torch.channels_last)
    target = torch.randn_like(noisy)
    steps = torch.randint(0, 1000, (size,), device="cuda")
    context = noise_of(size, TOKENS, 1024)
    moments = torch.randn(size, 8, LATENT, LATENT).pin_memory()
    encoder = text_encoder().to("cuda", torch.float16) if args.text_encoder else None
    words = torch.randint(0, 49408, (size, TOKENS), device="cuda")

    def passes() -> None:
        out = compiled(noisy, steps, encoder_hidden_states=context, return_dict=False)[0]
        F.mse_loss(out.float(), target.float()).mul(65536.0).backward()

    with torch.cuda.stream(torch.cuda.Stream()):
        passes()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        passes()

    def step() -> None:
        mean, deviation = moments.to("cuda", non_blocking=True).chunk(2, dim=1)
        latents = (mean + deviation.exp() * torch.randn_like(mean)).half()
        noise = torch.randn_like(latents)
        noisy.copy_(latents * 0.9 + noise * 0.1)
        target.copy_(noise * 0.9 - latents * 0.1)
        if encoder is not None:
            with torch.no_grad():
                context.copy_(encoder(words).last_hidden_state)
        graph.replay()
        optimizer.step()

    return step


def text_encoder() -> CLIPTextModel:
    """OpenCLIP ViT-H/14's half for text without its last layer, which Stable Diffusion 2 leaves out."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16}
    return CLIPTextModel(CLIPTextConfig(**sizes, hidden_act="gelu"))


def flux(args: argparse.Namespace) -> Step:
    """FLUX.1-schnell, sharded by FSDP a block; `--num-layers` blocks, a third of them joint."""
    joint, rest = divmod(args.num_layers, 3)
    if rest:
        raise SystemExit(f"--num-layers {args.num_layers} is no multiple of 3")
    size, noise_of = args.micro_batch_size, partial(torch.randn, dtype=torch.bfloat16, device="cuda")
    with torch.device("cuda"):
        model = FluxTransformer2DModel(
            in_channels=64,
            num_layers=joint,
            num_single_layers=2 * joint,
            attention_head_dim=128,
            num_attention_heads=24,
            joint_attention_dim=4096,
            pooled_projection_dim=768,
            guidance_embeds=False,
        ).to(torch.bfloat16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in [*model.transformer_blocks, *model.single_transformer_blocks]:
        narrow(block, args.precision)
        fully_shard(block, mp_policy=policy)
        block.compile()
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    mean, deviation = torch.randn(2, size, 16, 32, 32).pin_memory()
    image, text = torch.zeros(PATCHES, 3, device="cuda"), torch.zeros(WORDS, 3, device="cuda")
    captions, pooled = noise_of(size, WORDS, 4096), noise_of(size, 768)

    def step() -> None:
        first, second = (part.to("cuda", torch.bfloat16, non_blocking=True) for part in (mean, deviation))
        latents = (first + second.exp() * torch.randn_like(first)).view(size, 16, 16, 2, 16, 2)
        latents = latents.permute(0, 2, 4, 1, 3, 5).reshape(size, PATCHES, 64)
        noise, sigmas = torch.randn_like(latents), torch.rand_like(latents[:, :1, :1])
        out = model(
            hidden_states=latents * (1 - sigmas) + noise * sigmas,
            encoder_hidden_states=captions,
            pooled_projections=pooled,
            timestep=sigmas.flatten(),
            img_ids=image,
            txt_ids=text,
            return_dict=False,
        )[0]
        F.mse_loss(out.float(), (noise - latents).float()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


MODELS: dict[str, Callable[[argparse.Namespace], Step]] = {"stable-diffusion": stable_diffusion, "flux": flux}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int, help="of all ranks: one micro-batch each")
    parser.add_argument("--num-layers", type=int, default=JOINT + SINGLE, help="blocks of FLUX.1")
    parser.add_argument("--precision", default="bf16", help="of products in FLUX.1: bf16, fp8, delayed, mxfp8 or nvfp4")
    parser.add_argument("--cudnn-attention", action="store_true")
    parser.add_argument("--text-encoder", action="store_true", help="captions are encoded in each step")
    parser.add_argument("--train-iters", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    attention = sdpa_kernel([SDPBackend.CUDNN_ATTENTION]) if args.cudnn_attention else nullcontext()
    with attention:
        step = MODELS[args.model](args)
        for iteration in range(args.train_iters):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            step()
            torch.cuda.synchronize()
            elapsed = 1e3 * (time.perf_counter() - begin)
            if dist.get_rank() == 0:
                print(f"iteration {iteration + 1}: elapsed time per iteration (ms): {elapsed:.2f}", flush=True)
        if dist.get_rank() == 0:
            print(f"[Rank 0] memory (MB) | max allocated: {torch.cuda.max_memory_allocated() / 2**20:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
