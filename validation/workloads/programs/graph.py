"""Three layers of torch_geometric on a graph of 100,000 nodes and a million edges.

python graph.py gat|sage
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.nn import GATConv, SAGEConv

from steps import timed

NODES, EDGES, WIDTH, CLASSES = 100_000, 1_000_000, 256, 47
KIND = sys.argv[1]
torch.manual_seed(0)
torch.set_default_device("cuda")
if KIND == "gat":
    sizes = ((WIDTH, 64, 4), (256, 64, 4), (256, CLASSES, 1))
    layers = nn.ModuleList(GATConv(i, o, heads=h) for i, o, h in sizes)
else:
    layers = nn.ModuleList(SAGEConv(i, o) for i, o in ((WIDTH, 256), (256, 256), (256, CLASSES)))
x = torch.randn(NODES, WIDTH)
edges = torch.randint(0, NODES, (2, EDGES))
labels = torch.randint(0, CLASSES, (NODES,))
optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)


def step() -> None:
    h = x
    for i, layer in enumerate(layers):
        h = layer(h, edges)
        h = F.relu(h) if i < 2 else h
    F.cross_entropy(h, labels).backward()
    optimizer.step()
    optimizer.zero_grad()


timed(f"graph_{KIND}", step)
