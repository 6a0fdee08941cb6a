"""The cases of ``triton_kernels.py``: what is called with which shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import triton

from validation.probes import triton_sources as own

Case = tuple[str, Callable[[], Any]]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SMS = 132


def rand(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def next_power(n: int) -> int:
    return triton.next_power_of_2(n)


# ---------------------------------------------------------------------- kernels of our own


def own_rows() -> Iterator[Case]:
    for rows, n, dtype, warps in ((8192, 8192, BF16, 8), (4096, 2048, F32, 4), (16384, 1000, BF16, 4), (512, 4096, BF16, 4)):
        x = rand(rows, n, dtype=dtype)
        y = torch.empty_like(x)
        block = next_power(n)
        yield f"softmax_rows {rows} {n} {dtype} {warps}", (
            partial(lambda x, y, r, n, b, w: own.softmax_rows[(r,)](y, x, n, n, BLOCK=b, num_warps=w), x, y, rows, n, block, warps)
        )
    for rows, n, block, warps in ((2048, 128256, 4096, 8), (1024, 32000, 1024, 4)):
        x = rand(rows, n)
        y = torch.empty_like(x)
        yield f"softmax_passes {rows} {n} {block}", (
            partial(lambda x, y, r, n, b, w: own.softmax_passes[(r,)](y, x, n, n, BLOCK=b, num_warps=w), x, y, rows, n, block, warps)
        )
    for rows, n, warps in ((8192, 4096, 8), (16384, 1024, 4)):
        x, w, b = rand(rows, n), rand(n), rand(n)
        y, mean, rstd = torch.empty_like(x), rand(rows, dtype=F32), rand(rows, dtype=F32)
        yield f"layer_norm {rows} {n}", (
            partial(lambda x, y, w, b, m, s, r, n, k: own.layer_norm[(r,)](
                y, x, w, b, m, s, n, 1e-5, BLOCK=next_power(n), num_warps=k), x, y, w, b, mean, rstd, rows, n, warps)
        )
    for rows, n, warps in ((16384, 5120, 8), (4096, 8192, 16), (2048, 4096, 4)):
        x, w = rand(rows, n), rand(n)
        y = torch.empty_like(x)
        yield f"rms_norm {rows} {n} {warps}", (
            partial(lambda x, y, w, r, n, k: own.rms_norm[(r,)](y, x, w, n, 1e-6, BLOCK=next_power(n), num_warps=k), x, y, w, rows, n, warps)
        )
    for rows, n, programs in ((16384, 4096, SMS), (8192, 2048, 2 * SMS)):
        x, w, dy = rand(rows, n), rand(n), rand(rows, n)
        dx, dw = torch.empty_like(x), rand(programs, n, dtype=F32)
        yield f"rms_norm_grad {rows} {n} {programs}", (
            partial(lambda x, w, dy, dx, dw, r, n, p: own.rms_norm_grad[(p,)](
                dx, dw, dy, x, w, r, n, 1e-6, BLOCK=next_power(n), num_warps=8), x, w, dy, dx, dw, rows, n, programs)
        )
    for rows, n, block, warps in ((8192, 32000, 4096, 8), (2048, 128256, 8192, 16)):
        x = rand(rows, n)
        target, loss = torch.randint(0, n, (rows,), device="cuda"), rand(rows, dtype=F32)
        yield f"cross_entropy {rows} {n} {block}", (
            partial(lambda x, t, s, r, n, b, w: own.cross_entropy[(r,)](s, x, t, n, BLOCK=b, num_warps=w), x, target, loss, rows, n, block, warps)
        )
    x = rand(8192, 8192)
    q, s = torch.empty(8192, 8192, device="cuda", dtype=torch.float8_e4m3fn), rand(8192 * 64, dtype=F32)
    yield "quantize_blocks 8192 8192 128", lambda: own.quantize_blocks[(8192 * 64,)](q, s, x, BLOCK=128, num_warps=1)
    y = torch.empty_like(x)
    yield "scan_rows 8192 8192", lambda: own.scan_rows[(8192,)](y, x, 8192, BLOCK=8192, num_warps=8)
    z, t = rand(16384, 4096), rand(4096, dtype=F32)
    yield "sum_columns 16384 4096", (
        lambda: own.sum_columns[(4096 // 32,)](t, z, 16384, 4096, ROWS=64, COLUMNS=32, num_warps=4)
    )


def own_elements() -> Iterator[Case]:
    for n in (1 << 26, 1 << 20):
        x, y, z = rand(n), rand(n), rand(n)
        yield f"add {n}", partial(lambda x, y, z, n: own.add[(n // 1024,)](z, x, y, n, BLOCK=1024), x, y, z, n)
    for rows, n in ((8192, 14336), (16384, 2816)):
        g, u, y = rand(rows, n), rand(rows, n), rand(rows, n)
        yield f"swiglu {rows} {n}", (
            partial(lambda g, u, y, r, n: own.swiglu[(r,)](y, g, u, n, BLOCK=next_power(n), num_warps=8), g, u, y, rows, n)
        )
    x = rand(1 << 26)
    y = torch.empty_like(x)
    yield "dropout 2^26", lambda: own.dropout[(1 << 16,)](y, x, 1 << 26, 0.1, 123, BLOCK=1024)
    for heads, half in ((32, 64), (8, 64)):
        t, c, s = rand(16384, heads, 2 * half), rand(4096, half, dtype=F32), rand(4096, half, dtype=F32)
        yield f"rope 16384 {heads} {half}", (
            partial(lambda t, c, s, h, k: own.rope[(16384,)](t, c, s, h, HALF=k, SEQUENCE=4096, num_warps=1), t, c, s, heads, half)
        )
    n = 1 << 25
    w, m, v, g = rand(n, dtype=F32), rand(n, dtype=F32), rand(n, dtype=F32).abs(), rand(n)
    yield "adam 2^25", lambda: own.adam[(n // 1024,)](w, m, v, g, n, 1e-4, 0.9, 0.95, 1e-8, BLOCK=1024)
    a = rand(1 << 22, dtype=F32)
    b = torch.empty_like(a)
    for steps in (64, 512):
        yield f"iterate 2^22 {steps}", partial(lambda k: own.iterate[(4096,)](b, a, 1 << 22, STEPS=k, BLOCK=1024), steps)
    yield "iterate_exp 2^22 128", lambda: own.iterate_exp[(4096,)](b, a, 1 << 22, STEPS=128, BLOCK=1024)
    for size, block in ((8192, 64), (4096, 32)):
        x, y = rand(size, size), rand(size, size)
        yield f"transpose {size} {block}", (
            partial(lambda x, y, n, k: own.transpose[(n // k, n // k)](y, x, n, n, BLOCK=k), x, y, size, block)
        )
    table, i = rand(128256, 4096), torch.randint(0, 128256, (16384,), device="cuda")
    y = rand(16384, 4096)
    yield "embed 16384 4096", lambda: own.embed[(16384,)](y, table, i, 4096, BLOCK=4096)
    into, few = rand(32000, 1024, dtype=F32), torch.randint(0, 32000, (16384,), device="cuda")
    z = rand(16384, 1024, dtype=F32)
    yield "scatter_add 16384 1024", lambda: own.scatter_add[(16384,)](into, z, few, 1024, BLOCK=1024)
    x, w = rand(16384, 4096), rand(4096, 4)
    y = torch.empty_like(x)
    yield "convolve_short 16384 4096", (
        lambda: own.convolve_short[(16384, 4)](y, x, w, 4096, 4096, TAPS=4, BLOCK=1024)
    )


MATMULS = (
    # m, n, k, BM, BN, BK, warps, stages, dtype, transposed b
    (8192, 8192, 8192, 128, 256, 64, 8, 3, BF16, False), (4096, 4096, 4096, 128, 256, 64, 8, 3, BF16, False),
    (4096, 4096, 4096, 128, 128, 64, 4, 3, BF16, False), (4096, 4096, 4096, 128, 128, 32, 8, 4, BF16, True),
    (4096, 4096, 4096, 64, 64, 32, 4, 3, BF16, False), (2048, 2048, 2048, 64, 128, 64, 4, 4, F16, False),
    (4096, 4096, 4096, 128, 128, 32, 8, 3, F32, False), (8192, 4096, 1024, 128, 64, 64, 4, 4, BF16, True),
    (16, 4096, 4096, 16, 64, 128, 4, 4, BF16, True), (1000, 3000, 500, 64, 64, 64, 4, 3, BF16, False),
    (4096, 4096, 4096, 32, 32, 32, 2, 2, BF16, False), (8192, 8192, 8192, 128, 128, 64, 8, 3, torch.float8_e4m3fn, True),
)


def own_products() -> Iterator[Case]:
    for m, n, k, bm, bn, bk, warps, stages, dtype, transposed in MATMULS:
        wide = rand(m, k, dtype=F32 if dtype == F32 else BF16)
        other = rand(n, k, dtype=wide.dtype).t() if transposed else rand(k, n, dtype=wide.dtype)
        a, b = wide.to(dtype), other.to(dtype)
        c = torch.empty(m, n, device="cuda", dtype=wide.dtype if dtype.itemsize == 1 else dtype)
        grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
        yield f"matmul {m} {n} {k} {bm} {bn} {bk} {warps} {stages} {dtype} {'t' if transposed else 'n'}", (
            partial(lambda a, b, c, g, s, t, w, d: own.matmul[g](
                c, a, b, *s, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), BM=t[0], BN=t[1], BK=t[2],
                GROUP=8, EVEN=s[2] % t[2] == 0, num_warps=w, num_stages=d), a, b, c, grid, (m, n, k), (bm, bn, bk), warps, stages)
        )
    a, b, c = rand(8192, 4096), rand(4096, 8192), rand(8192, 8192)
    yield "matmul_persistent 8192 8192 4096", (
        lambda: own.matmul_persistent[(SMS,)](
            c, a, b, 8192, 8192, 4096, BM=128, BN=128, BK=64, GROUP=8, num_warps=4, num_stages=3)
    )
    from triton.tools.tensor_descriptor import TensorDescriptor

    bt = rand(8192, 4096)
    for bm, bn, bk, warps, stages in ((128, 256, 64, 8, 3), (128, 128, 64, 4, 4)):
        d = (
            TensorDescriptor.from_tensor(c, [bm, bn]), TensorDescriptor.from_tensor(a, [bm, bk]),
            TensorDescriptor.from_tensor(bt, [bn, bk]),
        )
        yield f"matmul_descriptors 8192 8192 4096 {bm} {bn} {bk}", (
            partial(lambda d, t, w, s: own.matmul_descriptors[(8192 // t[0] * 8192 // t[1],)](
                *d, 8192, 8192, 4096, BM=t[0], BN=t[1], BK=t[2], GROUP=8, num_warps=w, num_stages=s), d, (bm, bn, bk), warps, stages)
        )
    x, y, z = rand(512, 16384), rand(16384, 512), torch.zeros(512, 512, device="cuda")
    yield "matmul_split 512 512 16384 8", (
        lambda: own.matmul_split[(16, 8)](z, x, y, 512, 512, 16384, BM=128, BN=128, BK=64, SPLIT=8, num_warps=8, num_stages=3)
    )
    for m, bm in ((16, 16), (2048, 128)):
        p, o, s = torch.randint(0, 255, (4096, 2048), device="cuda", dtype=torch.uint8), rand(m, 4096), rand(4096, dtype=F32)
        i = rand(m, 4096)
        yield f"matmul_int4 {m} 4096 4096", (
            partial(lambda i, p, o, s, m, bm: own.matmul_int4[(triton.cdiv(m, bm), 4096 // 64)](
                o, i, p, s, m, 4096, 4096, BM=bm, BN=64, BK=64, num_warps=4, num_stages=3), i, p, o, s, m, bm)
        )
    sizes = torch.tensor([3000, 500, 1000, 2048, 4096, 100, 1900, 3740])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).to(device="cuda", dtype=torch.int32)
    x, w, o = rand(16384, 2048), rand(8, 1408, 2048), rand(16384, 1408)
    yield "matmul_groups 16384 1408 2048 8", (
        lambda: own.matmul_groups[(SMS,)](
            o, x, w, offsets, 8, 1408, 2048, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
    )


def own_attention() -> Iterator[Case]:
    for heads, length, head, bm, bn, warps, stages, causal in (
        (64, 4096, 128, 128, 64, 8, 3, False), (64, 4096, 128, 128, 64, 8, 3, True), (64, 4096, 64, 128, 64, 4, 3, True),
        (16, 2048, 64, 64, 64, 4, 2, False),
    ):
        q, k, v = (rand(heads, length, head) for _ in range(3))
        o = torch.empty_like(q)
        yield f"attention {heads} {length} {head} {bm} {bn} {warps} {'causal' if causal else 'full'}", (
            partial(lambda q, k, v, o, n, h, t, w, s, c: own.attention[
                (n // t[0], q.shape[0])](o, q, k, v, 0.1, n, HEAD=h, BM=t[0], BN=t[1], CAUSAL=c, num_warps=w, num_stages=s), q, k, v, o, length, head, (bm, bn), warps, stages, causal)
        )
    for heads, length, head, warps in ((64, 4096, 64, 4), (32, 4096, 128, 8)):
        q, k, v, do = (rand(heads, length, head) for _ in range(4))
        lse, delta = rand(heads, length, dtype=F32), rand(heads, length, dtype=F32)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        yield f"attention_grad_kv {heads} {length} {head}", (
            partial(lambda q, k, v, do, e, t, dk, dv, n, h, w: own.attention_grad_kv[
                (n // 64, q.shape[0])](dk, dv, q, k, v, do, e, t, 0.1, n, HEAD=h, BM=64, BN=64, num_warps=w, num_stages=2), q, k, v, do, lse, delta, dk, dv, length, head, warps)
        )
    q, k, v = rand(64, 8, 4, 128), rand(64, 8, 4096, 128), rand(64, 8, 4096, 128)
    o, lengths = torch.empty_like(q), torch.randint(1024, 4096, (64,), device="cuda", dtype=torch.int32)
    yield "attention_decode 64 8 4 4096", (
        lambda: own.attention_decode[(64, 8)](o, q, k, v, lengths, 0.1, 4096, HEAD=128, GROUP=4, BN=32, num_warps=4)
    )


def own_cases() -> Iterator[Case]:
    for part in (own_rows, own_elements, own_products, own_attention):
        yield from part()
        torch.cuda.empty_cache()


# ---------------------------------------------------------------------- Liger's and flash-linear-attention's


def both_ways(call: Callable[[], Any], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    """Forward and backward; gradients are dropped each time."""
    with torch.no_grad():
        shape = None

    def run() -> None:
        nonlocal shape
        found = call()
        outputs = [t for t in (found if isinstance(found, tuple) else (found,)) if isinstance(t, torch.Tensor) and t.requires_grad]
        if shape is None:
            shape = [torch.randn_like(t) for t in outputs]
        torch.autograd.grad(outputs, inputs, shape, allow_unused=True)

    return run


def grads(*shapes: tuple[int, ...], dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    return [rand(*shape, dtype=dtype).requires_grad_() for shape in shapes]


def liger_cases() -> Iterator[Case]:
    try:
        import liger_kernel.ops as ops
    except ImportError as error:
        raise RuntimeError(f"liger-kernel is not here: {error}") from None
    x, w = grads((8192, 4096), (4096,))
    yield "liger rms_norm 8192 4096", both_ways(lambda: ops.LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False), [x, w])
    y, z, b = grads((8192, 4096), (4096,), (4096,))
    yield "liger layer_norm 8192 4096", both_ways(lambda: ops.LigerLayerNormFunction.apply(y, z, b, 1e-5), [y, z, b])
    g, u = grads((8192, 14336), (8192, 14336))
    yield "liger swiglu 8192 14336", both_ways(lambda: ops.LigerSiLUMulFunction.apply(g, u), [g, u])
    g2, u2 = grads((8192, 8192), (8192, 8192))
    yield "liger geglu 8192 8192", both_ways(lambda: ops.LigerGELUMulFunction.apply(g2, u2), [g2, u2])
    logits, target = rand(8192, 32000).requires_grad_(), torch.randint(0, 32000, (8192,), device="cuda")
    yield "liger cross_entropy 8192 32000", both_ways(
        lambda: ops.LigerCrossEntropyFunction.apply(logits * 1.0, target, None)[0], [logits]
    )
    q, k = grads((4, 32, 4096, 128), (4, 8, 4096, 128))
    cos, sin = rand(1, 4096, 128), rand(1, 4096, 128)
    yield "liger rope 4 32 4096 128", both_ways(lambda: ops.LigerRopeFunction.apply(q, k, cos, sin), [q, k])
    p, t = grads((4096, 32000), dtype=F32)[0], torch.softmax(rand(4096, 32000, dtype=F32), -1)
    yield "liger kl_div 4096 32000", both_ways(lambda: ops.LigerKLDivLossFunction.apply(p, t, "batchmean", False), [p])
    x3, r3, w3 = grads((8192, 4096), (8192, 4096), (4096,))
    yield "liger fused_add_rms_norm 8192 4096", both_ways(
        lambda: ops.LigerFusedAddRMSNormFunction.apply(x3, r3, w3, 1e-6), [x3, r3, w3]
    )
    d, alpha, gamma, beta = grads((8192, 4096), (1,), (4096,), (4096,))
    yield "liger dyt 8192 4096", both_ways(lambda: ops.LigerDyTFunction.apply(d, alpha, gamma, beta), [d, alpha, gamma, beta])
    s = grads((8192, 2048))[0]
    yield "liger softmax 8192 2048", both_ways(lambda: ops.LigerSoftmaxFunction.apply(s), [s])
    i, c = grads((8, 64, 64 * 64), (8, 64, 64 * 64), dtype=F32)[0], grads((64,), (64,), dtype=F32)
    yield "liger group_norm 8 64 4096", both_ways(lambda: ops.LigerGroupNormFunction.apply(i, *c, 64, 8, 1e-5), [i, *c])
    h, v = grads((4096, 2048), (32000, 2048))
    label = torch.randint(0, 32000, (4096,), device="cuda")
    yield "liger fused_linear_cross_entropy 4096 2048 32000", both_ways(
        lambda: ops.LigerFusedLinearCrossEntropyFunction.apply(h, v, label)[0], [h, v]
    )


def fla_cases() -> Iterator[Case]:
    try:
        import fla.ops as ops
        from fla.modules.fused_norm_gate import rms_norm_gated
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        raise RuntimeError(f"flash-linear-attention is not here: {error}") from None
    shape = (2, 4096, 16, 64)
    q, k, v = grads(shape, shape, shape)
    g = F.logsigmoid(rand(2, 4096, 16, dtype=F32)).requires_grad_()
    beta = torch.rand(2, 4096, 16, device="cuda", dtype=BF16).requires_grad_()
    normal = F.normalize(k.detach(), dim=-1)

    def forward() -> None:  # Triton 3.6 miscompiles its backward pass on Hopper, which the library refuses
        with torch.no_grad():
            chunk_gated_delta_rule(q, normal, v, g, beta)

    yield "fla chunk_gated_delta_rule forward 2 4096 16 64", forward
    yield "fla chunk_retention 2 4096 16 64", both_ways(lambda: ops.chunk_retention(q, k, v)[0], [q, k, v])
    gate = F.logsigmoid(rand(*shape, dtype=F32)).requires_grad_()
    yield "fla chunk_gla 2 4096 16 64", both_ways(lambda: ops.chunk_gla(q, k, v, gate)[0], [q, k, v, gate])
    x, o, w = grads((8192, 2048), (8192, 2048), (2048,))
    yield "fla rms_norm_gated 8192 2048", both_ways(lambda: rms_norm_gated(x, o, w, None), [x, o, w])


# ---------------------------------------------------------------------- what Inductor makes


def flex_cases() -> Iterator[Case]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    document = torch.tensor([0, 700, 1500, 1900, 4000, 4100, 6500, 8192], device="cuda")
    owner = torch.bucketize(torch.arange(8192, device="cuda"), document[1:], right=True)
    masks = {
        "causal": lambda b, h, i, j: i >= j,
        "sliding": lambda b, h, i, j: (i >= j) & (i - j < 1024),
        "document": lambda b, h, i, j: (i >= j) & (owner[i] == owner[j]),
    }
    for name, mask in masks.items():
        for head in (64, 128) if name == "causal" else (128,):
            q, k, v = grads((1, 16, 8192, head), (1, 16, 8192, head), (1, 16, 8192, head))
            blocks = create_block_mask(mask, None, None, 8192, 8192)
            yield f"flex {name} 16 8192 {head}", both_ways(partial(lambda q, k, v, m: compiled(q, k, v, block_mask=m), q, k, v, blocks), [q, k, v])
    q, k, v = grads((2, 32, 2048, 64), (2, 8, 2048, 64), (2, 8, 2048, 64))
    yield "flex full gqa 32 2048 64", both_ways(lambda: compiled(q, k, v, enable_gqa=True), [q, k, v])


def inductor_cases() -> Iterator[Case]:
    def case(label: str, function: Callable[..., Any], inputs: list[torch.Tensor]) -> Case:
        compiled = torch.compile(function, dynamic=False)
        wanted = [t for t in inputs if t.requires_grad]
        return f"inductor {label}", both_ways(lambda: compiled(*inputs), wanted)

    yield case("gelu_scale", lambda x: F.gelu(x) * 2 + 1, grads((8192, 8192)))
    yield case("layer_norm", lambda x, w, b: F.layer_norm(x, (4096,), w, b), grads((8192, 4096), (4096,), (4096,)))
    yield case("softmax", lambda x: torch.softmax(x, -1), grads((8192, 4096)))
    target = torch.randint(0, 32000, (4096,), device="cuda")
    yield case("loss", lambda x: F.cross_entropy(x.float(), target), grads((4096, 32000)))
    yield case("rope", lambda x, c: x * c + torch.cat((-x[..., 64:], x[..., :64]), -1) * c, grads((4, 4096, 32, 128), (4096, 1, 128)))
    yield case("transposed", lambda x: (x.transpose(1, 2).contiguous() * 2).sum(-1), grads((64, 1024, 1024)))
    yield case("group_norm", lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), grads((16, 256, 64, 64), (256,), (256,)))
    if os.environ.get("PART"):
        return
    yield case("float8", quantized, [rand(8192, 8192).requires_grad_()])


def quantized(x: torch.Tensor) -> torch.Tensor:
    """The cast of float8 training with one scale per row, and back."""
    scale = x.detach().abs().amax(-1, keepdim=True).float().clamp(1e-12) / 448.0
    return (x / scale).to(torch.float8_e4m3fn).to(BF16) * scale


TUNED = (
    ("mm", 8192, 2048, 6144), ("mm", 4096, 4096, 4096), ("mm", 16384, 4096, 1024), ("mm", 2048, 14336, 4096), ("mm", 64, 4096, 4096),
    ("mm", 1024, 1024, 1024), ("addmm", 4096, 12288, 3072), ("bmm", 64, 1024, 128), ("mm", 4096, 4000, 1000), ("mm32", 2048, 2048, 2048),
)


def tuned_products() -> Iterator[Case]:
    torch.backends.cuda.matmul.allow_tf32 = True
    for kind, m, n, k in TUNED:
        label = f"{kind} {m} {n} {k}"
        function: Callable[..., torch.Tensor]
        inputs: tuple[torch.Tensor, ...]
        if kind == "bmm":
            x, y = rand(m, n, k), rand(m, k, n)
            function, inputs = torch.bmm, (x, y)
        elif kind == "addmm":
            function, inputs = torch.addmm, (rand(n), rand(m, k), rand(k, n))
        else:
            dtype = F32 if kind == "mm32" else BF16
            function, inputs = torch.mm, (rand(m, k, dtype=dtype), rand(k, n, dtype=dtype))
        compiled = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        yield label, partial(lambda f, i: f(*i), compiled, inputs)


def apart_cases() -> Iterator[Case]:
    """Elements that lie apart, by their size, how far, and how a program goes over them; products by stages; casts to
    float8 in two layouts."""
    n = 4096
    for dtype in (torch.float8_e4m3fn, BF16, F32):
        for stride in (2, 8, n):
            dense, wide = rand(n, n).to(dtype), torch.zeros(n * n * (stride if stride < n else 1), device="cuda").to(dtype)
            row, column = (n * stride, stride) if stride < n else (1, n)
            for block, warps, rounds in ((1024, 4, 1), (4096, 8, 16)):
                grid, how = (n // rounds, n // block), {"BLOCK": block, "ROUNDS": rounds, "num_warps": warps}
                label = f"{dtype} {stride} {block} {warps} {rounds}".removeprefix("torch.")
                yield f"store_apart {label}", (
                    partial(lambda d, w, r, c, g, h: own.spread[g](w, d, r, c, n, 1, **h), dense, wide, row, column, grid, how)
                )
                yield f"load_apart {label}", (
                    partial(lambda d, w, r, c, g, h: own.spread[g](d, w, n, 1, r, c, **h), dense, wide, row, column, grid, how)
                )
    a, b, c = rand(n, n), rand(n, n), rand(n, n)
    for bm, bn, bk, warps, stages in (
        (128, 128, 64, 8, 2), (128, 128, 64, 8, 4), (128, 128, 64, 8, 5), (128, 256, 64, 8, 2), (128, 256, 64, 8, 4),
        (64, 128, 64, 4, 1), (64, 128, 64, 4, 2), (64, 128, 64, 4, 6),
    ):
        tiles = (triton.cdiv(n, bm) * triton.cdiv(n, bn),)
        yield f"matmul_stages {bm} {bn} {bk} {warps} {stages}", (
            partial(lambda g, m, o, k, w, s: own.matmul[g](
                c, a, b, n, n, n, n, 1, n, 1, n, BM=m, BN=o, BK=k, GROUP=8, EVEN=True, num_warps=w, num_stages=s
            ), tiles, bm, bn, bk, warps, stages)
        )

    def both_layouts(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = (F.rms_norm(x, (n,), w) * s).clamp(-448, 448).to(torch.float8_e4m3fn)
        return q, q.t().contiguous().t()

    def both_gated(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = (F.silu(x) * y * s).clamp(-448, 448).to(torch.float8_e5m2)
        return q, q.t().contiguous().t()

    scale = torch.ones((), device="cuda", dtype=BF16)
    x, y, w = rand(8192, n), rand(8192, n), rand(n)
    for name, function, inputs in (("norm", both_layouts, (x, w, scale)), ("gate", both_gated, (x, y, scale))):
        compiled = torch.compile(function, dynamic=False)
        yield f"float8_layouts {name}", partial(lambda f, i: f(*i), compiled, inputs)


TILES = (
    (16, 64, 64), (16, 128, 64), (32, 32, 32), (32, 64, 32), (32, 128, 64), (64, 32, 32), (64, 64, 16), (64, 64, 32),
    (64, 64, 64), (64, 128, 32), (64, 128, 64), (64, 256, 32), (128, 32, 32), (128, 64, 32), (128, 64, 64),
    (128, 128, 32), (128, 128, 64), (128, 256, 64), (256, 128, 32), (256, 64, 64),
)
WARPS_STAGES = ((4, 3), (8, 3), (4, 1))
OTHER_TILES = ((32, 64, 64), (64, 64, 64), (64, 128, 64), (128, 128, 64), (128, 256, 64))


def product(m: int, n: int, k: int, tile: tuple[int, int, int], how: tuple[int, int], dtype: torch.dtype) -> Case:
    """A product by `own.matmul`; of float8 the second operand is transposed, as the tensor cores need it."""
    wide = F32 if dtype == F32 else BF16
    narrow = dtype.itemsize == 1
    a = rand(m, k, dtype=wide).to(dtype)
    b = rand(n, k, dtype=wide).to(dtype).t() if narrow else rand(k, n, dtype=wide).to(dtype)
    c = torch.empty(m, n, device="cuda", dtype=wide)
    (bm, bn, bk), (warps, stages) = tile, how
    grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)

    def call() -> None:
        own.matmul[grid](
            c, a, b, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), BM=bm, BN=bn, BK=bk,
            GROUP=8, EVEN=k % bk == 0, num_warps=warps, num_stages=stages,
        )

    return f"tiles {m} {n} {k} {bm} {bn} {bk} {warps} {stages} {str(dtype).removeprefix('torch.')}", call


def tiles_cases() -> Iterator[Case]:
    """Products by tile, warps and stages; then by format; then of few programs and of sizes without a vector's width."""
    for tile in TILES:
        for how in WARPS_STAGES:
            yield product(4096, 4096, 2048, tile, how, BF16)
    for dtype in (F16, F32, torch.float8_e4m3fn):
        for tile in OTHER_TILES:
            yield product(4096, 4096, 2048, tile if dtype != F32 else (*tile[:2], 32), (4 if tile[1] < 256 else 8, 3), dtype)
    for size in ((2048, 512, 1024), (1024, 1024, 8192), (16384, 768, 256), (500, 3000, 1000), (1001, 1003, 999)):
        for tile in ((64, 64, 32), (64, 128, 64), (128, 128, 64)):
            yield product(*size, tile, (4, 3), BF16)


def fed_cases() -> Iterator[Case]:
    """Products with elements before and after them, as chunked scans and attention have."""
    m, n, k = 4096, 2048, 2048
    a, b, c = rand(m, k), rand(k, n), rand(m, n)
    rows, columns = rand(m, dtype=F32), rand(max(n, k), dtype=F32)
    for bm, bn, bk, warps, stages in (
        (64, 64, 32, 2, 4), (64, 64, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 64, 4, 3), (128, 128, 64, 8, 3), (32, 64, 32, 2, 5),
    ):
        for scaled, masked, exchanged in (
            (False, False, False), (True, False, False), (True, True, False), (False, False, True), (True, False, True),
        ):
            yield f"matmul_fed {bm} {bn} {bk} {warps} {stages} {scaled:d}{masked:d}{exchanged:d}", (
                partial(lambda t, w, s, how: own.matmul_fed[(m // t[0], n // t[1])](
                    c, a, b, rows, columns, m, n, k, *t, *how, num_warps=w, num_stages=s
                ), (bm, bn, bk), warps, stages, (scaled, masked, exchanged))
            )
    many, out = 33792, rand(33792, dtype=F32)
    for width in (64, 128):
        a, b, rows = rand(many, width), rand(512, width), rand(many, dtype=F32)
        for bm, bn, warps in ((32, 64, 4), (64, 64, 4), (128, 64, 4), (128, 128, 8), (64, 128, 8)):
            for scanned in (False, True):
                yield f"matmul_then {bm} {bn} {width} {warps} {scanned:d}", (
                    partial(lambda a, b, r, t, w, s: own.matmul_then[(many // t[0],)](
                        out, a, b, r, many, 512, t[2], *t, s, num_warps=w, num_stages=3
                    ), a, b, rows, (bm, bn, width), warps, scanned)
                )
    for heads, length, head, bm, bn, warps, stages, causal in (
        (32, 2048, 64, 64, 32, 4, 3, True), (32, 2048, 64, 128, 128, 8, 2, True), (32, 2048, 128, 64, 64, 4, 2, True),
        (32, 2048, 128, 128, 32, 4, 4, False), (32, 2048, 64, 32, 64, 2, 3, False), (32, 2048, 128, 128, 128, 8, 2, False),
    ):
        q, v, w = (rand(heads, length, head) for _ in range(3))
        o = torch.empty_like(q)
        yield f"fed attention {heads} {length} {head} {bm} {bn} {warps} {stages} {causal:d}", (
            partial(lambda q, k, v, o, t, w, s, c: own.attention[(q.shape[1] // t[0], q.shape[0])](
                o, q, k, v, 0.1, q.shape[1], HEAD=q.shape[2], BM=t[0], BN=t[1], CAUSAL=c, num_warps=w, num_stages=s
            ), q, v, w, o, (bm, bn), warps, stages, causal)
        )


CONFIGURATION = {"place": 0.5}
"""Position of the configuration of an autotuned kernel that runs, among all in their order: 0 the first, below 1."""


def mamba_cases() -> Iterator[Case]:
    """Mamba 2's scan with several configurations of each kernel."""
    from validation.probes.mamba_scan import SHAPES, scan
    from validation.workloads import mamba_parts

    mamba_parts.install()

    def placed(place: float, shape: tuple[int, ...]) -> None:
        CONFIGURATION["place"] = place
        scan(*shape)

    for shape, places in ((SHAPES[0], range(1, 11)), (SHAPES[5], (1, 4, 8))):
        for place in places:
            yield f"mamba {' '.join(map(str, shape))} {place}", partial(placed, (place + 0.5) / 11, shape)


def more_cases() -> Iterator[Case]:
    """Products that stay or are scaled by blocks; linear attention; a recurrence; what Inductor makes of optimizers,
    long rows, channels that lie innermost and gradients of embeddings."""
    for m, n, k, bm, bn, warps, stages in (
        (4096, 4096, 4096, 128, 256, 8, 3), (4096, 4096, 4096, 128, 128, 4, 4), (8192, 1024, 512, 64, 128, 4, 3), (2048, 5120, 2048, 128, 128, 8, 3),
    ):
        a, b, c = rand(m, k), rand(k, n), rand(m, n)
        yield f"matmul_persistent {m} {n} {k} {bm} {bn} {warps} {stages}", (
            partial(lambda a, b, c, z, t, w, s: own.matmul_persistent[(SMS,)](c, a, b, *z, *t, BK=64, GROUP=8, num_warps=w, num_stages=s),
                    a, b, c, (m, n, k), (bm, bn), warps, stages)
        )
    for m, n, k, bm, bn, split, warps in ((512, 512, 16384, 64, 64, 8, 4), (256, 4096, 8192, 128, 128, 4, 8), (64, 4096, 4096, 64, 64, 4, 4)):
        a, b, c = rand(m, k), rand(k, n), rand(m, n, dtype=F32)
        yield f"matmul_split {m} {n} {k} {split} {bm} {bn} {warps}", (
            partial(lambda a, b, c, z, g, t, s, w: own.matmul_split[g](c, a, b, *z, *t, 64, s, num_warps=w, num_stages=3),
                    a, b, c, (m, n, k), (m // bm * (n // bn), split), (bm, bn), split, warps)
        )
    for m, n, k, bm, bn, warps, stages in ((4096, 4096, 4096, 64, 128, 4, 3), (4096, 4096, 4096, 128, 128, 8, 3), (8192, 2048, 7168, 128, 128, 4, 3)):
        a, b = rand(m, k).to(torch.float8_e4m3fn), rand(n, k).to(torch.float8_e4m3fn)
        sa, sb, c = rand(m, k // 128, dtype=F32), rand(n // 128, k // 128, dtype=F32), rand(m, n)
        yield f"float8_blocks {m} {n} {k} {bm} {bn} {warps} {stages}", (
            partial(lambda g, z, t, w, s: own.float8_blocks[(z[5] // t[0], z[6] // t[1])](*z, *t, 128, num_warps=w, num_stages=s),
                    None, (c, a, b, sa, sb, m, n, k), (bm, bn), warps, stages)
        )
    for heads, length, head, chunk, warps in ((256, 2048, 64, 64, 4), (512, 1024, 128, 64, 8), (128, 4096, 64, 128, 4)):
        q, keys, v = (rand(heads, length, head) for _ in range(3))
        yield f"linear_chunks {heads} {length} {head} {chunk} {warps}", (
            partial(lambda q, k, v, o, z, w: own.linear_chunks[(q.shape[0],)](o, q, k, v, q.shape[1], *z, num_warps=w),
                    q, keys, v, torch.empty_like(q), (head, chunk), warps)
        )
    for batch, length, width, block, warps in ((8, 2048, 4096, 128, 4), (2, 4096, 8192, 64, 2)):
        x, g = rand(batch, length, width), rand(batch, length, width)
        yield f"scan_gates {batch} {length} {width} {block}", (
            partial(lambda x, g, o, b, w: own.scan_gates[(x.shape[0], x.shape[2] // b)](o, x, g, *x.shape[1:], b, num_warps=w),
                    x, g, torch.empty_like(x), block, warps)
        )

    def channels(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(F.batch_norm(x, None, None, w, b, training=True))

    last = rand(32, 256, 56, 56).to(memory_format=torch.channels_last).requires_grad_()
    index = torch.randint(0, 32000, (16384,), device="cuda")
    for label, function, inputs in (
        ("batch_norm", channels, [last, *grads((256,), (256,))]),
        ("embedding", lambda w: F.embedding(index, w), grads((32000, 1024))),
        ("rows", lambda x: torch.var(x, -1), grads((64, 262144))),
        ("sum", lambda x: (x.float() ** 2).sum(), grads((4096, 8192))),
        ("norms", lambda x, w: F.rms_norm(x, (8192,), w), grads((4096, 8192), (8192,))),
        ("softmax", lambda x: torch.log_softmax(x.float(), -1), grads((2048, 50257))),
    ):
        yield f"inductor {label}", both_ways(partial(torch.compile(function, dynamic=False), *inputs), inputs)
    weights = [rand(n, dtype=F32).requires_grad_() for n in (4096 * 4096, 4096, 4096 * 11008, 1024, 1024 * 4096)]
    for w in weights:
        w.grad = torch.randn_like(w)
    adam = torch.optim.AdamW(weights, lr=1e-3, foreach=True, capturable=True)
    yield "inductor adam", torch.compile(adam.step)


MASKED = (
    ("full", 1, 16, 4, 4096, 128), ("causal", 1, 32, 8, 4096, 128), ("full", 2, 16, 16, 2048, 64), ("softcap", 1, 16, 16, 4096, 128),
    ("full", 1, 16, 16, 4096, 128), ("causal", 4, 16, 2, 2048, 64), ("alibi", 2, 16, 16, 2048, 64), ("sliding", 1, 32, 8, 16384, 64),
    ("causal", 8, 16, 16, 1024, 128), ("document", 1, 16, 16, 8192, 64), ("causal", 1, 8, 8, 4096, 256), ("softcap", 1, 32, 4, 2048, 64),
    ("prefix", 2, 16, 16, 4096, 64), ("full", 1, 32, 8, 1000, 64), ("causal", 1, 16, 16, 16384, 128), ("sliding", 2, 16, 16, 4096, 128),
    ("document", 1, 32, 8, 8192, 128), ("alibi", 1, 16, 16, 4096, 128), ("full", 1, 8, 1, 2048, 256), ("causal", 2, 12, 12, 1024, 64),
)
"""FlexAttention by mask or scores, batch, heads, key heads, length and head."""
DECODED = ((16, 32, 8, 4096, 128), (4, 32, 32, 8192, 128), (64, 16, 2, 2048, 64))
"""FlexAttention of one new token: batch, heads, key heads, length and head."""


def masked_cases() -> Iterator[Case]:
    """FlexAttention by masks, functions of scores, grouped heads, lengths and heads, both ways, and of one token."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slopes = torch.exp2(-torch.arange(1, 65, device="cuda") / 4)
    owner = torch.bucketize(torch.arange(16384, device="cuda"), torch.tensor([700, 1500, 1900, 4000, 4100, 6500, 9000], device="cuda"))
    masks = {
        "causal": lambda b, h, i, j: i >= j,
        "sliding": lambda b, h, i, j: (i >= j) & (i - j < 1024),
        "document": lambda b, h, i, j: (i >= j) & (owner[i] == owner[j]),
        "prefix": lambda b, h, i, j: (i >= j) | (j < 500),
    }
    scores = {"softcap": lambda s, b, h, i, j: 30 * torch.tanh(s / 30), "alibi": lambda s, b, h, i, j: s + slopes[h] * (j - i)}
    for kind, batch, heads, groups, length, head in MASKED:
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        q, k, v = grads((batch, heads, length, head), (batch, groups, length, head), (batch, groups, length, head))
        blocks = create_block_mask(masks[kind], None, None, length, length) if kind in masks else None
        yield f"masked {kind} {batch} {heads} {groups} {length} {head}", both_ways(
            partial(lambda f, q, k, v, m, s, g: f(q, k, v, block_mask=m, score_mod=s, enable_gqa=g),
                    compiled, q, k, v, blocks, scores.get(kind), heads != groups), [q, k, v]
        )
    for batch, heads, groups, length, head in DECODED:
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        q, k, v = rand(batch, heads, 1, head), rand(batch, groups, length, head), rand(batch, groups, length, head)
        yield f"masked decode {batch} {heads} {groups} {length} {head}", partial(
            lambda f, q, k, v, g: f(q, k, v, enable_gqa=g), compiled, q, k, v, heads != groups
        )


SECTIONS = {
    "apart": apart_cases, "own": own_cases, "liger": liger_cases, "fla": fla_cases, "flex": flex_cases,
    "inductor": inductor_cases, "tiles": tiles_cases, "fed": fed_cases, "mamba": mamba_cases,
    "more": more_cases, "masked": masked_cases,
}
PARTS = {"apart": 6, "own": 6, "liger": 3, "flex": 2, "fla": 4, "inductor": 1, "tiles": 4, "fed": 4, "mamba": 7, "more": 4, "masked": 11}
"""Processes that compile a section."""
SHARE = {
    "apart": 1.0, "own": 0.45, "liger": 0.35, "flex": 0.35, "inductor": 0.35, "fla": 0.4, "tune": 1.0, "tiles": 0.6,
    "fed": 0.6, "mamba": 1.0, "more": 0.36, "masked": 1.0,
}
"""Share of the remaining time when a section begins."""
