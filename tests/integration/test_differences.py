"""First causes of `phantora diff`, for real steps that differ by one change."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import Filters
from phantora.trace.diff.causes import find_causes
from phantora.trace.diff.compare import Side, compare, gather
from phantora.trace.reader import Log, open_log
from tests.support import variants
from tests.support.runs import trace

CHANGES = list(variants.VARIANTS)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """All variants at once, each a rank of its own."""
    hosts, rest = divmod(len(CHANGES), 5)
    assert not rest
    run = trace(
        tmp_path_factory.mktemp("variants"), "--cluster", f"{hosts}x5xH100", str(Path(variants.__file__)), timeout=300
    )
    return open_log(run.log)


@pytest.fixture(scope="module")
def first(log: Log) -> Side:
    return gather(log, Filters(ranks=frozenset({0})))


@pytest.mark.parametrize("rank", range(1, len(CHANGES)))
def test_what_changed_is_named_first(log: Log, first: Side, rank: int) -> None:
    other = gather(log, Filters(ranks=frozenset({rank})))
    cause = find_causes(first, other, compare(first, other))[0]
    assert cause.text.startswith(CHANGES[rank])
    back = find_causes(other, first, compare(other, first))[0]
    assert back.kind == cause.kind


LAUNCHED = """
import sys, torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(9)]).cuda()
optimizer, x = torch.optim.SGD(model.parameters(), 0.1), torch.randn(64, 256, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=False)
    model(x).sum().backward()
    optimizer.step()
if sys.argv[1:] == ["graph"]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    step = graph.replay
for _ in range(8):
    step()
    torch.cuda.synchronize()
"""
SCALED = """
import torch
model = torch.nn.Linear(2048, 2048).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda")
for _ in range(10):
    scaler.scale(model(torch.randn(512, 2048, device="cuda")).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("text", "options", "arguments", "named"),
    [
        (LAUNCHED, (), ("graph",), "work launched as CUDA graphs"),
        (SCALED, ("--assume", "overflow=4"), (), "GradScaler skips no step -> 4 steps"),
    ],
    ids=["graphs", "scaler"],
)
def test_what_one_run_alone_has_is_named(
    tmp_path: Path, text: str, options: tuple[str, ...], arguments: tuple[str, ...], named: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    sides = []
    for name, words in (("a", ("train.py",)), ("b", (*options, "train.py", *arguments))):
        trace(tmp_path, "-o", f"{name}.arrow", *words)
        sides.append(gather(open_log(tmp_path / f"{name}.arrow"), Filters()))
    a, b = sides
    assert named in [cause.text for cause in find_causes(a, b, compare(a, b))]
