"""Message passing on a random graph: gather, a small MLP on edges, index_add, batch norm; Adam by foreach, weight averaging."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.calibration.programs.common import Step, main


class Layer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.node = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        message = self.edge(torch.cat([x[source], x[target]], -1))
        gathered = torch.zeros_like(x).index_add_(0, target, message)
        return x + self.norm(self.node(torch.cat([x, gathered], -1)))


class Model(nn.Module):
    def __init__(self, layers: int, dim: int) -> None:
        super().__init__()
        self.inside = nn.Linear(16, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.out = nn.Linear(dim, 1)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = layer(x, source, target)
        return self.out(x)


def build(layers: int, dim: int, nodes: int, edges: int) -> Step:
    model = Model(layers, dim).cuda()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(nodes, 16, device="cuda"), torch.randn(nodes, 1, device="cuda")
    source, target = (torch.randint(0, nodes, (edges,), device="cuda") for _ in range(2))

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x, source, target), y).backward()
        optimizer.step()
        average.update_parameters(model)

    return step


main("messages", build, {
    "base": dict(layers=6, dim=64, nodes=2000, edges=16000), "deep": dict(layers=16, dim=64, nodes=2000, edges=16000),
    "large": dict(layers=6, dim=128, nodes=8000, edges=64000), "small": dict(layers=3, dim=64, nodes=500, edges=4000),
})
