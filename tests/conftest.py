"""Shared fixtures: the libraries are built once per test session. Tiers: a marker for each folder."""

from __future__ import annotations

import gc
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from phantora import stubs
from phantora.errors import PhantoraError
from phantora.launch import daemon
from phantora.launch.shared_forkserver import VARIABLE, WarmServer
from tests.support.fakeranks import Bench
from tests.support.runs import SERVER

settings.register_profile("phantora", deadline=None)  # a busy machine is no failure
settings.load_profile("phantora")

TIERS = {
    "unit": "unit",
    "trace": "unit",
    "stubs": "tools",
    "readers": "tools",
    "view": "tools",
    "cuda": "ranks",
    "integration": "ranks",
    "frameworks": "frameworks",
}
"""Tiers by folder: `unit` needs neither a rank nor other programs, `tools` calls compilers, browsers and readers of
traces, `ranks` runs torch under the simulator, `frameworks` runs Megatron, DeepSpeed and others."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """The libraries are built before the workers begin: those would wait for each other."""
    if not hasattr(session.config, "workerinput"):
        with suppress(PhantoraError):  # tests that need them fail with the reason
            stubs.ensure()
        server = WarmServer(kept=8)  # two workers run files that want different ones
        os.environ[SERVER] = server.path  # the workers' too
        os.environ[daemon.VARIABLE] = "0"
        session.config.add_cleanup(server.close)


def pytest_collection_finish() -> None:
    """Tests parse and import much, and each full collection went through all modules and items."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as of `phantora`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(TIERS[item.path.relative_to(here).parts[0]])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the time of each tier, all workers together."""
    spent: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    every = (report for reports in terminalreporter.stats.values() for report in reports)
    for report in (report for report in every if isinstance(report, pytest.TestReport)):
        tier = TIERS.get(Path(report.nodeid.removeprefix("tests/")).parts[0])
        if tier is not None:
            spent[tier] += report.duration
            tests[tier] += report.when == "call"
    for tier in dict.fromkeys(TIERS.values()):
        if tests[tier]:
            terminalreporter.write_line(f"{tier}: {tests[tier]} tests, {spent[tier]:.0f} s of workers")


@pytest.fixture(scope="session")
def stub_set() -> stubs.StubSet:
    return stubs.ensure()


@pytest.fixture(scope="session")
def engine_library(stub_set: stubs.StubSet) -> Path:
    return stub_set.engine


@pytest.fixture
def shared_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that this test starts by `phantora.api` take the fork server of all tests."""
    monkeypatch.setenv(VARIABLE, os.environ[SERVER])


@pytest.fixture
def make(engine_library: Path) -> Callable[[int], Bench]:
    """Makes a bench with an engine, for 1 rank or the number given."""

    def made(world: int = 1) -> Bench:
        return Bench.create(engine_library, world)

    return made
