"""Messages of the command line after a typing error."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from phantora.cli.behind import ours_behind, reads
from phantora.cli.main import _status
from phantora.cli.trace import trace as command
from phantora.outputs import why_not_written


def said(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["phantora", *words])
    assert _status()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["trce", "x.py"], "no command 'trce'; did you mean trace?"),
        (["train.py"], "run it with `phantora trace train.py`"),
        (["compare", "x.py", "--gpus", "H100"], "--gpus stands behind the script"),
        (["fits", "--largest", "train.py"], "write --largest VALUE train.py"),
        (["trace", "--clster", "1x1xH100", "x.py"], "no option '--clster'; did you mean --cluster?"),
        (["analyze", "--zzz"], "no option '--zzz' (see"),
        (["trace", "--cluster", "1x1xH1000", "x.py"], "did you mean H100"),
        (["analyze", "nothing.arrow"], "nothing.arrow: cannot open the log"),
    ],
)
def test_what_is_mistyped(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in said(words, monkeypatch, capsys)


def test_a_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    reported = said(["trace", "-o", "none/run.arrow", "x.py"], monkeypatch, capsys)
    assert "there is no folder none; make it, or choose another -o" in reported


def test_why_a_file_is_not_written(tmp_path: Path) -> None:
    def why(code: int) -> str:
        return why_not_written(tmp_path / "x.arrow", OSError(code, os.strerror(code)))

    assert why(errno.ENOSPC) == "No space left on device; make room, or choose another -o"
    assert why(errno.EACCES) == "Permission denied; choose another -o"


def test_options_of_ours_behind_the_script() -> None:
    context = command.make_context("trace", ["--modules", "x.py"])
    words = ("x.py", "--modules", "--flows=1", "--layers", "3", "-q", "--modules", "--", "--seed")
    assert ours_behind(context, words) == ["--modules", "--flows", "-q"]


def test_a_script_reads_an_option_by_its_name(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("class Arguments:\n    moe_routing: str\n    hosts: int\n#host\nhost = 'a host'\nprint(host)\n")
    assert reads(str(script), "--moe-routing") and not reads(str(script), "--host")
    script.write_text("parser.add_argument('-q', '--host')\n")
    assert reads(str(script), "--host") and reads(str(script), "-q") and not reads(str(script), "--seed")
