"""A plugin of pytest: writes a line of JSON to PEERS_OUTCOMES when a test begins and when it ends, and leaves out the
tests that began before, so that a run that crashed or hung can go on behind the test at which it stopped.

Runs one class of tests, unless PEERS_TOGETHER is set: where one uses a GPU in this process and the next in children of
it, they would be two processes on one GPU, which Phantora refuses. With PEERS_RANKS each rank writes a file of its own,
which the runner adds to that of all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from torch.multiprocessing import get_context

BEFORE = Path(os.environ["PEERS_OUTCOMES"])
"""File of earlier outcomes."""
OUTCOMES = BEFORE.with_suffix(f".rank{os.environ['RANK']}.jsonl") if os.environ.get("PEERS_RANKS") else BEFORE
WANTED = Path(os.environ["PEERS_WANTED"]) if "PEERS_WANTED" in os.environ else None
"""A file that names the tests to run, one a line; all without it."""
if os.environ.get("PEERS_FORK"):  # the processes of a test come from a server that has imported these
    forkserver = get_context("forkserver")
    forkserver.set_forkserver_preload(os.environ["PEERS_FORK"].split(","))
began: dict[str, bool] = {}
"""By test: True if it has an outcome."""


def write(test: str, outcome: str, text: str = "") -> None:
    with OUTCOMES.open("a") as out:
        out.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")


def name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


@pytest.hookimpl(trylast=True)  # after pytest's own -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    helpers = sys.modules.get("torch.testing._internal.common_distributed")
    if helpers and os.environ.get("PEERS_FORK"):
        helpers.MultiProcessTestCase._spawn_processes = lambda test: test._start_processes(forkserver.Process)
    before = {json.loads(line)["test"] for line in BEFORE.read_text().splitlines()} if BEFORE.exists() else set()
    wanted = set(WANTED.read_text().split()) if WANTED else None
    left = [i for i in items if name(i.nodeid) not in before and (wanted is None or name(i.nodeid) in wanted)]
    items[:] = left if os.environ.get("PEERS_TOGETHER") else [i for i in left if i.parent is left[0].parent]


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("PEERS_RANKS"):  # a rank that fails would end the others, which may be at their last tests
        session.exitstatus = 0
