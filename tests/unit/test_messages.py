"""Messages of a rank to its user."""

from __future__ import annotations

import pytest

from phantora.errors import PhantoraError
from phantora.rank.messages import tell
from phantora.spec import VARIABLE, RankSpec
from phantora.sweeps.presets import load_preset, preset_path


def test_a_quiet_run_tells_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(VARIABLE, RankSpec().to_json())
    tell("data comes late")
    monkeypatch.setenv(VARIABLE, RankSpec(quiet=True).to_json())
    tell("data comes later")
    assert capsys.readouterr().err == "phantora: note: data comes late\n"


def test_an_unknown_preset_has_the_nearest_one() -> None:
    with pytest.raises(PhantoraError, match=r"unknown preset 'fsdp'; did you mean fsdp2\? known: deepspeed, fsdp2"):
        preset_path("fsdp")
    with pytest.raises(PhantoraError, match=r"no model 'llama-8b'; did you mean llama3-8b\? known: llama2-7b"):
        load_preset(preset_path("fsdp2"), "llama-8b")
