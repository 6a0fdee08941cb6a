"""Tokens of the job: ranks that share a batch count once, whatever else has the size of activations."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.render import render
from phantora.trace.analysis.steps import find_steps
from phantora.trace.analysis.summary import rates
from phantora.trace.reader import open_log
from tests.support.fakelog import METADATA, FakeRun, Kind

US = 1000
BATCH, SEQUENCE, WIDTH = 4, 2048, 2048
ACTIVATIONS = 2 * BATCH * SEQUENCE * WIDTH  # bytes; also those of a weight of 8192 x 2048


def run(tmp_path: Path, forward: str, backward: str, mark: str = "Optimizer.step#AdamW.step") -> Path:
    """Three steps of two ranks, with collectives of that kind and the activations' size in either pass."""
    made = FakeRun(metadata=replace(METADATA, world_size=2, ranks_per_host=2))
    prices = {cls: made.price(cls, "measured", 1e9) for cls in ("gemm", "communication", "optimizer")}
    for rank in range(2):
        made.add(Kind.COMMUNICATOR, rank, 0, 0, "group", comm=0, sig=made.signature("ranks", "0,1"))
        t, seq = 0, 0

        def kernel(op: str, shape: str, rank: int = rank) -> None:
            nonlocal t
            sig = made.signature(op, shape)
            made.add(Kind.KERNEL, rank, t, t + 50 * US, op, launch=t, price=prices["gemm"], sig=sig)
            t += 60 * US

        def collectives(kind: str, rank: int = rank) -> None:
            nonlocal t, seq
            for _ in range(3 if kind else 0):
                made.add(
                    Kind.COLLECTIVE,
                    rank,
                    t,
                    t + 20 * US,
                    f"ncclDevKernel_{kind}_RING_LL",
                    stream=7,
                    launch=t,
                    ready=t,
                    comm=0,
                    seq=seq,
                    bytes=ACTIVATIONS,
                    price=prices["communication"],
                )
                t, seq = t + 30 * US, seq + 1

        for _ in range(3):
            kernel("aten::mm", "bf16[8192,2048], bf16[2048,2048]")
            collectives(forward)
            kernel("aten::mm", "bf16[8192,2048], bf16[2048,2048]")
            kernel("aten::_log_softmax_backward_data", "bf16[8192,2048]")
            collectives(backward)
            indices = f"bf16[{BATCH},{SEQUENCE},{WIDTH}], i64[{BATCH},{SEQUENCE}], 32000, -1, False"
            kernel("aten::embedding_dense_backward", indices)
            begin = t
            kernel("aten::_fused_adamw_", "(fp32[8192,2048])")
            made.add(Kind.ANNOTATION, rank, begin, t, mark)
    return made.write(tmp_path / "run.arrow")


@pytest.mark.parametrize(
    ("forward", "backward", "batches"),
    [
        ("", "AllReduce", 2),  # DDP, a weight as large as the activations
        ("AllGather", "ReduceScatter", 2),  # FSDP, the same
        ("AllReduce", "AllReduce", 1),  # tensor parallel
        ("ReduceScatter", "ReduceScatter", 1),  # with sequence parallelism
    ],
)
def test_tokens_of_the_job(tmp_path: Path, forward: str, backward: str, batches: int) -> None:
    throughput = analyze(open_log(run(tmp_path, forward, backward))).headline.throughput
    assert throughput is not None
    assert (throughput.tokens_per_step, throughput.samples_per_step) == (batches * BATCH * SEQUENCE, batches * BATCH)


def test_tokens_of_a_forward_pass_alone_are_called_read(tmp_path: Path) -> None:
    """Without a cache of keys and values the whole sequence is read for each new token."""
    made = FakeRun(metadata=replace(METADATA, world_size=1, ranks_per_host=1))
    sig = made.signature("aten::embedding", "bf16[32000,64], i64[8], -1, False, False")
    price = made.price("gather", "measured", 0.0)
    for step in range(6):
        t = step * 100 * US
        made.add(Kind.KERNEL, 0, t, t + 100 * US, "gather", launch=t, price=price, sig=sig)
        made.add(Kind.ANNOTATION, 0, t, t + 100 * US, f"ProfilerStep#{step}")
    report = analyze(open_log(made.write(tmp_path / "run.arrow")))
    assert rates(report.headline) == ["80.0k tokens read/s"]
    render(report, Console(file=(text := StringIO()), width=200))
    assert ", 80.0k tokens read/s\n" in text.getvalue()


def test_tokens_of_steps_that_differ(tmp_path: Path) -> None:
    """Every second step has a quarter of the tokens and of the time; the rate is that of the mean step."""
    made, t = FakeRun(metadata=replace(METADATA, world_size=1, ranks_per_host=1)), 0
    for step in range(9):
        begin, length = t, 400 if step % 2 else 100
        sig = made.signature(
            "aten::embedding_dense_backward", f"bf16[1,{4 * length},64], i64[1,{4 * length}], 32000, -1"
        )
        price = made.price("gemm", "measured", 1e9)
        made.add(Kind.KERNEL, 0, t, t + length * US, "gemm", launch=t, price=price, sig=sig)
        t += length * US
        made.add(Kind.ANNOTATION, 0, begin, t, f"ProfilerStep#{step}")
    report = analyze(open_log(made.write(tmp_path / "run.arrow")), details=False)
    assert report.headline.throughput is not None
    assert report.headline.throughput.tokens_per_second == pytest.approx(4 / US * 1e9)


def test_steps_of_a_compiled_optimizer(tmp_path: Path) -> None:
    steps = find_steps(open_log(run(tmp_path, "", "", "Optimizer.zero_grad#AdamW.zero_grad")))
    assert (steps.source, steps.numbers()) == ("optimizer", [1, 2, 3])


def one_rank(tmp_path: Path, kernels: list[tuple[str, str]]) -> Path:
    """Three steps of these operators, each with an annotation."""
    made = FakeRun(metadata=replace(METADATA, world_size=1, ranks_per_host=1))
    price, t = made.price("gemm", "measured", 1e9), 0
    for _ in range(3):
        begin = t
        for op, shape in kernels:
            if op.startswith("Memcpy"):
                made.add(Kind.MEMCPY, 0, t, t + 5 * US, op, launch=t, bytes=int(shape))
                t += 10 * US
                continue
            made.add(Kind.KERNEL, 0, t, t + 50 * US, op, launch=t, price=price, sig=made.signature(op, shape), link=t)
            t += 60 * US
        made.add(Kind.ANNOTATION, 0, begin, t - 1, "step")
    return made.write(tmp_path / "run.arrow")


PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
ROWS = ("aten::embedding_dense_backward", "f32[4,512,64], i64[4,512], 256, -1, False")
CRITIC = ("aten::convolution_backward", "f32[16,64,64,64], f32[16,3,128,128], f32[64,3,4,4], 0")
LABELS = ("aten::index_select", "bf16[1001,1152], 0, i64[16]")
PATCHES = ("aten::cudnn_convolution", "bf16[16,4,64,64], bf16[1152,4,2,2], 0")


COMPILED = (
    "inductor::triton_red_fused__fused_rms_norm_embedding_0",
    ("fp32[8,2048,1], i64[8,2048], bf16[32000,1024], bf16[1024], bf16[8,2048,1024], bf16[8,2048,1024]"),
)
COMPILED_BACKWARD = (
    "inductor::triton_per_fused_add_embedding_dense_backward_6",
    ("bf16[8,2048,1024], bf16[16384,1024], i64[8,2048], fp32[32000,1024]"),
)


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        # A decoder: tokens of the table by a gather, positions by an index_select; a cache that a gather reorders.
        (
            [
                ("aten::gather.out", "fp16[50000,1024], 0, i64[40,1024], False, fp16[40,1024]"),
                ("aten::index_select", "fp16[512,1024], 0, i64[1]"),
                ("aten::gather.out", "fp16[40,16,24,64], 0, i64[40,16,24,64], False, fp16[40,16,24,64]"),
            ],
            (40, 0),
        ),
        # An autoencoder whose images also pass a frozen network twice.
        (
            [
                ("aten::convolution_backward", "bf16[8,64,9,9], bf16[8,3,9,9], bf16[64,3,3,3], 0"),
                ("aten::convolution_backward", "bf16[8,64,9,9], bf16[8,3,9,9], bf16[64,3,4,4], 0"),
                ("aten::convolution_backward", "bf16[8,64,9,9], bf16[8,3,9,9], bf16[64,3,4,4], 0"),
            ],
            (0, 8),
        ),
        ([(PAGEABLE, "16384"), *[ROWS] * 6], (2048, 4)),  # a network that runs six times on one batch
        ([(PAGEABLE, "16384"), (PAGEABLE, "8192"), *[ROWS] * 2], (4096, 8)),  # two batches; of int64 and int32
        ([(PAGEABLE, "4096"), *[ROWS] * 2], (4096, 8)),  # batches of another source
        # Stages of one vocabulary, each with a table of its own width.
        ([ROWS, ("aten::embedding_dense_backward", "f32[4,512,32], i64[4,512], 256, -1, False")], (2048, 4)),
        ([(PAGEABLE, f"{16 * 3 * 128 * 128 * 4}"), *[CRITIC] * 3], (0, 16)),  # real, generated and mixed images
        ([COMPILED], (16384, 8)),  # torch.compile
        ([*[COMPILED, COMPILED_BACKWARD] * 2], (32768, 16)),  # two batches
        ([PATCHES, LABELS], (0, 16)),  # one evaluation of a model with classes
    ],
)
def test_tokens_and_samples_of_a_step(
    tmp_path: Path, kernels: list[tuple[str, str]], expected: tuple[int, int]
) -> None:
    throughput = analyze(open_log(one_rank(tmp_path, kernels))).headline.throughput
    assert throughput is not None
    assert (throughput.tokens_per_step, throughput.samples_per_step) == expected


@pytest.mark.parametrize(
    "kernels",
    [
        [LABELS, PATCHES, PATCHES],  # a sampler's passes over the same images
        [("aten::gather.out", "fp32[16384,128], 0, i64[131072,128], False, fp32[131072,128]")],  # gradients of bags
    ],
)
def test_steps_that_do_not_show_their_samples(tmp_path: Path, kernels: list[tuple[str, str]]) -> None:
    assert analyze(open_log(one_rank(tmp_path, kernels))).headline.throughput is None
