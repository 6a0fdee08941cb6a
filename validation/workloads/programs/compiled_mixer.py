"""An MLP-Mixer with layer scale and stochastic depth, compiled with torch's defaults: Inductor's Triton kernels between products."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, TOKENS, LAYERS, BATCH = 1024, 256, 16, 128


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.s1, self.s2 = nn.Parameter(torch.full((WIDTH,), 0.1)), nn.Parameter(torch.full((WIDTH,), 0.1))
        self.t1, self.t2 = nn.Linear(TOKENS, 512), nn.Linear(512, TOKENS)
        self.c1, self.c2 = nn.Linear(WIDTH, 4096), nn.Linear(4096, WIDTH)

    def drop(self, x):
        return x * (torch.rand(x.shape[0], 1, 1, device=x.device) < 0.9) / 0.9

    def forward(self, x):
        h = self.t2(F.gelu(self.t1(self.one(x).transpose(1, 2)))).transpose(1, 2)
        x = x + self.drop(self.s1 * h)
        return x + self.drop(self.s2 * self.c2(F.gelu(self.c1(self.two(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 14, 14)
        self.layers = nn.ModuleList(Mixer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


torch.manual_seed(0)
torch.set_default_device("cuda")
model = Model()
run = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
images, labels = torch.randn(BATCH, 3, 224, 224), torch.randint(0, 1000, (BATCH,))


def step() -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(run(images).float(), labels, label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


timed("compiled_mixer", step)
