"""What a rank tells its user."""

from __future__ import annotations

import pytest

from phantora.launch.notes import QUIET, tell


def test_a_quiet_run_tells_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(QUIET, "0")
    tell("data comes late")
    monkeypatch.setenv(QUIET, "1")
    tell("data comes later")
    assert capsys.readouterr().err == "phantora: note: data comes late\n"
