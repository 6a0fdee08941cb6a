"""Small programs after public reports: their end, what they print, and their times on an H200 (``reports.toml``)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from phantora.hardware import toml
from validation.scoreboard.rows import RIGHT, WRONG, Case, Row, absent, within
from validation.scoreboard.simulate import Ran, error_of, trace

FILE = Path(__file__).with_name("reports.toml")
HANG_S = "20"
_ALONE: defaultdict[str, Lock] = defaultdict(Lock)
"""By script: several of one write the same files."""


def cases(folder: Path | None) -> list[Case]:
    """A case for each entry of the file."""
    entries: list[dict[str, Any]] = toml.read(FILE)["case"]
    return [Case("reports", " ".join(entry["words"]), partial(_rows, entry, folder)) for entry in entries]


def _rows(entry: Mapping[str, Any], cases: Path | None, folder: Path) -> list[Row]:
    name = " ".join(entry["words"])
    cwd = (cases / "reports").resolve() if cases else None
    if cwd is None or not (cwd / entry["words"][0]).exists():
        return [absent("reports", name, f"--cases has no reports/{entry['words'][0]}")]
    cluster = f"1x{entry.get('ranks', 2)}xH200"
    with _ALONE[entry["words"][0]]:
        ran = trace(folder, cluster, "--hang-timeout", HANG_S, *entry["words"], cwd=cwd)
    why = _unlike(entry, ran)
    rows = [Row("reports", name, WRONG if why else RIGHT, note=why)]
    for label, pattern, real, most in entry.get("figures", ()):
        found = re.findall(pattern, ran.output)
        key = f"{name}: {label}"
        if found:
            rows.append(within("reports", key, float(found[-1]) / real - 1, most, note=f"{found[-1]}, real {real:g}"))
        else:
            rows.append(Row("reports", key, WRONG, note="not printed"))
    return rows


def _unlike(entry: Mapping[str, Any], ran: Ran) -> str:
    """By what a run differs from what is expected; "": nothing."""
    ends = entry.get("ends", "ok")
    hung = bool(re.search(r"\bhang\b|hangs|HANG|no progress|deadlock", ran.output)) and ran.status != 0
    good = {"ok": ran.status == 0, "failed": ran.status != 0, "hang": hung}[ends]
    if not good:
        return f"expected: {ends}; {error_of(ran)}"
    missing = [text for text in entry.get("says", ()) if not re.search(text, ran.output)]
    return f"does not say {missing[0]}" if missing else ""
