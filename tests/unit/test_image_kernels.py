"""Kernels of image models and experts as an H100 took them (validation/workloads/image_models.py)."""

from __future__ import annotations

import pytest

from phantora.cost import OperatorSignature, TensorSpec, model_for
from phantora.cost.tensors import contiguous_strides, returning
from phantora.hardware import load_gpu

MODEL = model_for(load_gpu("H100"))


def image(*shape: int, last: bool = True) -> TensorSpec:
    _, c, h, w = shape
    stride = (c * h * w, 1, w * c, c) if last else contiguous_strides(shape)
    return TensorSpec("bfloat16", shape, stride)


def us(name: str, *args: object) -> float:
    return sum(MODEL.operator(OperatorSignature(f"aten::{name}", args), ()).durations) / 1e3


@pytest.mark.parametrize(
    ("channels", "pixels", "forward", "backward"),
    [(896, 14, 272.4, 1309.8), (448, 28, 372.9, 1008.0), (224, 56, 609.2, 1763.7)],
)
def test_groups_of_an_odd_width_run_next_to_each_other(
    channels: int, pixels: int, forward: float, backward: float
) -> None:
    """A kernel or more for each group. The sums of the kernels' times are more than what they take together."""
    x, w, groups = image(64, channels, pixels, pixels), image(channels, 56, 3, 3), channels // 56
    ways = ((1, 1), (1, 1), (1, 1))
    assert 0.6 * forward < us("cudnn_convolution", x, w, *ways, groups, False, False, True) < 1.15 * forward
    there = us("convolution_backward", x, x, w, (0,), *ways, False, (0, 0), groups, (True, True, False))
    assert 0.6 * backward < there < backward


def test_groups_of_a_usual_width_share_a_kernel() -> None:
    x, ways = image(64, 512, 14, 14), ((1, 1), (1, 1), (1, 1))
    usual = us("cudnn_convolution", x, image(512, 16, 3, 3), *ways, 32, False, False, True)
    assert usual == pytest.approx(23.4, rel=0.2)


def test_groups_are_predicted_from_those_of_the_same_width() -> None:
    """Batches of 64 and 128 are in the table, as are 896 channels in 16 groups."""
    x, w, ways = image(96, 896, 14, 14), image(896, 128, 3, 3), ((1, 1), (1, 1), (1, 1))
    assert us("cudnn_convolution", x, w, *ways, 7, False, False, True) == pytest.approx(65.8, rel=0.15)
    there = us("convolution_backward", x, x, w, (0,), *ways, False, (0, 0), 7, (True, True, False))
    assert there == pytest.approx(156.7, rel=0.4)


@pytest.mark.parametrize(
    ("channels", "pixels", "forward", "backward"),
    [(768, 17, 343.5, 499.3), (288, 35, 531.1, 805.2), (2048, 8, 205.8, 272.2)],
)
def test_means_of_windows_that_overlap(channels: int, pixels: int, forward: float, backward: float) -> None:
    x, ways = image(64, channels, pixels, pixels), ((3, 3), (1, 1), (1, 1), False, True, None)
    assert us("avg_pool2d", x, *ways) == pytest.approx(forward, rel=0.15)
    assert us("avg_pool2d_backward", x, x, *ways) == pytest.approx(backward, rel=0.15)


def test_index_add_in_place_or_not() -> None:
    out, rows = TensorSpec("bfloat16", (4096, 2048), (2048, 1)), TensorSpec("bfloat16", (32768, 2048), (2048, 1))
    index = TensorSpec("int64", (32768,), (1,))
    for name in ("index_add", "index_add_"):
        assert us(name, out, 0, index, rows, 1) == pytest.approx(543.0, rel=0.15)


def test_what_an_operator_writes_is_not_read() -> None:
    """clamp(x, out=y) takes as long as clamp(x); where the result tells more than the operands it stays."""
    x, out = (TensorSpec("bfloat16", (1 << 26,), (1,)) for _ in range(2))
    clamp = OperatorSignature("aten::clamp.out", (x, 0, 6, out))
    assert returning(clamp) == OperatorSignature("aten::clamp", (x, 0, 6))
    named = OperatorSignature("aten::pow.Tensor_Scalar_out", (x, 2, out))
    assert returning(named) == OperatorSignature("aten::pow.Tensor_Scalar", (x, 2))
    small, whole = TensorSpec("bfloat16", (64, 64), (64, 1)), TensorSpec("float32", (2, 4096), (4096, 1))
    for other in (
        OperatorSignature("aten::_chunk_cat.out", ((small, small), 0, 2, whole)),
        OperatorSignature("aten::_chunk_cat.out", ((small, small), 0, 2, small)),
        OperatorSignature("aten::sum.IntList_out", (small, (0,), False, TensorSpec("bfloat16", (64,), (1,)))),
        OperatorSignature("aten::mul.Tensor", (x, out)),
    ):
        assert returning(other) == other


def test_resizing_channels_first_goes_over_channels_one_by_one() -> None:
    """A thread for each pixel: 512 channels of 16 images take their time however few pixels there are."""
    x = TensorSpec("float32", (16, 500, 30, 30), contiguous_strides((16, 500, 30, 30)))
    last = TensorSpec("float32", (16, 500, 30, 30), (450000, 1, 15000, 500))
    first, other = (us("upsample_bilinear2d", t, (60, 60), False, None, None) for t in (x, last))
    assert first == pytest.approx(3100.0, rel=0.25) and other == pytest.approx(260.0, rel=0.25)


def test_resizing_from_one_pixel_adds_to_one_address() -> None:
    """DeepLab's pooled branch on an H100: 22 ms backward. What neighbours tell adds a tenth."""
    grad = TensorSpec("float32", (12, 256, 60, 60), contiguous_strides((12, 256, 60, 60)))
    one, many = (
        us("upsample_bilinear2d_backward", grad, (60, 60), (12, 256, size, size), False, None, None) for size in (1, 30)
    )
    assert one == pytest.approx(21_750.0, rel=0.15) and many < 200.0


def volume(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_strides(shape))


def test_largest_of_volumes_scatter_gradients_once() -> None:
    """Windows that lie apart never meet in a place. An empty stride is the window's. The forward time: 32 of these
    images in float32 took 146 us for 64^3 pixels."""
    x, y, places = (
        volume(t, 2, 24, *n)
        for t, n in (("float16", (128, 128, 96)), ("float16", (64, 64, 48)), ("int64", (64, 64, 48)))
    )
    ways = ((0, 0, 0), (1, 1, 1), False)
    for stride in ((), (2, 2, 2)):
        assert us("max_pool3d_with_indices", x, (2, 2, 2), stride, *ways) == pytest.approx(220, rel=0.15)
        assert 50 < us("max_pool3d_with_indices_backward", y, x, (2, 2, 2), stride, *ways, places) < 500


def test_sync_batch_norm_runs_the_kernels_of_batch_norm() -> None:
    """(1, 128, 64, 64, 64): 225 us for the sums of a channel, 225 to write the output. What ranks gather is small."""
    x, c = volume("float16", 1, 128, 64, 64, 64), volume("float32", 128)
    assert us("batch_norm_stats", x, 1e-5) == pytest.approx(225, rel=0.05)
    assert us("batch_norm_elemt", x, c, c, c, c, 1e-5) == pytest.approx(225, rel=0.05)
    ranks, count = volume("float32", 4, 128), volume("float32", 4)
    assert us("batch_norm_gather_stats_with_counts", x, ranks, ranks, c, c, 0.1, 1e-5, count) < 5
