"""Environment variables that Phantora reads: those of docs/environment.md, eight at most."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 8
_NAME = re.compile(r"(?<![\w.])PHANTORA_[A-Z_]+")
_C_GUARDS = re.compile(r"^\s*#\s*(?:ifndef|ifdef|define|undef|if|endif).*$", re.MULTILINE)


def test_only_documented_variables_are_read() -> None:
    read = set()
    for folder in ("phantora", "stub"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and (path.suffix in (".py", ".c", ".cpp", ".h") or "bin" in path.parts):
                text = path.read_text(errors="ignore")
                read |= set(_NAME.findall(_C_GUARDS.sub("", text) if path.suffix in (".c", ".cpp", ".h") else text))
    page = (ROOT / "docs" / "environment.md").read_text()
    documented = set(re.findall(r"^\| `(PHANTORA_[A-Z_]+)`", page, re.MULTILINE))
    assert {name for name in read if not name.endswith("_")} == documented
    assert len(documented) <= MOST
