"""Stand-ins for compiled halves of extensions, with made-up Python halves that call them as the real ones do."""

from __future__ import annotations

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
try:
    grouped_gemm_backend.gmm(tokens, experts, made, sizes, False, False)
except RuntimeError as error:
    print(error, flush=True)
torch.cuda.synchronize()
"""


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


def test_scans_convolutions_and_grouped_products(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OTHERS)
    run = trace(tmp_path, "--cluster", "1x1xH100", "program.py")
    assert "a and b do not fit" in run.out
    assert times(run, "selective_scan_fwd")[0] > 10e3  # four tensors of 8 MB: 10 us
    assert 69e3 < times(run, "grouped_gemm")[0] < 140e3  # 69 GFLOP at 989 TFLOP/s
    assert run.err.count("a stand-in with its shapes and times") == 2 + ("causal_conv1d_cuda" in run.err)
