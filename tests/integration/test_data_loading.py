"""--data-loading with torch's own DataLoader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.runs import trace

START_MS = 32  # of a worker, in each epoch of 12 batches without persistent workers

PROGRAM = """
import json, time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

def burn():
    end = time.process_time() + 0.001
    while time.process_time() < end: pass
    return torch.ones(8)

class Map(Dataset):
    def __len__(self): return 24
    def __getitem__(self, index): return burn()

class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(12): yield burn()

def main():
    weight = torch.ones(8, device="cuda", requires_grad=True)
    times = {}
    for name, loader in {
        "script": DataLoader(Map(), 2),
        "one": DataLoader(Map(), 2, num_workers=1, pin_memory=True),
        "two": DataLoader(Map(), 2, num_workers=2, persistent_workers=True),
        "stream": DataLoader(Stream(), 2, num_workers=2),
    }.items():
        for epoch in range(2):
            began, batches = time.perf_counter(), 0
            for batch in loader:
                (batch.cuda() * weight).sum().backward()
                batches += 1
            torch.cuda.synchronize()
            times[name] = (time.perf_counter() - began) / batches * 1e3
    print(json.dumps(times))

main()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading") / "loading.py"
    path.write_text(PROGRAM)
    return path


def test_a_given_time_is_what_batches_take(script: Path) -> None:
    run = trace(script.parent, "--data-loading", "40ms", script.name)
    times = run.report()
    assert times["script"] == pytest.approx(40, rel=0.05)
    assert times["one"] == pytest.approx(40 + START_MS / 12, rel=0.05)
    assert times["two"] == pytest.approx(20, rel=0.05)
    assert times["stream"] == pytest.approx(20 + 2 * START_MS / 12, rel=0.05)
    assert "note" not in run.err


def test_free_batches_are_said_to_be_free(script: Path) -> None:
    run = trace(script.parent, "--force", "--data-loading", "free", script.name)
    times = run.report()
    assert max(times.values()) < 4 + 2 * START_MS / 12  # what the script makes of a batch
    assert "the script takes" in run.err and "one of 2 workers takes" in run.err
    assert "batch of Map" in run.err and "batch of Stream" in run.err


def test_batches_count_by_default_if_the_script_waits_for_them(script: Path) -> None:
    """A batch takes 2 ms of CPU here, scaled to the simulated host, which is no faster than half of this one."""
    run = trace(script.parent, "--force", script.name)
    times = run.report()
    assert min(times["script"], times["one"]) > 1 and "the step waits for its data: the worker takes" in run.err
    assert times["two"] < times["one"]


WORKERS = """
import os, torch
loader = torch.utils.data.DataLoader(torch.arange(8), 2, num_workers=os.cpu_count() + 1)
torch.cuda.synchronize()
print(len(loader))
"""


def test_workers_are_not_compared_with_this_machine(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    run = trace(tmp_path, "workers.py")
    assert run.out == "4\n" and "suggested max number of worker" not in run.err


BETWEEN = """
import sys, time, torch
weight = torch.ones(8, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(8):
    end = time.thread_time() + float(sys.argv[1])
    while time.thread_time() < end: pass
    weight.square().sum().backward()
    optimizer.step()
"""


def test_work_of_the_script_between_calls_is_told(tmp_path: Path) -> None:
    (tmp_path / "between.py").write_text(BETWEEN)
    run = trace(tmp_path, "between.py", "0.03")
    found = re.search(r"note: code of the script .* takes (\d+(\.\d+)?) ms of this machine's CPU", run.err)
    assert found is not None and 28 < float(found[1]) < 40, run.err
    assert "note: code of the script" not in trace(tmp_path, "between.py", "0").err
