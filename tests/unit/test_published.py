"""Published products and attention: what they say of shapes on their grids and between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phantora.cost import model_for, published
from phantora.cost.families.attention import Attention
from phantora.cost.families.gemm import Product
from phantora.cost.float8 import Way, product
from phantora.cost.table_files import DATA
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu

GPUS = ("A100-80GB", "L40S", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000")


def of(gpu: str) -> published.Published:
    found = published.load(DATA / "published", load_gpu(gpu))
    assert found is not None
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_products_between_published_ones_take_a_time_between_theirs(gpu: str) -> None:
    table = of(gpu)
    below, between, above = (table.read(Product(4096, 4096, k)) for k in (3584, 3840, 4096))
    assert below is not None and between is not None and above is not None
    assert below.distance == above.distance == 0.0 < between.distance
    assert between.ns == pytest.approx((below.ns * above.ns) ** 0.5, rel=between.error)


def test_a_published_product_takes_as_long_as_published() -> None:
    """B200, 4096 x 4096 x 4096 in bfloat16: 0.1123 ms in the source."""
    a, b = (
        TensorSpec("bfloat16", (4096, 4096), stride=(4096, 1)),
        TensorSpec("bfloat16", (4096, 4096), stride=(1, 4096)),
    )
    price = model_for(load_gpu("B200")).operator(OperatorSignature("aten::mm", (a, b)), ())
    assert price.provenance == "measured" and sum(price.durations) == pytest.approx(112_300, rel=0.005)


def test_formats_have_their_own_times() -> None:
    model = model_for(load_gpu("GB200"))
    ways = (Way(fast=True), Way("mx"), Way("nv", first="float4_e2m1fn_x2"))
    eight, mx, nv = (sum(model.operator(product(8192, 28672, 8192, way), ()).durations) for way in ways)
    assert nv < 0.8 * mx and mx < 1.2 * eight


def test_groups_take_as_long_as_one_product_of_all_rows() -> None:
    table = of("B200")
    one, groups = table.read(Product(32768, 4096, 4096)), table.read(Product(2048, 4096, 4096, batch=16))
    assert one is not None and groups is not None and groups.ns == pytest.approx(one.ns, rel=0.1)


def test_attention_reaches_what_was_published() -> None:
    """GB300, one sequence of 16384 in 64 heads of 128: 1.5 to 2.0 PFLOP/s of a causal mask."""
    passed = Attention(
        kind="cudnn",
        backward=False,
        batch=1,
        heads=64,
        kv_heads=8,
        queries=16384,
        keys=16384,
        head=128,
        value_head=128,
        causal=True,
        dtype="bfloat16",
    )
    found = of("GB300").attention(passed)
    assert found is not None and 1.5e6 < 2 * 128 * passed.square / found.ns < 2.0e6
    assert of("GB300").attention(replace(passed, backward=True)) is None
    assert of("GB300").attention(replace(passed, kind="flash")) is None


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b200-sxm.parquet").write_bytes(b"no table")
    with pytest.raises(PhantoraError, match="no published products"):
        published.load(tmp_path, load_gpu("B200"))
    assert published.load(tmp_path, load_gpu("H100")) is None
