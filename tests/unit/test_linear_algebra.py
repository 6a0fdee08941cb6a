"""Factorisations and Fourier transforms next to those that were measured on an H100."""

from __future__ import annotations

import statistics
from typing import Any

from phantora.cost import OperatorSignature, TensorSpec
from phantora.cost.families import family_of
from phantora.cost.machine import Machine
from phantora.cost.tensors import contiguous_strides
from phantora.hardware import load_gpu
from validation import data

MEASURED = "2026-11-23-h100/linear_algebra.parquet"
RIGHT_FIRST = ("cholesky_solve",)


def tensor(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_strides(shape))


def ns(name: str, *args: Any, gpu: str = "H100") -> float:
    signature = OperatorSignature(f"aten::{name}", args)
    return family_of(name).estimate(Machine(load_gpu(gpu)), signature, name, ()).ns


def of_matrices(row: dict[str, Any]) -> float:
    n, batch, dtype = row["n"], row["batch"], row["dtype"].removeprefix("torch.")
    lead = (batch,) if batch > 1 else ()
    args = [tensor(dtype, *lead, n, n)]
    if "columns" in row:
        args.insert(0 if row["op"] in RIGHT_FIRST else 1, tensor(dtype, *lead, n, row["columns"]))
    if row["op"] in ("_linalg_eigvalsh", "_linalg_svdvals"):
        return ns(row["op"].replace("valsh", "h").replace("vals", ""), *args, False)
    return ns(row["op"], *args)


def taken_us(row: dict[str, Any]) -> float:
    """Time of a single matrix: its kernels and a gap of 1 us between them. Of a batch, or if the library waits between
    kernels, from the first to the last."""
    if row["batch"] == 1 and row["op"] != "linalg_eig":
        return float(row["kernels_us"] + row["kernels"] - 1)
    span = min(row["span_us"], row["wall_us"]) if row["kernels"] > 8 else 0.0
    return float(max(row["kernels_us"], span))


def errors(batched: bool) -> list[float]:
    rows = data.rows(MEASURED)
    rows = [row for row in rows if "n" in row and "error" not in row and (row["batch"] > 1) == batched]
    return sorted(abs(of_matrices(row) / (taken_us(row) * 1e3) - 1) for row in rows)


def test_single_matrices_are_near_real_ones() -> None:
    found = errors(batched=False)
    assert len(found) > 200
    assert statistics.median(found) < 0.15 and found[len(found) * 9 // 10] < 0.5


def test_batches_are_near_real_ones() -> None:
    found = errors(batched=True)
    assert len(found) > 100
    assert statistics.median(found) < 0.4 and found[len(found) * 9 // 10] < 0.9


def test_a_few_columns_take_as_long_as_on_a_gpu() -> None:
    """QR of PowerSGD: kernels of 4,096 x 4 and 50,257 x 8 with their gaps, on an H200."""
    for rows, columns, us in ((4096, 4, 66), (50257, 8, 384), (512, 16, 91)):
        assert abs(ns("linalg_qr", tensor("float32", rows, columns), gpu="H200") / 1e3 / us - 1) < 0.25


def test_high_matrices_are_near_real_ones() -> None:
    found = []
    for row in data.rows("2026-11-23-h100/factorizations.parquet"):
        name, _, kind = row["op"].partition("/")
        if kind == "8" and not row["batch"] and row["n"] >= 256:  # eight times as high as wide
            high = tensor(row["t"], 8 * row["n"], row["n"])
            took = ns(name, high, False, True) if name == "_linalg_svd" else ns(name, high)
            found.append(abs(took / (row["ms"] * 1e6) - 1))
    assert len(found) == 10 and statistics.median(found) < 0.2 and max(found) < 0.4


def test_transforms_are_near_real_ones() -> None:
    rows = data.rows(MEASURED)
    found = []
    for row in rows:
        if row["op"] in ("_fft_c2c", "_fft_r2c") and "dim" not in row:
            shape = row["shape"]
            dims = tuple(range(len(shape) - row["dims"], len(shape)))
            x = tensor("float32" if row["op"] == "_fft_r2c" else "complex64", *shape)
            found.append(abs(ns(row["op"], x, dims, 0, True) / (row["kernels_us"] * 1e3) - 1))
    assert len(found) == 40 and statistics.median(found) < 0.2


def test_rows_and_the_gpus_peak_count() -> None:
    square, tall = ns("geqrf", tensor("float32", 1024, 1024)), ns("geqrf", tensor("float32", 16384, 1024))
    assert square < tall < 16 * square
    double = tensor("float64", 8192, 8192)
    assert ns("cholesky_inverse", double, gpu="L40S") > 5 * ns("cholesky_inverse", double)  # 1.4 TFLOP/s in float64
    assert ns("linalg_cholesky_ex", tensor("float32", 0, 0)) < 1e4
