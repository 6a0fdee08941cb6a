"""Flops that activation checkpointing computes again: in HFU, and not in MFU."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.report import Report
from phantora.trace.reader import open_log
from tests.support import runs

SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
layers = nn.ModuleList(nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for _ in range(5):
    x = torch.randn(2048, 1024, device="cuda", requires_grad=True)
    for layer in layers:
        x = {call}
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def report(tmp_path: Path, call: str) -> Report:
    (tmp_path / "train.py").write_text(SCRIPT.format(call=call))
    return analyze(open_log(runs.trace(tmp_path, "train.py").log))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_layers_count_for_hfu_alone(tmp_path: Path, reentrant: bool) -> None:
    """Of four products that a weight has (two in the backward pass) one is computed again."""
    plain = report(tmp_path, "layer(x)").steady
    found = report(tmp_path, f"checkpoint(layer, x, use_reentrant={reentrant})")
    steady, products = found.steady, 8 * 2 * 2048 * 1024**2
    assert plain.flops == 3 * products and plain.recomputed_flops == 0 and plain.hfu == plain.mfu
    assert (steady.flops, steady.recomputed_flops) == (4 * products, products)
    assert steady.mfu is not None and steady.hfu == pytest.approx(steady.mfu * 4 / 3)
    lost = next(loss.share for loss in found.losses if loss.name == "recomputed layers")
    assert lost == pytest.approx(steady.mfu / 3)
