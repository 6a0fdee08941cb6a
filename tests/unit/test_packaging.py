"""Content of the wheel: every package of the tree, and the files that they read."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "phantora").rglob("*.py")}
    assert {name for name in listed if not name.startswith("phantora._")} == found


def test_every_other_file_is_listed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed: set[Path] = set()
    for package, patterns in setuptools["package-data"].items():
        folder = ROOT / setuptools["package-dir"].get(package, package.replace(".", "/"))
        listed |= {path for pattern in patterns for path in folder.glob(pattern)}
    files = (path for folder in ("phantora", "stub") for path in (ROOT / folder).rglob("*") if path.is_file())
    assert [path for path in files if path.suffix not in (".py", ".pyc", ".md") and path not in listed] == []
