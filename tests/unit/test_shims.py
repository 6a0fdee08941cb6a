"""Modules that each shim waits for, and the message if one is not found."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from phantora.errors import PhantoraError
from phantora.fold.ranges import format_ranks
from phantora.rank.routing import Routing
from phantora.rank.shims import Shim, missing, shims, transformer_engine
from phantora.spec import VARIABLE, RankSpec


def package(directory: Path, *files: str) -> ModuleType:
    for file in files:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).touch()
    module = ModuleType("torchtitan")
    module.__path__ = [str(directory)]
    return module


@pytest.mark.parametrize("file", ["models/moe/moe.py", "models/common/moe.py", "models/common/moe/__init__.py"])
def test_a_framework_whose_router_is_where_it_was_needs_no_words(tmp_path: Path, file: str) -> None:
    assert missing(package(tmp_path, file), shims()) is None


def test_a_framework_whose_router_has_moved_is_named(tmp_path: Path) -> None:
    said = missing(package(tmp_path, "models/elsewhere/moe.py"), shims())
    assert said is not None
    assert "torchtitan" in said and "torchtitan.models.common.moe" in said and "--moe-routing" in said


def test_packages_without_routers_are_left_alone(tmp_path: Path) -> None:
    module = package(tmp_path)
    module.__name__ = "deepspeed"  # its shims are of optimizers
    assert missing(module, shims()) is None


def test_a_known_version_whose_parts_have_moved_refuses_when_it_routes() -> None:
    module = ModuleType("pytest.somewhere")

    class MoE:
        def __init__(self) -> None: ...

    module.MoE = MoE  # type: ignore[attr-defined]

    def apply(module: ModuleType, _: Routing) -> None:
        module.Router.forward = None

    Shim("pytest", (pytest.__version__,), "pytest.somewhere", guarded="MoE.__init__", apply=apply).meet(
        module, Routing("balanced")
    )
    with pytest.raises(Exception, match=r"pytest .* routes tokens"):
        MoE()


def test_userbuffers_go_without_multicast_and_fold_with_whole_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("transformer_engine.pytorch.module.base")
    module.initialize_ub = lambda shape, tp_size, **named: (shape, tp_size, named)  # type: ignore[attr-defined]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("UB_SKIPMC", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    transformer_engine.SHIM.apply(module, Routing("balanced"))
    assert module.initialize_ub([8, 8], 4, dtype=1) == ([8, 8], 4, {"dtype": 1})
    assert os.environ["UB_SKIPMC"] == "1" and "UB_SKIPMC=1" in capsys.readouterr().err
    module.initialize_ub([8, 8], 4)
    assert not capsys.readouterr().err, "said once"
    for ranks, whole in (((0, 1, 2, 3, 28, 29, 30, 31), True), ((0, 3, 28, 31), False)):
        monkeypatch.setenv(VARIABLE, RankSpec(processes=format_ranks(ranks)).to_json())
        for rank in ("0", "31"):
            monkeypatch.setenv("RANK", rank)
            if whole:
                module.initialize_ub([8, 8], 4)
                continue
            with pytest.raises(PhantoraError, match=r"need all ranks of a tensor-parallel group.*tp=4:all"):
                module.initialize_ub([8, 8], 4)
