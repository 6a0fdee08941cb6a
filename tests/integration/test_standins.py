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
refused(lambda: deep.einsum())

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
HALVES = ("apex", "deep_gemm", "sageattention")


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
        "deep_gemm.einsum has no stand-in: only its products run without its compiled half",
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
