"""Operators of extensions and custom operators on a real GPU: kernels' times with cold and with warm L2. Writes one file.

    python -m validation.probes.extension_kernels OUT [--budget 60]      # on a GPU: OUT/extensions.jsonl
    python -m validation.probes.extension_kernels --once                 # under phantora trace: each case once, annotated

A line per case with its kernels in order: name, ns with cold and with warm L2 (medians of CUPTI's times). The log of the
second form has an annotation per case; `validation/compare/extensions.py` puts both next to each other.

Needs torchao 0.18.0 and bitsandbytes 0.50.2 (``pip install --no-deps --target DIR`` and PYTHONPATH=DIR); a section whose
package is missing says so and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from validation.probes.sections import Case, Probe
from validation.probes.triton_kernels import kernel_times

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8


def rand(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def bitsandbytes_cases() -> Iterator[Case]:
    import bitsandbytes.functional as bnb  # registers torch.ops.bitsandbytes

    ops = torch.ops.bitsandbytes
    for rows, columns in ((4096, 4096), (11008, 4096)):
        x = rand(rows, columns)
        packed, scales = ops.quantize_4bit(x, 64, "nf4", U8)
        yield f"bnb quantize_4bit {rows} {columns}", partial(lambda x: ops.quantize_4bit(x, 64, "nf4", U8), x)
        yield (
            f"bnb dequantize_4bit {rows} {columns}",
            (partial(lambda p, s, shape: ops.dequantize_4bit(p, s, 64, "nf4", shape, BF16), packed, scales, (rows, columns))),
        )
    code = bnb.create_dynamic_map().cuda()
    x = rand(16384, 4096)
    bytes_, scales8 = ops.quantize_blockwise(x, code, 256)
    yield "bnb quantize_blockwise 16384 4096", lambda: ops.quantize_blockwise(x, code, 256)
    yield "bnb dequantize_blockwise 16384 4096", lambda: ops.dequantize_blockwise(bytes_, scales8, code, 256, BF16)
    half = x.half()
    yield "bnb int8_vectorwise_quant 16384 4096", lambda: ops.int8_vectorwise_quant(half, 0.0)
    one = rand(1, 1, 4096)
    nf4 = bnb.get_4bit_type("nf4", device="cuda")
    yield "bnb gemv_4bit 11008 4096", lambda: ops.gemv_4bit(one, packed, [11008, 4096], scales, nf4, 64)
    a8, sa, _ = ops.int8_vectorwise_quant(half[:8192], 0.0)
    b8, sb, _ = ops.int8_vectorwise_quant(half[:4096], 0.0)
    yield "bnb int8_scaled_mm 8192 4096 4096", lambda: ops.int8_scaled_mm(a8, b8, sa, sb, None, torch.float16)
    n = 4096 * 11008
    g, p = rand(n), rand(n)
    s1, s2 = torch.zeros(n, device="cuda", dtype=U8), torch.zeros(n, device="cuda", dtype=U8)
    m1, m2 = torch.zeros(n // 256, device="cuda"), torch.zeros(n // 256, device="cuda")
    signed, unsigned = bnb.create_dynamic_map(True).cuda(), bnb.create_dynamic_map(False).cuda()
    yield (
        "bnb adam 8bit 45088768",
        lambda: ops.optimizer_update_8bit_blockwise(
            "adam", g, p, s1, s2, 0.9, 0.999, 0.0, 0.0, 1e-8, 3, 1e-4, signed, unsigned, m1, m2, 0.01, 1.0, False
        ),
    )
    f1, f2 = rand(n, dtype=F32), rand(n, dtype=F32).abs()
    yield (
        "bnb adam 32bit 45088768",
        lambda: ops.optimizer_update_32bit(
            "adam", g, p, f1, f2, None, 0.0, 0.0, 0.9, 0.999, 0.0, 0.0, 1e-8, 0.01, 3, 1e-4, 1.0, False
        ),
    )


def torchao_cases() -> Iterator[Case]:
    from torchao.kernel.intmm import int_scaled_matmul, safe_int_mm
    from torchao.prototype.blockwise_fp8_training import kernels as fp8

    x, w = rand(8192, 4096), rand(4096, 4096)
    yield "ao blockwise act_quant_lhs 8192 4096", lambda: fp8.triton_fp8_blockwise_act_quant_lhs(x)
    yield (
        "ao blockwise act_quant_transposed_lhs 8192 4096",
        lambda: fp8.triton_fp8_blockwise_act_quant_transposed_lhs(x),
    )
    yield (
        "ao blockwise weight_quant_transposed 4096 4096",
        lambda: fp8.triton_fp8_blockwise_weight_quant_transposed_rhs(w),
    )
    a, sa = fp8.triton_fp8_blockwise_act_quant_lhs(x)
    b, sb = fp8.triton_fp8_blockwise_weight_quant_transposed_rhs(w)
    yield "ao blockwise gemm 8192 4096 4096", lambda: fp8.triton_fp8_gemm_1x128_128x128(a, b, sa, sb)
    i, j = (torch.randint(-100, 100, (n, 4096), device="cuda", dtype=torch.int8) for n in (8192, 4096))
    scale = rand(8192, 1)
    yield "ao int_mm 8192 4096 4096", lambda: safe_int_mm(i, j.t())
    yield "ao int_scaled_matmul 8192 4096 4096", lambda: int_scaled_matmul(i, j.t(), scale)
    f8 = torch.float8_e4m3fn
    p, q = x.to(f8), w.to(f8)
    one = torch.ones((), device="cuda")
    yield (
        "float8 tensorwise 8192 4096 4096",
        lambda: torch._scaled_mm(p, q.t(), one, one, out_dtype=BF16, use_fast_accum=True),
    )
    rows, columns = torch.ones(8192, 1, device="cuda"), torch.ones(1, 4096, device="cuda")
    yield (
        "float8 rowwise 8192 4096 4096",
        lambda: torch._scaled_mm(p, q.t(), rows, columns, out_dtype=BF16, use_fast_accum=True),
    )


def custom_cases() -> Iterator[Case]:
    """Operators of a program's own: ATen inside, and CUDA C++ that NVRTC compiles."""

    @torch.library.custom_op("own::gate", mutates_args=())
    def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ w)

    @torch.library.custom_op("own::pick", mutates_args=())
    def pick(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return table[rows] * 2

    @torch.library.custom_op("own::mm", mutates_args=())
    def mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    x, w = rand(8192, 4096), rand(4096, 4096)
    yield "own gate 8192 4096 4096", lambda: gate(x, w)
    table, rows = rand(500_000, 1024), torch.randint(0, 500_000, (16384,), device="cuda")
    yield "own pick 16384 of 500000 1024", lambda: pick(table, rows)
    yield "own mm, which adds, 8192 4096", lambda: mm(x, x)
    add = torch.cuda._compile_kernel(
        """extern "C" __global__ void scale_add(float* y, const float* x, float a, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += a * x[i]; }""",
        "scale_add",
    )
    fat = torch.cuda._compile_kernel(
        """extern "C" __global__ void row_sum(float* y, const float* x, int columns) {
        __shared__ float part[256]; float sum = 0;
        for (int i = threadIdx.x; i < columns; i += 256) sum += x[(long long)blockIdx.x * columns + i];
        part[threadIdx.x] = sum; __syncthreads();
        for (int s = 128; s > 0; s >>= 1) { if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s]; __syncthreads(); }
        if (threadIdx.x == 0) y[blockIdx.x] = part[0]; }""",
        "row_sum",
    )
    y, z = rand(1 << 26, dtype=F32), rand(1 << 26, dtype=F32)
    yield "cuda scale_add 67108864", lambda: add((1 << 18, 1, 1), (256, 1, 1), (y, z, 2.0, 1 << 26))
    out = torch.empty(8192, device="cuda")
    yield "cuda row_sum 8192 8192", lambda: fat((8192, 1, 1), (256, 1, 1), (out, z, 8192))


SECTIONS = {"bitsandbytes": bitsandbytes_cases, "torchao": torchao_cases, "custom": custom_cases}


def measured(call: Callable[[], Any], flush: torch.Tensor) -> dict[str, Any]:
    """Names and times of the kernels of a call."""
    return {"kernels": [{"name": n, "cold": c, "warm": w} for n, c, w in kernel_times(call, flush)]}


if __name__ == "__main__":
    Probe(
        __doc__, "extensions.jsonl", {"kind": "extensions"}, SECTIONS,
        mark=lambda label: torch.profiler.record_function(f"case: {label}"), measured=measured,
    ).main()
