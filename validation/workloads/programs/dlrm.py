"""A DLRM: 16 bags of embeddings with sparse gradients, pairs of features, two MLPs."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

TABLES, ROWS, SIZE, BATCH, HOT, DENSE = 16, 500_000, 128, 16384, 10, 13

torch.manual_seed(0)
torch.set_default_device("cuda")
bags = nn.ModuleList(nn.EmbeddingBag(ROWS, SIZE, mode="sum", sparse=True) for _ in range(TABLES))
bottom = nn.Sequential(
    nn.Linear(DENSE, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, SIZE), nn.ReLU()
)
pairs = (TABLES + 1) * TABLES // 2
top = nn.Sequential(
    nn.Linear(SIZE + pairs, 1024),
    nn.ReLU(),
    nn.Linear(1024, 1024),
    nn.ReLU(),
    nn.Linear(1024, 256),
    nn.ReLU(),
    nn.Linear(256, 1),
)
rows = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
optimizer = torch.optim.SGD([*bags.parameters(), *bottom.parameters(), *top.parameters()], lr=0.1)
dense, label = torch.randn(BATCH, DENSE), torch.randint(0, 2, (BATCH,)).float()
ids = torch.randint(0, ROWS, (TABLES, BATCH * HOT))
offsets = torch.arange(0, BATCH * HOT, HOT)


def step() -> None:
    d = bottom(dense)
    features = torch.stack([d, *(bag(i, offsets) for bag, i in zip(bags, ids, strict=True))], 1)
    products = torch.bmm(features, features.transpose(1, 2))[:, rows[0], rows[1]]
    loss = F.binary_cross_entropy_with_logits(top(torch.cat([d, products], 1)).squeeze(1), label)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


timed("dlrm", step)
