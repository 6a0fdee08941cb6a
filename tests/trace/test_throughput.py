"""Tokens of the job: ranks that share a batch count once, whatever else has the size of activations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log
from tests.support.fakelog import METADATA, FakeRun, Kind

US = 1000
BATCH, SEQUENCE, WIDTH = 4, 2048, 2048
ACTIVATIONS = 2 * BATCH * SEQUENCE * WIDTH  # bytes; also those of a weight of 8192 x 2048


def run(tmp_path: Path, forward: str, backward: str) -> Path:
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
                    Kind.COLLECTIVE, rank, t, t + 20 * US, f"ncclDevKernel_{kind}_RING_LL", stream=7, launch=t, ready=t,
                    comm=0, seq=seq, bytes=ACTIVATIONS, price=prices["communication"],
                )  # fmt: skip
                t, seq = t + 30 * US, seq + 1

        for _ in range(3):
            begin = t
            kernel("aten::mm", "bf16[8192,2048], bf16[2048,2048]")
            collectives(forward)
            kernel("aten::mm", "bf16[8192,2048], bf16[2048,2048]")
            kernel("aten::_log_softmax_backward_data", "bf16[8192,2048]")
            collectives(backward)
            indices = f"bf16[{BATCH},{SEQUENCE},{WIDTH}], i64[{BATCH},{SEQUENCE}], 32000, -1, False"
            kernel("aten::embedding_dense_backward", indices)
            kernel("aten::_fused_adamw_", "(fp32[8192,2048])")
            made.add(Kind.ANNOTATION, rank, begin, t, "Optimizer.step#AdamW.step")
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
