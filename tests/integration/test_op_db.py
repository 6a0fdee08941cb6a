"""Every operator of torch's own database that has a CPU form gives on a simulated GPU what the CPU gives.

Samples are few and small, so that all take half a minute. PHANTORA_OP_DB_SAMPLES=20 runs more of each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from phantora.hardware import toml
from tests.support import ringdump

PROGRAM = Path(__file__).parent / "op_db_program.py"
EXCEPTIONS = toml.read(Path(__file__).parents[1] / "op_db_exceptions.toml")
SAMPLES = os.environ.get("PHANTORA_OP_DB_SAMPLES", "2")
INSTALL = "ctypes.CDLL(str(stubs.ensure().tracer)).phantora_tracer_install()\n"


@pytest.fixture(scope="module")
def lines(stub_set: Any) -> list[str]:
    arguments = [str(PROGRAM), SAMPLES, *EXCEPTIONS["skipped"]]
    dump = ringdump.run_script(
        INSTALL + f"import runpy, sys\nsys.argv = {arguments!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n",
        timeout=3_600,
        keep=False,
    )
    assert dump.status == 0, dump.stderr
    return str(dump.value).strip().splitlines()


@pytest.fixture(scope="module")
def differing(lines: list[str]) -> dict[str, str]:
    return {line.split()[1]: line for line in lines if line.startswith("differs ")}


def test_operators_agree_with_the_cpu(lines: list[str], differing: dict[str, str]) -> None:
    assert [line for name, line in differing.items() if name not in EXCEPTIONS["differs"]] == []
    assert lines[-1].startswith("ran ") and int(lines[-1].split()[1]) > 1_500


def test_exceptions_still_differ(differing: dict[str, str]) -> None:
    assert sorted(set(EXCEPTIONS["differs"]) - set(differing)) == [], "they agree now: take them out of the list"


def test_exceptions_have_reasons() -> None:
    assert all(reason for part in EXCEPTIONS.values() for reason in part.values())
