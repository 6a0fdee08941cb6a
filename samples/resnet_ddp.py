"""Trains ResNet-50 with DistributedDataParallel on random images, copied from pinned memory.

torchrun --nproc-per-node 4 samples/resnet_ddp.py --batch 256 --precision bf16 --channels-last
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution around a residual (He et al. 2015, version 1.5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Sequential:
    stages: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            stages.append(Bottleneck(inputs, width, stride if index == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="images per rank and step")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="tf32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(1234 + rank)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.precision != "fp32"

    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = DistributedDataParallel(resnet50().to(device).to(memory_format=layout), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss()
    images = torch.rand(args.batch, 3, args.size, args.size).contiguous(memory_format=layout).pin_memory()
    labels = torch.randint(0, 1000, (args.batch,)).pin_memory()

    times = []
    for index in range(args.warmup + args.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        x, y = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = loss_of(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if index >= args.warmup:
            times.append(seconds)
        if rank == 0:
            print(f"step {index + 1}  loss {loss.item():.4f}  {seconds * 1e3:.1f} ms", flush=True)
    if rank == 0:
        median = sorted(times)[len(times) // 2]
        print(
            json.dumps(
                {
                    "world_size": world,
                    "median_step_s": median,
                    "images_per_s": args.batch * world / median,
                    "max_memory_allocated": torch.cuda.max_memory_allocated(),
                    "max_memory_reserved": torch.cuda.max_memory_reserved(),
                }
            ),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
