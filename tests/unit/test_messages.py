"""Messages of a rank to its user."""

from __future__ import annotations

import pytest

from phantora.rank.messages import tell
from phantora.spec import VARIABLE, RankSpec


def test_a_quiet_run_tells_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(VARIABLE, RankSpec().to_json())
    tell("data comes late")
    monkeypatch.setenv(VARIABLE, RankSpec(quiet=True).to_json())
    tell("data comes later")
    assert capsys.readouterr().err == "phantora: note: data comes late\n"
