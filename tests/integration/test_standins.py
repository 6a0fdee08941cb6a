"""Stand-ins for compiled halves of extensions, with made-up Python halves that call them as the real ones do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.runs import Run, records, trace

ATTENTION = """
import torch
import flash_attn_2_cuda as cuda

@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=(), device_types="cuda")
def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(cuda.fwd(q, k, v, None, None, dropout_p, softmax_scale, causal, -1, -1, 0.0, False, None)[:2])

q = torch.randn(2, 4096, 16, 128, device="cuda", dtype=torch.bfloat16)
k = torch.randn(2, 4096, 4, 128, device="cuda", dtype=torch.bfloat16)
out, lse = forward(q, k, k, 0.0, 0.09, True, -1, -1, 0.0)
assert out.shape == q.shape and lse.shape == (2, 16, 4096) and lse.dtype == torch.float32
dq, dk, dv, sums = cuda.bwd(
    out, q, k, k, out, lse, None, None, None, None, 0.0, 0.09, True, -1, -1, 0.0, False, None, None
)
assert dq.shape == q.shape and dk.shape == dv.shape == k.shape and sums.shape == (2, 16, 4096)
begins = torch.tensor([0, 4096, 8192], dtype=torch.int32, device="cuda")
packed, lse, *_ = cuda.varlen_fwd(
    q.flatten(0, 1), k.flatten(0, 1), k.flatten(0, 1), None, begins, begins, None, None, None, None, 4096, 4096, 0.0,
    0.09,
    False, True, -1, -1, 0.0, False, None,
)
assert packed.shape == (8192, 16, 128) and lse.shape == (16, 8192)
for wrong in (q.float(), q[..., :100], q[:, :, :15]):
    try:
        cuda.fwd(wrong, k, k, None, None, 0.0, 0.09, True, -1, -1, 0.0, False, None)
    except RuntimeError as error:
        print(error, flush=True)
torch.cuda.synchronize()
"""

OTHERS = """
import torch
import causal_conv1d_cuda, grouped_gemm_backend, selective_scan_cuda

u = torch.randn(2, 512, 4096, device="cuda", dtype=torch.bfloat16)
a, d = torch.randn(512, 16, device="cuda"), torch.randn(512, device="cuda")
b = torch.randn(2, 1, 16, 4096, device="cuda", dtype=torch.bfloat16)
out, ends, gated = selective_scan_cuda.fwd(u, u, a, b, b, d, u, None, True)
assert out.shape == gated.shape == u.shape and ends.shape == (2, 512, 2, 32)
made = selective_scan_cuda.bwd(u, u, a, b, b, d, u, None, u, ends, out, None, True, True)
assert [None if t is None else tuple(t.shape) for t in made] == [
    (2, 512, 4096), (2, 512, 4096), (512, 16), (2, 1, 16, 4096), (2, 1, 16, 4096), (512,), None, (2, 512, 4096),
    (2, 512, 4096)
]
causal_conv1d_cuda.causal_conv1d_fwd(u, torch.ones(512, 4, device="cuda"), None, None, None, out, None, True)
tokens = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16)
experts = torch.randn(8, 4096, 1024, device="cuda", dtype=torch.bfloat16)
made, sizes = torch.empty(8192, 4096, device="cuda", dtype=torch.bfloat16), torch.full((8,), 1024)
grouped_gemm_backend.gmm(tokens, experts, made, sizes, False, True)

def refused(call):
    try:
        call()
    except RuntimeError as error:
        print(error, flush=True)

refused(lambda: grouped_gemm_backend.gmm(tokens, experts, made, sizes, False, False))

import amp_C, fused_layer_norm_cuda, fused_weight_gradient_mlp_cuda
rows, scale = made.view(8192, 4096), torch.ones(4096, device="cuda", dtype=torch.bfloat16)
out, inverse = fused_layer_norm_cuda.rms_forward_affine(rows, (4096,), scale, 1e-5)
assert out.shape == rows.shape and inverse.shape == (8192,) and inverse.dtype == torch.float32
made = fused_layer_norm_cuda.rms_backward_affine(out, inverse, rows, (4096,), scale, 1e-5, False)
assert [tuple(t.shape) for t in made] == [(8192, 4096), (4096,)]
refused(lambda: fused_layer_norm_cuda.forward(rows, (100,), 1e-5))
many = [[torch.zeros(1 << 20, device="cuda") for _ in range(40)] for _ in range(4)]
amp_C.multi_tensor_adam(65536, sizes, many, 1e-3, 0.9, 0.95, 1e-8, 1, 1, 1, 0.0)
norm, each = amp_C.multi_tensor_l2norm(65536, sizes, many[:1], True)
assert norm.shape == (1,) and each.shape == (40,)
fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(tokens, rows, torch.zeros(4096, 1024, device="cuda"))

import deep_gemm._C as deep
a, b = tokens.to(torch.float8_e4m3fn), experts.to(torch.float8_e4m3fn)
of_a, of_b = torch.ones(8192, 8, device="cuda"), torch.ones(8, 32, 8, device="cuda")
deep.fp8_gemm_nt((a, of_a), (b[0], of_b[0]), rows)
groups = torch.zeros(8192, dtype=torch.int32, device="cuda")
deep.m_grouped_fp8_gemm_nt_contiguous((a, of_a), (b, of_b), rows, groups)
refused(lambda: deep.fp8_gemm_nn((a, of_a), (b[0], of_b[0]), rows))
refused(lambda: deep.fp8_fp4_mega_moe())

import sageattention._qattn_sm90 as sage, megablocks_ops
eight = torch.zeros(2, 4096, 16, 128, dtype=torch.int8, device="cuda")
result = torch.empty(2, 4096, 16, 128, dtype=torch.bfloat16, device="cuda")
sage.qk_int8_sv_f8_accum_f32_attn_inst_buf(eight, eight, eight, result, None, None, 0, 1, 3, 0.09, 0)
chosen = torch.tensor([2, 0, 2, 1], dtype=torch.int32, device="cuda")
print(megablocks_ops.histogram(chosen, 4).tolist(), flush=True)
torch.cuda.synchronize()
"""

SOFTMAX = """
import scaled_masked_softmax_cuda
import scaled_upper_triang_masked_softmax_cuda as causal
scores = torch.empty(16, 2048, 2048, dtype=torch.bfloat16, device="cuda")
result = causal.forward(scores, torch.tensor(0.125))
assert result.shape == scores.shape and causal.backward(scores, result, torch.tensor(0.125)) is scores
assert scaled_masked_softmax_cuda.get_batch_per_block(128, 2048, 1, 16) == 4
try:
    causal.forward(scores.float(), torch.tensor(0.125))
except RuntimeError as error:
    print(str(error).splitlines()[0], flush=True)
"""
ATTENTION_3 = """
import torch
import flash_attn_3._C
from flash_attn_config import CONFIG

assert CONFIG["build_flags"]["FLASHATTENTION_DISABLE_HDIM128"] is False
op = torch.ops.flash_attn_3
q = torch.randn(2, 4096, 16, 128, device="cuda", dtype=torch.bfloat16)
k = torch.randn(2, 4096, 4, 128, device="cuda", dtype=torch.bfloat16)
out, lse, *parts = op.fwd(q, k, k, is_causal=True)
assert out.shape == q.shape and lse.shape == (2, 16, 4096) and [p.numel() for p in parts] == [0, 0]
sums, lse2, dq, dk, dv = op.bwd(out, q, k, k, out, lse, torch.empty_like(q), is_causal=True)
assert sums.shape == lse2.shape == (2, 16, 4096) and dk.shape == dv.shape == (2, 4, 4096 * 128)
begins = torch.tensor([0, 4096, 8192], dtype=torch.int32, device="cuda")
packed = [t.flatten(0, 1) for t in (q, k, k)]
out, lse, *_ = op.fwd(
    *packed, cu_seqlens_q=begins, cu_seqlens_k=begins, max_seqlen_q=4096, max_seqlen_k=4096, is_causal=True
)
assert out.shape == (8192, 16, 128) and lse.shape == (16, 8192)
for wrong in (k.float(), k[..., :100]):
    try:
        op.fwd(wrong, wrong, wrong)
    except RuntimeError as error:
        print(str(error).splitlines()[0], flush=True)
torch.cuda.synchronize()
"""
NEIGHBOURS = """
import torch
import natten.libnatten as natten
q = torch.empty(1, 128, 128, 16, 128, dtype=torch.bfloat16, device="cuda")
lse = torch.empty(1, 128, 128, 16, device="cuda")
window = (16, 16), (1, 1), (1, 1), (False, False), 0.09
natten.na2d_forward(q, q, q, q, lse, *window, (8, 8), (8, 8))
natten.na2d_backward(q, q, q, q, q, q, q, q, lse, *window, (8, 8), (8, 8), (1, 1), False)
flat, rows = q.flatten(1, 2), lse.flatten(1, 2)
tiles = (128, 128), (128, 128), (128, 128), (8, 16), (8, 16)
natten.hopper_na2d_forward(flat, flat, flat, flat, rows, *window, *tiles, 1)
natten.token_permute_2d(flat, q, (8, 16), (1, 1), True)

def refused(call):
    try:
        call()
    except RuntimeError as error:
        print(error, flush=True)

refused(lambda: natten.na2d_forward(q, q, q, q, lse, (129, 3), *window[1:], (8, 8), (8, 8)))
refused(lambda: natten.blackwell_fmha_forward(flat, flat, flat, flat, rows, False, 0.09, 128, 128, True))
"""
APEX = """
import distributed_adam_cuda, fused_adam_cuda, fused_dense_cuda, group_norm_cuda, mlp_cuda, xentropy_cuda
half = dict(dtype=torch.float16, device="cuda")
x, w, b = torch.empty(8192, 1024, **half), torch.empty(4096, 1024, **half), torch.empty(4096, **half)
w2, b2 = torch.empty(1024, 4096, **half), torch.empty(1024, **half)
first, out, inside = fused_dense_cuda.linear_gelu_linear_forward(x, w, b, w2, b2)
made = fused_dense_cuda.linear_gelu_linear_backward(x, inside, first, w, w2, out)
assert [t.shape for t in made] == [x.shape, w.shape, b.shape, w2.shape, b2.shape]
kept = mlp_cuda.forward(1, 1, (x, w, w2, b, b2))
assert kept[0].shape == (8192, 1024) and kept[1].shape == (8192 * 5120,)
made = mlp_cuda.backward(1, 1, out, kept, (x, w, w2, b, b2))
assert [t.shape for t in made] == [x.shape, w.shape, w2.shape, b.shape, b2.shape]
refused(lambda: mlp_cuda.forward(1, 1, [t.bfloat16() for t in (x, w, w2, b, b2)]))
small = torch.tensor([[1.0, -2.0]], device="cuda"), torch.eye(2, device="cuda"), torch.zeros(2, device="cuda")
print(mlp_cuda.forward(1, 1, small)[0].tolist(), flush=True)
logits, labels = torch.empty(8192, 32000, **half), torch.zeros(8192, dtype=torch.int64, device="cuda")
losses, sums = xentropy_cuda.forward(logits, labels, 0.0, True)
assert losses.shape == sums.shape == (8192,) and sums.dtype == torch.float32
assert xentropy_cuda.backward(losses, logits, sums, labels, 0.0).shape == logits.shape
refused(lambda: xentropy_cuda.forward(logits, labels.int(), 0.0, True))
image = torch.empty(8, 320, 64, 64, **half).to(memory_format=torch.channels_last)
result, sums = group_norm_cuda.forward(image, 32, b[:320], b[:320], 1e-5, 1, True)
assert result.shape == image.shape and sums.shape == (512,)
refused(lambda: group_norm_cuda.forward(image, 5, b[:320], b[:320], 1e-5, 1, True))
lists = [[torch.empty(1 << 22, dtype=t, device="cuda") for _ in range(10)] for t in (torch.bfloat16, torch.int16)]
lists += [[torch.empty(1 << 22, device="cuda") for _ in range(10)] for _ in range(3)] + [lists[0]]
distributed_adam_cuda.multi_tensor_fused_adam_with_param_remainders(65536, b, lists, 1.0, 1e-3)
given, copies = torch.arange(4, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
fused_adam_cuda.maybe_cast_mt(65536, b, [[given], [copies]])
print(copies.tolist(), flush=True)
"""
INDEX = """
import deep_gemm._C as deep
eight, number = torch.float8_e4m3fn, torch.int32
q, kv = torch.zeros(4096, 64, 128, device="cuda").to(eight), torch.zeros(8192, 128, device="cuda").to(eight)
ends, weights = torch.zeros(4096, dtype=number, device="cuda"), torch.zeros(4096, 64, device="cuda")
made = deep.fp8_mqa_logits(q, (kv, torch.zeros(8192, device="cuda")), weights, ends, ends)
assert made.shape == (4096, 8192) and made.stride() == (8448, 1) and made.dtype == torch.float32
cache = torch.zeros(4096, 64, 1, 132, dtype=torch.uint8, device="cuda")
lengths, table = torch.zeros(64, 1, dtype=number, device="cuda"), torch.zeros(64, 64, dtype=number, device="cuda")
plan = deep.get_paged_mqa_logits_metadata(lengths, 64, deep.get_num_sms())
made = deep.fp8_paged_mqa_logits(q[:64].unsqueeze(1), cache, weights[:64], lengths, table, plan, 4096, False)
assert made.shape == (64, 4096) and plan.shape == (133, 2)
refused(lambda: deep.fp8_mqa_logits(q[:, :3].contiguous(), (kv, weights[0]), weights, ends, ends))
bf16 = dict(dtype=torch.bfloat16, device="cuda")
deep.einsum("bhr,hdr->bhd", torch.empty(4096, 128, 512, **bf16), torch.empty(128, 128, 512, **bf16),
    torch.empty(4096, 128, 128, **bf16))
torch.cuda.synchronize()
"""
HUB = """
import inspect, torch
from kernels import get_kernel, has_kernel
c = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
q, k = torch.randn(2, 4096, 16, 128, **c), torch.randn(2, 4096, 4, 128, **c)
begins = torch.tensor([0, 4096, 8192], dtype=torch.int32, device="cuda")
for name, version in (("flash-attn2", 4), ("flash-attn3", 1), ("vllm-flash-attn3", 1)):
    kernel = get_kernel(f"kernels-community/{name}", version=version)
    out = kernel.flash_attn_func(q, k, k, causal=True)
    out = out if name != "vllm-flash-attn3" else out[0]
    out.sum().backward()
    packed = [t.flatten(0, 1) for t in (q, k, k)]
    out = kernel.flash_attn_varlen_func(*packed, begins, begins, 4096, 4096, causal=True)
    assert (out if name != "vllm-flash-attn3" else out[0]).shape == (8192, 16, 128) and k.grad.shape == k.shape
assert "s_aux" in inspect.signature(kernel.flash_attn_varlen_func).parameters  # that users of the hub look for
with torch.device("meta"):
    assert torch.ops.phantora_hub.attention(
        3, *[torch.empty(2, 8, 4, 64)] * 3, None, None, 0, 0, 0.0, 0.1, True, -1, -1, 0.0, False
    )[1].shape == (2, 4, 8)
x = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
assert get_kernel("kernels-community/activation", version=1).layers.SiluAndMul()(x).shape == (8192, 4096)
print(has_kernel("kernels-community/relu", version=1), has_kernel("me/other", version=1), flush=True)
try:
    get_kernel("me/other", version=1)
except FileNotFoundError as error:
    print(error, flush=True)
torch.cuda.synchronize()
"""
LOAD = """
def get_kernel(repo_id, *, version): raise ConnectionError("no network. Try later")
def has_kernel(repo_id, *, version): raise ConnectionError("no network. Try later")
"""
HALVES = ("apex", "deep_gemm", "sageattention", "natten")


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "program.py").write_text(ATTENTION)
    return trace(folder, "--cluster", "1x1xH100", "program.py")


def times(run: Run, part: str) -> list[int]:
    rows = records(run.log, "kernel", "name", "start", "end")
    return [row["end"] - row["start"] for row in rows if part in row["name"]]


def test_a_stand_in_has_an_attentions_time_and_is_named(attention: Run) -> None:
    assert 300e3 < times(attention, "flash_fwd_kernel")[0] < 600e3
    assert attention.err.count("flash_attn_2_cuda of flash-attn is not installed: a stand-in") == 1


def test_a_stand_in_refuses_what_the_library_refuses(attention: Run) -> None:
    assert attention.out.splitlines()[-3:] == [
        "FlashAttention only support fp16 and bf16 data type",
        "query, key, value, and out_ must have a head_size that is a multiple of 8",
        "Number of heads in key/value must divide number of heads in query",
    ]


def test_other_stand_ins(tmp_path: Path) -> None:
    for half in HALVES:
        (tmp_path / half).mkdir()
        (tmp_path / half / "__init__.py").touch()
    (tmp_path / "flash_attn_interface.py").touch()  # flash-attn 3 has no other Python half in most releases
    (tmp_path / "program.py").write_text(OTHERS + SOFTMAX + ATTENTION_3)
    run = trace(tmp_path, "--cluster", "1x1xH100", "program.py")
    assert "a and b do not fit" in run.out
    assert times(run, "selective_scan_fwd")[0] > 10e3  # four tensors of 8 MB: 10 us
    assert 69e3 < times(run, "grouped_gemm")[0] < 140e3  # 69 GFLOP at 989 TFLOP/s
    said = set(re.findall(r"note: (\S+) of \S+", run.err))
    assert said >= {"amp_C", "deep_gemm._C", "flash_attn_3._C", "sageattention._qattn_sm90", "megablocks_ops"}
    assert run.out.splitlines() == [
        "a and b do not fit: grouped_gemm",
        "Given normalized_shape=[100], expected input with shape [*, ...], got [8192, 4096]",
        "DeepGEMM: assertion failed: m == m_ and n == n_ and k == k_",
        "deep_gemm.fp8_fp4_mega_moe has no stand-in: it needs its compiled half",
        "[1, 1, 2, 0]",
        "Only fp16 and bf16 are supported",
        "FlashAttention only supports fp16, bf16, and fp8_e4m3 data type",
        "head_size should be a multiple of 8",
    ]
    assert 40e3 < times(run, "cuApplyRMSNorm")[0] < 60e3  # 134 MB at 3.35 TB/s: 40 us
    assert 350e3 < sum(times(run, "multi_tensor_adam")) < 550e3  # 7 passes over 168 MB: 350 us
    assert 80e3 < times(run, "masked_softmax_warp_forward")[0] < 200e3  # 268 MB: 80 us at 3.35 TB/s
    assert 69e3 < times(run, "gemm_accumulate")[0] < 140e3  # 69 GFLOP
    assert [35e3 < ns < 110e3 for ns in times(run, "deep_gemm_kernel")] == [True, True]  # 35 us at 1,979 TFLOP/s
    assert 140e3 < times(run, "qk_int8")[0] < 200e3  # FlashAttention-3 in 8 bits
    both = times(run, "flash_fwd_sm90")
    assert all(220e3 < ns < 300e3 for ns in both) and 500e3 < times(run, "flash_bwd_sm90")[0] < 700e3


def test_neighbourhoods_parts_of_apex_and_logits_of_an_index(tmp_path: Path) -> None:
    for half in HALVES:
        (tmp_path / half).mkdir()
        (tmp_path / half / "__init__.py").touch()
    (tmp_path / "program.py").write_text(NEIGHBOURS + APEX + INDEX)
    run = trace(tmp_path, "--cluster", "1x1xH100", "program.py")
    assert run.out.splitlines() == [
        "Input axes must be greater than or equal to the product of kernel size and dilation. "
        "Got kernel size 129, dilation 1, but dimension size was 128.",
        "Blackwell FMHA forward can only run on the Blackwell (datacenter-class) architecture (SM100, SM103).",
        "\"mlp_forward\" not implemented for 'BFloat16'",
        "[[1.0, 0.0]]",
        "Label type should be CUDA Long",
        "`groups` of {16, 32} are only supported but 5 is passed",
        "[0, 1, 2, 3]",
        "DeepGEMM: assertion failed: num_heads == 32 or num_heads == 64",
    ]
    # 24 x 40 keys for each of 16,384 queries, in tiles of 8 x 16: 129 GFLOP, 130 us at 989 TFLOP/s
    assert 130e3 < times(run, "natten_hopper_na2d_forward")[0] < 280e3
    assert 1.5 < sum(times(run, "natten_na2d_backward")) / times(run, "natten_na2d_forward")[0] < 4.0
    assert 40e3 < times(run, "natten_token_permute_2d")[0] < 60e3  # 134 MB: 40 us at 3.35 TB/s
    assert 156e3 < times(run, "cunn_SoftMaxXEntropyForward")[0] < 230e3  # 524 MB: 156 us
    assert 12e3 < times(run, "group_norm_nhwc_fwd_one_pass")[0] < 20e3  # 42 MB: 13 us
    assert 350e3 < sum(times(run, "DistAdamWithParamRemainders")) < 550e3  # 7 passes over 168 MB: 350 us
    assert 69e3 < times(run, "gelu_bias")[0] < 130e3  # 69 GFLOP
    assert 278e3 < times(run, "mqa_logits")[0] < 1200e3  # 550 GFLOP: 278 us at 1,979 TFLOP/s


def test_kernels_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("from kernels.load import get_kernel, has_kernel\n")
    (tmp_path / "kernels" / "load.py").write_text(LOAD)
    (tmp_path / "program.py").write_text(HUB)
    run = trace(tmp_path, "--cluster", "1x1xH100", "program.py")
    assert run.out.splitlines() == [
        "True False",
        "the kernel me/other has no stand-in (known: flash-attn2, flash-attn3, vllm-flash-attn3, activation, relu, "
        "rotary), and no download: ConnectionError: no network",
    ]
    assert run.err.count("kernels-community/flash-attn3 of the Hugging Face hub: a stand-in") == 1
    assert [220e3 < ns < 300e3 for ns in times(run, "flash_fwd_sm90")] == [True] * 4
    assert [500e3 < ns < 700e3 for ns in times(run, "flash_bwd_sm90")] == [True] * 2
    assert 60e3 < times(run, "silu_and_mul")[0] < 80e3  # 201 MB: 60 us
