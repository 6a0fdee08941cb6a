"""Counts of libraries on the GPU: a graph's edges, tokens that a model generates."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.runs import records, trace

GRAPH = """
import torch
from torch_geometric.nn import GATConv, SAGEConv

edges = torch.randint(0, 10_000, (2, 200_000), generator=torch.Generator().manual_seed(0))
x = torch.randn(10_000, 16, device="cuda")
_, (kept, weights) = GATConv(16, 4, heads=2).cuda()(x, edges.cuda(), return_attention_weights=True)
assert kept.shape[1] == int((edges[0] != edges[1]).sum()) + 10_000, kept.shape
assert torch.equal(kept.cpu()[:, :-10_000], edges[:, edges[0] != edges[1]])
SAGEConv(16, 4).cuda()(x, edges.cuda())
print({"edges": kept.shape[1]})
"""
GENERATION = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(vocab_size=4_096, eos_token_id=0, bos_token_id=1, pad_token_id=0, **sizes)).cuda()
prompt = torch.randint(1, 4_096, (2, 5)).cuda()
for sample in (False, True):
    made = model.generate(prompt, max_new_tokens=7, do_sample=sample)
    print({"tokens": made.shape[1] - prompt.shape[1], "ends": int((made == 0).sum())})
"""


def printed(text: str) -> list[dict[str, int]]:
    lines = [line[line.index("{") :] for line in text.splitlines() if "{'" in line]
    return [json.loads(line.replace("'", '"')) for line in lines]


def test_graphs_keep_their_edges(tmp_path: Path) -> None:
    """Layers that drop and add self-loops work on as many edges as there are."""
    (tmp_path / "train.py").write_text(GRAPH)
    run = trace(tmp_path, "train.py")
    ((edges,),) = (found.values() for found in printed(run.out))
    assert 209_800 < edges < 210_000
    shapes = [r["shape"] or "" for r in records(run.log, "kernel", "op", "shape")]
    assert any(str(edges) in shape for shape in shapes)
    assert any("[200000,16]" in shape for shape in shapes), "SAGE's messages"


def test_models_whose_end_is_token_0_generate(tmp_path: Path) -> None:
    """Greedy and sampled tokens of unknown logits are not the end of the sequence."""
    (tmp_path / "train.py").write_text(GENERATION)
    assert printed(trace(tmp_path, "train.py").out) == [{"tokens": 7, "ends": 0}] * 2
