"""Rows of the scoreboard, and its table: ``validation/scoreboard/table.jsonl``, rendered as
``validation/tables/scoreboard.md``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from validation.data import HERE

RIGHT, WRONG, ABSENT = "right", "wrong", "absent"
TABLE = HERE / "scoreboard" / "table.jsonl"
PAGE = HERE / "tables" / "scoreboard.md"

Key = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """One figure."""

    group: str
    name: str
    verdict: str
    """RIGHT, WRONG, or ABSENT: its data or its programs are not on this machine."""
    figure: float | None = None
    unit: str = ""
    bound: str = ""
    """What the figure must be."""
    note: str = ""

    @property
    def key(self) -> Key:
        """Identity of the row between two tables."""
        return self.group, self.name


@dataclass(frozen=True)
class Case:
    """Work that makes rows: a run, or a comparison of committed data."""

    group: str
    name: str
    rows: Callable[[Path], Sequence[Row]]
    """Gets an empty folder."""


def at_most(group: str, name: str, figure: float, most: float, unit: str = "%", note: str = "") -> Row:
    """Right if `figure` is at most `most`."""
    return Row(group, name, RIGHT if figure <= most else WRONG, round(figure, 3), unit, f"at most {most:g}", note)


def at_least(group: str, name: str, figure: float, least: float, unit: str = "%", note: str = "") -> Row:
    """Right if `figure` is at least `least`."""
    return Row(group, name, RIGHT if figure >= least else WRONG, round(figure, 3), unit, f"at least {least:g}", note)


def within(group: str, name: str, error: float, most: float, inside: bool = False, note: str = "") -> Row:
    """`error` is a share of the real figure. Right if it is within `most`, or if the real one is `inside` of the range
    that the run prints."""
    good = abs(error) <= most or inside
    note = "; ".join(filter(None, (note, "inside the printed range" if inside else "")))
    return Row(group, name, RIGHT if good else WRONG, round(100 * error, 2), "%", f"within {100 * most:g}", note)


def absent(group: str, name: str, why: str) -> Row:
    """A row that this machine cannot compute."""
    return Row(group, name, ABSENT, note=why)


def committed() -> dict[Key, Row]:
    """The table of the last commit; outside of a repository that of the folder."""
    path = TABLE.relative_to(HERE.parent)
    shown = subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=HERE.parent, capture_output=True, text=True, check=False
    )
    if shown.returncode == 0:
        return _parse(shown.stdout)
    return _parse(TABLE.read_text()) if TABLE.exists() else {}


def _parse(text: str) -> dict[Key, Row]:
    rows = (Row(**json.loads(line)) for line in text.splitlines())
    return {row.key: row for row in rows}


def regressions(rows: Iterable[Row], before: Mapping[Key, Row]) -> list[Row]:
    """Rows that are wrong now and were right. A case that fails has one row, for all that it had before."""
    right = {key for key, row in before.items() if row.verdict == RIGHT}
    return [
        row
        for row in rows
        if row.verdict == WRONG
        and (row.key in right or any(g == row.group and name.startswith(f"{row.name}:") for g, name in right))
    ]


def merged(rows: Iterable[Row], before: Mapping[Key, Row]) -> list[Row]:
    """The table: `rows`, and the rows of `before` that were not computed this time, but for failures of cases that
    have rows now."""
    new = {row.key: row for row in rows}
    done = {(group, name.partition(": ")[0]) for group, name in new if ": " in name}
    kept = {k: row for k, row in before.items() if k not in done and (k not in new or new[k].verdict == ABSENT)}
    return sorted({**new, **kept}.values(), key=lambda row: row.key)


def lines(rows: Iterable[Row]) -> str:
    """A JSON object for each row."""
    return "".join(json.dumps(_without_empty(row)) + "\n" for row in rows)


def write(rows: Sequence[Row], before: Mapping[Key, Row], folder: Path | None) -> Path:
    """Writes the table and its page, into `folder` or into those of the repository. Returns the page."""
    text, shown = (folder / TABLE.name, folder / PAGE.name) if folder else (TABLE, PAGE)
    text.write_text(lines(rows))
    shown.write_text(page(rows, before))
    return shown


def _without_empty(row: Row) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if value not in ("", None)}


def page(rows: Sequence[Row], before: Mapping[Key, Row]) -> str:
    """The table as Markdown, with the figure of `before` next to each."""
    lines = ["`python -m validation.scoreboard`", ""]
    for group in dict.fromkeys(row.group for row in rows):
        own = [row for row in rows if row.group == group]
        right = sum(row.verdict == RIGHT for row in own)
        lines += [f"## {group}: {right} of {len(own)} right", ""]
        lines += ["| row | figure | last commit | bound | verdict | note |", "| --- | --- | --- | --- | --- | --- |"]
        for row in own:
            last = before.get(row.key)
            cells = (row.name, _figure(row), _figure(last) if last else "", row.bound, row.verdict, row.note)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _figure(row: Row) -> str:
    if row.figure is None:
        return ""
    text = f"{row.figure:+.2f}" if row.bound.startswith("within") else f"{row.figure:g}"
    return f"{text} {row.unit}".strip()
