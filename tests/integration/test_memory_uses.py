"""What a program has its memory for: parameters, state, data, and what it keeps by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import lines
from phantora.trace.reader import open_log
from tests.support import runs

WIDTH, LAYERS = 2048, 3
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
MODEL = f"""
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})]).cuda()
data = torch.randn(1024, {WIDTH}, device="cuda")
"""
OUTPUT = 1024 * WIDTH * 4
TRAINED = MODEL + "optimizer = torch.optim.AdamW(model.parameters())\n"
STEP = """
    loss = (y := model(data)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
APPENDED = TRAINED + "outs = []\nfor _ in range(9):" + STEP + "    outs.append(y)\n"
ATTRIBUTE = f"""{TRAINED}
class Trainer:
    def __init__(self):
        self.seen = {{}}
    def fit(self):
        for i in range(9):
            {STEP.strip().replace(chr(10) + "    ", chr(10) + " " * 12)}
            self.seen[i] = y.detach()
Trainer().fit()
"""
SUMMED = f"""{TRAINED}
def train():
    total = 0
    for _ in range(9):{STEP.replace(chr(10), chr(10) + "    ").rstrip()}
        total = total + model(data).relu().mean()
train()
"""
LEVEL = TRAINED + "losses = []\nfor _ in range(9):" + STEP + "    losses.append(loss.item())\n"


def report(tmp_path: Path, text: str, *options: str, check: bool = True) -> Report:
    (tmp_path / "train.py").write_text(text)
    return analyze(open_log(runs.trace(tmp_path, *options, "train.py", check=check).log))


def line_of(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


@pytest.mark.parametrize(
    ("text", "words", "name", "bytes_kept"),
    [
        (APPENDED, "outs.append", "(outs) with its graph", OUTPUT),
        (ATTRIBUTE, "self.seen[i]", "(seen)", OUTPUT),
        (SUMMED, "total = total +", "(total) with its graph", LAYERS * OUTPUT),
    ],
)
def test_what_keeps_memory_is_named(tmp_path: Path, text: str, words: str, name: str, bytes_kept: int) -> None:
    found = report(tmp_path, text)
    assert found.growth is not None and found.growth.kept
    assert found.growth.place == f"train.py:{line_of(text, words)} {name}"
    assert found.growth.bytes == pytest.approx(bytes_kept, rel=0.4)


def test_parameters_are_those_of_modules_and_optimizers(tmp_path: Path) -> None:
    found = report(tmp_path, LEVEL)
    assert found.growth is None and found.details is not None
    used = found.details.memory[0].by_category
    assert used["parameters"] == pytest.approx(PARAMETERS, rel=0.01)
    assert used["optimizer"] == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert used["data"] == OUTPUT
    assert used["workspaces"] >= 1 << 20


CACHED = """cache = torch.zeros(8, 0, 2048, device="cuda"), torch.zeros(8, 0, 2048, device="cuda")
caches = [*cache, *cache]
for _ in range(900):
    for i in range(4):
        caches[i] = torch.cat([caches[i], data.view(8, -1, 2048)], 1)
"""


@pytest.mark.parametrize(
    ("loop", "words", "name", "grown"),
    [
        ("total = 0\nfor _ in range(900):\n    total = total + model(data).square().mean()\n", "total +", "total", 3),
        (CACHED, "caches[i] =", "caches", 4),
    ],
)
def test_growth_without_an_optimizer_is_that_of_an_iteration(
    tmp_path: Path, loop: str, words: str, name: str, grown: int
) -> None:
    found = report(tmp_path, MODEL + loop, "--gpu-memory", "2", check=False)
    assert found.growth is not None and found.growth.larger == (name == "caches")
    graph = " with its graph" if name == "total" else ""
    assert found.growth.place == f"train.py:{line_of(MODEL + loop, words)} ({name}){graph}"
    assert found.growth.bytes == grown * OUTPUT


def test_what_a_run_keeps_from_its_start_does_not_grow(tmp_path: Path) -> None:
    text = MODEL + "kept = [torch.empty_like(data) for _ in range(9)]\nfor _ in range(9):\n    data = model(data)\n"
    residual = "    for layer in model:\n        data = data + layer(data)\n"
    found = report(
        tmp_path, text + residual + "torch.empty(1 << 31, device='cuda')\n", "--gpu-memory", "2", check=False
    )
    assert found.growth is None and found.details is not None and found.details.memory[0].failed is not None


def test_a_leak_in_a_run_without_optimizer_ends_in_its_line(tmp_path: Path) -> None:
    text = MODEL + "outs = []\nfor _ in range(900):\n    outs.append(model(data))\n"
    found = report(tmp_path, text, "--gpu-memory", "2", check=False)
    assert found.details is not None and found.details.fit is not None and not found.details.fit.fits
    assert (
        found.growth is not None
        and found.growth.place == f"train.py:{line_of(text, 'outs.append')} (outs) with its graph"
    )
    used = found.details.memory[0].by_category
    assert used["parameters"] == pytest.approx(PARAMETERS, rel=0.01) and used["kept"] > 10 * OUTPUT


def test_a_backward_pass_without_room_names_its_forward_line(tmp_path: Path) -> None:
    text = MODEL + "h = model(data.repeat(40, 1)).relu()\nloss = h.square().mean()\nloss.backward()\n"
    (tmp_path / "train.py").write_text(text)
    found = runs.trace(tmp_path, "--summary", "--gpu-memory", "3", "train.py", check=False)
    last = found.err.strip().splitlines()[-1]
    assert last.startswith(
        f"FAILED: out of memory on rank 0 at train.py:{line_of(text, 'loss.backward')}, in the backward of"
    )
    assert "MiB free; phantora fits says what it needs" in last
    assert "STEP" not in found.err and "HELD UP" not in found.err
    assert found.err.count("run.arrow") == 2  # the title, the end


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
h = data.repeat(8, 1).requires_grad_()
for _ in range(60):
    h = checkpoint(model, h, use_reentrant={reentrant})
"""
NO_GRADIENTS = "with torch.no_grad():\n    torch.stack([model(data.repeat(8, 1)) for _ in range(60)])\n"
EVALUATED = "model.eval()\nx = data.repeat(8, 1)\nfor _ in range(60):\n    x = x + model(x).relu()\n"
LOSS = "logits = (data.repeat(8, 1) @ model[0].weight).repeat(1, 10)\nloss = logits.log_softmax(1).square().exp()\n"


@pytest.mark.parametrize(
    ("text", "holds", "remedy"),
    [
        (CHECKPOINTED.format(reentrant=True), "checkpoints", "torch.autograd.graph.save_on_cpu"),
        (CHECKPOINTED.format(reentrant=False), "checkpoints", "torch.autograd.graph.save_on_cpu"),
        (NO_GRADIENTS, "activations", "a smaller batch"),
        (EVALUATED, "activations", "torch.no_grad()"),
        (LOSS, "activations", "the loss in parts"),
    ],
)
def test_a_remedy_is_one_that_the_run_does_not_have(tmp_path: Path, text: str, holds: str, remedy: str) -> None:
    found = report(tmp_path, MODEL + text, "--gpu-memory", "3", check=False)
    assert found.details is not None and found.details.fit is not None
    assert found.details.memory[0].by_category[holds] > 1 << 30
    assert f"try {remedy}" in found.details.fit.remedy and "activation checkpointing" not in found.details.fit.remedy


def test_states_without_room_are_sharded(tmp_path: Path) -> None:
    """Parameters, gradients and two states of Adam need four times the parameters, before any activation."""
    text = TRAINED.replace(f"range({LAYERS})", "range(12)") + "model(data.repeat(4, 1)).square().mean().backward()\n"
    found = report(tmp_path, text, "--gpu-memory", "1.2", check=False)
    assert found.details is not None and found.details.fit is not None
    assert found.details.memory[0].expected == 12 * PARAMETERS
    assert found.details.fit.remedy.startswith("parameters, gradients and optimizer alone need 768.4 MiB: try sharding")


@pytest.mark.parametrize(("argument", "apart"), [("data", True), ("outs[-1]", False)])
def test_outputs_kept_with_graphs_of_their_own_need_no_checkpoints(tmp_path: Path, argument: str, apart: bool) -> None:
    text = TRAINED + f"outs = [data]\nfor _ in range(900):\n    outs.append(model({argument}))\n"
    found = report(tmp_path, text, "--gpu-memory", "2", check=False)
    assert found.details is not None and found.details.fit is not None
    assert (found.details.memory[0].passes == "activations of passes without a backward") == apart
    assert not apart or "no_grad" in found.details.fit.remedy


ROWS = "import torch\nrows = [torch.zeros(1 << 24, device='cuda') for _ in range(90)]\n"
WEIGHTS = "import torch\nws = [torch.zeros(4096, 4096, device='cuda', requires_grad=True) for _ in range(9)]\n"
PRODUCTS = "x = ws[0]\nwhile True:\n    x = x @ ws[0]\n"
LINEARS = "import torch\ntorch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device='cuda') for _ in range(90)])\n"


@pytest.mark.parametrize(
    ("text", "most"),
    [(ROWS, "data"), (WEIGHTS + PRODUCTS, "activations"), (LINEARS, "parameters")],
    ids=["rows", "weights by hand", "layers"],
)
def test_tensors_without_a_module_or_an_optimizer_are_no_parameters(tmp_path: Path, text: str, most: str) -> None:
    """The error lets go of a list that is being made: what it had is known all the same."""
    found = report(tmp_path, text, "--gpu-memory", "3", check=False)
    assert found.details is not None and found.details.fit is not None
    used, remedy = found.details.memory[0].by_category, found.details.fit.remedy
    assert max(used, key=lambda name: used[name]) == most
    assert ("parameters" in used) == (most == "parameters") == ("FSDP" in remedy)
    assert most != "data" or "data (2.44 GiB, most at train.py:2)" in remedy, remedy


INSIDE_A_LAYER = """
from torch.utils.checkpoint import checkpoint
layer = nn.Sequential(nn.Linear(2048, 65536, bias=False), nn.GELU(), nn.Linear(65536, 2048)).cuda()
h = model(data.repeat({times}, 1))
checkpoint(layer, h, use_reentrant={reentrant}).square().mean().backward()
"""


@pytest.mark.parametrize(
    ("times", "reentrant"), [(6, True), (6, False), (2, False)], ids=["reentrant", "forward", "backward"]
)
def test_a_layer_that_is_checkpointed_is_made_smaller(tmp_path: Path, times: int, reentrant: bool) -> None:
    text = MODEL + INSIDE_A_LAYER.format(times=times, reentrant=reentrant)
    found = report(tmp_path, text, "--gpu-memory", "4", check=False)
    assert found.details is not None and found.details.fit is not None
    fit, (memory,) = found.details.fit, found.details.memory
    assert fit.remedy.startswith("the largest part is activations") and "checkpointing" not in fit.remedy, fit.remedy
    assert memory.by_category.get("gradients", 0) < 1 << 20 and "data" not in fit.holds.split(",")[0]
    words = dict(lines(found))
    assert "FITS" not in words and words["MEMORY"].startswith("activations") and "asked" in words["FAILED"]


def test_remedies_take_less_memory(tmp_path: Path) -> None:
    peaks = {}
    for remedy in ("", "checkpointing", "offload"):
        options = ("--remedy", remedy) if remedy else ()
        args = ("--layers", "4", "--steps", "2", "--batch", "2")
        run = runs.trace(tmp_path, *options, str(runs.SAMPLES / "llama_single.py"), *args)
        report = analyze(open_log(run.log))
        peaks[remedy] = report.ranks[0].gpu.peak_allocated
        told = [one.what.partition(" at ")[0] for one in report.assumptions if "--remedy" in one.what]
        assert told == ([f"4 repeated layers of Llama (--remedy {remedy})"] if remedy else [])
    assert max(peaks["checkpointing"], peaks["offload"]) < 0.9 * peaks[""]


def test_fits_leaves_out_remedies_that_the_run_has(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MODEL + CHECKPOINTED.format(reentrant=False))
    options = ("--cluster", "1x2xH100", "--gpu-memory", "3")
    found = runs.phantora("fits", "-q", *options, "train.py", cwd=tmp_path)
    does_not, advice, *others = found.stdout.splitlines()
    assert does_not.startswith("Does not fit: needs ") and "try torch.autograd.graph.save_on_cpu" in advice
    assert not any("checkpointed layers" in text or "FSDP" in text for text in others)
