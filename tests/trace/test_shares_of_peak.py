"""The share of peak of a kernel counts against the format of its first operand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.summary import achieved_rate
from phantora.trace.reader import open_log
from tests.support.fakelog import METADATA, FakeRun, Kind

MS = 1_000_000


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        ("bf16[8192,8192], bf16[8192,8192]", "50%"),
        ("bf16[8192,8192], float8_e4m3fn[8192,8192]", "50%"),  # weights are widened first
        ("float8_e4m3fn[8192,8192], float8_e4m3fn[8192,8192]", "25%"),
        ("float4_e2m1fn_x2[8192,8192], float4_e2m1fn_x2[8192,8192]", "50%"),  # no peak of its own here
    ],
)
def test_format_of_the_first_operand(tmp_path: Path, shape: str, share: str) -> None:
    run = FakeRun(metadata=replace(METADATA, peak_flops={"bfloat16": 1e15, "float8": 2e15}, mfu_dtype="bfloat16"))
    price, signature = run.price("gemm", "measured", flops=5e11), run.signature("aten::mm", shape)
    run.add(Kind.KERNEL, 0, 0, MS, "gemm", launch=0, price=price, sig=signature)
    report = analyze(open_log(run.write(tmp_path / "run.arrow")))
    assert report.details is not None
    assert achieved_rate(report.details.kernels[0], report.metadata) == ("500 TFLOP/s", share)
