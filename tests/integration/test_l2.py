"""L2 residency of the operands of real torch operators."""

from __future__ import annotations

from pathlib import Path

from tests.support import runs

SETUP = """
import torch
x, y = (torch.ones(2 << 20, device="cuda") for _ in "xy")         # 8 MiB each
large = torch.ones(64 << 20, device="cuda")                       # 256 MiB
small = torch.ones(2 << 20, device="cuda")                        # 8 MiB
def first(): torch.mul(x, 2.0, out=y)
"""
TURNS = """
first(); first()                 # out of memory, then out of L2
large.zero_(); first()           # out of memory again: so much has come in between
small.zero_(); first()           # out of L2: little has come in between
"""
CAPTURED = """
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    first(); first(); large.zero_()
graph.replay(); graph.replay()
torch.cuda.synchronize()
"""


def times(directory: Path, program: str) -> list[int]:
    """Times of the products, in order."""
    (directory / "program.py").write_text(program)
    log = runs.trace(directory, "--cluster", "1x1xH100", "program.py").log
    found = sorted(runs.records(log, "kernel", "op", "start", "end"), key=lambda row: row["start"])
    return [row["end"] - row["start"] for row in found if str(row["op"]).startswith("aten::mul")]


def test_what_was_touched_a_moment_ago_is_faster(tmp_path: Path) -> None:
    fresh, again, old, young = times(tmp_path, SETUP + "large.zero_()\n" + TURNS)
    assert again < 0.8 * fresh
    assert old == fresh
    assert young == again


def test_a_graph_touches_at_each_launch_what_its_operators_did(tmp_path: Path) -> None:
    cold, warm, cold_again, warm_again = times(tmp_path, SETUP + "large.zero_()\n" + CAPTURED)
    assert (cold_again, warm_again) == (cold, warm)
    assert warm < 0.8 * cold


def test_residency_is_the_same_in_each_run(tmp_path: Path) -> None:
    logs = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        logs.append(times(tmp_path / name, SETUP + TURNS + CAPTURED))
    assert logs[0] == logs[1]


def test_a_triton_kernels_result_is_in_l2(tmp_path: Path) -> None:
    """A compiled sum writes what the product then reads."""
    program = SETUP + (
        "large.zero_()\n"
        "made = torch.compile(lambda a, b: torch.sin(a) + b)\n"
        "made(x, y); large.zero_()\n"
        "torch.mul(y, 2.0, out=x)\n"  # out of memory
        "large.zero_(); z = made(x, y)\n"
        "torch.mul(y, 2.0, out=x)\n"  # out of L2: the compiled kernel read y
        "torch.cuda.synchronize()\n"
    )
    cold, warm = times(tmp_path, program)
    assert warm < 0.8 * cold


def test_after_reads_an_operator_waits_less_for_memory(tmp_path: Path) -> None:
    """Written lines go to memory before others take their place (docs/costs.md)."""
    program = SETUP + "large.zero_(); first(); large.sum(); first(); first()\nlarge.zero_(); small.sum(); first()\n"
    written, read, resident, between = times(tmp_path, program)
    assert resident < 0.9 * read and read < 0.95 * written
    assert between == written  # 8 MiB of reads are a small share of L2
