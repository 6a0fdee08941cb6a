"""A program for one simulated rank: many operators that torch gives to cuBLAS, cuDNN and their kin.

test_mathlibs.py calls :func:`main` in a connected rank. A mark in the ring goes before each operator;
what fails is printed as JSON at the end, with what the C calls answer.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from phantora.wire import layout

D = "cuda"
BF16, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32
runtime: list[ctypes.CDLL] = []
failures: dict[str, str] = {}


def mark(name: str) -> None:
    library = runtime[0]
    record = np.zeros(1, layout.dtype(layout.Record))
    record["kind"] = layout.Kind.ANNOTATION
    text = name.encode()
    library.ph_name.restype = ctypes.c_uint32
    key = ctypes.c_uint64(hash(name) & (2**64 - 1))
    record["id"] = library.ph_name(key, text, ctypes.c_size_t(len(text)))
    library.ph_emit(ctypes.c_void_p(record.ctypes.data))


def run(name: str, work: Callable[..., Any], *inputs: Any) -> None:
    mark(name)
    try:
        work(*inputs)
        torch.cuda.synchronize()
    except Exception as error:
        failures[name] = f"{type(error).__name__}: {error}"


def new(*shape: int, dtype: torch.dtype = FLOAT, grad: bool = False) -> torch.Tensor:
    return torch.empty(*shape, device=D, dtype=dtype, requires_grad=grad)


def train(module: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    module(*inputs).sum().backward()


def word(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[1]


def products() -> None:
    for dtype in (FLOAT, BF16, HALF, torch.float64, torch.complex64):
        a, b, name = new(256, 128, dtype=dtype), new(128, 512, dtype=dtype), word(dtype)
        run(f"mm {name}", torch.mm, a, b)
        run(f"mm_t {name}", torch.mm, a, new(512, 128, dtype=dtype).t())
        run(f"bmm {name}", torch.bmm, a.expand(4, 256, 128), b.expand(4, 128, 512))
        run(f"addmm {name}", torch.addmm, new(512, dtype=dtype), a, b)
        run(f"mv {name}", torch.mv, a, new(128, dtype=dtype))
        run(f"dot {name}", torch.dot, new(4096, dtype=dtype), new(4096, dtype=dtype))
    torch.backends.cuda.matmul.allow_tf32 = True
    run("mm tf32", lambda: new(256, 128) @ new(128, 512))
    torch.backends.cuda.matmul.allow_tf32 = False
    run("linear", train, nn.Linear(1024, 2048, device=D, dtype=BF16), new(8, 1024, dtype=BF16, grad=True))
    a8 = new(256, 512, dtype=BF16).to(torch.float8_e4m3fn)
    b8 = new(1024, 512, dtype=BF16).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=D)
    run("scaled_mm", lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=BF16))
    rows, columns = torch.ones(256, 1, device=D), torch.ones(1, 1024, device=D)
    run("scaled_mm rows", lambda: torch._scaled_mm(a8, b8, rows, columns, out_dtype=BF16))
    run("int_mm", lambda: torch._int_mm(new(64, 64, dtype=torch.int8), new(64, 64, dtype=torch.int8)))
    bias, a, b = new(512, dtype=BF16), new(256, 128, dtype=BF16), new(128, 512, dtype=BF16)
    run("gelu", lambda: torch._addmm_activation(bias, a, b, use_gelu=True))
    half, other = new(256, 512, dtype=HALF), new(512, 128, dtype=HALF)
    run("sparse24", lambda: torch._cslt_sparse_mm(torch._cslt_compress(half), other))
    run("spmm", lambda: torch.eye(64).to_sparse_csr().to(D) @ new(64, 32))


def convolutions() -> None:
    kinds = ((nn.Conv1d, None), (nn.Conv2d, torch.channels_last), (nn.Conv3d, torch.channels_last_3d))
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        for dims, (kind, last) in enumerate(kinds, 1):
            for dtype in (FLOAT, BF16):
                for order in (None, last)[: 2 if last else 1]:
                    conv = kind(16, 32, 3, padding=1, stride=2, device=D, dtype=dtype)
                    x = new(4, 16, *([16] * dims), dtype=dtype)
                    if order:
                        conv, x = conv.to(memory_format=order), x.to(memory_format=order)  # type: ignore[call-overload]
                    name = f"conv{dims}d {word(dtype)} {'last' if order else 'first'} {benchmark}"
                    run(name, train, conv, x.requires_grad_())
    torch.backends.cudnn.benchmark = False
    grouped = nn.Conv2d(32, 32, 3, groups=4, device=D, dtype=BF16)
    run("grouped", train, grouped, new(2, 32, 16, 16, dtype=BF16))
    run("transposed", lambda: train(nn.ConvTranspose2d(32, 16, 3, device=D), new(2, 32, 16, 16)))
    torch.backends.cudnn.allow_tf32 = False
    run("conv exact", lambda: train(nn.Conv2d(32, 32, 3, device=D), new(2, 32, 16, 16)))
    torch.backends.cudnn.allow_tf32 = True
    x, w = new(2, 16, 8, 8), new(8, 16, 3, 3)
    run("conv relu", lambda: torch.cudnn_convolution_relu(x, w, new(8), [1, 1], [1, 1], [1, 1], 1))


def workspaces() -> dict[str, int]:
    """Bytes that a convolution takes in addition to its operands and its result, at its peak."""
    found = {}
    sizes = ((64, 64, 56, 3), (80, 64, 56, 3), (64, 64, 56, 1), (4, 24, 20, 3), (4, 24, 7, 1))
    for batch, channels, size, taps in sizes:
        for order in (torch.contiguous_format, torch.channels_last):
            shapes = ((batch, channels, size, size), (channels, channels, taps, taps))
            x, w = (new(*shape).to(memory_format=order) for shape in shapes)
            torch.cuda.reset_peak_memory_stats()
            before = requested("current")
            y = F.conv2d(x, w, padding=taps // 2)
            taken = requested("peak") - before
            found[f"{batch} {channels} {size} {taps} {order}"] = taken - y.numel() * y.element_size()
    return found


def tried() -> list[int]:
    """The same of a gradient while cudnn.benchmark tries plans of it, then afterwards; then of another batch."""
    found = []
    torch.backends.cudnn.benchmark = True
    for batch in (64, 64, 96):
        shapes = (batch, 64, 56, 56), (64, 64, 3, 3)
        x, w = (new(*shape, dtype=BF16).to(memory_format=torch.channels_last) for shape in shapes)
        torch.cuda.reset_peak_memory_stats()
        grad, _, _ = torch.ops.aten.convolution_backward(
            x, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False]
        )
        found.append(requested("peak") - requested("current"))
        del grad
    torch.backends.cudnn.benchmark = False
    return found


def requested(which: str) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])


def attention() -> None:
    def attend(
        causal: bool = True, kv_heads: int = 8, keys: int = 256, dropout: float = 0.0, dtype: torch.dtype = BF16
    ) -> None:
        q = new(2, 8, 256, 64, dtype=dtype, grad=True)
        k, v = (new(2, kv_heads, keys, 64, dtype=dtype, grad=True) for _ in range(2))
        train(
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k, v, is_causal=causal, dropout_p=dropout, enable_gqa=kv_heads != 8
            ),
            q,
            k,
            v,
        )

    run("sdpa", attend)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        run("sdpa full", lambda: attend(causal=False, keys=384))
        run("sdpa gqa", lambda: attend(kv_heads=2))
        run("sdpa dropout", lambda: attend(dropout=0.125))  # newer cuDNNs take sixteenths
    run("sdpa float", lambda: attend(dtype=FLOAT))
    for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        with sdpa_kernel(getattr(SDPBackend, backend)):
            run(f"sdpa {backend}", attend)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"bidirectional": True, "num_layers": 2, "dropout": 0.1},
    "bare": {"bias": False},
}


def recur(cell: nn.RNNBase, x: torch.Tensor) -> None:
    cell(x)[0].sum().backward()


def layers() -> None:
    norm = nn.BatchNorm2d(16, device=D)
    run("norm train", lambda: train(norm, new(4, 16, 8, 8, grad=True)))
    run("norm eval", lambda: train(norm.eval(), new(4, 16, 8, 8, grad=True)))
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for name, options in VARIANTS.items():
            cell = kind(32, 64, device=D, dtype=HALF, **options)
            run(f"{kind.__name__} {name}", recur, cell, new(10, 4, 32, dtype=HALF, grad=True))
    run("LSTM projected", recur, nn.LSTM(32, 64, proj_size=16, device=D), new(10, 4, 32))
    lengths = [torch.tensor([n] * 4, dtype=torch.int32).to(D) for n in (50, 10)]
    targets = torch.tensor([1, 2] * 20, dtype=torch.int32).to(D)
    scores = new(50, 4, 20).log_softmax(2).requires_grad_()
    run("ctc", train, lambda x: F.ctc_loss(x, targets, lengths[0], lengths[1]), scores)
    run("fft", lambda: torch.fft.ifft(torch.fft.fft(new(8, 1024))))
    run("rfft2", lambda: torch.fft.irfft2(torch.fft.rfft2(new(8, 100, 130))))


def algebra() -> None:
    a = torch.eye(96, device=D) * 2
    for name in ("cholesky", "inv", "svd", "eigh", "qr", "det", "lu_factor", "ldl_factor"):
        run(f"linalg {name}", getattr(torch.linalg, name), a)
        run(f"linalg batched {name}", getattr(torch.linalg, name), a.expand(3, 96, 96).contiguous())
    run("linalg solve", lambda: torch.linalg.solve(a, a))
    run("linalg triangular", lambda: torch.linalg.solve_triangular(a, a, upper=False))
    run("linalg lstsq", lambda: torch.linalg.lstsq(a, a))


def answers(libraries: list[str]) -> dict[str, Any]:
    """Answers of the C interfaces of cuBLAS, cuBLASLt and cuDNN to wrong and unusual arguments."""
    blas, lt, dnn = (ctypes.CDLL(name) for name in libraries)
    handle, other = ctypes.c_void_p(), ctypes.c_void_p()
    one, out = ctypes.c_float(1), ctypes.c_void_p(new(64, 64).data_ptr())
    found: dict[str, Any] = {"create": blas.cublasCreate_v2(ctypes.byref(handle))}

    def gemm(h: Any, m: int, lda: int, trans: int = 0) -> int:
        scale = ctypes.byref(one)
        return int(blas.cublasSgemm_v2(h, trans, 0, m, 8, 8, scale, out, lda, out, 8, scale, out, 8))

    found["gemm"] = [gemm(handle, 8, 8), gemm(None, 8, 8), gemm(handle, -1, 8), gemm(handle, 8, 7)]
    found["gemm"] += [gemm(handle, 8, 8, 9), gemm(handle, 0, 8)]
    version = ctypes.c_int()
    blas.cublasGetVersion_v2(handle, ctypes.byref(version))
    lt.cublasLtGetVersion.restype = ctypes.c_size_t
    found["version"] = [version.value // 10000, lt.cublasLtGetVersion() // 10000]
    norm = ctypes.c_float(7)
    found["host result"] = [blas.cublasSnrm2_v2(handle, 64, out, 1, ctypes.byref(norm)), norm.value]
    blas.cublasDestroy_v2(handle)
    desc, short, wide = ctypes.c_void_p(), ctypes.c_int(1), ctypes.c_int64(1)
    lt.cublasLtMatmulDescCreate(ctypes.byref(desc), 68, 0)
    found["lt attribute"] = [
        lt.cublasLtMatmulDescSetAttribute(desc, 3, ctypes.byref(short), ctypes.c_size_t(4)),
        lt.cublasLtMatmulDescSetAttribute(desc, 3, ctypes.byref(wide), ctypes.c_size_t(8)),
        lt.cublasLtMatmulDescSetAttribute(desc, 999, ctypes.byref(short), ctypes.c_size_t(4)),
    ]
    tensor, message = ctypes.c_void_p(), ctypes.create_string_buffer(256)
    found["cudnn"] = [
        dnn.cudnnBackendCreateDescriptor(17, ctypes.byref(tensor)),
        dnn.cudnnBackendFinalize(tensor),
        dnn.cudnnBackendSetAttribute(tensor, 100, 1, ctypes.c_int64(1), ctypes.byref(short)),
        dnn.cudnnBackendGetAttribute(tensor, 902, 3, ctypes.c_int64(0), None, None),
        dnn.cudnnBackendCreateDescriptor(9999, ctypes.byref(other)),
    ]
    dnn.cudnnBackendFinalize(tensor)
    dnn.cudnnGetLastErrorString(message, ctypes.c_size_t(256))
    found["cudnn message"] = message.value.decode()
    found["cudnn version"] = torch.backends.cudnn.version()
    found["cudnn engines"] = [engines_of_products(dnn, count) for count in (1, 2)]
    return found


def engines_of_products(dnn: ctypes.CDLL, count: int) -> list[int]:
    """Of a graph of `count` products: the number of engines, and the status of engine 5."""

    def made(kind: int, **attributes: tuple[int, Any]) -> tuple[ctypes.c_void_p, int]:
        descriptor = ctypes.c_void_p()
        dnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor))
        for name, (type_, values) in attributes.items():
            dnn.cudnnBackendSetAttribute(descriptor, int(name[1:]), type_, ctypes.c_int64(len(values)), values)
        return descriptor, int(dnn.cudnnBackendFinalize(descriptor))

    sizes = (3, (ctypes.c_int64 * 4)(1, 2, 64, 64))
    one = (3, (ctypes.c_int64 * 1)(16))
    matrix, _ = made(17, a900=one, a901=(1, (ctypes.c_int * 1)(2)), a902=sizes, a903=sizes, a906=one)
    kind, _ = made(18, a1500=(1, (ctypes.c_int * 1)(0)))
    parts = {f"a{1520 + i}": (15, (ctypes.c_void_p * 1)(part.value)) for i, part in enumerate((matrix,) * 3 + (kind,))}
    products = [made(19, **parts)[0].value for _ in range(count)]
    graph, _ = made(15, a800=(0, (ctypes.c_void_p * 1)(1)), a801=(15, (ctypes.c_void_p * count)(*products)))
    engines = ctypes.c_int64()
    dnn.cudnnBackendGetAttribute(graph, 802, 3, ctypes.c_int64(1), None, ctypes.byref(engines))
    graphs = (15, (ctypes.c_void_p * 1)(graph.value))
    return [engines.value, made(2, a1300=graphs, a1301=(3, (ctypes.c_int64 * 1)(5)))[1]]


def new_sizes(library: ctypes.CDLL) -> list[list[int]]:
    """Kernels loaded, and sizes met first, in rounds of 64 products: random lengths, the same ones, another width; in
    128 of which only the inner size is new."""
    library.ph_charges.restype = ctypes.POINTER(ctypes.c_uint64)
    counted = [layout.Api.names().index(name) for name in ("LIBRARY_LOAD", "GEMM_SIZES")]
    lengths = [(37 * i * i + 211 * i) % 1801 + 97 for i in range(64)]
    rounds = []

    def round_of(products: list[tuple[int, int, int]]) -> None:
        before = [library.ph_charges()[i] for i in counted]
        for m, n, k in products:
            a, b = (torch.empty(*size, device="cuda", dtype=torch.float16) for size in ((m, k), (k, n)))
            a @ b
        rounds.append([library.ph_charges()[i] - b for i, b in zip(counted, before, strict=True)])

    round_of([(m, 1536, 1024) for m in lengths])
    round_of([(m, 1536, 1024) for m in lengths])
    round_of([(m, 2816, 1024) for m in lengths])
    round_of([(1024, 1280, m) for m in lengths] + [(1024, 1280, m + 1801) for m in lengths])
    return rounds


def main(library: ctypes.CDLL, libraries: list[str]) -> None:
    runtime.append(library)
    for part in (products, convolutions, attention, layers, algebra):
        part()
    mark("answers")
    found = answers(libraries) | {"workspaces": workspaces(), "tried": tried(), "new sizes": new_sizes(library)}
    print(json.dumps({"failures": failures, "answers": found}), flush=True)
    library.ph_exit(0)
    os._exit(0)  # as the launcher ends a rank: torch's own caches are not torn down
