"""Operator families: each operator has one, and the recipe in docs/operator-families.md adds one with one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import torch

from phantora.cost import OperatorSignature, TensorSpec, model_for
from phantora.cost import families as package
from phantora.cost.families import base_name, class_of, families, family_of, identify
from phantora.cost.measured import DATA
from phantora.cost.table import read_table
from phantora.cost.types import CLASSES
from phantora.hardware import load_gpu

RECIPE = Path(__file__).parents[2] / "docs" / "operator-families.md"
ATEN = {base_name(str(s.name)) for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")}


def forget() -> None:
    families.cache_clear()
    identify.cache_clear()


@pytest.fixture
def rope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The module of the recipe, as if it lay in the package."""
    block = re.search(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "rope.py").write_text(block[1])
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    forget()
    yield "rope_pair"
    forget()


def test_the_recipe_adds_a_family_with_one_file(rope: str) -> None:
    assert family_of(rope).name == "rope" and class_of(rope) == "elementwise"
    x = TensorSpec("bfloat16", (1 << 14, 1 << 14), (1 << 14, 1))
    price = model_for(load_gpu("H100")).operator(OperatorSignature(f"mylib::{rope}", (x, x)), ())
    assert price.bytes == 2 * 2 * (1 << 28)
    assert price.durations[0] == pytest.approx(price.bytes / (3350 * 0.9 * 0.7), rel=0.1)


def test_without_the_file_there_is_no_family() -> None:
    assert family_of("rope_pair").name == "elementwise"


def test_every_operator_has_one_family() -> None:
    """Of those asked at the same time: what no order decides."""
    keys = chain.from_iterable(read_table(DATA / f"{gpu}-sxm.parquet").keys() for gpu in ("h100", "h200"))
    for name in ATEN | {base_name(key.partition("(")[0]) for key in keys}:
        assert class_of(name) in CLASSES
        claimed = [family for family in families() if family.classify(name) is not None]
        first = [family.name for family in claimed if family.precedence == claimed[0].precedence]
        assert first == [family_of(name).name]


def test_every_module_is_in_the_documentation() -> None:
    modules = [path.name for path in Path(package.__file__).parent.iterdir() if not path.name.startswith("_")]
    missing = [name for name in modules if f"`{name.removesuffix('/')}" not in RECIPE.read_text()]
    assert len(modules) > 15 and not missing
