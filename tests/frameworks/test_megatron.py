"""Megatron-Core as it is: models and layouts at true widths, few layers.

Counts of messages are per iteration on the rank named; sizes are bytes of the whole tensor (bf16
activations, fp32 gradients), from the layout's arithmetic alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from megatron_shapes import SHAPES, Shape
from phantora.hardware import REFERENCE_HOST
from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log
from tests.support.communication import Message, barriers, flops, messages, peak_allocated
from tests.support.headline import same_headline
from tests.support.runs import SAMPLES, Run, trace

OPTIONS = ("--hang-timeout", "300")
ITERATIONS = 2


@dataclass
class Result:
    run: Run
    shape: Shape
    world: int
    sequences: int
    """Sequences of all ranks in one iteration."""
    iterations: int = ITERATIONS

    def messages(self, rank: int) -> dict[Message, float]:
        return {message: count / self.iterations for message, count in messages(self.run.log, rank).items()}

    def flops(self, rank: int) -> float:
        return flops(self.run.log, rank) / self.iterations

    def printed(self, what: str) -> list[float]:
        return [float(value) for value in re.findall(re.escape(what) + r":\s*(\S+)", self.run.out)]


def pretrain(
    directory: Path,
    cluster: str,
    model: str,
    *arguments: str,
    layers: int = 2,
    seq: int = 2048,
    sequences: int,
    iterations: int = ITERATIONS,
    options: tuple[str, ...] = (),
) -> Result:
    run = trace(
        directory,
        "--cluster",
        cluster,
        "--host",
        REFERENCE_HOST,
        *OPTIONS,
        *options,
        str(SAMPLES / "megatron" / "pretrain_gpt.py"),
        "--model",
        model,
        "--num-layers",
        str(layers),
        "--seq-length",
        str(seq),
        "--train-iters",
        str(iterations),
        "--global-batch-size",
        str(sequences),
        *arguments,
    )
    hosts, gpus = cluster.split("x")[:2]
    shape = replace(SHAPES[model], layers=layers, seq=seq)
    result = Result(run, shape, int(hosts) * int(gpus), sequences, iterations)
    check_log_lines(result)
    return result


def check_log_lines(result: Result) -> None:
    """Megatron's own lines agree with the log."""
    elapsed = result.printed("elapsed time per iteration (ms)")
    assert len(elapsed) == result.iterations
    ends = barriers(result.run.log, result.world - 1)  # an iteration lies between two of them
    between = [(end - start) / 1e6 for i, start in enumerate(ends) for end in ends[i + 1 :]]
    assert min(abs(elapsed[-1] - time) for time in between) < 0.1
    tflops = result.shape.flops(result.sequences) / (elapsed[-1] / 1000) / result.world / 1e12
    assert result.printed("throughput per GPU (TFLOP/s/GPU)")[-1] == pytest.approx(tflops, rel=0.01, abs=0.1)
    assert result.printed("lm loss")[-1] == 0 and result.printed("number of skipped iterations")[-1] == 0
    peak = re.findall(r"\[Rank 0\] .* max allocated: (\S+)", result.run.out)[-1]
    assert float(peak) * 2**20 == peak_allocated(result.run.log, 0)


def attention_flops(shape: Shape, sequences: float, passes: float = 3.5) -> float:
    """Whole square, as torch counts; forward 1, backward 2.5 with its recomputation of the scores."""
    return float(passes * shape.layers * 4 * sequences * shape.seq**2 * shape.heads * shape.head_dim)


def matmul_parameters(shape: Shape, output: bool = True) -> float:
    """Parameters that a token is multiplied with; the router's included."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    mlp = 3 * shape.hidden * shape.ffn * max(shape.top_k, 1) + shape.hidden * shape.experts
    layer = shape.hidden * (2 * q + 2 * kv) + mlp
    return float(shape.layers * layer + output * shape.hidden * shape.vocab)


def model_flops(shape: Shape, sequences: float) -> float:
    return float(6 * matmul_parameters(shape) * sequences * shape.seq + attention_flops(shape, sequences))


def test_tensor_and_sequence_parallel(tmp_path: Path) -> None:
    """Llama 2 7B, TP4 with sequence parallelism, clipping, timers."""
    result = pretrain(
        tmp_path, "1x4xH100", "llama2-7b", "--tp", "4", "--sequence-parallel", "--timing-log-level", "2", sequences=1
    )
    shape, found = result.shape, result.messages(1)
    activations = 2 * shape.seq * shape.hidden
    # A layer gathers before QKV and fc1, twice more in backward (the input for the weight's gradient,
    # the gradient of the output), and scatters as often as it gathers for the input and its gradient.
    # The embedding scatters, the output layer gathers; each has its backward, the output twice.
    assert found[Message("AllGather", 4, activations)] == 6 * shape.layers + 3
    assert found[Message("ReduceScatter", 4, activations)] == 4 * shape.layers + 2
    assert found[Message("AllReduce", 4, 4 * shape.seq)] == 3  # cross entropy over the vocabulary's parts
    assert found[Message("AllReduce", 4, 4 * (2 * shape.layers + 1) * shape.hidden)] == 1  # gradients of the norms
    assert result.flops(1) == pytest.approx(model_flops(shape, 1) / 4, rel=0.01)
    timers = dict(re.findall(r"(\S+) \.+: \((\S+), \S+\)", result.run.out))
    elapsed = result.printed("elapsed time per iteration (ms)")[-1]
    parts = [float(timers[name]) for name in ("forward-backward", "optimizer")]
    assert 0.95 * elapsed < sum(parts) < elapsed
    assert float(timers["forward-compute"]) + float(timers["backward-compute"]) < parts[0]


def test_distributed_optimizer_overlapped(tmp_path: Path) -> None:
    """Llama 3 8B, DP2 x TP2: gradients are scattered and parameters gathered next to the computing."""
    result = pretrain(
        tmp_path,
        "1x4xH100",
        "llama3-8b",
        "--tp",
        "2",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        sequences=4,
    )
    shape, found = result.shape, result.messages(0)
    activations = 2 * shape.seq * shape.hidden
    assert found[Message("AllGather", 2, activations)] == 2 * (6 * shape.layers + 3)  # two micro-batches
    assert found[Message("ReduceScatter", 2, activations)] == 2 * (4 * shape.layers + 2)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    split = shape.layers * (2 * q + 2 * kv + 3 * shape.ffn) * shape.hidden + 2 * shape.vocab * shape.hidden
    own = split / 2 + (2 * shape.layers + 1) * shape.hidden  # the norms are whole on each rank
    buckets = {m: n for m, n in found.items() if m.bytes != activations and m.bytes > 1_000_000}
    scattered = {m: n for m, n in buckets.items() if m.kind == "ReduceScatter"}
    gathered = {m: n for m, n in buckets.items() if m.kind == "AllGather"}
    assert sum(m.bytes * n for m, n in scattered.items()) == pytest.approx(4 * own, rel=1e-3)  # fp32
    assert sum(m.bytes * n for m, n in gathered.items()) == pytest.approx(2 * own, rel=1e-3)  # bf16
    assert sum(scattered.values()) == sum(gathered.values()) > 1
    assert result.flops(0) == pytest.approx(model_flops(shape, 2) / 2, rel=0.01)


def test_megatron_fsdp(tmp_path: Path) -> None:
    """Layers are gathered for each pass, their gradients scattered: in float32, or in that of the parameters where the
    version has a setting of its own for it."""
    from megatron.core.distributed import DistributedDataParallelConfig

    width = 2 if hasattr(DistributedDataParallelConfig, "megatron_fsdp_main_grads_dtype") else 4
    result = pretrain(
        tmp_path,
        "1x2xH100",
        "toy",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
        "optim_grads_params",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        sequences=2,
    )
    shape, found = result.shape, result.messages(0)
    scattered = {m: n for m, n in found.items() if m.kind == "ReduceScatter"}
    assert sum(m.bytes * n for m, n in scattered.items()) == pytest.approx(width * shape.parameters, rel=0.01)
    layer = (shape.parameters - 2 * shape.vocab * shape.hidden) // shape.layers
    assert max(n for m, n in scattered.items() if m.bytes == pytest.approx(width * layer, rel=0.01)) == shape.layers
    gathered = {m.bytes: n for m, n in found.items() if m.kind == "AllGather"}
    assert sum(n for size, n in gathered.items() if size == pytest.approx(2 * layer, rel=0.01)) >= 2 * shape.layers


def test_gradients_of_unknown_norm_are_clipped(tmp_path: Path) -> None:
    """Megatron multiplies them only beyond a limit, and the norm reads zero."""
    said, multiplied = [], []
    for word in ("always", "never"):
        (tmp_path / word).mkdir()
        options = ("--assume", f"clip={word}")
        run = pretrain(tmp_path / word, "1x2xH100", "toy", layers=1, seq=512, sequences=2, options=options).run
        log = open_log(run.log)
        said.append([(a.what.split(" at ")[0], a.times) for a in analyze(log).assumptions])
        names = log.words("name")
        codes = [code for batch in log.batches(("name",)) for code in batch["name"] if code >= 0]
        multiplied.append(sum((names[code] or "").startswith("aten::mul.Tensor") for code in codes))
    assert said == [[("gradients of unknown norm are clipped", 2 * ITERATIONS)], []]  # two ranks
    assert multiplied[0] > multiplied[1]


def test_pipeline(tmp_path: Path) -> None:
    """Llama 2 13B, PP4, 1F1B: every micro-batch passes each boundary once forward and once backward."""
    result = pretrain(tmp_path, "1x4xH100", "llama2-13b", "--pp", "4", layers=4, sequences=6)
    shape = result.shape
    size = 2 * shape.seq * shape.hidden
    for rank, boundaries in enumerate((1, 2, 2, 1)):
        sent_or_received = {m: n for m, n in result.messages(rank).items() if m.kind == "SendRecv"}
        assert {m.group for m in sent_or_received} <= {2, 4}
        assert sum(m.bytes * n for m, n in sent_or_received.items()) == 2 * 6 * boundaries * size
    layer = (matmul_parameters(shape, output=False) * 6 * shape.seq + attention_flops(shape, 1)) * 6 / 4
    head = 6 * shape.hidden * shape.vocab * shape.seq * 6
    assert result.flops(1) == pytest.approx(layer, rel=0.01)
    assert result.flops(3) == pytest.approx(layer + head, rel=0.01)


def test_interleaved_pipeline(tmp_path: Path) -> None:
    """Llama 2 7B, PP2 with two chunks per rank: three boundaries, all between the same two ranks."""
    result = pretrain(
        tmp_path,
        "1x2xH100",
        "llama2-7b",
        "--pp",
        "2",
        "--vpp",
        "2",
        "--overlap-p2p",
        layers=4,
        sequences=4,
        iterations=3,
    )
    size = 2 * result.shape.seq * result.shape.hidden
    for rank in range(2):
        sent_or_received = {m: n for m, n in result.messages(rank).items() if m.kind == "SendRecv"}
        assert sum(m.bytes * n for m, n in sent_or_received.items()) == 2 * 4 * 3 * size
    both = result.flops(0) + result.flops(1)
    assert both == pytest.approx(model_flops(result.shape, 4), rel=0.01)
    # The second iteration makes the communicator of Megatron's log line; the third stands for the run.
    elapsed = result.printed("elapsed time per iteration (ms)")[-1] / 1e3
    assert set(same_headline(open_log(result.run.log), elapsed, both / 2).headline.apart) == {"start-up", "waits"}


def test_three_dimensions_recompute_fp16(tmp_path: Path) -> None:
    """Llama 2 70B, TP2 x PP2 x DP2: full recomputation, fp16 with its loss scale, gradient accumulation."""
    result = pretrain(
        tmp_path,
        "1x8xH100",
        "llama2-70b",
        "--tp",
        "2",
        "--pp",
        "2",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--recompute-granularity",
        "full",
        "--fp16",
        sequences=4,
    )
    shape, found = result.shape, result.messages(0)
    assert result.printed("loss scale")[-1] == 2**16
    activations = 2 * shape.seq * shape.hidden
    # One layer on this stage, two micro-batches; recomputation repeats the forward pass.
    assert found[Message("AllGather", 2, activations)] == 2 * (8 + 1)  # and the embedding's backward
    assert found[Message("ReduceScatter", 2, activations)] == 2 * (6 + 1)
    own = matmul_parameters(shape, output=False) / 2
    data_parallel = {m: n for m, n in found.items() if m.bytes != activations and m.bytes > 1_000_000}
    of_stage = (own + shape.vocab * shape.hidden) / 2 + 2 * shape.hidden
    for kind, width in (("ReduceScatter", 4), ("AllGather", 2)):
        moved = sum(m.bytes * n for m, n in data_parallel.items() if m.kind == kind and m.group == 2)
        assert moved == pytest.approx(width * of_stage, rel=1e-3)
    expected = 8 * own * shape.seq * 2 + attention_flops(shape, 2, passes=4.5) / 2
    assert result.flops(0) == pytest.approx(expected / 2, rel=0.01)


def test_context_parallel(tmp_path: Path) -> None:
    """Llama 3 70B, CP2 x TP2: keys and values are gathered, their gradients scattered."""
    result = pretrain(
        tmp_path,
        "1x4xH100",
        "llama3-70b",
        "--cp",
        "2",
        "--tp",
        "2",
        "--sequence-parallel",
        layers=1,
        seq=4096,
        sequences=1,
    )
    shape, found = result.shape, result.messages(0)
    keys = 2 * shape.seq * shape.kv_heads * shape.head_dim // 2
    assert found[Message("AllGather", 2, keys)] == 2 * shape.layers
    assert found[Message("ReduceScatter", 2, keys)] == 2 * shape.layers
    # Chunks 0 and 3 of four: a quarter of the queries each, with one and four quarters of the keys.
    attention = attention_flops(shape, 1) / 2 * (1 + 4) / 16
    assert result.flops(0) == pytest.approx(6 * matmul_parameters(shape) * shape.seq / 4 + attention, rel=0.01)


def test_experts(tmp_path: Path) -> None:
    """Mixtral 8x7B, EP4 in DP4: each rank's tokens go to all ranks in equal parts, there and back, and so do
    gradients; what is no expert's is summed over the replicas next to the backward pass."""
    result = pretrain(tmp_path, "1x4xH100", "mixtral-8x7b", "--ep", "4", "--overlap-grad-reduce", sequences=4)
    shape, found = result.shape, result.messages(2)
    routed = 2 * shape.seq * shape.top_k * shape.hidden  # bytes of one rank's (token, choice) pairs
    assert "tokens per expert: balanced" in result.run.err + result.run.out
    exchanged = {m: n for m, n in found.items() if m.kind == "SendRecv" and m.bytes > 100_000}
    assert exchanged == {Message("SendRecv", 4, 2 * routed): 4 * shape.layers}  # sent and received
    assert result.flops(2) == pytest.approx(model_flops(shape, 1), rel=0.01)
    # Dense and expert parameters have an optimizer each: its two steps are one of the run.
    assert len(analyze(open_log(result.run.log), details=False).steps) == ITERATIONS


def test_uneven_experts_are_not_folded(tmp_path: Path) -> None:
    """Rank 2 of four is no process, and has the wanted experts; the dispatcher that gathers everything exchanges no
    counts by which this would show."""
    (tmp_path / "routing.json").write_text(json.dumps({"*": [1, 1, 1, 1, 5, 5, 1, 1]}))
    command = str(SAMPLES / "megatron" / "pretrain_gpt.py")
    refused = trace(
        tmp_path,
        "--cluster",
        "1x4xH100",
        *OPTIONS,
        "--moe-routing",
        "routing.json",
        "--fold",
        "dp=4",
        command,
        "--model",
        "mixtral-8x7b",
        "--num-layers",
        "1",
        "--seq-length",
        "512",
        "--train-iters",
        "1",
        "--ep",
        "4",
        "--global-batch-size",
        "4",
        "--moe-token-dispatcher-type",
        "allgather",
        check=False,
    )
    assert refused.status != 0
    assert "share experts that --moe-routing loads unequally, and rank 2 is folded" in refused.err


def test_uneven_experts(tmp_path: Path) -> None:
    """Qwen3 30B-A3B, TP2 and EP2 on the same ranks: the experts of one are wanted three times as much."""
    (tmp_path / "routing.json").write_text(json.dumps({"0": [3] * 64 + [1] * 64}))
    result = pretrain(
        tmp_path,
        "1x2xH100",
        "qwen3-30b-a3b",
        "--tp",
        "2",
        "--ep",
        "2",
        "--etp",
        "1",
        "--sequence-parallel",
        layers=1,
        sequences=1,
        options=("--moe-routing", "routing.json"),
    )
    shape = result.shape
    dense = replace(shape, top_k=0, ffn=0, experts=0)
    router = 6 * shape.hidden * shape.experts * shape.seq / 2
    rest = [result.flops(rank) - model_flops(dense, 1) / 2 - router for rank in range(2)]
    experts = 6 * 3 * shape.hidden * shape.ffn * shape.top_k * shape.seq
    assert rest == [pytest.approx(experts * share, rel=0.01) for share in (0.75, 0.25)]
    activations = 2 * shape.seq * shape.hidden
    sent = activations // 2 * shape.top_k
    for rank, received in enumerate((3 * sent // 2, sent // 2)):
        found = result.messages(rank)
        assert found[Message("SendRecv", 2, sent + received)] == 4 * shape.layers
        assert found[Message("AllGather", 2, activations)] == 3 * shape.layers + 3  # of attention, as above
        assert found[Message("ReduceScatter", 2, activations)] == 2 * shape.layers + 2


def test_checkpoint_local_attention(tmp_path: Path) -> None:
    """Megatron's own attention with its selective recomputation; a distributed checkpoint."""
    result = pretrain(
        tmp_path,
        "1x2xH100",
        "toy",
        "--tp",
        "2",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--attention",
        "local",
        "--recompute-granularity",
        "selective",
        "--save",
        "checkpoint",
        sequences=1,
    )
    shape = result.shape
    products = 6 * matmul_parameters(shape) * shape.seq + attention_flops(shape, 1, passes=1 + 1 + 2)
    assert result.flops(0) == pytest.approx(products / 2, rel=0.01)
    saved = sum(path.stat().st_size for path in (tmp_path / "checkpoint").glob("*.distcp"))
    # bf16 parameters; fp32 master parameters and both moments of the optimizer
    assert saved == pytest.approx(shape.parameters * (2 + 12), rel=0.05)
