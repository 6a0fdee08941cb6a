"""CUDA graphs with real torch: captured steps against eager ones, values, NCCL, torch.compile's graph trees."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support import runs

STEP = """
import torch, torch.nn as nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
x = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16)
def step():
    optimizer.zero_grad(set_to_none=True)
    model(x).float().pow(2).mean().backward()
    optimizer.step()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3): step()
torch.cuda.synchronize()
"""
# The graph's memory is new at its first replay: L2 contains none of it.
EAGER = STEP + "with torch.cuda.stream(side): step(); step()\ntorch.cuda.synchronize()\n"
CAPTURED = (
    STEP
    + """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side): step()
for _ in range(2): graph.replay()
torch.cuda.synchronize()
"""
)


def run(directory: Path, name: str, program: str, cluster: str = "1x1xH100") -> runs.Run:
    directory = directory / name
    directory.mkdir()
    (directory / "program.py").write_text(program)
    return runs.trace(directory, "--cluster", cluster, "program.py")


def kernels(log: Path) -> list[tuple[str, str, int]]:
    found = [
        row for kind in ("kernel", "memcpy", "memset") for row in runs.records(log, kind, "name", "op", "start", "end")
    ]
    return [(row["name"], row["op"], row["end"] - row["start"]) for row in sorted(found, key=lambda row: row["start"])]


def test_a_captured_step_does_what_an_eager_one_does(tmp_path: Path) -> None:
    eager = kernels(run(tmp_path, "eager", EAGER).log)
    captured = kernels(run(tmp_path, "captured", CAPTURED).log)
    forward = [i for i, (_, op, _) in enumerate(eager) if op == "aten::native_layer_norm"]
    step = forward[-1] - forward[-2]  # kernels of one of the equal steps
    assert 0 <= len(captured) - len(eager) <= 4, "a replay launches what a step does, and at most the generator's fills"
    assert sorted(item[:2] for item in captured[-step:]) == sorted(item[:2] for item in eager[-step:])
    times = [sum(ns for _, _, ns in rows[-step:]) for rows in (eager, captured)]
    assert times[1] == pytest.approx(times[0], rel=0.02)


VALUES = """
import json, torch
a = torch.zeros(4, device="cuda"); b = torch.arange(4.0, device="cuda"); big = torch.ones(1 << 20, device="cuda")
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    a.add_(1); c = a * 2 + b; d = torch.rand(4, device="cuda"); e = big.sum(); f = c.argmax()
out = [a.tolist()]
seen = []
for _ in range(3):
    graph.replay(); out.append([a.tolist(), c.tolist(), e.item(), f.item()]); seen.append(d.tolist())
torch.cuda.manual_seed(7); graph.replay(); first = d.tolist()
torch.cuda.manual_seed(7); graph.replay(); second = d.tolist()
torch.cuda.manual_seed(7); eager = torch.rand(4, device="cuda").tolist()
print(json.dumps({"out": out, "random": seen, "same": first == second == eager}))
"""


def test_small_values_are_computed_at_each_launch(tmp_path: Path) -> None:
    report = run(tmp_path, "values", VALUES).report()
    assert report["out"][0] == [0.0] * 4
    for i, (a, c, large, place) in enumerate(report["out"][1:], 1):
        assert a == [float(i)] * 4
        assert c == [2.0 * i + k for k in range(4)]
        assert large == 0.0 and place == 3
    assert all(0 <= v < 1 for numbers in report["random"] for v in numbers)
    assert report["random"][0] != report["random"][1] and report["same"]


NCCL = """
import json, os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); dist.init_process_group("nccl")
rank = dist.get_rank()
small = torch.full((4,), float(rank + 1), device="cuda"); large = torch.ones(1 << 22, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    dist.all_reduce(small.clone()); dist.all_reduce(large)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    out = small * 1; dist.all_reduce(out); dist.all_reduce(large); after = out + 1
for _ in range(3): graph.replay()
torch.cuda.synchronize()
small.fill_(10.0); graph.replay()
if rank == 0: print(json.dumps({"after": after.tolist()}), flush=True)
dist.destroy_process_group()
"""


def test_collectives_of_a_graph(tmp_path: Path) -> None:
    done = run(tmp_path, "nccl", NCCL, "1x2xH100")
    assert done.report()["after"] == [21.0] * 4
    large = [row for row in runs.records(done.log, "collective", "bytes") if row["bytes"] == 4 << 22]
    assert len(large) == 2 * (1 + 4)


COMPILED = """
import json, torch, torch.nn as nn
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
forward = torch.compile(model, mode="reduce-overhead")
x = torch.randn(64, 256, device="cuda")
for _ in range(5):
    forward(x).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
torch.cuda.synchronize()
print(json.dumps({"done": True}))
"""


def test_graph_trees_of_torch_compile(tmp_path: Path) -> None:
    done = run(tmp_path, "compiled", COMPILED)
    assert done.report() == {"done": True}
    assert "cudaGraphLaunch" in {row["op"] or row["name"] for row in runs.records(done.log, "operator", "op", "name")}


CALLABLES = """
import json, numpy as np, torch, torch.nn as nn
from phantora.rank.shims.values import write
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
graphed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 64, device="cuda", requires_grad=True),))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    graphed(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
large, graph = torch.rand(64, 64, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    chosen = large > 0.5
    write(chosen, np.tri(64))
counts = []
for _ in range(2):
    chosen.zero_(); graph.replay(); counts.append(chosen.sum(dim=0).tolist())
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()): torch.ones(1, device="cuda").item()
    error = ""
except Exception as caught: error = str(caught).splitlines()[0]
after = torch.ones(2, device="cuda").sum().item() > 0
print(json.dumps({"error": error, "after": after, "counts": counts}))
"""


def test_graphed_callables_and_life_after_an_error(tmp_path: Path) -> None:
    """The values that a shim gives to a captured result are there after each launch."""
    report = run(tmp_path, "callables", CALLABLES).report()
    assert "captur" in report["error"] and report["after"]
    assert report["counts"] == [list(range(64, 0, -1))] * 2


def test_spin_kernels_take_the_cycles_asked_for(tmp_path: Path) -> None:
    program = (
        "import json, torch\n"
        "s, e = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "s.record(); torch.cuda._sleep(2_000_000_000); e.record(); e.synchronize()\n"
        "print(json.dumps({'ms': s.elapsed_time(e)}))\n"
    )
    assert run(tmp_path, "spin", program).report()["ms"] == pytest.approx(2e6 / 1980, rel=0.02)


def test_the_sample(tmp_path: Path) -> None:
    done = runs.trace(
        tmp_path, "--cluster", "1x1xH100", str(runs.SAMPLES / "graphed.py"), "--layers", "2", "--steps", "3"
    )
    report = done.report()
    assert report["steps"] == 3 and 0 < report["replayed_ms"] < report["eager_ms"]


CHAINS = """
import torch
side = torch.cuda.Stream()
def chain():
    for _ in range(40):
        torch.cuda._sleep(10_000)
def ladder():
    for _ in range(20):
        torch.cuda._sleep(10_000)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000)
        torch.cuda.current_stream().wait_stream(side)
for body in (chain, ladder):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    torch.cuda.synchronize()
"""


def test_an_edge_between_streams_of_a_graph_costs_what_one_on_a_stream_does(tmp_path: Path) -> None:
    """As on an H100 (validation/measurements/2026-11-22-h100/graphs.jsonl: `graph_us`, `crossing_us`)."""
    log = run(tmp_path, "chains", CHAINS).log
    rows = sorted(runs.records(log, "kernel", "name", "start", "end"), key=lambda row: row["start"])
    spins = [row for row in rows if "spin" in row["name"]]
    assert len(spins) == 80
    gaps = [after["start"] - before["end"] for before, after in itertools.pairwise(spins)]
    assert set(gaps[:39]) == set(gaps[40:]) and min(gaps) > 0
