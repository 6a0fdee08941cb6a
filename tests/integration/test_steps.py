"""Headline and MFU of loops as users write them, against what each loop measures itself in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import lines
from phantora.trace.analysis.why import answer
from phantora.trace.reader import Log, open_log
from tests.support import loops
from tests.support.headline import printed_by_loops, same_headline
from tests.support.runs import trace

# What tells the steps of each loop, and which notes its steps have other than start-up.
EXPECTED: dict[str, tuple[str, set[str]]] = {
    "sync_each_step": ("optimizer", set()),
    "reads_the_loss": ("optimizer", set()),
    "never_synced": ("optimizer", set()),
    "bound_by_the_host": ("optimizer", set()),
    "profiler": ("optimizer", set()),
    "profiler_with_schedule": ("optimizer", set()),
    "gradient_accumulation": ("optimizer", set()),
    "evaluation_in_between": ("optimizer", {"evaluation"}),
    "checkpoint": ("optimizer", {"checkpoint"}),
    "inference": ("pattern", set()),
    "inference_with_a_loader": ("dataloader", set()),
    "inference_annotated": ("annotation request", set()),
    "generate": ("pattern", set()),
    "two_optimizers": ("optimizer", set()),
    "gan": ("optimizer", set()),
    "lbfgs": ("optimizer", set()),
    "by_hand": ("backward", set()),
    "scaled_loss": ("optimizer", set()),
    "gan_of_many_operators": ("optimizer", set()),
    "critic_thrice": ("optimizer", set()),
    "reinforcement": ("optimizer", set()),
    "averaged_weights": ("optimizer", set()),
    "varying_lengths": ("optimizer", set()),
    "frozen_at_first": ("optimizer", set()),
}
assert len(loops.LOOPS) % 6 == 0
assert set(EXPECTED) == {loop.__name__ for loop in loops.LOOPS}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, dict[str, dict[str, Any]]]:
    """All loops at once, each a rank of its own: the log, and by name what the loop printed, with its rank."""
    run = trace(
        tmp_path_factory.mktemp("loops"),
        "--cluster",
        f"{len(loops.LOOPS) // 6}x6xH100",
        "--data-loading",
        "free",  # what is measured differs from step to step
        str(Path(loops.__file__)),
        timeout=590,
    )
    return open_log(run.log), printed_by_loops(run)


def report_of(ran: tuple[Log, dict[str, dict[str, Any]]], loop: str, by: str | None = None) -> Report:
    """Its headline has been compared with what the loop printed."""
    log, printed = ran
    own = printed[loop]
    return same_headline(log, own["seconds"], own["flops"], ranks=frozenset({own["rank"]}), by=by)


@pytest.mark.parametrize("loop", EXPECTED)
def test_headline(ran: tuple[Log, dict[str, dict[str, Any]]], loop: str) -> None:
    report = report_of(ran, loop)
    source, notes = EXPECTED[loop]
    assert report.step_source == source
    assert notes <= set(report.headline.apart) <= {*notes, "start-up", "settling", "waits", "more work", "less work"}


@pytest.mark.parametrize(
    ("loop", "by"), [("never_synced", "pattern"), ("profiler_with_schedule", "profiler"), ("gan", "pattern")]
)
def test_other_marks_tell_the_same_steps(ran: tuple[Log, dict[str, dict[str, Any]]], loop: str, by: str) -> None:
    assert report_of(ran, loop, by).step_source == by


def test_lengths_that_cudnn_has_not_seen_are_named(tmp_path: Path) -> None:
    """cuDNN builds a plan of attention for each new shape, which takes longer than a small step."""
    (tmp_path / "lengths.py").write_text(
        "import torch\n"
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "w = torch.nn.Linear(512, 512, device='cuda', dtype=torch.bfloat16)\n"
        "optimizer = torch.optim.SGD(w.parameters())\n"
        "for length in range(256, 2304, 256):\n"
        "    x = w(torch.randn(4, length, 512, device='cuda', dtype=torch.bfloat16))\n"
        "    q = x.view(4, -1, 8, 64).transpose(1, 2)\n"
        "    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):\n"
        "        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()\n"
        "    optimizer.step()\n"
    )
    found = analyze(open_log(trace(tmp_path, "--cluster", "1x1xH100", "lengths.py").log))
    assert "(most in cuDNN plan of a new shape)" in dict(lines(found))["HELD UP"]
    assert "pad to a few lengths" in dict(answer(found))["NEXT"]


def test_a_batch_that_the_cpu_draws_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(
        "import torch\n"
        "w = torch.nn.Linear(1024, 1024, device='cuda')\n"
        "for _ in range(8):\n"
        "    x = torch.randn(64, 3, 224, 224)\n"
        "    w(torch.ones(64, 1024, device='cuda')).sum().item()\n"
    )
    found = analyze(open_log(trace(tmp_path, "--cluster", "1x1xH100", "drawn.py").log))
    assert "(most in CPU operators at drawn.py:4 (normal_))" in dict(lines(found))["HELD UP"]
    assert "OMP_NUM_THREADS" in dict(answer(found))["NEXT"]
    drawn = next(row for row in found.host_operators if row.name == "CPU operators at drawn.py:4 (normal_)")
    assert drawn.count == 8 and drawn.time is not None and drawn.time > 0.5 * found.steady.time


def test_an_optimizer_on_the_cpu_and_copies_to_it_are_named(tmp_path: Path) -> None:
    (tmp_path / "offloaded.py").write_text(
        "import torch\n"
        "w = torch.nn.Linear(4096, 4096, device='cuda')\n"
        "copy = [p.detach().cpu().requires_grad_() for p in w.parameters()]\n"
        "optimizer = torch.optim.Adam(copy, foreach=False)\n"
        "for _ in range(5):\n"
        "    w(torch.ones(64, 4096, device='cuda')).sum().backward()\n"
        "    for c, p in zip(copy, w.parameters()):\n"
        "        c.grad, p.grad = p.grad.cpu(), None\n"
        "    optimizer.step()\n"
    )
    found = analyze(open_log(trace(tmp_path, "--cluster", "1x1xH100", "offloaded.py").log))
    waits = {wait.name: wait.time for wait in found.host_waits}
    assert {"Optimizer.step on the CPU", "aten::copy_"} <= set(waits)
    assert "the GPU waits for the host, most in" in " ".join(found.details.findings if found.details else [])
    assert "keep the optimizer's state on the GPU" in dict(answer(found))["NEXT"]


def test_layers_of_a_loop_without_optimizer_are_no_steps(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(
        "import torch\n"
        "layer = torch.nn.TransformerEncoderLayer\n"
        "model = torch.nn.Sequential(*(layer(256, 4, batch_first=True, device='cuda') for _ in range(12)))\n"
        "for _ in range(3):\n"
        "    model(torch.randn(8, 64, 256, device='cuda')).square().mean().backward()\n"
    )
    found = analyze(open_log(trace(tmp_path, "--cluster", "1x1xH100", "layers.py").log))
    assert found.step_source == "backward" and len(found.steps) == 3
