"""Inputs that fuzz.py keeps in the repository: for each target a zip of what reaches code that its seeds do not."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).with_name("corpora")
MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold: equal inputs make equal files


def file_name(target: str) -> str:
    """The name of a target as part of a file's name."""
    return target.replace(", ", "-").replace(" ", "-")


def kept(target: str) -> list[bytes]:
    """The inputs that are kept for a target, in the order of their names."""
    path = FOLDER / f"{file_name(target)}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in sorted(archive.namelist())]


def write(target: str, inputs: Iterable[bytes]) -> Path:
    """Replaces what is kept for a target."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{file_name(target)}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, data in enumerate(sorted(inputs)):
            entry = zipfile.ZipInfo(f"{number:03}", MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=9)
    return path
