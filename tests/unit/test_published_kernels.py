"""Published times of kernels lie within the error bars of GPUs that no table knows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from phantora.cost import OperatorSignature, TensorSpec, model_for
from phantora.hardware import load_gpu

DATA = Path(__file__).parents[2] / "validation" / "published" / "kernels.json"


def products(gpu: str) -> list[tuple[list[int], float]]:
    blocks = json.loads(DATA.read_text())
    return [
        (row[:3], row[3])
        for block in blocks
        if block["gpu"] == gpu and block["op"] == "mm" and block["dtype"] == "bfloat16"
        for row in block["rows"][::3]
    ]


@pytest.mark.parametrize("gpu", ["A100-80GB", "L40S", "B200", "GB200"])
def test_most_products_lie_within_the_error_bar(gpu: str) -> None:
    model, found = model_for(load_gpu(gpu)), products(gpu)
    assert len(found) > 20
    inside = 0
    for (m, n, k), us in found:
        a, b = TensorSpec("bfloat16", (m, k), (k, 1)), TensorSpec("bfloat16", (k, n), (1, k))
        price = model.operator(OperatorSignature("aten::mm", (a, b)), ())
        assert price.error is not None
        inside += abs(math.log(sum(price.durations) / 1e3 / us)) <= math.log1p(price.error)
    assert inside >= 0.8 * len(found)


def test_a_gpu_with_tables_keeps_their_error_bars() -> None:
    assert not load_gpu("H100").scaled_errors
    assert load_gpu("L40S").scaled_errors["gemm"] > 0.3
