"""Products with one inner element: bound by the stores of old kernels, not by memory."""

from __future__ import annotations

import pytest

from phantora.cost.families.gemm import Product, product_ns
from phantora.cost.machine import Machine
from phantora.hardware import load_gpu

MEASURED = (("H200", "bfloat16", 1, 25128, 1600, 68.3), ("H200", "float32", 1, 7168, 8192, 89.4))
NARROW = (("H200", "float32", 7068, 16, 264, 126.7),)  # rows are filled up: a stream would take 30 us
HELD_OUT = (("H100", "bfloat16", 1, 5120, 1280, 15.0),)


@pytest.mark.parametrize(("gpu", "dtype", "batch", "m", "n", "us"), MEASURED + NARROW + HELD_OUT)
def test_outer_products_take_what_was_measured(gpu: str, dtype: str, batch: int, m: int, n: int, us: float) -> None:
    size = 4 if dtype == "float32" else 2
    product = Product(m, n, 1, batch=batch, dtype=dtype, in_bytes=size, out_bytes=size)
    assert product_ns(Machine(load_gpu(gpu)), product) == pytest.approx(1e3 * us, rel=0.21)
