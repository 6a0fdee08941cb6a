"""What models in float32 call, with TF32 and without, in sizes drawn at random. `phantora trace --missing` lists it.

    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.float32_operators [SEED]

Most first programs train in float32: perceptrons, recurrent networks, Transformers with biases and dropout.
"""

from __future__ import annotations

import random
import sys
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F

DRAWS = 30  # of each kind and precision
WIDTHS = (128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
MOST = 1 << 27  # elements of an activation


class Block(nn.Module):
    """Of BERT, GPT-2 and ViT."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + F.dropout(self.out(a.transpose(1, 2).reshape(b, s, width)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.n2(x)))), 0.1)


def transformer(draw: random.Random) -> tuple[nn.Module, torch.Tensor, int]:
    width = draw.choice(WIDTHS)
    seq = draw.choice((64, 128, 196, 197, 256, 384, 512, 577, 768, 1024, 1500, 2048))
    batch = max(1, min(draw.choice((1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256)), MOST // (seq * 4 * width)))
    classes = draw.choice((10, 1000, 10000, 30522, 50257, 32000))
    head = width // draw.choice((32, 64, 64, 64, 128))
    model = nn.Sequential(Block(width, max(1, head), draw.random() < 0.5), nn.LayerNorm(width), nn.Linear(width, classes))
    if batch * seq * classes > MOST * 4:
        batch = max(1, MOST * 4 // (seq * classes))
    return model, torch.randn(batch, seq, width, device="cuda"), classes


def perceptron(draw: random.Random) -> tuple[nn.Module, torch.Tensor, int]:
    sizes = [draw.choice((13, 64, 100, 128, 256, 512, 784, 1024, 2048, 3072, 4096, 8192)) for _ in range(4)]
    classes = draw.choice((2, 10, 100, 1000))
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), draw.choice((nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU))()]
        if draw.random() < 0.4:
            layers.append(draw.choice((nn.BatchNorm1d(out), nn.LayerNorm(out), nn.Dropout(0.2))))
    batch = draw.choice((16, 32, 64, 128, 256, 512, 1000, 1024, 4096, 16384, 65536))
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes)), torch.randn(batch, sizes[0], device="cuda"), classes


class Last(nn.Module):
    def forward(self, found: tuple[torch.Tensor, object]) -> torch.Tensor:
        return found[0]


def recurrent(draw: random.Random) -> tuple[nn.Module, torch.Tensor, int]:
    into, width = draw.choice((64, 128, 256, 300, 512, 650)), draw.choice((128, 200, 256, 512, 650, 1024))
    kind = draw.choice((nn.LSTM, nn.LSTM, nn.GRU))
    layers, both = draw.choice((1, 2, 3)), draw.random() < 0.3
    net = kind(into, width, layers, batch_first=draw.random() < 0.7, bidirectional=both, dropout=0.2 if layers > 1 else 0.0)
    classes = draw.choice((10, 1000, 10000))
    shape = draw.choice((16, 20, 32, 64, 128)), draw.choice((20, 35, 50, 100, 200))
    return nn.Sequential(net, Last(), nn.Linear(width * (1 + both), classes)), torch.randn(*shape, into, device="cuda"), classes


def main() -> None:
    draw = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        for make in (transformer, perceptron, recurrent):
            for _ in range(DRAWS):
                model, x, classes = make(draw)
                model.cuda()
                optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
                out = model(x)
                target = torch.randint(classes, out.shape[:-1], device="cuda")
                F.cross_entropy(out.view(-1, classes), target.view(-1)).backward()
                optimizer.step()
                del model, x, out, target, optimizer
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
