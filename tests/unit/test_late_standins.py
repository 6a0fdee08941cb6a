"""What a rank does for stand-ins of compiled halves before a script runs."""

from __future__ import annotations

import sys
from functools import lru_cache
from types import ModuleType
from unittest.mock import Mock

import pytest

from phantora.rank import standins
from phantora.rank.standins import kernels

KEPT = "transformers.utils.import_utils"


def test_transformers_looks_again_for_what_it_had_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server imports it without stand-ins, and it keeps what it has not found."""
    installed: list[str] = []
    module = ModuleType(KEPT)
    found = lru_cache(lambda: "flash_attn_3" in installed)
    vars(module)["is_flash_attn_3_available"] = found
    monkeypatch.setitem(sys.modules, KEPT, module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(kernels, "announce_to", Mock())
    assert not found()
    installed.append("flash_attn_3")
    standins.install(Mock())
    assert found()
