"""Dumps and snapshots of real jobs next to simulated runs of the same script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phantora.cli.main import cli
from phantora.dumps.expected_calls import Expected, Schedule, first_differences, schedule
from phantora.dumps.flight_recorder import read_dumps
from phantora.dumps.memory_snapshot import read_snapshot
from phantora.dumps.unmatched_blocks import Unmatched, unmatched
from phantora.sweeps.questions import Fits, as_in_reality
from phantora.trace.reader import open_log
from tests.unit.test_why import GIB, PARAMETERS, event, snapshot

DUMPS = Path(__file__).resolve().parents[1] / "golden" / "dumps"


def diff(*paths: str) -> str:
    done = CliRunner().invoke(cli, ["diff", *paths], catch_exceptions=False, standalone_mode=False)
    return " ".join(done.stdout.split())


def all_reduces(count: int, more: int = 0) -> Schedule:
    """Two groups of ranks 0 and 1: `count` calls of the first, one of the second."""
    call = Expected("all_reduce", 4096)
    comms = {2: [call] * count, 4: [call] * (1 + more)}
    return Schedule({0: comms, 1: comms}, {}, {2: (0, 1), 4: (0, 1)})


CASES: dict[str, tuple[Schedule, int, Any]] = {
    "missing": (all_reduces(2), 5, (1, 2, None, "all_reduce of 4.0 KiB")),
    "mismatch": (all_reduces(2), 5, (0, 2, "broadcast", "all_reduce of 4.0 KiB")),
    "size": (all_reduces(2), 5, (0, 2, "all_reduce", "all_reduce of 4.0 KiB")),
    "fine": (all_reduces(2), 4, (0, 2, "all_gather", "all_reduce of 4.0 KiB")),
    "busy": (all_reduces(2), 6, None),
    "order": (all_reduces(2), 5, (0, 2, "all_reduce", None)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_call_that_differs(case: str) -> None:
    """Of the jobs on two real GPUs."""
    simulated, agreed, expected = CASES[case]
    count, found = first_differences(read_dumps(sorted(map(str, (DUMPS / case).iterdir()))), simulated)
    assert count == agreed
    first = found[0] if found else None
    if expected is None or first is None:
        assert first is None and expected is None
    else:
        real, of = first.real.operation if first.real else None, first.simulated.what if first.simulated else None
        assert (first.rank, first.place, real, of) == expected


def test_blocks_of_one_of_two_alone(tmp_path: Path) -> None:
    real = read_snapshot(
        snapshot(
            tmp_path / "real.pickle",
            [*PARAMETERS, *(event("alloc", k, GIB, 15, 9) for k in (1, 2)), event("alloc", 3, GIB // 2, 16, 9)],
        )
    )
    moved = [{**one, "frames": []} for one in PARAMETERS]  # their line is unknown
    simulated = read_snapshot(snapshot(tmp_path / "sim.pickle", [*moved, event("alloc", 1, 3 * GIB, 17, 9)]))
    assert unmatched(real, simulated) == [
        Unmatched(place="train.py:17", bytes=3 * GIB, count=1, in_first=False),
        Unmatched(place="train.py:15", bytes=GIB, count=2, in_first=True),
        Unmatched(place="train.py:16", bytes=GIB // 2, count=1, in_first=True),
    ]
    assert unmatched(real, real) == []


def test_fits_counts_what_reality_held_beyond(tmp_path: Path) -> None:
    one = Fits(fits=True, memory=70 * GIB, capacity=80 * GIB, says=["Fits."], peak_allocated=60 * GIB)
    more = as_in_reality(one, "oom.pickle", 75 * GIB)
    assert not more.fits and more.memory == 85 * GIB
    assert more.says[1:] == [
        "oom.pickle: 75.00 GiB allocated at the peak, 60.00 GiB in the simulated run.",
        "With 15.00 GiB more: Does not fit: needs 85.00 GiB of 80.00 GiB, 5.00 GiB more than there is.",
    ]
    assert as_in_reality(one, "oom.pickle", 50 * GIB).memory == 70 * GIB


def test_diff_takes_files_of_one_question(tmp_path: Path) -> None:
    real = snapshot(tmp_path / "real.pickle", [*PARAMETERS, event("alloc", 1, 3 * GIB, 15, 9)])
    simulated = snapshot(tmp_path / "sim.pickle", PARAMETERS)
    assert f"LACKS {simulated}: 1 block of 3.00 GiB, train.py:15" in diff(real, simulated)
    dumps = sorted(map(str, (DUMPS / "missing").iterdir()))
    log = "tests/golden/small.arrow"
    assert schedule(open_log(log)).collectives
    assert "all_reduce of 1024 float (4.0 KiB) at train.py:28" in diff(*dumps, log)
    for wrong in ((*dumps, real), (real, log, log), (*dumps, log, "--fail-above", "2%")):
        with pytest.raises(Exception, match=r"give the flight recorder|no option but --json"):
            diff(*wrong)
