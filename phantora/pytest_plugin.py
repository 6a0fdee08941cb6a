"""A pytest plugin: a test of a training script's memory and step time, without a GPU.

    @pytest.mark.phantora("train.py", args=["--steps", "4"], cluster="1x8xH100", max_memory="70GiB", max_step="300ms")
    def test_fits(phantora_run):
        assert phantora_run.summary()["mfu"] > 0.4

The mark takes what :func:`phantora.run` takes, and two limits. All tests of a process share one fork server, under
pytest-xdist all of a worker.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from phantora.errors import PhantoraError, Reason
from phantora.units import GIB, SIZE, TIME, Grammar

if TYPE_CHECKING:
    from phantora.api import Run
    from phantora.result import RunResult
    from phantora.trace.analysis.report import Report

MARK = "phantora"
_LIMITS = {"max_memory": SIZE, "max_step": TIME}
_BROKEN = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark."""
    config.addinivalue_line(
        "markers", f"{MARK}(script, args=(), cluster=..., max_memory=None, max_step=None, ...): simulate a script"
    )


@pytest.fixture(scope="session")
def phantora_server() -> Iterator[None]:
    """One process imports torch for the runs of all tests."""
    from phantora.launch.shared_forkserver import VARIABLE, WarmServer

    if VARIABLE in os.environ:  # somebody else's
        yield
        return
    server = WarmServer()
    os.environ[VARIABLE] = server.path
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        server.close()


@pytest.fixture
def phantora_run(request: pytest.FixtureRequest, phantora_server: None, tmp_path: Path) -> Run:
    """The run that the test's mark describes. The test fails if the run does, or exceeds limits of the mark."""
    from phantora.api import RunFailed, run

    mark = request.node.get_closest_marker(MARK)
    if mark is None or not mark.args:
        pytest.fail(f"phantora_run needs @pytest.mark.{MARK}('train.py', cluster=...)", pytrace=False)
    options: dict[str, Any] = dict(mark.kwargs)
    for name in options.keys() - _LIMITS:
        if close := difflib.get_close_matches(name, _LIMITS, 1, 0.8):
            pytest.fail(f"@pytest.mark.{MARK}: no limit {name}; did you mean {close[0]}?", pytrace=False)
    most_memory, most_step = (_limit(options.pop(name, None), name, grammar) for name, grammar in _LIMITS.items())
    current = os.environ.pop("PYTEST_CURRENT_TEST", None)  # runs of one environment share what is imported
    try:
        found = run(*mark.args, **{"output": tmp_path / "run.arrow", **options})
    except RunFailed as error:
        request.node.stash[_BROKEN] = [f"{mark.args[0]}: {error}{_full_of(error.result)}"]
        return error.result  # type: ignore[return-value]  # the test's own code does not run
    except (PhantoraError, TypeError) as error:  # of the mark's own values
        pytest.fail(f"@pytest.mark.{MARK}: {error}", pytrace=False)
    finally:
        if current is not None:
            os.environ["PYTEST_CURRENT_TEST"] = current
    request.node.stash[_BROKEN] = _broken(found, most_memory, most_step)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fails a test whose run failed or broke limits: all that it broke, each with its cause."""
    if broken := item.stash.get(_BROKEN, []):
        pytest.fail("\n".join(broken), pytrace=False)


def _full_of(result: RunResult) -> str:
    """What the memory is full of, and what would help, for a run that ran out of it."""
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.reader import open_log

    if result.reason != Reason.OUT_OF_MEMORY or result.log is None:
        return ""
    report = analyze(open_log(result.log))
    advice = report.details.fit.advice if report.details is not None and report.details.fit is not None else ""
    return f": {_memory(report)}" + (f" {advice}" if advice else "")


def _memory(report: Report) -> str:
    """The parts of the fullest rank's memory, and what grows."""
    from phantora.trace.analysis.findings import memory_finding
    from phantora.trace.analysis.summary import lines

    grows = dict(lines(report)).get("GROWS")
    return f"{memory_finding(report)}" + (f" GROWS {grows}." if grows else "")


def _broken(found: Run, most_memory: float | None, most_step: float | None) -> list[str]:
    """The limits that a run breaks."""
    from phantora.trace.analysis.summary import lines

    summary, broken = found.summary(), []
    memory, step = summary["peak_reserved_bytes"], summary["step_time_ns"]
    words = dict(lines(found.report))
    if most_memory is not None and memory > most_memory:
        cause = _memory(found.report)
        broken.append(_exceeds("memory that torch reserves", memory / GIB, most_memory / GIB, "GiB", cause))
    if most_step is not None and not step:
        broken.append(f"no step to compare with max_step: {words.get('STEP', 'unknown')}")
    if most_step is not None and step > most_step:
        broken.append(
            _exceeds("a step", step / 1e6, most_step / 1e6, "ms", f"HELD UP {words.get('HELD UP', 'unknown')}")
        )
    return broken


def _exceeds(what: str, value: float, limit: float, unit: str, cause: str) -> str:
    return f"{what} takes {value:.4g} {unit}, more than {limit:.4g} {unit}: {cause}"


def _limit(text: str | None, name: str, grammar: Grammar) -> float | None:
    """``70GiB`` in bytes, ``300ms`` in ns."""
    if text is not None and grammar.read(text) is None:
        pytest.fail(f"@pytest.mark.{MARK}: {name}={text!r}: give {grammar.example}", pytrace=False)
    return None if text is None else grammar.read(text)
