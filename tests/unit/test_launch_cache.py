"""One process analyses a Triton launch, and the others read its result."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from phantora.rank.patches import launch_cache
from phantora.ttir.parse import Unreadable


def follow_slowly(folder: Path, results: Any) -> None:
    launch_cache.folder = lambda: folder / "work"  # type: ignore[assignment]

    def follow() -> dict[str, Any]:
        with (folder / "followed").open("a") as file:
            file.write("x")
        time.sleep(0.3)
        return {"programs": 7, "counts": {"alu": 0.125}}

    results.put(launch_cache.found(b"a launch", follow))


def test_one_process_follows(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=follow_slowly, args=(tmp_path, results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = [results.get(timeout=30) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert found == [{"programs": 7, "counts": {"alu": 0.125}}] * 4
    assert (tmp_path / "followed").read_text() == "x"
    assert len(list((tmp_path / "work").iterdir())) == 1  # no locks, no halves


def test_errors_pass_and_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cache, "folder", lambda: tmp_path / "work")

    def fail() -> dict[str, Any]:
        raise Unreadable("not known yet")

    with pytest.raises(Unreadable):
        launch_cache.found(b"a launch", fail)
    assert launch_cache.found(b"a launch", lambda: {"a": 1}) == {"a": 1}
    assert launch_cache.found(b"a launch", fail) == {"a": 1}


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(launch_cache, "folder", lambda: tmp_path / "file" / "work")
    assert launch_cache.found(b"a launch", lambda: {"a": 1}) == {"a": 1}
