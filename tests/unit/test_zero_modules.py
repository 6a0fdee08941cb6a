"""Names of modules in the places of ZeRO's collectives."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from phantora.rank.patches.zero_modules import fetched, name_phase, reduced


@pytest.fixture
def debug(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("deepspeed.utils.debug")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_fetch_names_its_module(debug: Any) -> None:
    head, outer = object(), object()
    debug.module_names = {head: "head", outer: ""}
    assert fetched(None, head, True) == "ZeRO fetch, module head"
    assert fetched(None, outer) == "ZeRO fetch, module object"
    debug.module_names = SimpleNamespace(_names={id(head): "head"})  # of DeepSpeed 0.19
    assert fetched(None, head) == "ZeRO fetch, module head"


def test_a_reduction_names_the_modules_of_its_bucket(debug: Any) -> None:
    params = [object() for _ in range(6)]
    names = ("a.weight", "a.bias", "b.weight", "c.weight", "d.weight", "root")
    debug.param_names = dict(zip(params, names, strict=True))
    optimizer = SimpleNamespace(ipg_buckets={"bf16": SimpleNamespace(params=params)})
    assert reduced(optimizer, "bf16") == "ZeRO reduce, module a, module b, module c and 1 more"


def test_the_phase_lasts_as_long_as_the_call() -> None:
    seen: list[bytes] = []

    class Coordinator:
        def fetch(self, module: str) -> None:
            seen.append(b"in it")
            raise ValueError(module)

    name_phase(Coordinator, "fetch", lambda _, module: f"fetch {module}", seen.append)
    with pytest.raises(ValueError, match="head"):
        Coordinator().fetch("head")
    assert seen == [b"fetch head", b"in it", b""]
    name_phase(None, "fetch", str, seen.append)  # a version without it
