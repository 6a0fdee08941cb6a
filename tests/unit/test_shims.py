"""Which framework's module each shim waits for, and what is said where it is not found."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from phantora.launch.routing import Routing
from phantora.launch.shims import Shim, missing, shims


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

    Shim("pytest", (pytest.__version__,), "pytest.somewhere", "MoE.__init__", apply).meet(module, Routing("balanced"))
    with pytest.raises(Exception, match=r"pytest .* routes tokens"):
        MoE()
