"""FlashAttention 2's backward pass: its main kernel by blocks and tiles, against an H200."""

from __future__ import annotations

import pytest

from phantora.cost.flash_backward import backward_ns
from phantora.cost.flash_forward import Shape


@pytest.mark.parametrize(
    ("sequences", "length", "head", "causal", "us"),
    [
        (1024, 54, 64, False, 71.6),  # eight blocks an SM, of one step
        (24, 4096, 32, False, 607.9),
        (64, 4096, 32, True, 949.3),
        (32, 64, 128, True, 8.6),
        (64, 4096, 128, True, 2381.8),
    ],
)
def test_main_kernel_takes_what_was_measured(sequences: int, length: int, head: int, causal: bool, us: float) -> None:
    shape = Shape(sequences=sequences, queries=length, keys=length, head=head, causal=causal)
    assert backward_ns(shape, 132) == pytest.approx(1e3 * us, rel=0.12)


def test_queries_before_the_first_key_are_skipped() -> None:
    """A mask ends at the last query and the last key: with 2,048 keys, 1,024 queries see at least 1,025 of them."""
    shape = Shape(sequences=256, queries=1024, keys=2048, head=64, causal=True)
    whole = Shape(sequences=256, queries=1024, keys=2048, head=64, causal=False)
    assert 0.7 < backward_ns(shape, 132) / backward_ns(whole, 132) < 0.85
