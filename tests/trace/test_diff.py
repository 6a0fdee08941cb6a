"""Each single change is named as the cause, in the first line; equal logs differ in nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.fakelog import METADATA, FakeRun, Kind, small_run
from support.trace_processor import ask

from phantora.cli.diff import diff
from phantora.errors import PhantoraError

US = 1000


def training(
    gemm: int = 100,
    slow: dict[int, float] | None = None,
    transfer: int = 60,
    tokens: tuple[int, int] = (1, 1024),
    shard: int = 4096,
    group: int = 2,
    forwards: int = 1,
    gpu: str = "H100",
    host: int = 0,
) -> FakeRun:
    """Three steps of two layers on four ranks: forward and backward gemms, an all-gather, an optimizer."""
    run = FakeRun(metadata=replace(METADATA, world_size=4, ranks_per_host=4, gpu=gpu))
    prices = {cls: run.price(cls, "measured", 1e9) for cls in ("gemm", "optimizer", "communication", "embedding")}
    rows = tokens[0] * tokens[1]

    def work(rank: int, t: int, time: int, op: str, shape: str, cls: str = "gemm") -> int:
        time = round(time * (slow or {}).get(rank, 1.0))
        run.add(
            Kind.KERNEL, rank, t, t + time * US, op, launch=t - (1 if host else 5) * US, stream=0,
            price=prices[cls], sig=run.signature(op, shape),
        )  # fmt: skip
        return t + (time + host) * US

    for rank in range(4):
        members = tuple(range(rank // group * group, rank // group * group + group))
        run.add(
            Kind.COMMUNICATOR, rank, 0, 0, "tp", comm=members[0],
            sig=run.signature("ranks", ",".join(map(str, members))),
        )  # fmt: skip
        scale = rows / 1024 * shard / 4096
        ends = [5 * US]
        for step in range(3):
            t = ends[-1] + 10 * US
            for layer in range(2):
                for _ in range(forwards):
                    t = work(rank, t, round(gemm * scale), "aten::mm", f"bf16[{rows},4096], bf16[4096,{shard}]")
                run.add(
                    Kind.COLLECTIVE, rank, t, t + transfer * US, "ncclDevKernel_AllGather_RING_LL", stream=7,
                    launch=t - 5 * US, ready=t, comm=members[0], seq=step * 2 + layer, bytes=1 << 20,
                    price=prices["communication"],
                )  # fmt: skip
                t += transfer * US
            for _ in range(2):
                shape = f"bf16[{rows},{shard}], bf16[{shard},4096]"
                t = work(rank, t, round(2 * gemm * scale), "aten::linear_backward", shape)
            indices = f"bf16[{tokens[0]},{tokens[1]},4096], i64[{tokens[0]},{tokens[1]}], 32000, -1, False"
            t = work(rank, t, 5, "aten::embedding_dense_backward", indices, "embedding")
            begin = t
            t = work(rank, t, 50 * shard // 4096, "aten::_fused_adamw_", f"(fp32[{shard},4096])", "optimizer")
            run.add(Kind.ANNOTATION, rank, begin - 1, t, "Optimizer.step#AdamW.step")
            ends.append(t)
    return run


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(diff, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training().write(tmp_path_factory.mktemp("base") / "run.arrow")


Change = Callable[[], FakeRun]
CHANGES: dict[str, tuple[Change, str]] = {
    "batch": (lambda: training(tokens=(2, 1024)), "batch 1 -> 2"),
    "sequence": (lambda: training(tokens=(1, 2048)), "sequence length 1024 -> 2048"),
    "checkpointing": (lambda: training(forwards=2), "activation checkpointing on"),
    "tensor parallel": (lambda: training(shard=2048, group=4), "tensor-parallel layout"),
    "network": (lambda: training(transfer=120), "network: the same collectives take 2.00 times as long"),
    "straggler": (lambda: training(slow={2: 1.3}), "rank 2 alone is slower: it computes 29.9 % longer"),
    "gpu": (lambda: training(gemm=250, gpu="A100-80GB"), "another GPU: H100 -> A100-80GB"),
    "host": (lambda: training(host=40), "host: GPUs wait"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_cause_comes_first(tmp_path: Path, base: Path, change: str) -> None:
    make, told = CHANGES[change]
    other = make().write(tmp_path / "run.arrow")
    there, back = invoke(base, other), invoke(other, base)
    assert there.exit_code == back.exit_code == 0
    first, reverse = there.output.splitlines()[0], back.output.splitlines()[0]
    assert told in first, there.output
    kind = json.loads(invoke(base, other, "--json").output)["causes"][0]["kind"]
    assert json.loads(invoke(other, base, "--json").output)["causes"][0]["kind"] == kind
    slower = not first.startswith("Faster")
    assert reverse.startswith("Faster" if slower else "Slower")
    assert max(len(line.rstrip()) for line in there.output.splitlines()[3:] if "run.arrow" not in line) <= 100


def test_equal_logs(tmp_path: Path, base: Path) -> None:
    again = training().write(tmp_path / "again.arrow")
    done = invoke(base, again, "--fail-above", "0%")
    assert (done.exit_code, done.output) == (0, "No difference.\n")
    data = json.loads(invoke(base, again, "--json").output)
    assert data["equal"] and not data["causes"] and not data["operators"]


def test_parts_sum_to_the_change(tmp_path: Path, base: Path) -> None:
    other = training(gemm=130, transfer=90, host=10).write(tmp_path / "run.arrow")
    data = json.loads(invoke(base, other, "--json").output)
    change = data["step"]["b"] - data["step"]["a"]
    assert sum(part["b"] - part["a"] for part in data["times"]) == pytest.approx(change, abs=1)
    for work in (*data["operators"], *data["collectives"]):
        parts = work["by_count"] + work["by_shape"] + work["by_duration"]
        assert parts == pytest.approx(work["b"]["time"] - work["a"]["time"], abs=1)


def test_gate(tmp_path: Path, base: Path) -> None:
    other = training(transfer=70).write(tmp_path / "run.arrow")
    assert invoke(base, other, "--fail-above", "50%").exit_code == 0
    failed = CliRunner().invoke(diff, [str(base), str(other), "--fail-above", "1%"], standalone_mode=False)
    assert failed.return_value == 1
    assert "more than 1%" in failed.stderr
    faster = CliRunner().invoke(diff, [str(other), str(base), "--fail-above", "1%"], standalone_mode=False)
    assert faster.return_value == 0
    with pytest.raises(PhantoraError, match="write it like 2%"):
        CliRunner().invoke(diff, [str(base), str(other), "--fail-above", "much"], catch_exceptions=False)


def test_page_and_timeline(tmp_path: Path, base: Path) -> None:
    a, b = (small_run(steps=n).write(tmp_path / f"{n}.arrow") for n in (2, 3))
    done = invoke(a, b, "--html", tmp_path / "diff.html", "--timeline", tmp_path / "both.perfetto")
    assert done.exit_code == 0
    page = (tmp_path / "diff.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["headline"] == done.output.splitlines()[0] and data["difference"]["path_b"] == str(b)
    processes, kernels, steps = ask(
        tmp_path / "both.perfetto",
        "select name from process where name is not null order by name",
        "select count(*) from slice where category = 'kernel'",
        "select max(ts) from slice join track on slice.track_id = track.id where track.name = 'steps' "
        "group by slice.track_id",
    )
    names = [row[0] for row in processes]
    assert len(names) == 4 and sum(name.startswith("a: rank") for name in names) == 2
    assert kernels == [[2 * 2 * 2 + 2 * 3 * 2]]
    assert len({row[0] for row in steps}) == 1  # the last steps begin together
