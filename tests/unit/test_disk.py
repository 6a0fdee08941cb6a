"""Times at which a file is in the host's memory, and on the disk."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from phantora.rank.clock import NEXT_TO_PYTHON
from phantora.rank.patches.disk import Checkpoints, parse
from phantora.spec import SlowDisk
from phantora.wire.layout import Api
from tests.support.clock import Clock

WRITTEN = 2_000_000_000
"""Bytes; their way to the host's memory takes as many ns in these tests."""


class Host(Clock):
    """A rank that writes files."""

    def __init__(self, disk: str) -> None:
        super().__init__()
        self.files = Checkpoints(parse(disk), self.runtime(), lambda: None, nullcontext)

    def write(self, synchronised: bool, size: int = WRITTEN, path: str | None = None) -> float:
        """Seconds that the rank takes; the file at `path` or a new one."""
        began = self.time
        self.files._written(size, 1, synchronised, path or str(began))
        return (self.time - began) / 1e9


def test_the_disk_follows_in_the_background() -> None:
    local = Host("1GB/s")
    assert local.write(False) == 2 + 2, "to the host's memory, and its sums"
    assert local.write(True) == 2 + 2 + 2, "the disk has written the first file meanwhile"
    assert local.write(False, path="0") == 2 + 2 + 2, "over the first one"
    late = Host("1GB/s")
    late.write(False)
    assert late.write(True, 100) > 1.9, "the disk still writes the first file"


def test_a_fault_slows_the_disk_down_while_it_lasts() -> None:
    """Two seconds of work: one before the fault, half of one in its five seconds, half of one after it."""
    fault = SlowDisk(hosts="*", start_ns=10**9, end_ns=6 * 10**9, factor=0.1)
    disk = replace(parse("1GB/s"), slow=(fault,))
    assert disk.ns(WRITTEN, 1, 0) == 6.5e9
    assert disk.ns(WRITTEN, 1, 2 * 10**9) == 4e9 + 1.6e9
    assert disk.ns(WRITTEN, 2, 6 * 10**9) == 4e9, "it is over, and two ranks write"


def test_a_shared_file_system_is_waited_for() -> None:
    assert Host("1GB/s,shared").write(False) == 2 + 2 + 2
    assert Host("free").write(True) == 0


def test_files_of_this_run_are_in_memory(tmp_path: Path) -> None:
    local, shared, free = Host("1GB/s"), Host("1GB/s,shared"), Host("free")
    new = tmp_path / "new"
    new.write_bytes(b"")
    assert all(host.files._is_in_memory(new) == mine for host, mine in ((local, True), (shared, False)))
    assert not local.files._is_in_memory(Path(__file__)) and not local.files._is_in_memory(None)
    for host, ns in ((local, WRITTEN), (shared, WRITTEN), (free, 0)):
        host.files._read(WRITTEN, new)
        assert host.time == ns


def test_a_save_in_the_background_slows_its_rank_down() -> None:
    """Its thread runs Python for a second, then has the lock for half of the way to memory."""
    host = Host("1GB/s")
    asked: list[tuple[float, ...]] = []
    runtime = replace(
        host.runtime(),
        contend=lambda *stretches: asked.append(stretches),
        bytes_ns=lambda api, size: size // 2 if api != Api.FILE_READ_GIB else size,
        times_ns=lambda api, times: WRITTEN // 2 if api == Api.FILE_TENSOR else 0,
    )
    files = Checkpoints(parse("1GB/s"), runtime, lambda: None, nullcontext)
    future: Future[None] = Future()
    future.set_result(None)
    files._in_background(future, WRITTEN, "folder", True)
    assert asked == [(0, WRITTEN // 2, NEXT_TO_PYTHON, WRITTEN // 2 + WRITTEN, 2.0)]
    assert not future.done(), "the disk needs as long again"


@pytest.mark.parametrize(("rank", "planned"), [(0, 3 * 10 + 3 * 7 * 5), (1, 3 * 10)])
def test_rank_0_plans_for_all(monkeypatch: pytest.MonkeyPatch, rank: int, planned: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "8")
    asked: list[tuple[float, ...]] = []
    costs = {Api.FILE_TENSOR: 10, Api.FILE_PLAN: 5}
    runtime = replace(
        Clock().runtime(), contend=lambda *stretches: asked.append(stretches), times_ns=lambda api, n: costs[api] * n
    )
    files = Checkpoints(parse("1GB/s"), runtime, lambda: None, nullcontext)
    files._tensors = 3
    future: Future[None] = Future()
    future.set_result(None)
    files._in_background(future, WRITTEN, "folder", True)
    assert asked[0][:2] == (0, planned)
