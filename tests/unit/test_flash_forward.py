"""FlashAttention 2's forward pass on an H200: parts of the keys and times that were measured."""

from __future__ import annotations

import pytest

from phantora.cost.flash_forward import Shape, forward_ns, parts_of

SMS = 132


def of(sequences: int, queries: int, keys: int, head: int, causal: bool) -> Shape:
    return Shape(sequences=sequences, queries=queries, keys=keys, head=head, causal=causal)


@pytest.mark.parametrize(
    ("shape", "parts"),  # the second extent of the grid of flash_fwd_splitkv_kernel
    [
        (of(4, 1000, 1000, 128, False), 4),
        (of(1, 8302, 8302, 128, False), 2),
        (of(1, 4608, 4608, 96, True), 18),
        (of(18, 311, 1185, 64, False), 5),
        (of(12, 522, 522, 256, True), 2),
        (of(8, 4096, 4096, 128, False), 1),
    ],
)
def test_keys_are_split_as_by_the_library(shape: Shape, parts: int) -> None:
    assert parts_of(shape, SMS) == parts


@pytest.mark.parametrize(
    ("shape", "us"),
    [
        (of(24, 4608, 4608, 128, False), 781.6),  # 3.27 waves
        (of(64, 1024, 1024, 64, False), 64.7),
        (of(126, 982, 58, 64, False), 29.8),  # a step for each block
        (of(1024, 577, 577, 64, False), 402.6),
        (of(1, 4056, 4056, 128, False), 37.8),  # in parts
        (of(64, 4096, 4096, 128, True), 894.4),
        (of(24, 1980, 1980, 256, False), 320.8),
    ],
)
def test_measured_times(shape: Shape, us: float) -> None:
    assert forward_ns(shape, SMS) / 1e3 == pytest.approx(us, rel=0.17)
