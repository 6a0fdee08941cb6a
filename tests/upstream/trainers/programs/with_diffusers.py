"""A denoising UNet of diffusers, trained with accelerate."""

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel

accelerator = Accelerator(mixed_precision="bf16")
model = UNet2DModel(
    sample_size=64,
    block_out_channels=(32, 64),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
scheduler = DDPMScheduler()
data = torch.utils.data.DataLoader(torch.randn(24, 3, 64, 64), batch_size=4)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for images in data:
    noise = torch.randn_like(images)
    steps = torch.randint(0, len(scheduler), (len(images),), device=images.device)
    loss = torch.nn.functional.mse_loss(model(scheduler.add_noise(images, noise, steps), steps).sample, noise)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
accelerator.print("loss", loss.item())
accelerator.end_training()
