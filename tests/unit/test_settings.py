"""Options from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantora.cli.main import cli
from phantora.errors import PhantoraError
from tests.support.fakelog import small_run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_run().write(tmp_path / "run.arrow")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    return CliRunner().invoke(cli, words, catch_exceptions=False).output


def test_a_table_of_the_project_gives_options(place: Path) -> None:
    (place / "pyproject.toml").write_text("[tool.phantora.analyze]\njson = true\nprice = 2.5\nranks = '1'\n")
    found = json.loads(run("analyze", "run.arrow"))
    assert [rank["rank"] for rank in found["ranks"]] == [1]
    assert found["headline"]["cost"]["dollars_per_gpu_hour"] == 2.5
    assert json.loads(run("analyze", "run.arrow", "--price", "3"))["headline"]["cost"]["dollars_per_gpu_hour"] == 3.0


def test_a_file_that_is_named_comes_instead(place: Path) -> None:
    (place / "pyproject.toml").write_text("[tool.phantora.analyze]\nprice = 2.5\n")
    (place / "run.toml").write_text("[analyze]\njson = true\n")
    assert json.loads(run("--config", "run.toml", "analyze", "run.arrow"))["headline"]["cost"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trace]\nclutser = 'x'\n", "phantora trace has no option 'clutser'; did you mean cluster?"),
        ("[tarce]\ncluster = 'x'\n", "'tarce' is no command"),
        ("[trace\n", "cannot read the options"),
    ],
)
def test_what_is_unknown_is_said(place: Path, text: str, message: str) -> None:
    (place / "run.toml").write_text(text)
    with pytest.raises(PhantoraError, match=message.replace("?", r"\?")):
        run("--config", "run.toml", "analyze", "run.arrow")
