"""Trains a graph attention network (torch_geometric) with DeepSpeed, a random graph on each GPU.

The default has the size of ogbn-products' sampled batches: 100,000 nodes, 15 edges a node, 100 features.
torchrun --nproc-per-node 4 samples/deepspeed/gat.py
"""

from __future__ import annotations

import argparse
import os

import deepspeed
import torch
import torch.nn.functional as F
from torch_geometric.nn import GAT

from training import add_arguments, dtype_of, settings_of, train


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser, "vision.json")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=1_500_000)
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()
    args.batch = 1  # a sample is a graph
    settings = settings_of(args)
    features, classes = 100, 47

    deepspeed.init_distributed()
    torch.manual_seed(1234 + torch.distributed.get_rank())
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    model = GAT(features, hidden_channels=1024, num_layers=args.layers, out_channels=classes, v2=False, heads=8)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    x = torch.randn(args.nodes, features, device=device, dtype=dtype_of(settings))
    edges = torch.randint(0, args.nodes, (2, args.edges), device=device)
    labels = torch.randint(0, classes, (args.nodes,), device=device)

    def loss_of() -> torch.Tensor:
        return F.cross_entropy(engine(x, edges).float(), labels)

    train(engine, args, loss_of, "nodes", args.nodes)


if __name__ == "__main__":
    main()
