"""The MFU that a script prints next to the report's, and products in a slow format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phantora.trace.analysis.mfu import MfuBasis, differing, slow_format

PEAKS = {"bfloat16": 989.4e12, "float32": 66.9e12, "tfloat32": 494.7e12, "float8": 1978.9e12}
BASIS = MfuBasis(dtype="bfloat16", peak=PEAKS["bfloat16"], attention=0.16, float32=0.0, printed=None)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (None, ""),
        (0.402, ""),  # less than a per cent
        (0.4 * (1 - 0.16 / 7), "39.1 %: without the scores that attention's backward computes again"),
        (0.4 * (1 - 0.16), "33.6 %: without attention (6 x parameters x tokens)"),
        (0.3, "30.0 %: without what activation checkpointing computes again"),
        (0.2, "20.0 %: of the peak of FP8, not BF16"),
        (0.8, "80.0 %: of the peak of TF32, not BF16"),
        (0.44, "44.0 %: its formula has 10 % more flops, or another peak"),
        (0.24, "24.0 %: its formula has 40 % fewer flops, or another peak"),
    ],
)
def test_another_mfu_has_its_cause_or_none(printed: float | None, said: str) -> None:
    text = differing(replace(BASIS, printed=printed), 0.4, 0.4, PEAKS)
    assert text == (f"the script prints {said}" if said else "")


def test_an_mfu_with_recomputed_layers_is_named() -> None:
    text = differing(replace(BASIS, printed=0.53), 0.4, 0.53, PEAKS)
    assert text == "the script prints 53.0 %: with recomputed layers (HFU)"


def test_two_causes_that_fit_are_not_named() -> None:
    few = replace(BASIS, attention=0.02, printed=0.4 * (1 - 0.0157))
    assert (
        differing(few, 0.4, 0.4, PEAKS) == "the script prints 39.4 %: its formula has 2 % fewer flops, or another peak"
    )


def test_a_rounded_mfu_is_not_another() -> None:
    assert differing(replace(BASIS, printed=0.39, rounding=0.005), 0.398, 0.398, PEAKS) == ""


def test_products_in_float32_are_named_with_faster_formats() -> None:
    assert slow_format(BASIS, 100.0, PEAKS) == ""
    assert slow_format(replace(BASIS, float32=95.0), 100.0, PEAKS) == (
        "float32 products take 95 % of the step, at most 67 TFLOP/s; TF32 has 495, BF16 989"
    )
    a10 = {"bfloat16": 70e12, "float32": 67e12}
    assert slow_format(replace(BASIS, float32=95.0, peak=70e12), 100.0, a10) == ""
