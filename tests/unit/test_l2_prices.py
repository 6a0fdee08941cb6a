"""Prices by the share of an operator's operands that L2 holds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from phantora.cost import OperatorSignature, TensorSpec, model_for
from phantora.cost.model import GpuCostModel
from phantora.cost.parse import write_signature
from phantora.cost.table import Entry, Table, TimedKernel
from phantora.cost.types import L2State
from phantora.hardware import load_gpu

H200 = load_gpu("H200")
ABOUT = {"gpu": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "driver": "580"}
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def add(elements: int) -> OperatorSignature:
    x = TensorSpec("bfloat16", (elements,), (1,))
    return OperatorSignature("aten::add.Tensor", (x, x, 1))


def fill(elements: int) -> OperatorSignature:
    return OperatorSignature("aten::fill_.Scalar", (TensorSpec("bfloat16", (elements,), (1,)), 0))


def entry(signature: OperatorSignature, cold: int, warm: int) -> Entry:
    kernel = TimedKernel(name="k", kind="kernel", grid=(1, 1, 1), block=(128, 1, 1), cold=cold, warm=warm, spread=0.01)
    return Entry(write_signature(signature), "", (kernel,), 1980)


@pytest.mark.parametrize(("signature", "unknown"), [(add(1 << 20), 4500), (fill(1 << 20), 5000)])
def test_a_measured_price_lies_between_cold_and_warm(signature: OperatorSignature, unknown: int) -> None:
    """Unknown operands keep the mean, and old ones the cold time."""
    model = GpuCostModel(H200, [Table(ABOUT, [entry(signature, 5000, 4000)])])
    assert [model.operator(signature, (), L2State(share)).durations for share in SHARES] == [
        (5000,),
        (4750,),
        (4500,),
        (4250,),
        (4000,),
    ]
    assert model.operator(signature, ()).durations == (unknown,)


def test_a_price_from_neighbours_follows_their_warm_times() -> None:
    sizes = [1 << octave for octave in range(18, 26)]
    plain = {size: model_for(H200).operator(add(size), ()).durations[0] for size in sizes}
    model = GpuCostModel(H200, [Table(ABOUT, [entry(add(size), ns, round(0.6 * ns)) for size, ns in plain.items()])])
    asked = add(3 << 20)
    states = (None, *map(L2State, SHARES[::2]))
    unknown, cold, half, warm = (model.operator(asked, (), state).durations[0] for state in states)
    assert model.operator(asked, ()).provenance == "interpolated"
    assert half == pytest.approx(unknown, abs=1)
    assert warm / cold == pytest.approx(0.6, rel=0.01)


@pytest.mark.parametrize("gpu", ["H100", "H200", "A100"])
@pytest.mark.parametrize("signature", [add(3_000_000), add(5 << 20), fill(3_000_000)])
def test_no_price_grows_with_what_is_held(gpu: str, signature: OperatorSignature) -> None:
    """Prices of measured operators, of neighbours, and of other GPUs' ones."""
    model = model_for(load_gpu(gpu))
    times = [sum(model.operator(signature, (), L2State(share)).durations) for share in SHARES]
    assert all(more >= less for more, less in pairwise(times))


def product(rows: int, inputs: int, outputs: int) -> OperatorSignature:
    x = TensorSpec("bfloat16", (rows, inputs), (inputs, 1))
    return OperatorSignature("aten::mm", (x, TensorSpec("bfloat16", (inputs, outputs), (1, inputs))))


@pytest.mark.parametrize(
    ("signature", "behind_reads"),
    # us on an H100 after a sum and after a copy (validation/measurements/2026-11-26-h100/dirty_lines.parquet)
    [
        (product(16, 4096, 4096), 15.3 / 20.0),
        (product(16, 4096, 1024), 7.6 / 9.0),
        (product(16, 4096, 11264), 32.3 / 41.1),
        (product(64, 8192, 8192), 46.7 / 55.7),
    ],
)
def test_a_product_waits_less_after_reads(signature: OperatorSignature, behind_reads: float) -> None:
    model = model_for(load_gpu("H100"))
    prices = (model.operator(signature, (), L2State(0.0, share)) for share in (1.0, 0.5, 0.0))
    copied, half, read = (sum(price.durations) for price in prices)
    assert read / copied == pytest.approx(behind_reads, rel=0.10)
    assert half == pytest.approx((read + copied) / 2, rel=0.01)


def test_a_fill_and_operands_in_l2_wait_for_nothing() -> None:
    model = model_for(load_gpu("H100"))
    filled = [model.operator(fill(8 << 20), (), L2State(0.0, share)).durations for share in (1.0, 0.0)]
    hits = [model.operator(add(8 << 20), (), L2State(1.0, share)).durations for share in (1.0, 0.0)]
    assert hits[0] == hits[1]
    assert filled[0] == filled[1]
