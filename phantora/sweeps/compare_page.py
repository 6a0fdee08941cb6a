"""The page of a comparison: speed against number of GPUs or length, cost against time, the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, cause_of
from phantora.sweeps.compare import Choice, Comparison, Question
from phantora.sweeps.render import bar_of
from phantora.view.pages import assemble

NAME = "compare.html"


def write_compare_page(found: Comparison, question: Question) -> tuple[Path, bool]:
    """Into the comparison's folder, whole or not at all; True if it replaces the page of another comparison. Raises
    PhantoraError."""
    path = found.folder / NAME
    new = path.with_suffix(".new")
    page = compare_page(found, question).encode()
    try:
        replaces = path.exists() and path.read_bytes() != page
        new.write_bytes(page)
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise PhantoraError(f"{path}: cannot be written: {cause_of(error)}; free space and start again") from error
    return path, replaces


def compare_page(found: Comparison, question: Question) -> str:
    """As one self-contained file."""
    data = {
        "verdict": found.verdict,
        "vary": question.vary,
        "unit": next((one.unit for one in found.choices if one.rate), "tokens"),
        "priced": "yours (--price)" if question.dollars else "on demand, the median of providers",
        "best": [i for i, one in enumerate(found.choices) if any(one is best for best in found.best)],
        "machines": [_row(i, one) for i, one in enumerate(found.choices)],
    }
    return assemble("compare.html", f"Comparison {found.folder.name}", data)


def _row(index: int, one: Choice) -> dict[str, Any]:
    measured, result = one.measured, one.row.entry.result
    return {
        "index": index,
        "cluster": one.cluster,
        "gpu": one.gpu,
        "gpus": one.gpus,
        "value": one.value,
        "status": one.row.status,
        "memory": measured.memory if measured else result.needs if result else None,
        "capacity": one.row.entry.point.capacity,
        "step_time": measured.step_time if measured else None,
        "error": bar_of(measured) if measured else "-",
        "rate": one.rate or None,
        "mfu": measured.mfu if measured else None,
        "speedup": one.speedup,
        "joules": one.row.joules,
        "dollars_per_hour": one.dollars_per_hour,
        "dollars_per_million": one.dollars_per_million,
        "time": one.time,
        "dollars": one.dollars,
        "limited_by": one.limited_by,
    }
