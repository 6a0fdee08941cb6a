"""TorchTitan as PyPI has it: every model and strategy, its own printed numbers, collectives and flops.

Few layers of true size on few GPUs. What is expected comes from the model's dimensions, below.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from phantora.hardware import REFERENCE_HOST
from phantora.rank.routing import parse_routing
from phantora.trace.reader import open_log
from tests.support.headline import same_headline
from tests.support.runs import SAMPLES, Run, records, trace

TITAN = SAMPLES / "torchtitan"
PEAK = 989e12  # bf16 of an H100, which TorchTitan looks up by the device's name
BF16, FP32 = 2, 4
STEPS = 4
LINE = re.compile(
    r"step: +(\d+) +loss: +(\S+) +grad_norm: +(\S+) +memory: +([\d.]+)GiB.*"
    r"tps: +([\d,]+) +tflops: +([\d.,]+) +mfu: +([\d.]+)%"
)


@dataclass
class Line:
    """TorchTitan's line for a step."""

    step: int
    loss: float
    memory: float
    tps: float
    tflops: float
    mfu: float


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("titan")
    subprocess.run([sys.executable, str(TITAN / "make_assets.py"), str(directory / "assets")], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{SAMPLES.parent}:{TITAN}")
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        yield directory


def titan(place: Path, cluster: str, sample: str, flavor: str, *arguments: str, options: tuple[str, ...] = ()) -> Run:
    (place / "run.arrow").unlink(missing_ok=True)
    return trace(
        place,
        "--cluster",
        cluster,
        "--host",
        REFERENCE_HOST,
        *options,
        "-m",
        "torchtitan.train",
        "--job.config_file",
        str(TITAN / sample),
        "--experimental.custom_import",
        "layers",
        "--model.flavor",
        flavor,
        "--training.steps",
        str(STEPS),
        *arguments,
    )


def lines(run: Run, rank: int = 0) -> list[Line]:
    text = re.sub(r"\x1b\[[\d;]*m", "", run.out + run.err)
    found = [LINE.search(line) for line in text.splitlines() if line.startswith((f"[rank{rank}]", "[titan]"))]
    return [Line(int(m[1]), *(float(m[i].replace(",", "")) for i in (2, 4, 5, 6, 7))) for m in found if m]


def check_numbers(run: Run, tokens: int) -> None:
    """Printed throughput, utilization and memory against the times and allocations in the log."""
    printed = lines(run)
    assert [line.step for line in printed] == list(range(1, STEPS + 1))
    for line in printed:
        assert math.isfinite(line.loss)
        assert line.mfu == pytest.approx(100 * line.tflops * 1e12 / PEAK, abs=0.011)
    zeroed = sorted(
        r["start"]
        for r in records(run.log, "annotation", "rank", "name", "start")
        if r["rank"] == 0 and r["name"] == "Optimizer.zero_grad#AdamW.zero_grad"
    )
    begins = zeroed[:: len(zeroed) // STEPS]  # a step begins with it; with a pipeline, once per part of the model
    # TorchTitan times from log line to log line, not writing them; the next step begins right behind (not the second).
    seconds, distance = tokens / printed[-2].tps, (begins[-1] - begins[-2]) / 1e9
    assert distance - 0.0004 < seconds < 1.001 * distance
    peak = max(r["bytes"] for r in records(run.log, "memory", "rank", "bytes") if r["rank"] == 0)  # reserved
    assert max(line.memory for line in printed) == pytest.approx(peak / 2**30, abs=0.006)
    read = run.step_lines()
    assert read.framework == "TorchTitan" and read.steps[-2].seconds == pytest.approx(seconds, abs=2e-3)


def collectives(run: Run, rank: int = 0) -> Counter[tuple[str, int, int]]:
    """Counts of (kind, size of the group, bytes) on a rank."""
    sizes = {
        r["comm"]: r["shape"].count(",") + 1
        for r in records(run.log, "communicator", "rank", "comm", "shape")
        if r["rank"] == rank
    }
    found: Counter[tuple[str, int, int]] = Counter()
    for kind in ("collective", "sendrecv"):
        for r in records(run.log, kind, "rank", "name", "comm", "bytes"):
            if r["rank"] == rank:
                found[
                    r["name"].removeprefix("ncclDevKernel_").partition("_")[0].partition("(")[0],
                    sizes[r["comm"]],
                    r["bytes"],
                ] += 1
    return found


def flops(run: Run, rank: int = 0) -> float:
    return float(sum(r["flops"] for r in records(run.log, "kernel", "rank", "flops") if r["rank"] == rank))


@dataclass(frozen=True)
class Decoder:
    """Sizes of one layer and of what surrounds the layers."""

    dim: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int

    @property
    def attention(self) -> int:
        return self.dim * self.head * (2 * self.heads + 2 * self.kv_heads)

    @property
    def layer(self) -> int:
        return self.attention + 3 * self.dim * self.hidden + 2 * self.dim  # and two norms

    @property
    def table(self) -> int:
        return self.vocabulary * self.dim

    def forward(self, tokens: int, sequence: int, layers: int) -> float:
        """Flops of the layers' products and (uncausal) attention."""
        products = 2 * tokens * (self.layer - 2 * self.dim)
        return float(layers * (products + 4 * tokens * sequence * self.heads * self.head))

    def backward(self, tokens: int, sequence: int, layers: int) -> float:
        """Twice the products; attention computes its scores again: 5 products instead of 2."""
        attention = 4 * tokens * sequence * self.heads * self.head * layers
        return 2 * (self.forward(tokens, sequence, layers) - attention) + 2.5 * attention

    def output(self, tokens: int) -> float:
        return 6.0 * tokens * self.table


LLAMA8 = Decoder(4096, 32, 8, 128, 14336, 128256)
LLAMA70 = Decoder(8192, 64, 8, 128, 28672, 128256)
DEBUG = Decoder(256, 16, 16, 16, 768, 2048)  # TorchTitan's debugmodel


def test_hsdp_accumulation_and_clipping(place: Path) -> None:
    """Llama 3 8B on 2 x 2 GPUs: sharded inside hosts, replicated across; 2 micro-batches a step."""
    s, m, steps = 1024, LLAMA8, STEPS
    run = titan(
        place,
        "2x2xH100",
        "llama3_8b.toml",
        "8B-1layers",
        "--training.seq_len",
        str(s),
        "--activation_checkpoint.mode",
        "none",
        "--training.local_batch_size",
        "1",
        "--training.global_batch_size",
        "8",
        "--parallelism.data_parallel_replicate_degree",
        "2",
    )
    check_numbers(run, 2 * s)
    per_step = m.forward(s, s, 1) + m.backward(s, s, 1) + m.output(s)
    assert flops(run) == pytest.approx(steps * 2 * per_step, rel=0.01)
    printed = lines(run)[-1]  # the framework's own formula leaves the second computation of scores out
    same_headline(open_log(run.log), 2 * s / printed.tps, flops(run) / steps)
    formula = 6 * (m.layer + m.table + m.dim + 2 * s * m.dim)
    assert printed.tflops == pytest.approx(printed.tps * formula / 1e12, rel=0.01)
    seen, rounds = collectives(run), 2 * steps
    parameters = 12
    assert seen["AllReduce", 2, parameters * FP32] == steps  # the norms of their gradients, over the shards
    clipping = Counter(r["op"] for r in records(run.log, "kernel", "rank", "op") if r["rank"] == 0)
    assert clipping["aten::_foreach_norm.Scalar"] >= steps and clipping["aten::_foreach_mul_.Tensor"] >= steps
    for unit, gathers in ((m.layer, 2), (m.table, 2), (m.table + m.dim, 1)):
        assert seen["AllGather", 2, unit * BF16] == gathers * rounds  # the last unit stays between passes
        assert seen["ReduceScatter", 2, unit * FP32] == rounds
        assert seen["AllReduce", 2, unit * FP32 // 2] == rounds


def test_pipeline_tensor_and_data_parallel(place: Path) -> None:
    """Llama 3 70B on 2 x 2 x 2 GPUs with sequence parallelism, 1F1B and full activation checkpointing."""
    s, m, micro, steps = 512, LLAMA70, 2, STEPS
    run = titan(
        place,
        "1x8xH100",
        "llama3_70b.toml",
        "70B-2layers",
        "--training.seq_len",
        str(s),
        "--parallelism.tensor_parallel_degree",
        "2",
        "--parallelism.pipeline_parallel_degree",
        "2",
        "--training.local_batch_size",
        str(micro),
    )
    check_numbers(run, micro * s // 4)  # tokens of a data-parallel rank, over the 4 GPUs that share them
    once = m.forward(s, s, 1)
    # Two tensor-parallel ranks share the work; each stage runs forward once more, to learn its shapes.
    layer = (steps * micro * (2 * once + m.backward(s, s, 1)) + once) / 2
    head = (steps * micro * m.output(s) + m.output(s) / 3) / 2
    assert flops(run, 0) == pytest.approx(layer, rel=0.01)
    assert flops(run, 7) == pytest.approx(layer + head, rel=0.01)
    seen = collectives(run)
    activation = s * m.dim * BF16
    # Each block gathers before attention and before the MLP and scatters behind them: forward, again in the
    # recomputation; backward scatters and gathers in their places.
    assert seen["AllGather", 2, activation] == steps * micro * 7 + 2  # the seventh: the embedding; 2: shapes
    assert seen["AllGather", 2, m.layer * BF16 // 2 + m.dim * BF16] == steps  # once a step: a stage keeps its layers
    assert seen["ReduceScatter", 2, m.layer * FP32 // 2 + m.dim * FP32] == steps
    sends = [count for (kind, size, _), count in seen.items() if (kind, size) == ("SendRecv", 2)]
    assert sum(sends) >= steps * micro


def test_context_parallel_with_selective_checkpointing(place: Path) -> None:
    """Ring attention: keys and values are gathered forward and backward, their gradients go round."""
    s, m, steps = 2048, LLAMA8, STEPS
    run = titan(
        place,
        "1x2xH100",
        "llama3_8b.toml",
        "8B-1layers",
        "--training.seq_len",
        str(s),
        "--training.local_batch_size",
        "1",
        "--parallelism.context_parallel_degree",
        "2",
        "--activation_checkpoint.selective_ac_option",
        "op",
    )
    check_numbers(run, s // 2)
    seen = collectives(run)
    for unit, gathers in ((m.layer, 2), (m.table, 2), (m.table + m.dim, 1)):
        assert seen["AllGather", 2, unit * BF16] == gathers * steps
    keys_and_values = 2 * s * m.kv_heads * m.head
    assert seen["AllGather", 2, keys_and_values * BF16] == 2 * steps
    assert seen["SendRecv", 2, keys_and_values * FP32] == 2 * steps  # half of them sent, half received
    local = s // 2
    products = m.forward(local, 0, 1) + m.backward(local, 0, 1) + m.output(local)
    recomputed = 2 * local * m.dim * (m.kv_heads * m.head + m.heads * m.head + m.hidden)  # every second: wk, wo, w3
    attention = 3.5 * 4 * m.heads * m.head * 1.5 * local**2  # its own part, and half of the other's
    assert flops(run) == pytest.approx(steps * (products + recomputed + attention), rel=0.01)


@pytest.mark.parametrize("schedule, stages", [("GPipe", 2), ("Interleaved1F1B", 4), ("ZBVZeroBubble", 4)])
def test_pipeline_schedules_and_checkpoints(place: Path, schedule: str, stages: int) -> None:
    """Each micro-batch crosses each border between stages on different ranks once forward, once backward."""
    micro, s, dim = 4, 512, 256
    out = place / schedule
    saving = ("--checkpoint.enable", "--checkpoint.interval", str(STEPS), "--checkpoint.async_mode", "async")
    run = titan(
        place,
        "1x2xH100",
        "llama3_8b.toml",
        "debugmodel",
        "--training.seq_len",
        str(s),
        "--activation_checkpoint.mode",
        "none",
        "--training.local_batch_size",
        str(micro),
        "--parallelism.pipeline_parallel_degree",
        "2",
        "--parallelism.pipeline_parallel_schedule",
        schedule,
        "--job.dump_folder",
        str(out),
        *(saving if schedule == "GPipe" else ()),
    )
    check_numbers(run, micro * s // 2)
    borders = {2: 1, 4: 2 if schedule.startswith("ZBV") else 3}[stages]  # a V has its middle on one rank
    message = s * dim * FP32
    moved = sum(
        r["bytes"] for r in records(run.log, "sendrecv", "rank", "bytes") if r["rank"] == 0 and r["bytes"] >= message
    )
    assert moved == STEPS * 2 * micro * borders * message
    m, layers = DEBUG, 6
    forward = m.forward(s, s, layers) + m.output(s) / 3  # in fp32 attention is products, too: backward is twice this
    assert flops(run, 0) + flops(run, 1) == pytest.approx((3 * STEPS * micro + 1) * forward, rel=0.01)  # 1: shapes
    if schedule == "GPipe":
        assert (out / "checkpoint/step-4/.metadata").stat().st_size > 0
        parameters = re.search(r"size: ([\d,]+) total parameters", re.sub(r"\x1b\[[\d;]*m", "", run.out + run.err))
        assert parameters is not None  # the last checkpoint contains these and nothing else
        written = sum(file.stat().st_size for file in (out / "checkpoint/step-4").glob("*.distcp"))
        assert written == pytest.approx(FP32 * int(parameters[1].replace(",", "")), rel=0.02)


@dataclass(frozen=True)
class Experts:
    count: int
    chosen: int
    hidden: int
    dim: int


def all_to_alls(run: Run, ranks: int) -> dict[int, Counter[int]]:
    found: dict[int, Counter[int]] = {rank: Counter() for rank in range(ranks)}
    for r in records(run.log, "sendrecv", "rank", "bytes"):
        found[r["rank"]][r["bytes"]] += 1
    return found


def test_experts_with_uneven_load(place: Path) -> None:
    """Qwen3 30B-A3B, experts over 4 GPUs, Zipf: split sizes and grouped products are those of the routing."""
    s, e, ranks, steps = 1024, Experts(128, 8, 768, 2048), 4, STEPS
    run = titan(
        place,
        "1x4xH100",
        "qwen3_30b_a3b.toml",
        "30B-A3B-1layers",
        "--training.seq_len",
        str(s),
        "--training.local_batch_size",
        "1",
        "--parallelism.expert_parallel_degree",
        str(ranks),
        "--activation_checkpoint.mode",
        "none",
        options=("--moe-routing", "zipf:1.0"),
    )
    check_numbers(run, s)
    counts = parse_routing("zipf:1.0").counts(0, e.count, s, e.chosen)
    received = counts.reshape(ranks, -1).sum(axis=1) * ranks  # rows that each rank's experts get from all
    sent = s * e.chosen
    bytes_of = all_to_alls(run, ranks)
    for rank in range(ranks):
        rows = sent + int(received[rank])
        assert bytes_of[rank][rows * e.dim * BF16] == steps * 4  # dispatch and combine, forward and backward
    m = Decoder(e.dim, 32, 4, 128, 0, 151936)
    dense = m.forward(s, s, 1) + m.backward(s, s, 1) + m.output(s) + 6.0 * s * e.dim * e.count  # and the router
    for rank in (int(received.argmax()), int(received.argmin())):
        padded = int(received[rank]) + e.count // ranks * 8
        assert flops(run, rank) == pytest.approx(steps * (dense + 6.0 * padded * 3 * e.dim * e.hidden), rel=0.01)


# Autotuning compiles some ten candidates of each kernel, which takes minutes; one will do here.
UNTUNED = """
import layers
import torch
from torch.nn.attention.flex_attention import flex_attention
from torchtitan.models.attention import FlexAttentionWrapper

FlexAttentionWrapper._compiled_flex_attn = torch.compile(flex_attention)
"""


GPT_OSS = Decoder(2880, 64, 8, 64, 0, 201088)
OSS_EXPERTS, DEEPSEEK_EXPERTS = Experts(32, 4, 2880, 2880), Experts(64, 6, 1408, 2048)


def gpt_oss(s: int, _: int) -> float:
    """Products of a token's dense part, forward; attention, forward and backward."""
    return 3 * 2 * s * GPT_OSS.attention + 3.5 * 4 * s**2 * GPT_OSS.heads * GPT_OSS.head


def deepseek(s: int, layers: int) -> float:
    """The same of DeepSeek-V3 16B: compressed keys and values, a dense layer first, two shared experts."""
    dim, heads, own, turned, value, rank = 2048, 16, 128, 64, 128, 512
    keys = dim * (rank + turned) + rank * heads * (own + value)
    weights = layers * (dim * heads * (own + turned) + keys + heads * value * dim)
    weights += 3 * dim * 10944 + (layers - 1) * 3 * dim * 2 * 1408
    scores, values = 2 * s**2 * heads * (own + turned), 2 * s**2 * heads * value
    return 6 * s * weights + layers * (4 * scores + 3 * values)


@pytest.mark.parametrize(
    "sample, flavor, layers, experts, dense, vocabulary",
    [
        ("deepseek_v3_16b.toml", "16B-2layers", 2, DEEPSEEK_EXPERTS, deepseek, 102400),
        ("gpt_oss_20b.toml", "20b-1layers", 1, OSS_EXPERTS, gpt_oss, 201088),
    ],
)
def test_balanced_experts_and_compiled_attention(
    place: Path,
    sample: str,
    flavor: str,
    layers: int,
    experts: Experts,
    dense: Callable[[int, int], float],
    vocabulary: int,
) -> None:
    """Models with FlexAttention, which torch.compile generates; experts over 2 GPUs, the other's tokens next to one's
    own."""
    s, e, steps = 512, experts, STEPS
    (place / "untuned.py").write_text(UNTUNED)
    run = titan(
        place,
        "1x2xH100",
        sample,
        flavor,
        "--training.seq_len",
        str(s),
        "--training.local_batch_size",
        "1",
        "--parallelism.expert_parallel_degree",
        "2",
        "--activation_checkpoint.mode",
        "none",
        "--experimental.custom_import",
        "untuned",
    )
    check_numbers(run, s)
    pairs = s * e.chosen
    padded = pairs + e.count // 2 * 8
    expected = dense(s, layers) + 6.0 * s * e.dim * (vocabulary + e.count) + 6.0 * padded * 3 * e.dim * e.hidden
    assert flops(run) == pytest.approx(steps * expected, rel=0.01)
    seen = collectives(run)
    assert seen["SendRecv", 2, 2 * pairs * e.dim * BF16] == steps * 4  # dispatch and combine, forward and backward
    tables = [n for (kind, _, size), n in seen.items() if kind == "ReduceScatter" and size >= vocabulary * e.dim * FP32]
    assert tables == [steps, steps]  # the embedding; the output and the last norm
    names = Counter(r["op"] for r in records(run.log, "kernel", "op") if r["op"])
    assert any("flex_attention_backward" in name for name in names)


def test_float8(place: Path) -> None:
    """torchao's Float8 products, gathered as float8: a byte per weight of a layer's matrices."""
    s, m, steps = 1024, LLAMA8, STEPS
    run = titan(
        place,
        "1x2xH100",
        "llama3_8b.toml",
        "8B-1layers",
        "--training.seq_len",
        str(s),
        "--training.local_batch_size",
        "1",
        "--activation_checkpoint.mode",
        "none",
        "--model.converters",
        "quantize.linear.float8",
        "--quantize.linear.float8.enable_fsdp_float8_all_gather",
        "--quantize.linear.float8.filter_fqns",
        "output",
    )
    check_numbers(run, s)
    assert "Float8 tensorwise scaled training active" in run.out + run.err
    scaled = sum(
        r["flops"]
        for r in records(run.log, "kernel", "rank", "op", "flops")
        if r["rank"] == 0 and r["op"] == "aten::_scaled_mm"
    )
    assert scaled == pytest.approx(steps * (m.forward(s, 0, 1) + m.backward(s, 0, 1)), rel=0.01)
    assert flops(run) == pytest.approx(steps * (m.forward(s, s, 1) + m.backward(s, s, 1) + m.output(s)), rel=0.01)
    seen = collectives(run)
    assert seen["AllGather", 2, m.layer - 2 * m.dim + 2 * m.dim * BF16] == 2 * steps
    assert seen["ReduceScatter", 2, m.layer * FP32] == steps


def test_experts_in_a_compiled_layer_are_given_their_tokens(place: Path) -> None:
    """Llama 4's router is compiled; what gives the tokens cannot be traced, and is an operator there."""
    run = titan(
        place,
        "1x1xH100",
        "qwen3_30b_a3b.toml",
        "debugmodel",
        "--model.name",
        "llama4",
        "--compile.enable",
        "--training.seq_len",
        "128",
        "--parallelism.expert_parallel_degree",
        "1",
    )
    assert [line.step for line in lines(run)] == list(range(1, STEPS + 1))


def test_a_file_for_another_model_ends_in_one_line(place: Path) -> None:
    (place / "routing.json").write_text('{"*": [1, 2]}')
    with pytest.raises(AssertionError, match="the model has 64 experts"):
        titan(
            place,
            "1x1xH100",
            "qwen3_30b_a3b.toml",
            "debugmodel_moe",
            "--training.seq_len",
            "128",
            "--parallelism.expert_parallel_degree",
            "1",
            options=("--moe-routing", "routing.json"),
        )
