"""Imports of a script that are made once for all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.launch.plan import Plan
from phantora.launch.shared_imports import shared_imports
from phantora.spec import MODULE, RunSpec


@pytest.mark.parametrize(
    ("script", "shared"),
    [
        ('"""Doc."""\nfrom __future__ import annotations\nimport os, torch\nimport deepspeed\n', ("deepspeed",)),
        ("from transformers import Trainer, LlamaConfig as C\n", ("transformers:Trainer", "transformers:LlamaConfig")),
        ("import megatron.core as m\nimport megatron.core\n", ("megatron.core",)),
        ("import os\nos.environ['DS_X'] = '1'\nimport deepspeed\n", ()),  # what it reads may differ
        ("import patches\nimport transformers\n", ()),  # and so after a package that is not known
        ("import deepspeed\nif True:\n    import transformers\n", ("deepspeed",)),
        ("from .deepspeed import x\nimport transformers\n", ()),
        ("import deepspeed\nthis is no Python\n", ()),
    ],
)
def test_only_what_nothing_can_change(tmp_path: Path, script: str, shared: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(script)
    assert shared_imports(str(tmp_path / "train.py")) == shared


def test_no_script() -> None:
    assert shared_imports("/nowhere/train.py") == ()


def test_a_module_next_to_the_script_is_the_one_meant(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import logging\nimport transformers\n")
    (tmp_path / "transformers").mkdir()  # such a folder gives way to the package
    assert shared_imports(str(script)) == ("transformers",)
    (tmp_path / "datasets.py").touch()  # transformers itself would import it
    assert shared_imports(str(script)) == ()
    (tmp_path / "datasets.py").rename(tmp_path / "logging.py")
    assert shared_imports(str(script)) == ()


def test_packages_that_a_framework_may_lack_are_no_condition() -> None:
    plan = Plan(spec=RunSpec("torchtitan.train", kind=MODULE))
    assert "torchdata.stateful_dataloader" in plan.shared and "torchdata.stateful_dataloader" not in plan.imports
