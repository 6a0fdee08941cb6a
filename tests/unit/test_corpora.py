"""Inputs that guided runs of the fuzzer have found (tests/corpora) are read within the fuzzer's limits."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from phantora.errors import PhantoraError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fuzz
import fuzz_corpora

KEPT = [name for name in fuzz.TARGETS if fuzz_corpora.kept(name)]
MOST_BYTES = 100_000  # of all that is kept


@pytest.mark.parametrize("target", KEPT)
def test_kept_inputs_are_read(target: str, tmp_path: Path, engine_library: Path) -> None:
    inputs = fuzz_corpora.kept(target)
    path = tmp_path / f"input{fuzz.TARGETS[target].suffix}"
    accepted, refused, _, text = fuzz.in_child(functools.partial(fuzz.give_all, target, inputs, path), 10)
    assert (text, accepted + refused) == ("", len(inputs))


def test_every_corpus_belongs_to_a_target_and_is_small() -> None:
    files = sorted(fuzz_corpora.FOLDER.iterdir())
    assert [path.stem for path in files] == sorted(fuzz_corpora.file_name(name) for name in KEPT)
    assert len(KEPT) >= 10
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES


def _broken(path: Path) -> None:
    data = path.read_bytes()
    if data == b"refused":
        raise PhantoraError("no")
    assert data != b"crash"


@pytest.mark.parametrize(("inputs", "found"), [
    ([b"", b"refused"], (1, 1, "")), ([b"refused", b"crash", b""], (0, 1, "AssertionError")),
])  # fmt: skip
def test_a_kept_input_that_is_a_finding_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inputs: list[bytes], found: tuple[int, int, str]
) -> None:
    monkeypatch.setitem(fuzz.TARGETS, "broken", fuzz.Target(list, _broken, ".x"))
    task = functools.partial(fuzz.give_all, "broken", inputs, tmp_path / "input.x")
    accepted, refused, _, text = fuzz.in_child(task, 10)
    assert (accepted, refused, text.partition(":")[0]) == found


def test_equal_inputs_make_equal_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuzz_corpora, "FOLDER", tmp_path / "corpora")
    first = fuzz_corpora.write("a, b", [b"two", b"one"]).read_bytes()
    assert fuzz_corpora.kept("a, b") == [b"one", b"two"]
    assert fuzz_corpora.write("a, b", [b"one", b"two"]).read_bytes() == first
    assert fuzz_corpora.kept("none") == []
