"""Inputs that fuzz.py keeps: one zip, with a folder per target of what reaches code that its seeds do not."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

ARCHIVE = Path(__file__).with_name("corpora.zip")
MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip: equal inputs make equal files


def file_name(target: str) -> str:
    """The name of a target as part of a file's name."""
    return target.replace(", ", "-").replace(" ", "-")


def _read() -> dict[str, list[bytes]]:
    """All inputs by the file name of their target."""
    found: dict[str, list[bytes]] = {}
    if ARCHIVE.exists():
        with zipfile.ZipFile(ARCHIVE) as archive:
            for name in sorted(archive.namelist()):
                found.setdefault(name.partition("/")[0], []).append(archive.read(name))
    return found


def targets() -> list[str]:
    """File names of the targets that have inputs."""
    return sorted(_read())


def kept(target: str) -> list[bytes]:
    """The inputs of a target."""
    return _read().get(file_name(target), [])


def write(target: str, inputs: Iterable[bytes]) -> Path:
    """Replaces the inputs of a target."""
    every = _read() | {file_name(target): sorted(inputs)}
    with zipfile.ZipFile(ARCHIVE, "w") as archive:
        for folder, data in sorted(every.items()):
            for number, each in enumerate(data):
                entry = zipfile.ZipInfo(f"{folder}/{number:03}", MOMENT)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, each, compresslevel=9)
    return ARCHIVE
