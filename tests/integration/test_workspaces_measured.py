"""Workspaces of convolutions in addition to their tensors: measured tables reach the ranks, a user's own ones too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import orjson
import pytest

from phantora import stubs
from phantora.cost.parse import parse_signature
from phantora.cost.table_files import DATA
from phantora.cost.wanted import Wanted, write_wanted
from phantora.cost.workspaces import FOLDER, Bytes, Convolution, convolution_of, read_workspaces, write_workspaces
from phantora.profile import forms
from phantora.profile.workspaces import NO_PLANS_KEPT, calls_of, table_next_to
from phantora.run_process import PHANTORA
from tests.support.runs import trace

OBLONG = """
import torch
def taken(what, call, *arguments):
    call(*arguments)  # takes more than the plan's
    torch.cuda.reset_peak_memory_stats()
    y = call(*arguments)
    counters = torch.cuda.memory_stats()
    print(what, counters["requested_bytes.all.peak"] - counters["requested_bytes.all.current"])
def new(*shape, dtype=torch.half):
    return torch.empty(shape, device="cuda", dtype=dtype)
x, w = new(4, 8, 40, 24, dtype=torch.float), new(16, 4, 5, 3, dtype=torch.float)
taken("bytes", torch.conv2d, x, w, None, (2, 1), (2, 1), (1, 1), 2)
image, ones, zeros = new(4, 12, 40, 24), [1] * 3, [0] * 3
taken("padded", torch.conv2d, image, new(20, 12, 3, 3))
taken("depthwise", torch.cudnn_convolution, image, new(12, 1, 3, 3), [1, 1], [1, 1], [1, 1], 12, False, False, True)
taken("colours", torch.conv2d, new(4, 3, 40, 24), new(16, 3, 3, 3))
tensors = new(2, 4, 16, 16, 16), new(2, 24, 16, 16, 16), new(4, 24, 1, 1, 1), None
taken("volume", torch.ops.aten.convolution_backward, *tensors, ones, zeros, ones, False, zeros, 1, [False, True, False])
"""

TRIED = """
import torch
torch.backends.cudnn.benchmark = True
def new(*shape):
    return torch.empty(shape, device="cuda")
def tried(what, call, *arguments):
    torch.cuda.reset_peak_memory_stats()
    y = call(*arguments)
    counters = torch.cuda.memory_stats()
    print(what, counters["requested_bytes.all.peak"] - counters["requested_bytes.all.current"])
def gradient(x, w, y, stride, *wanted):
    sizes = [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1
    return torch.ops.aten.convolution_backward(y, x, w, None, *sizes, [*wanted, False])
tried("forward", torch.conv2d, new(64, 64, 28, 28), new(128, 64, 3, 3), None, 1, 1)
tried("input", gradient, new(128, 16, 32, 32), new(16, 16, 3, 3), new(128, 16, 32, 32), 1, True, False)
tried("strided", gradient, new(128, 96, 65, 65), new(128, 96, 3, 3), new(128, 128, 33, 33), 2, True, False)
tried("filters", gradient, new(128, 256, 8, 8), new(256, 256, 3, 3), new(128, 256, 8, 8), 1, False, True)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one's own with the stubs that are built."""
    built = stubs.ensure().directory
    mine = tmp_path / "cache" / "phantora"
    mine.mkdir(parents=True)
    (mine / built.name).symlink_to(built)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return mine


def test_the_measuring_process_finds_in_the_simulated_gpu_what_its_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in NO_PLANS_KEPT.items():
        monkeypatch.setenv(name, value)
    wanted: list[Wanted] = []
    for sizes in ((64, 64, 64, 56, 3, 1, "float32", False), (64, 128, 128, 28, 3, 1, "bfloat16", True)):
        wanted += forms.convolution(*sizes)
    write_wanted(tmp_path / "operators.jsonl", wanted)
    trace(tmp_path, "--cluster", "1x1xH200", "-m", "phantora.profile.workspaces", "operators.jsonl", "results.jsonl")
    about, *results = (orjson.loads(line) for line in (tmp_path / "results.jsonl").read_bytes().splitlines())
    assert about["gpu"] == "NVIDIA H200"
    shipped = read_workspaces(DATA / FOLDER / "h200-sxm.parquet").rows()
    assert len(results) == len(calls_of(wanted)) == 6
    for line in results:
        convolution = convolution_of(parse_signature(line["signature"]), line["compute"])
        assert convolution is not None and shipped[convolution] == Bytes(line["usual"], line["largest"])


def test_a_users_table_of_another_gpu(tmp_path: Path, cache: Path) -> None:
    """A100s have no shipped table: the rule and a note without one, the user's bytes and no note with one."""
    (tmp_path / "oblong.py").write_text(OBLONG)
    run = trace(tmp_path, "--cluster", "1x1xA100", "oblong.py")
    rows = (line.split() for line in run.out.splitlines())
    assert {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()} == {
        "bytes": 4 * (4 * 8 * 40 * 24 + 16 * 4 * 5 * 3 + 4 * 16 * 20 * 24) + 16,
        "padded": 2 * (4 * 16 * 40 * 24 + 24 * 16 * 3 * 3 + 4 * 24 * 38 * 22) + 16,  # 12 and 20 channels as 16 and 24
        "depthwise": 0,
        "colours": 0,
        "volume": 2 * 2 * (2 * (24 + 4) * 16**3),
    }
    note = "convolutions take workspaces by a rule"
    analyze = [*PHANTORA, "analyze", "run.arrow"]
    assert note in subprocess.run(analyze, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    own = Convolution(
        form="fwd",
        type="tf32",
        layout="nchw",
        x=(4, 8, 40, 24),
        w=(16, 4, 5, 3),
        stride=(2, 1),
        padding=(2, 1),
        dilation=(1, 1),
    )
    table = table_next_to(cache / "kernel-times" / "mine.parquet")
    write_workspaces(table, {"gpu": "NVIDIA A100-SXM4-80GB", "torch": "2.11.0", "cudnn": "91900"}, {own: Bytes(54321)})
    run = trace(tmp_path, "--cluster", "1x1xA100", "oblong.py")
    assert "bytes 54321" in run.out
    assert note not in subprocess.run(analyze, cwd=tmp_path, capture_output=True, text=True, check=True).stdout


def test_packed_sequences_keep_what_their_tokens_take(tmp_path: Path) -> None:
    """As an H200 did, to the byte. The outputs are next to it, and two states before and after."""
    (tmp_path / "lstm.py").write_text(
        "import torch\n"
        "lstm = torch.nn.LSTM(256, 512, 2, bidirectional=True, dropout=0.2, device='cuda')\n"
        "x, lengths = torch.empty(88, 64, 256, device='cuda'), [88] + [51] * 7 + [50] * 56\n"
        "packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)\n"
        "lstm(packed)\n"
        "before = torch.cuda.memory_stats()['requested_bytes.all.current']\n"
        "results = lstm(packed)\n"
        "print('kept', torch.cuda.memory_stats()['requested_bytes.all.current'] - before)\n"
    )
    run = trace(tmp_path, "--cluster", "1x1xH200", "lstm.py")
    kept = next(int(line.split()[1]) for line in run.out.splitlines() if line.startswith("kept "))
    assert kept == 147_648_768 + 4 * (3245 * 1024 + 4 * 4 * 64 * 512)


def test_cudnn_benchmark_tries_plans_of_fourier_transforms(tmp_path: Path) -> None:
    """As cuDNN on an H200 (validation/measurements/2026-11-28-h200/convolution_plans.parquet), without a table."""
    (tmp_path / "tried.py").write_text(TRIED)
    run = trace(tmp_path, "--cluster", "1x1xA100", "tried.py")
    rows = (line.split() for line in run.out.splitlines())
    assert {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()} == {
        "forward": 107_249_664,
        "input": 36_765_696,
        "strided": 1_074_987_024 - 16,
        "filters": 159_383_552,
    }
