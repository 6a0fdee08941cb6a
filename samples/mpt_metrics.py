"""Metrics that Composer computes for each batch: llm-foundry's two of training, sums over ranks for its log.

Needs torchmetrics, as Composer does.
"""

from __future__ import annotations

import time
from copy import deepcopy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torchmetrics import Metric


class LanguageLoss(Metric):
    """Mean cross entropy of the tokens of all ranks. A state is gathered as a list of scalars, one of each rank."""

    full_state_update = False
    loss: torch.Tensor
    items: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("loss", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("items", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        self.items += (targets != -100).sum()
        self.loss += loss

    def compute(self) -> torch.Tensor:
        return self.loss / self.items


class Perplexity(LanguageLoss):
    def compute(self) -> torch.Tensor:
        return torch.exp(super().compute())


class Bookkeeping:
    """Composer's part of a batch: ``begin``, ``after_backward`` of each micro batch, ``end``."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = [LanguageLoss().cuda(), Perplexity().cuda()]
        self.total = torch.zeros(1)
        self.began = time.time()

    def begin(self, mask: torch.Tensor) -> None:
        """The host asks how many tokens there are."""
        self.samples, self.tokens = mask.size(0), int(mask.sum())
        for metric in self.metrics:
            metric.reset()
        self.total = torch.zeros(1).to("cuda")

    def after_backward(self, logits: torch.Tensor, tokens: torch.Tensor, loss: torch.Tensor) -> None:
        """Metrics see what the model gave, under autocast: their cross entropies are computed in float32."""
        self.total += loss.detach().clone().mean()
        targets = tokens.clone()
        targets[:, :-1] = targets[:, 1:].clone()
        targets[:, -1] = -100
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for metric in self.metrics:
                metric.update(logits, targets)

    def end(self, flops: float) -> None:
        """Loss, samples, tokens, time and FLOP of all ranks, each an operation of its own for which the host waits."""
        dist.all_reduce(self.total)
        self.total.cpu().item()
        counts = torch.tensor([self.samples, self.tokens], dtype=torch.int).to("cuda")
        dist.all_reduce(counts)
        now = time.time()
        elapsed = torch.tensor([now - self.began]).to("cuda")
        self.began = now
        dist.broadcast(elapsed, src=0)
        for value in (elapsed[0], counts[0], counts[1]):
            value.cpu().item()
        self.metrics = deepcopy(self.metrics)
        for metric in self.metrics:
            metric.compute().item()
        work = torch.tensor(flops).to("cuda")
        dist.all_reduce(work)
        work.item()
