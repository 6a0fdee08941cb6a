"""ResNet-50 in channels last, compiled: Inductor's batch norms and pointwise kernels around cuDNN's convolutions."""

import torch
import torch.nn.functional as F
from torchvision.models import resnet50

from steps import timed

torch.manual_seed(0)
model = resnet50().to("cuda", memory_format=torch.channels_last).train()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
x = torch.randn(192, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
y = torch.randint(0, 1000, (192,), device="cuda")


def step() -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(compiled(x), y, label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


timed("compiled_resnet", step)
