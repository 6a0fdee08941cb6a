"""Recurrent layers, and operators nobody has heard of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.families.recurrent import Recurrent, from_signature, recurrent_ns
from phantora.cost.machine import Machine
from phantora.cost.tensors import broadcast, contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.hardware import load_gpu
from validation.data import rows

H100 = load_gpu("H100")
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def tensor(*shape: int, dtype: str = "float16") -> TensorSpec:
    return TensorSpec(dtype, shape, stride=contiguous_strides(shape))


def lstm(
    batch: int, steps: int, hidden: int, backward: bool = False, mode: int = 2, sizes: tuple[int, ...] = ()
) -> OperatorSignature:
    x = tensor(*((batch, steps, hidden) if not sizes else (sum(sizes), hidden)))
    weights = tuple(tensor(4 * hidden, hidden) for _ in range(4))
    state = tensor(2, batch, hidden)
    rest: tuple[Any, ...] = (mode, hidden, 0, 2, True, 0.0, True, False, sizes, None)
    common = (x, weights, 4, tensor(8), state, state)
    if backward:
        args = (*common, x, x, None, None, *rest, tensor(8, dtype="uint8"), (True, False, False, True))
        return OperatorSignature("aten::_cudnn_rnn_backward", args, backward=True)
    return OperatorSignature("aten::_cudnn_rnn", (*common, *rest))


def test_what_a_call_says_of_its_layers() -> None:
    assert from_signature(lstm(64, 256, 650), "_cudnn_rnn") == Recurrent(
        backward=False, steps=256, batch=64, inputs=650, hidden=650, layers=2, directions=1, gates=4, dtype="float16"
    )
    packed = from_signature(lstm(4, 3, 128, sizes=(4, 3, 2)), "_cudnn_rnn")
    assert packed is not None and (packed.steps, packed.batch) == (3, 3)
    gru = from_signature(lstm(8, 9, 128, backward=True, mode=3), "_cudnn_rnn_backward")
    assert gru is not None and (gru.gates, gru.backward, gru.layers) == (3, True, 2)
    assert from_signature(lstm(1, 1, 8), "mm") is None


def test_steps_wait_for_each_other() -> None:
    """Twice the steps, twice the time; twice the sequences cost far less."""
    analytic = AnalyticModel(H100)

    def ns(batch: int, steps: int) -> int:
        return sum(analytic.operator(lstm(batch, steps, 512), ()).durations)

    assert ns(32, 256) == pytest.approx(2 * ns(32, 128), rel=0.05)
    assert ns(64, 128) < 1.4 * ns(32, 128)


def test_flops_are_those_of_the_products() -> None:
    price = AnalyticModel(H100).operator(lstm(32, 128, 512), ())
    assert price.flops == 2.0 * 128 * 32 * (4 * 512) * (512 + 512) * 2
    back = AnalyticModel(H100).operator(lstm(32, 128, 512, backward=True), ())
    assert back.flops == 2 * price.flops


def test_shapes_that_do_not_broadcast_count_once() -> None:
    """The arguments of an unknown operator may have nothing to do with each other."""
    assert broadcast([(64, 256, 650), (1690000, 1), (6770400,)]) == (64, 256, 650)
    assert broadcast([(8, 1, 4), (3, 4), (1,)]) == (8, 3, 4)
    odd = OperatorSignature("aten::nobody_knows", (tensor(64, 256, 650), tensor(1690000, 1), tensor(6770400)))
    assert sum(AnalyticModel(H100).operator(odd, ()).durations) < 1_000_000


@pytest.mark.parametrize(("backward", "middle", "ninth"), [(False, 0.06, 0.15), (True, 0.055, 0.18)])
def test_measured_layers_are_found_again(backward: bool, middle: float, ninth: float) -> None:
    """301 layers of validation/probes/recurrent.py on H100 and H200; relative errors."""
    measured = rows("2026-11-22-h100/recurrent.parquet") + rows("2026-11-25-h100/recurrent_small.parquet")
    errors = []
    for row in measured:
        if "cell" not in row:
            continue
        layers = Recurrent(
            backward=backward,
            steps=row["steps"],
            batch=row["batch"],
            inputs=row["inputs"],
            hidden=row["hidden"],
            layers=row["layers"],
            directions=1 + row["bidirectional"],
            gates=GATES[row["cell"]],
            dtype=row["dtype"],
        )
        machine = Machine(load_gpu("H200" if "H200" in row["gpu"] else "H100"))
        real = 1e3 * row["backward_us" if backward else "forward_us"]
        errors.append(abs(recurrent_ns(machine, layers) / real - 1))
    assert len(errors) == 301
    assert np.median(errors) < middle and np.quantile(errors, 0.9) < ninth
