"""A residual network on 32x32 images in channels-last fp16 with a GradScaler, SGD with Nesterov, label smoothing."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.calibration.programs.common import Step, main


class Residual(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Conv2d(inside, out, 1, stride, bias=False) if stride > 1 or inside != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.short(x))


def build(blocks: int, width: int, batch: int) -> Step:
    layers, inside = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()], width
    for stage in range(3):
        for i in range(blocks):
            layers.append(Residual(inside, width << stage, 2 if stage and not i else 1))
            inside = width << stage
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))
    model = model.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


main("cifar", build, {
    "base": dict(blocks=3, width=32, batch=64), "deep": dict(blocks=9, width=32, batch=64),
    "wide": dict(blocks=3, width=64, batch=128), "small": dict(blocks=1, width=32, batch=256),
})
