"""Image models whose convolutions cudnn.benchmark chooses: `resnet50`, `vgg16`, `densenet121` or `unet`, in TF32 or exact."""

import sys

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from validation.workloads.programs.steps import timed

kind, precision = sys.argv[1:3]
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def twice(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.ReLU(True), nn.Conv2d(after, after, 3, padding=1), nn.ReLU(True)
    )


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([twice(3, 64), twice(64, 128), twice(128, 256)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(256, 128, 2, stride=2), nn.ConvTranspose2d(128, 64, 2, stride=2)])
        self.join = nn.ModuleList([twice(256, 128), twice(128, 64)])
        self.head = nn.Conv2d(64, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        x = self.up[0](self.down[2](F.max_pool2d(second, 2)))
        x = self.up[1](self.join[0](torch.cat((x, second), 1)))
        return self.head(self.join[1](torch.cat((x, first), 1)))


SIZES = {"resnet50": (64, 224), "vgg16": (48, 160), "densenet121": (48, 192), "unet": (12, 256)}
batch, side = SIZES[kind]
model = (Unet() if kind == "unet" else getattr(torchvision.models, kind)()).cuda().train()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
x = torch.randn(batch, 3, side, side, device="cuda")
y = torch.randint(10, (batch, side, side) if kind == "unet" else (batch,), device="cuda")


def step() -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


timed(f"tried_{kind}_{precision}", step)
