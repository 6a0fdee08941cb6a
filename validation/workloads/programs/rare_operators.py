"""Operators that few models have: jagged tensors (`jagged`, `packed`), loops over experts (`moe_loops`), sparse gradients
(`dlrm`), graphs (`graph_gat`, `graph_sage`), biases of positions (`t5_encoder`), cut cross-entropy (`cut_loss`)."""

import math
from collections.abc import Iterable
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.programs.layers import Block
from validation.workloads.programs.steps import Step, decoder, fused_adamw, hidden, language, main, trained


def of_jagged(width: int, lengths: list[int], causal: bool, bias: bool) -> Step:
    """A transformer of 8 layers with 16 heads on jagged nested tensors, each sequence by itself, without padding."""
    heads, words = 16, 32000

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.n1(x)
            q, k, v = (w(h).unflatten(-1, [heads, width // heads]).transpose(1, 2) for w in (self.q, self.k, self.v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + self.out(a.transpose(1, 2).flatten(-2))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    torch.set_default_device("cuda")
    model = decoder(Layer, 8, width, words, bias)
    ids = torch.nested.nested_tensor([torch.randint(0, words, (n,)) for n in lengths], layout=torch.jagged)
    head = model[1]
    return trained(fused_adamw(model), lambda: F.cross_entropy(head(hidden(model, ids)).values(), ids.values()))


def jagged() -> Step:
    """An encoder on 64 sentences of 40 to 1,000 words."""
    return of_jagged(1024, torch.randint(40, 1000, (64,)).tolist(), causal=False, bias=True)


def packed() -> Step:
    """A decoder on 24 sequences of 100 to 1,500 words."""
    return of_jagged(2048, torch.randint(100, 1500, (24,)).tolist(), causal=True, bias=False)


def moe_loops() -> Step:
    """A mixture of experts as tutorials write it: 6 layers, 8 experts, two a token, a loop over experts with nonzero()."""
    width, inner, heads, experts, words, batch, length = 2048, 4096, 16, 8, 32000, 4, 2048

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(width, experts, bias=False)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, inner, bias=False), nn.GELU(), nn.Linear(inner, width, bias=False))
                for _ in range(experts)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = x.view(-1, width)
            weight, index = self.router(flat).softmax(-1).topk(2, dim=-1)
            out = torch.zeros_like(flat)
            for e, expert in enumerate(self.experts):
                token, slot = (index == e).nonzero(as_tuple=True)
                out.index_add_(0, token, expert(flat[token]) * weight[token, slot, None])
            return out.view_as(x)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2, self.moe = nn.RMSNorm(width), nn.RMSNorm(width), Experts()
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.reshape(batch, length, heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
            return x + self.moe(self.n2(x))

    return language(Layer, 6, width, words, (batch, length))


def dlrm() -> Step:
    """A DLRM: 16 bags of embeddings with sparse gradients, pairs of features, two MLPs."""
    tables, entries, size, batch, hot, dense_size = 16, 500_000, 128, 16384, 10, 13

    def perceptron(*widths: int) -> list[nn.Module]:
        return [part for into, out in pairwise(widths) for part in (nn.Linear(into, out), nn.ReLU())]

    torch.set_default_device("cuda")
    bags = nn.ModuleList(nn.EmbeddingBag(entries, size, mode="sum", sparse=True) for _ in range(tables))
    bottom = nn.Sequential(*perceptron(dense_size, 512, 256, size))
    pairs = (tables + 1) * tables // 2
    top = nn.Sequential(*perceptron(size + pairs, 1024, 1024, 256), nn.Linear(256, 1))
    rows = torch.tril_indices(tables + 1, tables + 1, -1)
    optimizer = torch.optim.SGD([*bags.parameters(), *bottom.parameters(), *top.parameters()], lr=0.1)
    dense, label = torch.randn(batch, dense_size), torch.randint(0, 2, (batch,)).float()
    ids = torch.randint(0, entries, (tables, batch * hot))
    offsets = torch.arange(0, batch * hot, hot)

    def step() -> None:
        d = bottom(dense)
        features = torch.stack([d, *(bag(i, offsets) for bag, i in zip(bags, ids, strict=True))], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, rows[0], rows[1]]
        loss = F.binary_cross_entropy_with_logits(top(torch.cat([d, products], 1)).squeeze(1), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_graph(layers: Iterable[nn.Module]) -> Step:
    """Three layers of torch_geometric on a graph of 100,000 nodes and a million edges."""
    nodes, edges_count, width, classes = 100_000, 1_000_000, 256, 47
    layers = nn.ModuleList(layers)
    x = torch.randn(nodes, width)
    edges = torch.randint(0, nodes, (2, edges_count))
    labels = torch.randint(0, classes, (nodes,))

    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)

    def step() -> None:
        h = x
        for i, layer in enumerate(layers):
            h = layer(h, edges)
            h = F.relu(h) if i < 2 else h
        F.cross_entropy(h, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def graph_gat() -> Step:
    """Graph attention."""
    from torch_geometric.nn import GATConv

    torch.set_default_device("cuda")
    return of_graph(GATConv(i, o, heads=h) for i, o, h in ((256, 64, 4), (256, 64, 4), (256, 47, 1)))


def graph_sage() -> Step:
    """GraphSAGE."""
    from torch_geometric.nn import SAGEConv

    torch.set_default_device("cuda")
    return of_graph(SAGEConv(i, o) for i, o in ((256, 256), (256, 256), (256, 47)))


def t5_encoder() -> Step:
    """An encoder of 10 layers with T5's relative position bias, which has a gradient, added to attention's scores."""
    width, heads, words, batch, length, buckets = 1024, 16, 32128, 32, 512, 32

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.wi, self.wg = nn.Linear(width, 2816, bias=False), nn.Linear(width, 2816, bias=False)
            self.wo = nn.Linear(2816, width, bias=False)

        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            h = self.n1(x)
            q, k, v = (w(h).view(batch, length, heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
            x = x + self.o(a.transpose(1, 2).reshape(batch, length, width))
            h = self.n2(x)
            return x + self.wo(F.gelu(self.wg(h)) * self.wi(h))

    def bucket(distance: torch.Tensor) -> torch.Tensor:
        half = buckets // 2
        sign, n = (distance > 0).long() * half, distance.abs()
        far = half // 2 + (torch.log(n.float().clamp(1) / (half // 2)) / math.log(128 / (half // 2)) * (half // 2)).long()
        return sign + torch.where(n < half // 2, n, far.clamp(max=half - 1))

    torch.set_default_device("cuda")
    model, table = decoder(Layer, 10, width, words), nn.Embedding(buckets, heads).bfloat16()
    ids = torch.randint(0, words, (batch, length))
    places = torch.arange(length)
    which = bucket(places[None, :] - places[:, None])

    optimizer = fused_adamw(nn.ModuleList([table, model]))
    embed, head = model[0], model[1]

    def step() -> None:
        x = embed(ids)
        bias = table(which).permute(2, 0, 1)[None]
        for layer in model[2:]:
            x = layer(x, bias)
        F.cross_entropy(head(x).view(-1, words), ids.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def cut_loss() -> Step:
    """A decoder of 4 layers with 128,000 words, whose loss is cut cross-entropy: logits never reach memory."""
    from cut_cross_entropy import linear_cross_entropy

    width, heads, words, batch, length = 2048, 16, 128000, 4, 2048
    torch.set_default_device("cuda")
    model = decoder(lambda: Block(width, heads, norm=nn.RMSNorm, bias=False), 4, width, words)
    ids = torch.randint(0, words, (batch, length))
    head = model[1]
    return trained(fused_adamw(model), lambda: linear_cross_entropy(hidden(model, ids), head.weight, ids, shift=True))


if __name__ == "__main__":
    main(jagged, packed, moe_loops, dlrm, graph_gat, graph_sage, t5_encoder, cut_loss)
