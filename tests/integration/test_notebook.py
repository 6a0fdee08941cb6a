"""The notebooks in samples/ run from their first to their last cell."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import SAMPLES

pytestmark = pytest.mark.usefixtures("shared_server")
NOTEBOOKS = SAMPLES / "notebooks"


def _run(shown: list[Any]) -> None:
    run, summary, steps, kernels, collectives, memory = shown
    assert run.log.complete and summary["steps"] >= 4
    assert set(steps["rank"]) == {0, 1} and steps["mfu"].min() > 0
    assert "gemm" in kernels.index and (collectives["transfer"] > 0).all()
    assert (memory["allocated"] > 0).all()


def _slow(shown: list[Any]) -> None:
    page = shown[0]._repr_html_()
    assert all(part in page for part in ("HELD UP", " of rank 0: ", "Memory of rank", "Roofline:", "<circle"))
    assert len(page) < 300_000 and not re.search(r"<script|src=|href=", page)
    assert shown[2].step.change > 0


def _memory(shown: list[Any]) -> None:
    says, largest, _, blocks = shown
    assert says[0].startswith("Fits:") and re.match(r"Largest --batch that fits: [1-9]", largest[0])
    assert all(site and held > 0 for site, held in blocks)


def _hang(shown: list[Any]) -> None:
    calls = ("rank 0 calls broadcast of 1024 float32, root 0 (called at hang.py:10)", "rank 1 calls all_reduce of 1024")
    assert all(call in shown[1] for call in calls)  # the rank that comes first in real time is named first


def _which_gpu(shown: list[Any]) -> None:
    verdict, choices = shown
    assert verdict[0] and [gpu for gpu, *_ in choices] == ["H100-SXM", "B200-SXM"]
    assert all(step > 0 and dollars > 0 for _, step, dollars in choices)


CHECKS: dict[str, Callable[[list[Any]], None]] = {
    "run": _run,
    "slow": _slow,
    "memory": _memory,
    "hang": _hang,
    "which_gpu": _which_gpu,
}


def test_every_notebook_is_run() -> None:
    assert set(CHECKS) == {path.stem for path in NOTEBOOKS.glob("*.ipynb")}


@pytest.mark.parametrize("name", CHECKS)
def test_notebook(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for script in SAMPLES.glob("llama*.py"):
        shutil.copy(script, tmp_path)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    CHECKS[name]([shown("".join(c["source"]), names) for c in cells if c["cell_type"] == "code"])


def shown(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell. Its last expression is what it shows."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None
