"""Trains the UNet of Stable Diffusion 1.5 (diffusers) with DeepSpeed on random latents.

torchrun --nproc-per-node 4 samples/deepspeed/unet.py --batch 8
"""

from __future__ import annotations

import argparse
import os

import deepspeed
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DConditionModel

from training import add_arguments, dtype_of, settings_of, train

# Stable Diffusion 1.5: 4-channel latents of 64 x 64 (images of 512 x 512), texts of 77 vectors.
CHANNELS, LATENT, WORDS, WIDTH = 4, 64, 77, 768


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser, "vision.json")
    parser.add_argument("--layers", type=int, default=2, help="residual blocks per level")
    args = parser.parse_args()
    settings = settings_of(args)
    dtype = dtype_of(settings)

    deepspeed.init_distributed()
    torch.manual_seed(1234 + torch.distributed.get_rank())
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    with device:
        model = UNet2DConditionModel(
            sample_size=LATENT,
            in_channels=CHANNELS,
            out_channels=CHANNELS,
            cross_attention_dim=WIDTH,
            layers_per_block=args.layers,
            attention_head_dim=8,
        )
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    batch = engine.train_micro_batch_size_per_gpu()

    def loss_of() -> torch.Tensor:
        latents = torch.randn(batch, CHANNELS, LATENT, LATENT, device=device, dtype=dtype)
        texts = torch.randn(batch, WORDS, WIDTH, device=device, dtype=dtype)
        noise = torch.randn_like(latents)
        moments = torch.randint(0, scheduler.config.num_train_timesteps, (batch,), device=device)
        noisy = scheduler.add_noise(latents, noise, moments)
        return F.mse_loss(engine(noisy, moments, texts).sample.float(), noise.float())

    train(engine, args, loss_of, "images", 1)


if __name__ == "__main__":
    main()
