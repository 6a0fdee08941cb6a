"""A report as flat tables: CSV files, and the plain page that shows them."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.trace.analysis.report import CAUSES, Report, StepTimes
from phantora.trace.analysis.units import duration, size

Row = dict[str, Any]


def tables(report: Report) -> dict[str, list[Row]]:
    """All tables of the report by name, in its units (ns, bytes)."""
    found = {
        "steps": [_step(step) for step in report.steps],
        "ranks": [{"rank": rank.rank, **_step(step)} for rank in report.ranks for step in rank.steps],
    }
    details = report.details
    if details is None:
        return found
    for name in ("exposure", "collectives", "stragglers", "kernels", "operators", "classes", "modules", "links"):
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
    row.update({cause: step.times.stalls.get(cause, 0) for cause in CAUSES})
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
            f"{directory}: cannot write the tables: {error.strerror}; name another directory"
        ) from error
    return paths


def _csv(rows: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


_STYLE = (
    ":root{color-scheme:light dark}body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;"
    "padding:0 1rem}table{border-collapse:collapse;margin-bottom:1.5rem;display:block;overflow-x:auto}"
    "th,td{padding:.15rem .7rem .15rem 0;text-align:right;white-space:nowrap}th{border-bottom:1px solid #8888}"
    "td:first-child,th:first-child{text-align:left}"
)
_BYTES = frozenset(("peak_allocated", "peak_reserved", "bytes", "allocated", "reserved"))
_PLAIN = frozenset(("step", "number", "rank", "count", "ranks", "comm", "last", "stream", "flops", "peak_step"))
_MOST = 200


def page(title: str, lines: Iterable[str], named: Mapping[str, list[Row]]) -> str:
    """One self-contained HTML page: `lines`, then the tables (the long ones' first rows)."""
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"]
    parts.append('<meta name=viewport content="width=device-width">')
    parts.append(f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><ul>")
    parts += [f"<li>{html.escape(line)}</li>" for line in lines]
    parts.append("</ul>")
    for name, rows in named.items():
        if not rows or name in ("memory_timeline", "critical_path_segments"):
            continue
        cut = f" (first {_MOST} of {len(rows)})" if len(rows) > _MOST else ""
        parts.append(f"<h2>{html.escape(name.replace('_', ' '))}{cut}</h2><table><tr>")
        parts += [f"<th>{html.escape(column.replace('_', ' '))}</th>" for column in rows[0]]
        for row in rows[:_MOST]:
            parts.append("<tr>" + "".join(f"<td>{html.escape(_text(c, v))}</td>" for c, v in row.items()))
        parts.append("</table>")
    return "".join(parts) + "</html>\n"


def _text(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if column in _BYTES:
        return size(value)
    if column in ("mfu", "overlap", "share", "last_share", "utilisation"):
        return f"{100 * value:.1f}%"
    if column.endswith("bandwidth"):
        return f"{value / 1e9:.1f} GB/s"
    if column in _PLAIN:
        return f"{value:,.0f}"
    return duration(value)


def write_page(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PhantoraError(f"{path}: cannot write the page: {error.strerror}; name another path") from error
