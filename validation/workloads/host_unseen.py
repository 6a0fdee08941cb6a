"""Ten host-bound workloads that no cost of a host was fitted to: for host_pairs.py. Optimizers as torch's defaults have them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from validation.workloads.host_runs import Language, Step, language_loss, trained, words


def plain(model: nn.Module, loss_of: Callable[[], torch.Tensor], make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> Step:
    optimizer = make(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return step


def autoencoder() -> Step:
    """A variational one, of images."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(*(layer for i in range(4) for layer in (nn.Conv2d(3 if not i else 32 * i, 32 * (i + 1), 4, 2, 1), nn.BatchNorm2d(32 * (i + 1)), nn.LeakyReLU())))
            self.mean, self.spread, self.into = nn.Linear(2048, 64), nn.Linear(2048, 64), nn.Linear(64, 2048)
            self.up = nn.Sequential(*(layer for i in range(4, 0, -1) for layer in (nn.ConvTranspose2d(32 * i, 32 * (i - 1) or 3, 4, 2, 1), nn.ReLU())))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.down(x).flatten(1)
            mean, spread = self.mean(h), self.spread(h)
            z = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
            made = self.up(self.into(z).view(-1, 128, 4, 4))
            return F.mse_loss(made, x, reduction="sum") - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())

    model, x = Model().cuda(), torch.rand(16, 3, 64, 64, device="cuda")
    return plain(model, lambda: model(x), torch.optim.Adam)


def averaged() -> Step:
    """A small transformer with a moving average of its weights, kept by a loop over them."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(192, 6, 384, batch_first=True), 6).cuda()
    kept, x = copy.deepcopy(model), torch.randn(8, 64, 192, device="cuda")
    train = plain(model, lambda: model(x).square().mean())

    def step() -> None:
        train()
        with torch.no_grad():
            for mine, theirs in zip(kept.parameters(), model.parameters(), strict=True):
                mine.mul_(0.999).add_(theirs, alpha=0.001)

    return step


def adapters() -> Step:
    """Low-rank adapters of a frozen model."""
    class Adapted(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner, self.a, self.b = inner, nn.Linear(inner.in_features, 8, bias=False), nn.Linear(8, inner.out_features, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.b(self.a(x)) * 2.0

    model = Language(256, 12, 4).requires_grad_(False)
    for block in model.blocks:
        for name in ("wk", "wv", "w1", "w2"):
            setattr(block, name, Adapted(getattr(block, name)))
    model.cuda()
    loss = language_loss(model, 2, 64)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def recommender() -> Step:
    """Tables of many features, and what pairs of them say."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(26))
            self.below = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
            self.above = nn.Sequential(nn.Linear(383, 256), nn.ReLU(), nn.Linear(256, 1))

        def forward(self, dense: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
            parts = [self.below(dense), *(table(chosen[:, i]) for i, table in enumerate(self.tables))]
            stacked = torch.stack(parts, 1)
            pairs = torch.bmm(stacked, stacked.transpose(1, 2))
            i, j = torch.tril_indices(27, 27, -1, device=dense.device)
            return self.above(torch.cat([parts[0], pairs[:, i, j]], 1))

    model = Model().cuda()
    dense, chosen = torch.randn(256, 13, device="cuda"), torch.randint(1000, (256, 26, 3), device="cuda")
    clicks = torch.randint(2, (256, 1), device="cuda").float()
    return plain(model, lambda: F.binary_cross_entropy_with_logits(model(dense, chosen), clicks), torch.optim.SGD)


def accumulated() -> Step:
    """Four micro-batches, gradients clipped, a schedule."""
    model = Language(192, 6, 3, llama=False).cuda()
    losses = [language_loss(model, 2, 48) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step() -> None:
        for loss in losses:
            with torch.autocast("cuda", torch.bfloat16):
                value = loss() / 4
            value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def recomputed() -> Step:
    """Each layer's activations are computed again in the backward pass."""
    model = Language(256, 8, 4).cuda()
    ids, labels = words(2, 64), words(2, 64)

    def loss() -> torch.Tensor:
        x = model.words(ids)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(model.head(model.norm(x)).view(-1, 32000), labels.view(-1))

    return plain(model, loss)


def contrastive() -> Step:
    """Two views through one convolutional network, and a loss over all pairs."""
    def block(into: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(into, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    model = nn.Sequential(block(3, 32), block(32, 64), block(64, 128), block(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 128)).cuda()
    one, two = (torch.randn(32, 3, 32, 32, device="cuda") for _ in range(2))
    same = torch.arange(32, device="cuda")

    def loss() -> torch.Tensor:
        a, b = (F.normalize(model(x), dim=-1) for x in (one, two))
        scores = a @ b.t() / 0.1
        return (F.cross_entropy(scores, same) + F.cross_entropy(scores.t(), same)) / 2

    return plain(model, loss, lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=1e-4))


def physics() -> Step:
    """A network whose derivatives enter its loss."""
    layers = [layer for i in range(6) for layer in (nn.Linear(2 if not i else 64, 64), nn.Tanh())]
    model, points = nn.Sequential(*layers, nn.Linear(64, 1)).cuda(), torch.rand(500, 2, device="cuda")

    def loss() -> torch.Tensor:
        x = points.clone().requires_grad_(True)
        u = model(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0]
        return (first[:, 1] - second[:, 0]).square().mean() + u.square().mean()

    return plain(model, loss, torch.optim.Adam)


def speech() -> Step:
    """Convolutions, a GRU in both directions, and a loss over alignments."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Sequential(nn.Conv1d(80, 128, 3, 2, 1), nn.GELU(), nn.Conv1d(128, 128, 3, 2, 1), nn.GELU())
            self.recurrent, self.out = nn.GRU(128, 128, 2, batch_first=True, bidirectional=True), nn.Linear(256, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.recurrent(self.front(x).transpose(1, 2))[0]).log_softmax(-1).transpose(0, 1)

    model, x = Model().cuda(), torch.randn(8, 80, 160, device="cuda")
    reported = torch.randint(1, 32, (8, 12), device="cuda")
    received, output = torch.full((8,), 40), torch.full((8,), 12)
    return plain(model, lambda: F.ctc_loss(model(x), reported, received, output, zero_infinity=True))


def seq2seq() -> Step:
    """T5 of transformers."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=256, d_kv=64, d_ff=512, num_layers=4, num_heads=4, vocab_size=8000, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).cuda().train()
    ids, labels = words(4, 48, 8000), words(4, 24, 8000)
    return trained(model, lambda: model(input_ids=ids, labels=labels).loss, amp=True, clip=True)


UNSEEN: dict[str, Callable[[], Step]] = {
    "autoencoder": autoencoder, "averaged": averaged, "adapters": adapters, "recommender": recommender, "accumulated": accumulated,
    "recomputed": recomputed, "contrastive": contrastive, "physics": physics, "speech": speech, "seq2seq": seq2seq,
}
