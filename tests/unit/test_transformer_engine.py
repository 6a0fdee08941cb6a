"""`phantora doctor`'s line for Transformer Engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from phantora.stubs import transformer_engine

TORCH: Any = SimpleNamespace(cuda="13.0")


def test_extension_without_a_module_of_its_own_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"transformer-engine", "transformer-engine-cu13", "transformer-engine-torch"}
    monkeypatch.setattr(transformer_engine, "_version", lambda name: "2.20.2" if name in installed else None)
    done = SimpleNamespace(returncode=0, stderr="")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: done)
    assert transformer_engine.state(TORCH) == "2.20.2 works: imported under the stubs"
    installed.remove("transformer-engine-torch")
    assert transformer_engine.state(TORCH).startswith("transformer-engine-torch missing")
