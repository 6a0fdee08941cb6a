"""A report as flat tables: CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, cause_of
from phantora.trace.analysis.report import CAUSES, Report, StepTimes

Row = dict[str, Any]
# Of `Details`: each a table as it is.
_LISTS = ("collectives", "stragglers", "kernels", "operators", "classes", "modules", "streams", "links")


def tables(report: Report) -> dict[str, list[Row]]:
    """All tables of the report by name, in its units (ns, bytes)."""
    found = {
        "steps": [_step(step) for step in report.steps],
        "ranks": [{"rank": rank.rank, **_step(step)} for rank in report.ranks for step in rank.steps],
    }
    details = report.details
    if details is None:
        return found
    found["exposure"] = [asdict(row) for row in report.exposure]
    for name in _LISTS:
        found[name] = [asdict(row) for row in getattr(details, name)]
    found["memory"] = [
        {"rank": m.rank, "step": m.peak_step, "time": m.peak_time, "category": category, "bytes": value}
        for m in details.memory
        for category, value in m.by_category.items()
    ]
    found["memory_timeline"] = [
        {"rank": m.rank, "time": time, "allocated": allocated, "reserved": reserved}
        for m in details.memory
        for time, allocated, reserved in m.timeline
    ]
    found["critical_path"] = [
        {"step": path.step, "class": cls, "time": time, "gain": (path.gain or {}).get(cls)}
        for path in details.critical_paths
        for cls, time in path.by_class.items()
    ]
    found["critical_path_segments"] = [
        {"step": path.step, **asdict(segment)} for path in details.critical_paths for segment in path.segments
    ]
    return found


def _step(step: StepTimes) -> Row:
    row = {"step": step.number, "name": step.name, "start": step.start, "end": step.end}
    row.update({key: value for key, value in asdict(step.times).items() if key != "stalls"})
    row["overlap"] = step.times.overlap
    row.update({f"without_compute.{cause.replace(' ', '_')}": step.times.stalls.get(cause, 0) for cause in CAUSES})
    row["note"] = step.note
    return row


def write_csv(named: Mapping[str, list[Row]], directory: str) -> list[str]:
    """Writes each table that has rows to `directory`/name.csv; returns the paths."""
    paths = []
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, rows in named.items():
            if rows:
                path = Path(directory) / f"{name}.csv"
                path.write_text(_csv(rows), encoding="utf-8")
                paths.append(str(path))
    except OSError as error:
        raise PhantoraError(
            f"{directory}: cannot write the tables: {cause_of(error)}; name another directory"
        ) from error
    return paths


def _csv(rows: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
