"""Inputs that the guided fuzzer found (tests/robustness/corpora.zip) are read within its limits."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from tests.robustness import fuzz, fuzz_corpora, fuzz_guided, fuzz_merge

KEPT = [name for name in fuzz.TARGETS if fuzz_corpora.kept(name)]
MOST_BYTES = 100_000  # of all that is kept


@pytest.mark.parametrize("target", KEPT)
def test_kept_inputs_are_read(target: str, tmp_path: Path, engine_library: Path) -> None:
    inputs = fuzz_corpora.kept(target)
    path = tmp_path / f"input{fuzz.TARGETS[target].suffix}"
    accepted, refused, _, text = fuzz.in_child(functools.partial(fuzz.give_all, target, inputs, path), 10)
    assert (text, accepted + refused) == ("", len(inputs))


def test_every_corpus_belongs_to_a_target_and_is_small() -> None:
    assert fuzz_corpora.targets() == sorted(fuzz_corpora.file_name(name) for name in KEPT)
    assert len(KEPT) >= 10
    assert fuzz_corpora.ARCHIVE.stat().st_size <= MOST_BYTES


def _broken(path: Path) -> None:
    data = path.read_bytes()
    if data == b"refused":
        raise PhantoraError("no")
    assert data != b"crash"


@pytest.mark.parametrize(
    ("inputs", "found"), [([b"", b"refused"], (1, 1, "")), ([b"refused", b"crash", b""], (0, 1, "AssertionError"))]
)
def test_a_kept_input_that_is_a_finding_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inputs: list[bytes], found: tuple[int, int, str]
) -> None:
    monkeypatch.setitem(fuzz.TARGETS, "broken", fuzz.Target(list, _broken, ".x"))
    task = functools.partial(fuzz.give_all, "broken", inputs, tmp_path / "input.x")
    accepted, refused, _, text = fuzz.in_child(task, 10)
    assert (accepted, refused, text.partition(":")[0]) == found


def test_equal_inputs_make_equal_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuzz_corpora, "ARCHIVE", tmp_path / "corpora.zip")
    first = fuzz_corpora.write("a, b", [b"two", b"one"]).read_bytes()
    assert fuzz_corpora.kept("a, b") == [b"one", b"two"]
    assert fuzz_corpora.write("a, b", [b"one", b"two"]).read_bytes() == first
    assert fuzz_corpora.kept("none") == []


def test_libfuzzers_lines_are_counted() -> None:
    progress = fuzz_guided.Progress()
    progress.add(2.0, b"#4\tINITED cov: 40 ft: 50 corp: 3/14b exec/s: 0\n#9\tNEW    cov: 44 ft: 55 corp: 4/14Kb lim\n")
    progress.add(1.0, b"#6\tINITED cov: 43 ft: 54 corp: 6/14Kb exec/s: 0 rss: 51Mb\nkilled\n")
    assert (progress.spent, progress.start, progress.edges, progress.inputs) == (3.0, 40, 44, 6)


@pytest.mark.parametrize(
    ("status", "printed", "text"),
    [
        (-9, b"", "killed by SIGKILL"),
        (1, b"", "status 1"),
        (
            1,
            b"x.h:80:48: runtime error: signed integer overflow\n #0 0x5 in phe::f(int) /a/engine/x.h:80:48\n",
            "signed integer overflow (x.h:80)",
        ),
        (77, b"==9==ERROR: libFuzzer: timeout after 10 seconds\nSUMMARY: libFuzzer: timeout\n", "libFuzzer: timeout"),
    ],
)
def test_a_crash_is_told_in_a_line(status: int, printed: bytes, text: str) -> None:
    assert fuzz_guided.ending(status, printed) == text


def test_the_inputs_that_reach_most_for_their_size_are_kept() -> None:
    small, large, same = b"a", bytes(range(256)) * 2, b"b"
    reached = {small: frozenset((1, 2)), large: frozenset((2, 3, 4)), same: frozenset((1, 2))}
    assert fuzz_merge.chosen(reached, frozenset((4,)), 10_000) == [same, large]
    assert fuzz_merge.chosen(reached, frozenset((3, 4)), 10_000) == [same]
    assert fuzz_merge.chosen(reached, frozenset(), 200) == [same]


def test_guided_runs_need_atheris(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    options = fuzz_guided.Options(1, 0, tmp_path, None, tmp_path / "engine_fuzzer", threading.Event())
    with pytest.raises(SystemExit, match="pip install atheris"):
        fuzz_guided.check(["cluster"], options)


def guided(target: str, seconds: int, tmp_path: Path) -> list[str]:
    """Output of a guided run of a target."""
    command = [sys.executable, str(Path(fuzz.__file__)), target, "--guided", "--seconds", str(seconds), "--seed", "1"]
    paths = ["--keep", str(tmp_path / "keep"), "--corpus", str(tmp_path), "--engine-fuzzer", str(tmp_path / "made")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [*command, *paths], capture_output=True, text=True, timeout=500, cwd=tmp_path, env=environment, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


def test_a_short_guided_run_of_a_reader(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    inputs, accepted, refused, findings, corpus, start, end = map(int, guided("cluster", 8, tmp_path)[-1].split()[3:])
    assert inputs == accepted + refused > 100 and not findings
    assert corpus and 100 < start <= end
    assert list((tmp_path / "cluster").iterdir())


def test_a_short_guided_run_of_the_engine(tmp_path: Path) -> None:
    if not any(map(shutil.which, fuzz_guided.COMPILER)):
        pytest.skip("no clang")
    inputs, _, _, findings, corpus, start, end = map(int, guided("ranks", 8, tmp_path)[-1].split()[3:])
    assert inputs > 100 and not findings
    assert corpus > 10 and 1000 < start < end
