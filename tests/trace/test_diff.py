"""Each single change is named as the cause, in the first line; equal logs differ in nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import phantora.trace.diff.between
from phantora.cli.diff import diff
from phantora.errors import PhantoraError
from phantora.json_data import encode
from phantora.trace.analysis.analyze import Filters
from phantora.trace.analysis.report import HostWait
from phantora.trace.diff.apart import Apart
from phantora.trace.diff.between import between, sides_of
from phantora.trace.diff.causes import _with_host, _without_consequences
from phantora.trace.diff.compare import Cause, Change, Difference, Side, _of_mean
from phantora.trace.diff.cpu_work import with_cpu_work, with_loader
from phantora.trace.diff.inventory import Operation
from phantora.trace.diff.render import render
from phantora.trace.diff.traits import products_share_sizes
from phantora.trace.reader import open_log
from phantora.wire import layout
from tests.support.command_line import runner
from tests.support.fakelog import METADATA, FakeRun, Kind, small_run
from tests.support.trace_processor import ask

US = 1000


@dataclass(frozen=True)
class Training:
    """Three steps of two layers on four ranks: forward and backward gemms, an all-gather, an optimizer."""

    gemm: int = 100
    slow: dict[int, float] | None = None
    transfer: int = 60
    tokens: tuple[int, int] = (1, 1024)
    shard: int = 4096
    group: int = 2
    forwards: int = 1
    gpu: str = "H100"
    host: int = 0
    reductions: int = 1
    environment: dict[str, str] | None = None
    reserved: int = 4 << 30
    retries: int = 0
    late: int = -1
    """The rank for which collectives of its group wait 100 us, next to compute."""

    def run(self) -> FakeRun:
        extra = {"environment": {"simulated": self.environment or {}}}
        run = FakeRun(metadata=replace(METADATA, world_size=4, ranks_per_host=4, gpu=self.gpu, extra=extra))
        prices = {cls: run.price(cls, "measured", 1e9) for cls in ("gemm", "optimizer", "communication", "embedding")}
        (sequences, words), shard, transfer = self.tokens, self.shard, self.transfer * US
        rows = sequences * words

        def work(rank: int, t: int, time: int, op: str, shape: str, cls: str = "gemm") -> int:
            time = round(time * (self.slow or {}).get(rank, 1.0))
            run.add(
                Kind.KERNEL,
                rank,
                t,
                t + time * US,
                op,
                launch=t - (1 if self.host else 5) * US,
                stream=0,
                price=prices[cls],
                sig=run.signature(op, shape),
            )
            return t + (time + self.host) * US

        for rank in range(4):
            members = tuple(range(rank // self.group * self.group, rank // self.group * self.group + self.group))
            run.add(
                Kind.COMMUNICATOR,
                rank,
                0,
                0,
                "tp",
                comm=members[0],
                sig=run.signature("ranks", ",".join(map(str, members))),
            )
            scale = rows / 1024 * shard / 4096
            early = 100 * US if self.late in members and self.late != rank else 0
            ends = [5 * US]
            for step in range(3):
                t = ends[-1] + 10 * US
                for layer in range(2):
                    for _ in range(self.forwards):
                        shape = f"bf16[{rows},4096], bf16[4096,{shard}]"
                        t = work(rank, t, round(self.gemm * scale), "aten::mm", shape)
                    run.add(
                        Kind.COLLECTIVE,
                        rank,
                        t - early,
                        t + transfer,
                        "ncclDevKernel_AllGather_RING_LL",
                        stream=7,
                        launch=t - 5 * US,
                        ready=t,
                        comm=members[0],
                        seq=step * 2 + layer,
                        bytes=1 << 20,
                        price=prices["communication"],
                    )
                    t += transfer
                for _ in range(2):
                    shape = f"bf16[{rows},{shard}], bf16[{shard},4096]"
                    t = work(rank, t, round(2 * self.gemm * scale), "aten::linear_backward", shape)
                for i in range(self.reductions):
                    run.add(
                        Kind.COLLECTIVE,
                        rank,
                        t - early,
                        t + transfer,
                        "ncclDevKernel_ReduceScatter_RING_LL",
                        stream=7,
                        launch=t - 5 * US,
                        ready=t,
                        comm=members[0],
                        seq=100 + step * self.reductions + i,
                        bytes=1 << 20,
                        price=prices["communication"],
                    )
                    t += transfer
                for what in (layout.Mem.ALLOC, *[layout.Mem.RETRY] * self.retries):
                    run.add(Kind.MEMORY, rank, t, t, sub=what, value=1 << 30, bytes=self.reserved)
                indices = f"bf16[{sequences},{words},4096], i64[{sequences},{words}], 32000, -1, False"
                t = work(rank, t, 5, "aten::embedding_dense_backward", indices, "embedding")
                begin = t
                t = work(rank, t, 50 * shard // 4096, "aten::_fused_adamw_", f"(fp32[{shard},4096])", "optimizer")
                run.add(Kind.ANNOTATION, rank, begin - 1, t, "Optimizer.step#AdamW.step")
                ends.append(t)
        return run


def training(**given: Any) -> FakeRun:
    """The run of a :class:`Training`."""
    return Training(**given).run()


def invoke(*arguments: object) -> Result:
    return runner().invoke(diff, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training().write(tmp_path_factory.mktemp("base") / "run.arrow")


Made = Callable[[], FakeRun]
CHANGES: dict[str, tuple[Made, str]] = {
    "batch": (lambda: training(tokens=(2, 1024)), "batch 1 -> 2"),
    "sequence": (lambda: training(tokens=(1, 2048)), "sequence length 1024 -> 2048"),
    "checkpointing": (lambda: training(forwards=2), "activation checkpointing on"),
    "tensor parallel": (lambda: training(shard=2048, group=4), "tensor-parallel layout"),
    "network": (lambda: training(transfer=120), "network: the same collectives take 2.00 times as long"),
    "straggler": (lambda: training(slow={2: 1.3}), "rank 2 is slower than the others: it computes 29.9 % longer"),
    "straggler of FSDP": (
        lambda: training(slow={0: 1.18, 1: 1.18, 2: 1.2, 3: 1.18}, late=2),
        "rank 2 is slower than the others: it computes 20.0 % longer",
    ),
    "gpu": (lambda: training(gemm=250, gpu="A100-80GB"), "another GPU: H100 -> A100-80GB"),
    "host": (lambda: training(host=40), "host: GPUs wait"),
    "deferred reduction": (lambda: training(reductions=4), "gradients are reduced 4 times as often in each pass"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_cause_comes_first(tmp_path: Path, base: Path, change: str) -> None:
    make, reported = CHANGES[change]
    other = make().write(tmp_path / "run.arrow")
    there, back = invoke(base, other), invoke(other, base)
    assert there.exit_code == back.exit_code == 0
    first, reverse = there.output.splitlines()[0], back.output.splitlines()[0]
    assert reported in first, there.output
    kind = json.loads(invoke(base, other, "--json").output)["causes"][0]["kind"]
    assert json.loads(invoke(other, base, "--json").output)["causes"][0]["kind"] == kind
    slower = not first.startswith("Faster")
    assert reverse.startswith("Faster" if slower else "Slower")
    assert max(len(line.rstrip()) for line in there.output.splitlines()[3:] if "run.arrow" not in line) <= 100


ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
SURROUNDINGS: dict[str, tuple[dict[str, Any], str]] = {
    "reserved": ({"reserved": 6 << 30}, "reserved memory 4.00 GiB -> 6.00 GiB (allocated 1.00 GiB -> 1.00 GiB)"),
    "retries": ({"retries": 2}, "allocator retries 0 -> 6"),
    "variable": ({"environment": ALLOCATOR}, "PYTORCH_CUDA_ALLOC_CONF: not set -> expandable_segments:True"),
    "slower by a variable": (
        {"environment": ALLOCATOR, "transfer": 120},
        "PYTORCH_CUDA_ALLOC_CONF: not set -> expandable_segments:True",
    ),
    "another network": ({"transfer": 120, "reserved": 6 << 30}, "network: the same collectives"),
}


@pytest.mark.parametrize("change", SURROUNDINGS)
def test_memory_and_variables_are_named(tmp_path: Path, base: Path, change: str) -> None:
    arguments, text = SURROUNDINGS[change]
    other = training(**arguments).write(tmp_path / "run.arrow")
    first = invoke(base, other).output.splitlines()[0]
    assert text in first, first
    failed = runner().invoke(diff, [str(base), str(other), "--fail-above", "memory:5%"], standalone_mode=False)
    assert failed.return_value == int("reserved" in arguments)


def test_equal_logs(tmp_path: Path, base: Path) -> None:
    again = training().write(tmp_path / "again.arrow")
    done = invoke(base, again, "--fail-above", "0%")
    assert (done.exit_code, done.output) == (0, "No difference.\n")
    data = json.loads(invoke(base, again, "--json").output)
    assert data["equal"] and not data["causes"] and not data["operators"]


def test_parts_sum_to_the_change(tmp_path: Path, base: Path) -> None:
    other = training(gemm=130, transfer=90, host=10).write(tmp_path / "run.arrow")
    data = json.loads(invoke(base, other, "--json").output)
    change = data["step_ns"]["b"] - data["step_ns"]["a"]
    assert sum(part["b"] - part["a"] for part in data["times_ns"]) == pytest.approx(change, abs=1)
    for work in (*data["operators"], *data["collectives"]):
        parts = work["by_count_ns"] + work["by_shape_ns"] + work["by_duration_ns"]
        assert parts == pytest.approx(work["b"]["time_ns"] - work["a"]["time_ns"], abs=1)


def test_gate(tmp_path: Path, base: Path) -> None:
    other = training(transfer=70).write(tmp_path / "run.arrow")
    assert invoke(base, other, "--fail-above", "50%").exit_code == 0
    failed = CliRunner().invoke(diff, [str(base), str(other), "--fail-above", "1%"], standalone_mode=False)
    assert failed.return_value == 1
    assert "more than the limit of 1 %" in failed.output
    faster = runner().invoke(diff, [str(other), str(base), "--fail-above", "1%"], standalone_mode=False)
    assert faster.return_value == 0
    with pytest.raises(PhantoraError, match="write it like 2%"):
        runner().invoke(diff, [str(base), str(other), "--fail-above", "much"], catch_exceptions=False)


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


# ---------------------------------------------------------------------- what is run


class Model:
    """A decoder on two ranks, two steps next to the first, drawn from what a training script chooses."""

    def __init__(self, **choices: object) -> None:
        self.layers, self.passes, self.batch, self.sequence, self.vocabulary = 4, 1, 1, 1024, 32000
        self.dtype, self.optimizer, self.attention, self.spread = "bf16", "_fused_adamw_", "_flash_attention", "FSDP"
        self.reshard, self.recompute, self.compiled, self.buckets, self.ranks, self.gpu = (
            True,
            False,
            False,
            4,
            2,
            "H100",
        )
        self.slow, self.host, self.transfer, self.links = 1.0, 0, 1.0, dict[Any, Any]()
        self.factor, self.loading = 1.0, "free"
        for name, value in choices.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    def write(self, path: Path) -> Path:
        extra: dict[str, object] = {"host": {"name": "default", "factor": self.factor}, "data_loading": self.loading}
        if self.links:
            extra["what_if"] = {"degrade": [{"links": k, "factor": v} for k, v in self.links.items()]}
        run = FakeRun(
            metadata=replace(
                METADATA, world_size=self.ranks, ranks_per_host=self.ranks, gpu=self.gpu, extra=extra, peak_flops={}
            )
        )
        for rank in range(self.ranks):
            self._rank(run, rank)
        return run.write(path)

    def _rank(self, run: FakeRun, rank: int) -> None:
        members = ",".join(map(str, range(self.ranks)))
        run.add(Kind.COMMUNICATOR, rank, 0, 0, "dp", comm=0, sig=run.signature("ranks", members))
        self._run, self._of, self._at, self._seq = run, rank, 5 * US, 0
        for _ in range(3):
            self._at += 10 * US
            begin = self._step()
            run.add(Kind.ANNOTATION, rank, begin - 1, self._at, "Optimizer.step#AdamW.step")

    def _step(self) -> int:
        tokens = self.batch * self.sequence
        size, dtype = tokens / 1024, self.dtype
        width = "bf16" if dtype == "bf16" else "fp32"
        product = f"{dtype}[{tokens},512], {dtype}[512,512]"
        hidden = f"{dtype}[{self.batch},{self.sequence},512]"
        slow = 2.0 if dtype == "fp32" else 1.0
        for _ in range(self.passes):
            for backward in (False, True):
                for _ in range(self.layers):
                    if self.spread == "FSDP" and (self.reshard or not backward):
                        self._transfer("AllGather", 3 << 20, 8)
                    for again in range(1 + (backward and self.recompute)):
                        name = f"aten::{self.attention}_{'backward' if backward and not again else 'forward'}"
                        if self.attention == "math":
                            for part in (
                                "aten::bmm",
                                *["aten::_softmax_backward" if backward else "aten::_softmax"] * 3,
                            ):
                                self._work(part, hidden, "gemm" if part == "aten::bmm" else "normalization", 40)
                        else:
                            self._work(name, hidden, "attention", 40 * size * slow * (1 + backward))
                        self._work("aten::mm", product, "gemm", 60 * size * slow * (1 + backward))
                        graph = "triton_poi_fused_0" if self.compiled is True else self.compiled
                        point = str(graph or "aten::gelu")
                        self._work(
                            point, "" if self.compiled else hidden, "elementwise", (4 if self.compiled else 20) * size
                        )
                    if backward and self.spread == "FSDP":
                        self._transfer("ReduceScatter", 3 << 20, 8)
            indices = (
                f"{width}[{self.batch},{self.sequence},512], i64[{self.batch},{self.sequence}], {self.vocabulary}, -1"
            )
            self._work("aten::embedding_dense_backward", indices, "embedding", 5)
            head = f"{dtype}[{tokens},512], {dtype}[512,{self.vocabulary}]"
            self._work("aten::mm", head, "gemm", 50 * size * slow * self.vocabulary / 32000)
        if self.spread == "data parallel":
            for _ in range(self.buckets):
                size = round(slow * self.layers * (3 << 20)) // self.buckets
                self._transfer("AllReduce", size, slow * (self.layers * 4 / self.buckets + 3))
        begin = self._at - 20 * US  # the host opens the annotation before it launches
        many = 4 * self.layers + 1
        share = 2 if self.spread == "FSDP" else 1
        shape = f"(fp32[{self.vocabulary // share},512], fp32[{512 // share},512], … {many} in all)"
        kind = 1.0 if "fused" in self.optimizer else 3.0
        self._work(f"aten::{self.optimizer}", shape, "optimizer", 12 * self.layers * kind / share)
        return begin

    def _work(self, op: str, shape: str, cls: str, time: float) -> None:
        run, length = (
            self._run,
            round(time * US * (self.slow if self._of == 1 else 1.0) * (2 if self.gpu != "H100" else 1)),
        )
        sig = {} if op.startswith("triton") else {"sig": run.signature(op, shape)}
        run.add(
            Kind.KERNEL,
            self._of,
            self._at,
            self._at + length,
            op,
            launch=self._at - (1 if self.host else 5) * US,
            stream=0,
            price=run.price(cls, "measured", 1e6),
            **sig,
        )
        self._at += length + self.host * US

    def _transfer(self, name: str, size: int, time: float) -> None:
        length = round(time * self.transfer * US)
        self._run.add(
            Kind.COLLECTIVE,
            self._of,
            self._at,
            self._at + length,
            f"ncclDevKernel_{name}_RING_LL",
            stream=7,
            launch=self._at - 5 * US,
            ready=self._at,
            comm=0,
            seq=self._seq,
            bytes=size,
            price=self._run.price("communication", "fitted"),
        )
        self._seq += 1
        self._at += length


def pair(reported: str, *, base: dict[str, object] | None = None, **choices: object) -> tuple[dict, dict, str]:  # type: ignore[type-arg]
    return base or {}, {**(base or {}), **choices}, reported


DP: dict[str, object] = {"spread": "data parallel"}
# What differs, and what the first line must say; one or two changes, of which the larger is named.
PAIRS = (
    pair("more layers: 4 -> 6", layers=6),
    pair("fewer layers: 4 -> 2", layers=2),
    pair("more layers: 4 -> 5", base=DP, layers=5),
    pair("more layers: 2 -> 8", base={"layers": 2, "recompute": True}, layers=8),
    pair("batch 1 -> 2", batch=2),
    pair("batch 1 -> 4", base=DP, batch=4),
    pair("batch 4 -> 1", base={"batch": 4}, batch=1),
    pair("sequence length 1024 -> 4096", sequence=4096),
    pair("sequence length 1024 -> 512", base=DP, sequence=512),
    pair("batch 1 -> 2 and sequence length 1024 -> 512", batch=2, sequence=512),
    pair("more micro-batches: 1 -> 4 a step", passes=4),
    pair("fewer micro-batches: 3 -> 1 a step", base={**DP, "passes": 3}, passes=1),
    pair("activation checkpointing on", recompute=True),
    pair("activation checkpointing off", base={"recompute": True, "layers": 6}, recompute=False),
    pair("no resharding", reshard=False),
    pair("resharding: parameters are gathered again", base={"reshard": False}, reshard=True),
    pair("data parallel instead of FSDP", spread="data parallel"),
    pair("FSDP instead of data parallel", base=DP, spread="FSDP"),
    pair("compiled: kernels of torch.compile instead of eager operators", compiled=True),
    pair("no longer compiled", base={"compiled": True}, compiled=False),
    pair("precision of products bf16 -> fp32", dtype="fp32"),
    pair("precision of products fp32 -> bf16", base={"dtype": "fp32"}, dtype="bf16"),
    pair("another form of the optimizer: fused -> foreach", optimizer="_foreach_addcdiv_"),
    pair("attention by another operator", attention="_efficient_attention"),
    pair("another model: vocabulary 32000 -> 64000", vocabulary=64000),
    pair("other buckets: the same bytes in 1 all_reduce instead of 8", base={**DP, "buckets": 8}, buckets=1),
    pair("number of ranks 2 -> 4", ranks=4),
    pair("rank 1 is slower than the others", slow=1.2),
    pair("network: the same collectives take 2.00 times as long", transfer=2.0),
    pair("network: links h0.gpu1>* carry 0.5 of their bandwidth", transfer=2.0, links={"h0.gpu1>*": 0.5}),
    pair("host: GPUs wait", host=15),
    pair("another host: default x 1 -> default x 2: GPUs wait", host=15, factor=2.0),
    pair("data loading free -> 10ms: GPUs wait", host=15, loading="10ms"),
    pair("another GPU: H100 -> A100", gpu="A100"),
    # Bound by the host, whose waits follow from what is run.
    pair("more layers: 4 -> 6", base={"host": 60}, layers=6),
    pair("no resharding", base={"host": 60}, reshard=False),
    pair("data parallel instead of FSDP", base={"host": 60}, spread="data parallel"),
    pair("batch 1 -> 4", base={"host": 60}, spread="data parallel", batch=4),
    pair("more layers: 4 -> 8", layers=8, transfer=1.2),
    pair("batch 1 -> 4", batch=4, host=3),
    pair("compiled", compiled=True, transfer=1.05),
)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_what_changed_is_named_first(tmp_path: Path, number: int) -> None:
    before, after, reported = PAIRS[number]
    a, b = Model(**before).write(tmp_path / "a.arrow"), Model(**after).write(tmp_path / "b.arrow")
    done = invoke(a, b)
    assert reported in done.output.splitlines()[0], done.output


@pytest.mark.parametrize("number", range(0, len(PAIRS), 3))
def test_equal_runs_say_nothing(tmp_path: Path, number: int) -> None:
    choices = PAIRS[number][1]
    a, b = (Model(**choices).write(tmp_path / f"{name}.arrow") for name in "ab")
    assert invoke(a, b).output == "No difference.\n"


def test_work_on_the_cpu_is_no_launch_and_a_setting_has_its_own_effect() -> None:
    """GPUs wait 9 us less for a line, and 1 us less for launches; cudnn.benchmark changed no kernel by much."""
    a, b = (cast(Side, SimpleNamespace(report=SimpleNamespace(host_waits=waits))) for waits in ([_drawn(9000.0)], []))
    cpu, host = with_cpu_work(a, b, [Cause("host", "", -10000.0)])
    assert cpu[0].effect == -9000.0 and cpu[0].text.endswith("for operators at train.py:6")
    assert host[0].effect == -1000.0
    setting = [Cause("trials", "cudnn.benchmark on", -2.0)]
    assert _with_host(setting, host) == (setting, host)


def test_the_data_loader_takes_its_waits_and_a_slower_host_is_no_faster_code() -> None:
    a, b = (
        cast(Side, SimpleNamespace(report=SimpleNamespace(host_waits=[HostWait("DataLoader", time)])))
        for time in (37e6, 14e6)
    )
    data, host = with_loader(a, b, [Cause("host", "", -24e6)])
    assert data[0].text == "data loading: GPUs wait 23.00 ms less a step for the DataLoader"
    assert (data[0].effect, host[0].effect) == (-23e6, -1e6)
    compiled, slower = Cause("compiled", "compiled", -2e6), Cause("host", "host", 3e6)
    assert [cause.effect for causes in _with_host([compiled], [slower]) for cause in causes] == [-2e6, 3e6]


def test_steps_that_vary_with_their_data_differ_within_their_spread() -> None:
    assert _of_mean([2.0, 32.0] * 8) == pytest.approx(3.87, abs=0.01)  # a mean of 17
    assert _of_mean([5.0]) == 0.0


def _drawn(time: float) -> HostWait:
    return HostWait("CPU operators at train.py:6", time)


def test_another_precision_changes_neither_layers_nor_accumulation(tmp_path: Path) -> None:
    a = Model(**DP).write(tmp_path / "a.arrow")
    b = Model(**DP, attention="math", dtype="fp32").write(tmp_path / "b.arrow")
    for done in (invoke(a, b), invoke(b, a)):
        assert "precision of products" in done.output
        assert "layers" not in done.output and "no_sync" not in done.output


def test_throughput_and_other_metrics(tmp_path: Path) -> None:
    a, b = Model().write(tmp_path / "a.arrow"), Model(batch=2).write(tmp_path / "b.arrow")
    first = invoke(a, b).output.splitlines()[0]
    assert "% tokens/s: batch 1 -> 2" in first and "+" in first.split("), ")[1]

    def status(*arguments: object) -> object:
        words = [str(argument) for argument in arguments]
        return runner().invoke(diff, words, standalone_mode=False).return_value

    assert status(a, b, "--fail-above", "2%") == 1  # a step takes longer
    assert status(a, b, "--fail-above", "tokens:2%") == 0  # but more tokens are done
    assert status(b, a, "--fail-above", "tokens:2%") == 1
    with pytest.raises(PhantoraError, match="do not show mfu"):
        runner().invoke(diff, [str(a), str(b), "--fail-above", "mfu:1%"], catch_exceptions=False)


def test_tables_leave_out_what_is_small_and_agree_on_compute(tmp_path: Path) -> None:
    """Of 40 us that a gemm takes more, no row tells of a change of less than 1 %; shares are compared in points."""
    runs = Training(), Training(gemm=120, slow={3: 1.02})
    a, b = (one.run().write(tmp_path / f"{name}.arrow") for name, one in zip("ab", runs, strict=True))
    data = json.loads(invoke(a, b, "--json").output)
    compute = next(part for part in data["times_ns"] if part["name"] == "compute")
    for side in "ab":
        assert sum(rank[side] for rank in data["ranks_ns"]) / 4 == pytest.approx(compute[side])
    shown = Console(file=io.StringIO(), width=100)
    changes = [Change("large", 9e6, 13e6), *(Change(f"tiny {i}", 0.0, 9e3 + i) for i in range(3))]
    step, rates = Change("step", 10e6, 14.027e6), [Change("MFU", 0.25, 0.3)]
    difference = Difference(
        path_a="a", path_b="b", equal=False, step=step, times=changes, classes=changes[:2], rates=rates
    )
    render(difference, shown)
    lines = cast(io.StringIO, shown.file).getvalue().splitlines()
    assert "- MFU 25.0% -> 30.0% (+5.0 points)" in lines
    assert not any("tiny" in line for line in lines) and not any("smaller" in line for line in lines)


def test_an_operator_of_another_gpu_is_no_other_code(tmp_path: Path) -> None:
    """A100 runs attention by another operator, and each kernel of the optimizer's lists longer."""
    a = Model(optimizer="_foreach_addcdiv_").write(tmp_path / "a.arrow")
    model = Model(optimizer="_foreach_addcdiv_", gpu="A100", attention="_efficient_attention")
    done = invoke(a, model.write(tmp_path / "b.arrow"))
    first = done.output.splitlines()[0]
    assert "another GPU: H100 -> A100, with attention by another operator" in first, first
    assert "other operators" not in done.output and "sizes" not in done.output


def test_other_work_on_another_gpu_is_named_with_it(tmp_path: Path) -> None:
    """Of a larger batch on a slower GPU nothing tells which part the GPU makes."""
    a = Model().write(tmp_path / "a.arrow")
    done = invoke(a, Model(batch=4, gpu="A100").write(tmp_path / "b.arrow"))
    assert "another GPU: H100 -> A100, and batch 1 -> 4" in done.output.splitlines()[0], done.output


def test_a_graph_of_aot_autograd_is_compiled_code(tmp_path: Path) -> None:
    a = Model(layers=4).write(tmp_path / "a.arrow")
    first = invoke(a, Model(compiled="CompiledFunction").write(tmp_path / "b.arrow")).output.splitlines()[0]
    assert "compiled: kernels of torch.compile" in first and "layers" not in first


def test_models_without_a_size_in_common_are_others() -> None:
    def side(*shapes: str) -> Side:
        found = {Operation("aten::addmm", shape, "gemm", ""): None for shape in shapes}
        return cast(Side, SimpleNamespace(operations=found))

    qwen, larger = side("bf16[896], bf16[64,896], bf16[896,4864]"), side("bf16[896], bf16[128,896], bf16[896,4864]")
    assert products_share_sizes(qwen, larger) and products_share_sizes(qwen, side(""))
    assert not products_share_sizes(qwen, side("fp32[768], fp32[1568,768], fp32[768,3072]"))


def test_a_run_that_failed_does_not_pass_and_is_no_base(tmp_path: Path, base: Path) -> None:
    run = training()
    run.trailer |= {"status": 1, "error": "ValueError: no", "reason": "script failed"}
    failed = run.write(tmp_path / "failed.arrow")
    done = CliRunner().invoke(diff, [str(base), str(failed), "--fail-above", "50%"], standalone_mode=False)
    assert done.return_value == 1 and "the run failed: " in done.output
    assert done.stdout.startswith("b failed: ") and "Of the steps before: " in done.stdout
    with pytest.raises(PhantoraError, match=r"a base that ran to its end; .* is of a run that failed"):
        runner().invoke(diff, [str(failed), str(base), "--fail-above", "50%"], catch_exceptions=False)


def test_a_rate_is_worse_by_the_share_that_the_table_shows(tmp_path: Path) -> None:
    a, b = Model().write(tmp_path / "a.arrow"), Model(layers=12).write(tmp_path / "b.arrow")
    data = json.loads(invoke(a, b, "--json", "--fail-above", "tokens:2%").stdout)
    rate = next(rate for rate in data["rates"] if rate["name"] == "tokens/s")
    assert data["verdict"]["worse"] == pytest.approx(1 - rate["b"] / rate["a"]) and data["verdict"]["worse"] < 1


def test_runs_side_by_side(tmp_path: Path) -> None:
    paths = [Model(layers=layers).write(tmp_path / f"layers{layers}.arrow") for layers in (2, 4, 6)]
    shown = invoke(*paths).output
    assert "b: Slower" in shown and "more layers: 2 -> 4" in shown and "more layers: 2 -> 6" in shown
    row = next(line for line in shown.splitlines() if line.startswith("tokens/s"))
    assert len(row.split()) == 4
    data = json.loads(invoke(*paths, "--json").output)
    assert [entry["causes"][0]["kind"] for entry in data] == ["layers", "layers"]


def test_large_logs_are_read_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of one after the other, and an error in the other process is this one's."""
    paths = [str(tmp_path / name) for name in ("a.arrow", "b.arrow")]
    for path, training in zip(paths, (Training(), Training(gemm=130)), strict=True):
        training.run().write(Path(path))

    def difference() -> object:
        return encode(between(sides_of([open_log(path) for path in paths], Filters()))[0])

    expected = difference()
    monkeypatch.setattr(phantora.trace.diff.between, "LEAST_ROWS", 1)
    assert difference() == expected
    reading = Apart(open_log(paths[1]), Filters(ranks=frozenset({9})), True)
    with closing(reading), pytest.raises(PhantoraError, match=r"b\.arrow: no rows of these ranks"):
        reading.side()


def test_the_batch_of_a_rank_with_more_work_is_no_second_cause() -> None:
    rank = Cause("straggler", "rank 1 has 2.00 times the work of before: it computes 77.9 % longer", 2e6)
    found = [rank, Cause("batch", "batch: the same parameters, other sizes of activations", 1e6)]
    assert _without_consequences(found, False) == [rank]
    slower = replace(rank, text="rank 1 is slower than the others: it computes 77.9 % longer")
    assert _without_consequences([slower, found[1]], False) == [slower, found[1]]


def test_the_rank_whose_host_is_late_is_the_cause(tmp_path: Path) -> None:
    """In b the host of rank 1 launches the product 400 us later, and the all-reduce of both ranks waits for it."""

    def run(name: str, later: int) -> Path:
        made, us = FakeRun(), 1000
        product, moved = made.price("gemm", "measured", 2e11), made.price("communication", "measured")
        for rank in (0, 1):
            made.add(Kind.COMMUNICATOR, rank, 0, 0, "dp", comm=0, sig=made.signature("ranks", "0,1"))
        for step in range(4):
            begin = step * (1000 + later) * us
            last = begin + (900 + later) * us
            for rank in (0, 1):
                at = begin + (100 + rank * later) * us
                done = at + 800 * us
                made.add(Kind.KERNEL, rank, at, done, "gemm", launch=at - us, stream=0, price=product)
                row = {"stream": 7, "comm": 0, "seq": step, "ready": last, "last_rank": 1, "price": moved}
                end = last + 100 * us
                made.add(Kind.COLLECTIVE, rank, done, end, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", launch=at, **row)
                made.add(Kind.ANNOTATION, rank, begin, end, f"ProfilerStep#{step + 1}")
        return made.write(tmp_path / f"{name}.arrow")

    logs = [open_log(run(name, later)) for name, later in (("a", 0), ("b", 400))]
    found = between(sides_of(logs, Filters()))[0]
    said = "rank 1's host: its GPU waits 400.00 us more a step for launches, and the others for it"
    assert (found.causes[0].kind, found.causes[0].text) == ("late host", said)
    assert found.causes[0].effect == found.step.change == 400_000
