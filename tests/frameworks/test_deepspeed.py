"""DeepSpeed from PyPI: every model of its samples, its strategies, its own numbers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.communicators import collective_kind, groups
from phantora.trace.analysis.steps import Step, find_steps
from phantora.trace.reader import open_log
from tests.support.runs import SAMPLES, Run, trace

DEEPSPEED = SAMPLES / "deepspeed"
BF16 = {"bf16": {"enabled": True}}
COMMON = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "steps_per_print": 1,
    "wall_clock_breakdown": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
SEQ, VOCAB, RANKS = 512, 1024, 2


@dataclass
class Seen:
    """The last step of rank 0, and what the run printed."""

    run: Run
    timed: list[Step]
    """Steps that the script times; the first fetches parameters in an order that DeepSpeed still learns."""
    collectives: Counter[tuple[str, int, int]]
    """Counts of (kind, ranks, bytes)."""
    flops: float

    @property
    def seconds(self) -> float:
        return (self.timed[-1].end - self.timed[-1].start) / 1e9

    @property
    def mean_seconds(self) -> float:
        return (self.timed[-1].end - self.timed[0].start) / len(self.timed) / 1e9

    def bytes_of(self, kind: str, ranks: int) -> int:
        """Bytes of all large ones: scalars (norms, overflow flags) are left out."""
        return sum(n * size for (k, r, size), n in self.collectives.items() if (k, r) == (kind, ranks) and size > 64)

    def printed(self, pattern: str) -> list[float]:
        return [float(number) for number in re.findall(r"\[rank0\]: .*" + pattern, self.run.out)]


def see(directory: Path, cluster: str, settings: dict[str, Any] | None, script: str, *arguments: str) -> Seen:
    if settings is not None:
        (directory / "config.json").write_text(json.dumps({**COMMON, **settings}))
        arguments = ("--config", "config.json", *arguments)
    options = ("--hang-timeout", "120", "--cluster", cluster)
    run = trace(directory, *options, str(SAMPLES / script), "--steps", "2", *arguments)
    log = open_log(run.log)
    timed = find_steps(log).of_rank[0][-2:]
    step = timed[-1]
    members = groups(log)
    collectives: Counter[tuple[str, int, int]] = Counter()
    for batch in log.batches(("end", "name", "bytes", "comm"), kinds=("collective", "sendrecv"), ranks=[0]):
        for end, name, size, comm in zip(*(batch[c] for c in ("end", "name", "bytes", "comm")), strict=True):
            if step.start < end <= step.end:
                collectives[collective_kind(log.words("name")[name]), len(members[int(comm)].ranks), int(size)] += 1
    flops = 0.0
    for batch in log.batches(("end", "flops"), kinds=("kernel",), ranks=[0]):
        flops += float(np.nansum(batch["flops"][(batch["end"] > step.start) & (batch["end"] <= step.end)]))
    return Seen(run, timed, collectives, flops)


def check_numbers(seen: Seen, samples: int) -> None:
    """The script's clock, DeepSpeed's timers and the log agree; so does the memory."""
    report = seen.run.report()
    # The log ends a step with its optimizer, the script with all that follows, which costs more at first.
    assert report["step_s"] == pytest.approx(seen.mean_seconds, rel=0.1)
    phases = sum(seen.printed(rf"time \(ms\) \|.* {name}: ([\d.]+)")[-1] for name in ("fwd", "bwd", "step")) / 1e3
    assert 0.75 * seen.seconds < phases < 1.01 * seen.seconds
    # Its throughput leaves out what lies between a step and the next forward pass, its phases all between them.
    throughput = seen.printed(r"CurrSamplesPerSec=([\d.]+)")[-1]
    assert 0.99 * samples / seen.seconds < throughput < 1.02 * samples / phases
    read = seen.run.step_lines()
    assert read.framework == "DeepSpeed" and read.steps[-1].seconds == pytest.approx(samples / throughput)
    summary = analyze(open_log(seen.run.log), details=False)
    assert summary.ranks[0].gpu.peak_allocated == report["max_memory_allocated"]


@dataclass
class Decoder:
    """A model of decoder.py with the shape of its layers, and how it is trained."""

    model: str
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    zero: dict[str, Any]
    layers: int = 1
    accumulate: int = 1
    checkpointing: bool = False
    precision: dict[str, Any] = field(default_factory=lambda: dict(BF16))

    @property
    def layer_weights(self) -> int:
        head = self.hidden // self.heads
        attention = 2 * self.hidden * head * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.ffn

    @property
    def matrices(self) -> int:
        return self.layers * self.layer_weights + 2 * VOCAB * self.hidden

    @property
    def norms(self) -> int:
        return (2 * self.layers + 1) * self.hidden

    def flops(self) -> float:
        """Flops of a step on a rank: 2 per weight and token forward, 4 backward, 2 more if the forward pass is
        repeated, which ends when all that it must restore is there: before a layer's last product. Flash attention: 2
        products forward, 5 backward, of the whole square."""
        repeated = self.checkpointing * (self.layer_weights - self.hidden * self.ffn)
        attention = (14 + 4 * self.checkpointing) * SEQ**2 * self.hidden
        layers = self.layers * ((6 * self.layer_weights + 2 * repeated) * SEQ + attention)
        return float(self.accumulate * (layers + 6 * VOCAB * self.hidden * SEQ))


OVERLAP = {"stage": 3, "overlap_comm": True}
FETCH_TWICE = {
    "stage": 3,
    "overlap_comm": False,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 16}}
DECODERS = [
    Decoder("llama2-7b", 4096, 11008, 32, 32, {"stage": 1}, accumulate=2, precision=FP16),
    Decoder("llama2-13b", 5120, 13824, 40, 40, {"stage": 2, "overlap_comm": True}, checkpointing=True),
    Decoder("llama2-70b", 8192, 28672, 64, 8, OVERLAP),
    Decoder("llama3-8b", 4096, 14336, 32, 8, FETCH_TWICE, layers=2),
    Decoder("llama3-70b", 8192, 28672, 64, 8, {"stage": 2, "overlap_comm": False}, accumulate=2),
]


@pytest.mark.parametrize("case", DECODERS, ids=lambda case: case.model)
def test_decoders(tmp_path: Path, case: Decoder) -> None:
    seen = see(
        tmp_path,
        f"1x{RANKS}xH100",
        {**case.precision, "gradient_accumulation_steps": case.accumulate, "zero_optimization": case.zero},
        "deepspeed/decoder.py",
        "--model",
        case.model,
        "--layers",
        str(case.layers),
        "--vocab",
        str(VOCAB),
        "--seq",
        str(SEQ),
        *["--checkpointing"] * case.checkpointing,
    )
    parameters = case.matrices + case.norms
    assert seen.run.report()["parameters"] == parameters
    assert seen.flops == pytest.approx(case.flops(), rel=0.01)
    check_numbers(seen, case.accumulate * RANKS)
    skipped = seen.printed(r"step=\d+, skipped=(\d+)")
    assert skipped == [0.0] * 4

    gathered = seen.bytes_of("all_gather", RANKS)
    if case.zero["stage"] == 1:  # sums gradients once a step, at the boundary
        assert seen.bytes_of("all_reduce", RANKS) == pytest.approx(2 * parameters, rel=1e-3)
        assert gathered == pytest.approx(2 * parameters, rel=1e-3)
    elif case.zero["stage"] == 2:  # in every micro-batch
        assert seen.bytes_of("all_reduce", RANKS) == pytest.approx(2 * parameters * case.accumulate, rel=1e-3)
        assert gathered == pytest.approx(2 * parameters, rel=1e-3)
    else:
        assert seen.bytes_of("reduce_scatter", RANKS) == pytest.approx(2 * parameters, rel=1e-3)
        twice = case.zero is FETCH_TWICE  # forward and backward; small parameters stay once they are there
        assert gathered == pytest.approx(2 * case.norms + (4 if twice else 2) * case.matrices, rel=0.02)


def test_gpt_oss(tmp_path: Path) -> None:
    """The experts' products have one row for each token and choice, evenly spread or not."""
    hidden, heads, kv_heads, head, experts, top_k = 2880, 64, 8, 64, 32, 4
    seen = see(
        tmp_path,
        "1x2xH100",
        {**BF16, "zero_optimization": {"stage": 2}},
        "deepspeed/decoder.py",
        "--model",
        "gpt-oss-20b",
        "--layers",
        "1",
        "--vocab",
        str(VOCAB),
        "--seq",
        str(SEQ),
    )
    attention = 2 * hidden * head * (heads + kv_heads)
    weights = attention + hidden * experts + top_k * 3 * hidden * hidden + VOCAB * hidden
    # Attention with sinks is written out: 2 products forward, 4 backward.
    assert seen.flops == pytest.approx(6 * weights * SEQ + 12 * SEQ**2 * heads * head, rel=0.01)
    assert "tokens per expert: balanced" in seen.run.err + seen.run.out
    parameters = seen.run.report()["parameters"]
    assert seen.bytes_of("all_reduce", 2) == pytest.approx(2 * parameters, rel=1e-3)
    check_numbers(seen, 2)


def test_pipeline(tmp_path: Path) -> None:
    """Two stages times two replicas, 1F1B: each micro-batch crosses the boundary once each way."""
    micro, hidden, layers = 2, 4096, 2
    seen = see(
        tmp_path,
        "1x4xH100",
        None,
        "deepspeed/pipeline.py",
        "--model",
        "llama2-7b",
        "--layers",
        str(layers),
        "--vocab",
        str(VOCAB),
        "--stages",
        "2",
        "--seq",
        str(SEQ),
        "--accumulate",
        str(micro),
    )
    crossings = Counter({size: n for (kind, _, size), n in seen.collectives.items() if kind == "send_recv"})
    assert crossings == {SEQ * hidden * 2: 2 * micro}
    vocabulary, layer = VOCAB * hidden, 4 * hidden**2 + 3 * hidden * 11008
    of_stage = vocabulary + layer + 2 * hidden  # the first: embedding and one layer
    assert seen.bytes_of("all_reduce", 2) == pytest.approx(2 * of_stage, rel=1e-3)
    assert seen.bytes_of("all_gather", 2) == pytest.approx(2 * of_stage, rel=1e-3)
    assert seen.flops == pytest.approx(micro * (6 * layer * SEQ + 14 * SEQ**2 * hidden), rel=0.01)
    assert seen.printed(r"iter time \(s\): ([\d.]+)")[-1] == pytest.approx(seen.seconds, rel=0.05)
    assert seen.run.report()["parameters"] == 2 * vocabulary + layers * (layer + 2 * hidden) + hidden


def products(build: Callable[[], Any], *inputs: tuple[int, ...]) -> float:
    """Forward, input-gradient and weight-gradient flops of a model's convolutions and linear layers, from
    the shapes that pass through them; the first needs no gradient of its input."""
    import torch

    total, first = 0.0, 0.0

    def count(module: Any, _: Any, output: Any) -> None:
        nonlocal total, first
        weight = module.weight
        if isinstance(module, torch.nn.Conv2d):
            flops = 2.0 * output.numel() * weight[0].numel()
        else:
            flops = 2.0 * output.numel() * weight.shape[1]
        first = first or flops
        total += flops

    with torch.device("meta"):
        model = build()
        for module in model.modules():
            if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
                module.register_forward_hook(count)
        model(*(torch.empty(shape) for shape in inputs))
    return 3 * total - first


def test_resnet(tmp_path: Path) -> None:
    from torchvision.models import resnet50

    seen = see(tmp_path, "1x2xH100", None, "deepspeed/resnet.py", "--batch", "4")
    assert seen.flops == pytest.approx(products(resnet50, (4, 3, 224, 224)), rel=0.01)
    assert seen.run.report()["parameters"] == 25_557_032
    normalisation = 53_120  # parameters that autocast leaves in float32
    reduced = 2 * (25_557_032 - normalisation) + 4 * normalisation
    assert seen.bytes_of("all_reduce", 2) == pytest.approx(reduced, rel=1e-3)
    check_numbers(seen, 8)


def test_unet(tmp_path: Path) -> None:
    from diffusers import UNet2DConditionModel

    def build() -> Any:
        return UNet2DConditionModel(sample_size=64, cross_attention_dim=768, layers_per_block=1, attention_head_dim=8)

    seen = see(tmp_path, "1x2xH100", None, "deepspeed/unet.py", "--batch", "1", "--layers", "1")
    # Spatial transformers by level and width: one down and two up (with --layers 1), one in the middle.
    attention = sum(
        14.0 * width * count * (pixels * pixels + pixels * 77)
        for pixels, width, count in ((4096, 320, 3), (1024, 640, 3), (256, 1280, 3), (64, 1280, 1))
    )
    model = products(build, (1, 4, 64, 64), (1,), (1, 77, 768))
    # Linear layers on the text need no gradient of it, nor does the time embedding: less than 1 %.
    assert seen.flops == pytest.approx(model + attention, rel=0.01)
    parameters = seen.run.report()["parameters"]
    assert seen.bytes_of("all_reduce", 2) == pytest.approx(2 * parameters, rel=1e-3)
    check_numbers(seen, 2)


def test_gat_and_checkpoint(tmp_path: Path) -> None:
    import torch

    nodes, layers, heads, width = 20_000, 2, 8, 1024
    seen = see(
        tmp_path,
        "1x2xH100",
        None,
        "deepspeed/gat.py",
        "--nodes",
        str(nodes),
        "--edges",
        "100000",
        "--layers",
        str(layers),
        "--save",
        "saved",
    )
    first, last = 2.0 * nodes * 100 * width, 2.0 * nodes * width * 47 * heads
    assert seen.flops == pytest.approx(2 * first + 3 * last, rel=0.01)
    check_numbers(seen, 2)
    saved = tmp_path / "saved" / (tmp_path / "saved" / "latest").read_text()
    weights = torch.load(saved / "mp_rank_00_model_states.pt", weights_only=False, map_location="cpu")
    parameters = seen.run.report()["parameters"]
    assert sum(weight.numel() for weight in weights["module"].values()) == parameters
    assert len(list(saved.glob("*optim_states.pt"))) == 2


CLIPPED = """
import torch, deepspeed
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
          "zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"},
          "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}
engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
assert type(engine.optimizer).__name__ == "BF16_Optimizer"
for _ in range(2):
    engine.backward(engine(torch.randn(4, 512, device=engine.device, dtype=torch.bfloat16)).float().pow(2).mean())
    engine.step()
assert float(engine.get_global_grad_norm()) == 0
"""


def test_gradients_of_unknown_norm_are_clipped(tmp_path: Path) -> None:
    """The bfloat16 optimizer compares a norm on the GPU with its limit; the norm that the script reads stays zero."""
    (tmp_path / "clipped.py").write_text(CLIPPED)
    run = trace(tmp_path, "--cluster", "1x2xH100", str(tmp_path / "clipped.py"))
    said = [(a.what.split(" at ")[0], a.times) for a in analyze(open_log(run.log)).assumptions]
    assert ("gradients of unknown norm are clipped", 4) in said  # two steps, two ranks; flags of overflow, too


UNEVEN = """
import os, torch, deepspeed

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)

    def forward(self, x, calls):
        return sum(self.head(self.body(x)) for _ in range(calls)).float().mean()

deepspeed.init_distributed()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
stage = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1}
conf = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": stage,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
net = Net()
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=conf)
loss = engine(torch.randn(4, 256, device="cuda", dtype=torch.bfloat16), 1 + 2 * int(os.environ["RANK"]))
engine.backward(loss)
engine.step()
"""


def test_a_mismatch_of_the_third_stage_names_the_modules(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    run = trace(tmp_path, "--cluster", "1x2xH100", "uneven.py", check=False)
    assert re.search(r"rank 1 calls all_gather .*uneven.py:\d+, ZeRO fetch, module (head|body)\)", run.err)
    assert re.search(r"rank 0 calls \w+ .*uneven.py:\d+, ZeRO \w+, module (head|body)", run.err)
