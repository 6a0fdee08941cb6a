"""The notebook in samples/ runs from its first to its last cell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import SAMPLES


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for script in SAMPLES.glob("llama*.py"):
        shutil.copy(script, tmp_path)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    notebook = json.loads((SAMPLES / "notebooks" / "run.ipynb").read_text())
    names: dict[str, Any] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            body, _, final = "".join(cell["source"]).rpartition("\n")
            exec(compile(body, "cell", "exec"), names)  # the last line of a cell is what it shows
            shown.append(eval(compile(final, "cell", "eval"), names))
    run, summary, steps, kernels, collectives, memory = shown
    assert run.log.complete and summary["steps"] >= 4
    assert set(steps["rank"]) == {0, 1} and steps["mfu"].min() > 0
    assert "gemm" in kernels.index and (collectives["transfer"] > 0).all()
    assert (memory["allocated"] > 0).all()
