"""Factorisations, solvers, eigenvalues and Fourier transforms on a real GPU: a JSON line for each operator and size.

    python -m validation.probes.linear_algebra OUT.jsonl

`span_us` is from the call's first to its last work on the GPU, `kernels_us` what its kernels take together, `kernels` how many they are.
`cost/families/linear_algebra.py` and `fourier.py` use it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from validation.gpu_work import profiled

LONG_S = 1.5  # an operator that takes longer is not measured at larger sizes
Call = Callable[[], object]
F32, F64 = torch.float32, torch.float64


def matrix(batch: int, m: int, n: int, dtype: torch.dtype = F32) -> torch.Tensor:
    shape = (m, n) if batch == 1 else (batch, m, n)
    return torch.randn(shape, device="cuda", dtype=dtype)


def positive(batch: int, n: int, dtype: torch.dtype = F32) -> torch.Tensor:
    a = matrix(batch, n, n, dtype)
    return a @ a.mT / n + torch.eye(n, device="cuda", dtype=dtype)


def lower(batch: int, n: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return matrix(batch, n, n, dtype).tril() / n + torch.eye(n, device="cuda", dtype=dtype)


Cases = Iterator[tuple[str, dict[str, Any], Call]]


def factorisations(n: int, batch: int, dtype: torch.dtype) -> Cases:
    a, s, low = matrix(batch, n, n, dtype), positive(batch, n, dtype), lower(batch, n, dtype)
    about = {"n": n, "batch": batch, "dtype": str(dtype)}
    yield "linalg_cholesky_ex", about, lambda: torch.linalg.cholesky_ex(s)
    yield "linalg_lu_factor_ex", about, lambda: torch.linalg.lu_factor_ex(a)
    yield "linalg_inv_ex", about, lambda: torch.linalg.inv_ex(a)
    yield "cholesky_inverse", about, lambda: torch.cholesky_inverse(low)
    for columns in sorted({1, n}):
        b = matrix(batch, n, columns, dtype)
        more = {**about, "columns": columns}
        yield "linalg_solve_triangular", more, partial(lambda b: torch.linalg.solve_triangular(low, b, upper=False), b)
        yield "cholesky_solve", more, partial(lambda b: torch.cholesky_solve(b, low), b)
        yield "linalg_solve_ex", more, partial(lambda b: torch.linalg.solve_ex(a, b), b)
    yield "linalg_qr", about, lambda: torch.linalg.qr(a)
    yield "geqrf", about, lambda: torch.geqrf(a)
    yield "_linalg_eigh", about, lambda: torch.linalg.eigh(s)
    yield "_linalg_eigvalsh", about, lambda: torch.linalg.eigvalsh(s)
    if n <= 2048:
        yield "_linalg_svd", about, lambda: torch.linalg.svd(a, full_matrices=False)
        yield "_linalg_svdvals", about, lambda: torch.linalg.svdvals(a)
    if n <= 512 and batch == 1:
        yield "linalg_eig", about, lambda: torch.linalg.eig(a)


def tall(m: int, n: int) -> Cases:
    a, b = matrix(1, m, n), matrix(1, m, 1)
    about = {"m": m, "n": n, "batch": 1, "dtype": "torch.float32"}
    yield "linalg_qr", about, lambda: torch.linalg.qr(a)
    yield "linalg_lstsq", about, lambda: torch.linalg.lstsq(a, b)
    yield "_linalg_svd", about, lambda: torch.linalg.svd(a, full_matrices=False)


def transforms() -> Cases:
    for shape, dims in (
        ((64, 1024), 1), ((4096, 1024), 1), ((16384, 400), 1), ((32, 65536), 1), ((8, 1048576), 1), ((1, 16777216), 1),
        ((4096, 1023), 1), ((4096, 1021), 1), ((2048, 4096), 1), ((512, 30000), 1),
        ((32, 64, 128, 128), 2), ((64, 32, 64, 64), 2), ((8, 64, 256, 256), 2), ((16, 3, 512, 512), 2), ((4, 20, 1024, 1024), 2),
        ((16, 64, 85, 85), 2), ((8, 32, 241, 480), 2), ((4, 16, 64, 64, 64), 3), ((2, 4, 128, 128, 128), 3), ((1, 1, 256, 256, 256), 3),
    ):
        x = torch.randn(shape, device="cuda")
        z = torch.randn(shape, device="cuda", dtype=torch.complex64)
        over = tuple(range(-dims, 0))
        half = torch.fft.rfftn(x, dim=over)
        about = {"shape": list(shape), "dims": dims}
        yield "_fft_r2c", about, partial(lambda x, over: torch.fft.rfftn(x, dim=over), x, over)
        yield "_fft_c2c", about, partial(lambda z, over: torch.fft.fftn(z, dim=over), z, over)
        last = shape[-dims:]
        yield "_fft_c2r", about, partial(lambda h, over, last: torch.fft.irfftn(h, s=last, dim=over), half, over, last)
    x = torch.randn(32, 128, 4096, device="cuda", dtype=torch.complex64)
    yield "_fft_c2c", {"shape": [32, 128, 4096], "dims": 1, "dim": 1}, lambda: torch.fft.fft(x, dim=1)
    yield "_fft_c2c", {"shape": [32, 128, 4096], "dims": 1, "dim": 0}, lambda: torch.fft.fft(x, dim=0)


def cases() -> Cases:
    yield from transforms()
    for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        yield from factorisations(n, 1, F32)
    for n in (64, 256, 1024, 4096):
        yield from factorisations(n, 1, F64)
    for batch, n in ((4, 512), (16, 256), (16, 1024), (64, 64), (512, 32), (512, 128), (4096, 16), (4096, 64)):
        yield from factorisations(n, batch, F32)
    for m, n in ((4096, 64), (65536, 32), (8192, 512), (16384, 1024)):
        yield from tall(m, n)


def spent(call: Call) -> tuple[float, float, int]:
    """(us from the first to the last work on the GPU, us of it all together, how many)"""
    work = [(e.start_ns(), e.duration_ns()) for e in profiled(call) if e.duration_ns()]
    if not work:
        return 0.0, 0.0, 0
    first, last = min(s for s, _ in work), max(s + d for s, d in work)
    return (last - first) / 1e3, sum(d for _, d in work) / 1e3, len(work)


def main() -> None:
    slow: set[tuple[str, str]] = set()
    with open(sys.argv[1], "a") as file:
        for name, about, call in cases():
            if (name, about.get("dtype", "")) in slow:
                continue
            try:
                call()
                torch.cuda.synchronize()
                begin = time.perf_counter()
                call()
                torch.cuda.synchronize()
                took = time.perf_counter() - begin
                rounds = [spent(call) for _ in range(3 if took < 0.2 else 1)]
            except RuntimeError as error:
                print(json.dumps({"op": name, **about, "error": str(error)[:200]}), file=file, flush=True)
                continue
            if took > LONG_S:
                slow.add((name, about.get("dtype", "")))
            span, kernels, count = (statistics.median(column) for column in zip(*rounds, strict=True))
            row = {"op": name, **about, "wall_us": took * 1e6, "span_us": span, "kernels_us": kernels, "kernels": count}
            print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
