"""Headline and MFU of loops that frameworks run, against what each measures itself in virtual time.

Megatron's and TorchTitan's are looked at in their own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phantora.hardware import REFERENCE_HOST
from phantora.trace.reader import Log, open_log
from tests.support import framework_loops
from tests.support.headline import printed_by_loops, same_headline
from tests.support.runs import trace

NAMES = [loop.__name__ for loop in framework_loops.LOOPS]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, dict[str, dict[str, Any]]]:
    """All loops at once, each a rank of its own: the log, and by name what the loop printed, with its rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the loops import tests.support
        run = trace(
            tmp_path_factory.mktemp("loops"),
            "--cluster",
            f"1x{len(NAMES)}xH100",
            "--hang-timeout",
            "300",
            "--host",
            REFERENCE_HOST,
            "--data-loading",
            "free",  # what is measured differs from step to step
            str(Path(framework_loops.__file__)),
            timeout=590,
        )
    return open_log(run.log), printed_by_loops(run)


@pytest.mark.parametrize("loop", NAMES)
def test_headline(ran: tuple[Log, dict[str, dict[str, Any]]], loop: str) -> None:
    log, printed = ran
    own = printed[loop]
    report = same_headline(log, own["seconds"], own["flops"], ranks=frozenset({own["rank"]}))
    assert report.step_source == "optimizer" and "start-up" in report.headline.apart
