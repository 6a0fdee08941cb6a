"""The MFU of a report in words: which peak it counts against, and why a script prints another one.

The report counts the flops of every product that ran, by torch's formulas, without those that activation checkpointing
computes again; scripts compute theirs from the number of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phantora.json_data import Ns

DIFFERS = 0.01  # relative: from here on two MFUs are told apart
_EQUAL = 0.005  # of the ratio of the two: a cause that predicts it as closely explains it
RECOMPUTED_LAYERS = "recomputed layers"
"""Name of the loss of MFU by what activation checkpointing computes again."""
_MUCH = 0.1  # of a step, for products in a slow format to be named
_A100 = 312e12  # FLOP/s in bf16, which public scripts have as a constant (nanoGPT's estimate_mfu)
_NAMES = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32", "tfloat32": "TF32", "float8": "FP8"}


@dataclass(kw_only=True)
class MfuBasis:
    """What the MFU counts, next to the MFU that the script prints."""

    dtype: str
    peak: float
    """FLOP/s."""
    attention: float
    """Share of the flops that attention has, recomputed ones left out."""
    float32: Ns
    """ns of a step in products in float32 on CUDA cores, without TF32; per rank."""
    printed: float | None
    """Median of what the script prints; None if it prints none."""
    rounding: float = 0.0
    """Half of its last digit."""


def peak_name(dtype: str) -> str:
    """``BF16``."""
    return _NAMES.get(dtype, dtype)


def differing(basis: MfuBasis, mfu: float, hfu: float, peaks: Mapping[str, float]) -> str:
    """Why the script prints another MFU, in words; "" if it prints none or nearly this one. Only a cause that predicts
    the difference alone is named. `hfu`: the MFU with recomputed layers."""
    if basis.printed is None or not mfu:
        return ""
    ratio, rounding = basis.printed / mfu, basis.rounding / mfu
    if abs(ratio - 1) <= DIFFERS + rounding:
        return ""
    causes, near = _causes(basis, hfu / mfu, peaks), _EQUAL * ratio + rounding
    fitting = [text for predicted, text in causes if abs(predicted - ratio) <= near]
    if len(fitting) == 1:
        return f"the script prints {100 * basis.printed:.1f} %: {fitting[0]}"
    more = f"{100 * abs(ratio - 1):.0f} % {'more' if ratio > 1 else 'fewer'} flops"
    return f"the script prints {100 * basis.printed:.1f} %: its formula has {more}, or another peak"


def _causes(basis: MfuBasis, with_recomputed: float, peaks: Mapping[str, float]) -> Iterator[tuple[float, str]]:
    """Ratio of the script's MFU to the report's, with its cause. `with_recomputed`: that of an MFU with recomputed
    layers. A fused backward pass of attention computes the scores again, so torch counts seven products where the model
    has six."""
    share = basis.attention
    if share:
        yield 1 - share / 7, "without the scores that attention's backward computes again"
        yield 1 - share * 4 / 7, "with half of attention, as for a causal mask"
        yield 1 - share, "without attention (6 x parameters x tokens)"
    if with_recomputed > 1:
        yield with_recomputed, "with recomputed layers (HFU)"
    else:  # compiled code may compute again unseen
        yield 3 / 4, "without what activation checkpointing computes again"
    for dtype, peak in peaks.items():
        if peak != basis.peak and dtype in _NAMES:
            yield basis.peak / peak, f"of the peak of {peak_name(dtype)}, not {peak_name(basis.dtype)}"
    if basis.peak != _A100:
        yield basis.peak / _A100, "of an A100's peak, 312 TFLOP/s"


def slow_format(basis: MfuBasis, whole: float, peaks: Mapping[str, float]) -> str:
    """What products in float32 cost and what would help, where they take a tenth of a step of `whole` ns; else ""."""
    if basis.float32 < _MUCH * whole or not peaks.get("float32"):
        return ""
    own, faster = peaks["float32"] / 1e12, peaks.get("tfloat32", 0.0) / 1e12
    if basis.peak / 1e12 < 2 * own:
        return ""
    remedy = f"TF32 has {faster:.0f}, " if faster > own else ""
    return (
        f"float32 products take {100 * basis.float32 / whole:.0f} % of the step, at most {own:.0f} TFLOP/s; "
        f"{remedy}{peak_name(basis.dtype)} {basis.peak / 1e12:.0f}"
    )


PRECISION = "torch.set_float32_matmul_precision('high') allows TF32, torch.autocast runs products in bf16"
