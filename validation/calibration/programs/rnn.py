"""A language model of LSTM cells unrolled in Python, next to one nn.GRU; SGD with momentum."""
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.calibration.programs.common import Step, main


class Model(nn.Module):
    def __init__(self, dim: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(4096, dim)
        self.cells = nn.ModuleList(nn.LSTMCell(dim, dim) for _ in range(layers))
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 4096)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        states: list[Any] = [None] * len(self.cells)
        outputs = []
        for t in range(ids.shape[1]):
            h = x[:, t]
            for i, cell in enumerate(self.cells):
                states[i] = cell(h, states[i])
                h = states[i][0]
            outputs.append(h)
        return self.head(self.gru(torch.stack(outputs, 1))[0])


def build(dim: int, layers: int, batch: int, seq: int) -> Step:
    model = Model(dim, layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ids = torch.randint(0, 4096, (batch, seq + 1), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
        loss.backward()
        optimizer.step()

    return step


main("rnn", build, {
    "base": dict(dim=256, layers=2, batch=32, seq=24), "deep": dict(dim=256, layers=4, batch=32, seq=24),
    "long": dict(dim=256, layers=2, batch=16, seq=64), "wide": dict(dim=512, layers=1, batch=128, seq=32),
})
