"""A plugin of pytest: writes a line of JSON to PEERS_OUTCOMES when a test begins and when it ends, and leaves out the
tests that began before, so that a run that crashed or hung can go on behind the test at which it stopped.

Runs one class of tests: where one uses a GPU in this process and the next in children of it, they would be two
processes on one GPU, which Phantora refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from torch.multiprocessing import get_context
from torch.testing._internal.common_distributed import MultiProcessTestCase

OUTCOMES = Path(os.environ["PEERS_OUTCOMES"])
WANTED = Path(os.environ["PEERS_WANTED"]) if "PEERS_WANTED" in os.environ else None
"""A file that names the tests to run, one a line; all without it."""
if os.environ.get("PEERS_FORK") == "1":  # the processes of a test come from a server that has imported torch
    forkserver = get_context("forkserver")
    # Not torch's test helpers: they ask for GPUs, and torch then refuses to be forked.
    forkserver.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch._dynamo"])
    MultiProcessTestCase._spawn_processes = lambda test: test._start_processes(forkserver.Process)
began: dict[str, bool] = {}
"""By test: does it have an outcome?"""


def write(test: str, outcome: str, text: str = "") -> None:
    with OUTCOMES.open("a") as out:
        out.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")


def name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


@pytest.hookimpl(trylast=True)  # after pytest's own -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = {json.loads(line)["test"] for line in OUTCOMES.read_text().splitlines()} if OUTCOMES.exists() else set()
    wanted = set(WANTED.read_text().split()) if WANTED else None
    left = [i for i in items if name(i.nodeid) not in before and (wanted is None or name(i.nodeid) in wanted)]
    items[:] = [i for i in left if i.parent is left[0].parent]


def pytest_runtest_logstart(nodeid: str) -> None:
    began[nodeid] = False
    write(name(nodeid), "began")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if began.get(report.nodeid):
        return
    if report.failed:
        outcome = "failed"
    elif report.skipped:
        outcome = "skipped"
    elif report.when == "teardown":
        outcome = "passed"
    else:
        return
    began[report.nodeid] = True
    # What processes of the test have said stands on their stderr.
    ours = [line for line in report.capstderr.splitlines() if line.startswith("phantora: ")]
    text = "\n".join([report.longreprtext[-6000:], *ours[-20:]])
    write(name(report.nodeid), outcome, text if outcome != "passed" else "")
