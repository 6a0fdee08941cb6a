"""Measured operators as families of places, each with how far the analytic model is off.

To model the thousands of entries of a table takes seconds and gives the same each time. So families of tables that
were read from files are kept in the cache of this machine, by the table, the GPU and the code that made them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from phantora.cache import cache_directory, make_folder
from phantora.cost.kriging import Floats
from phantora.hardware.types import Gpu

WORTH_KEEPING = 200  # entries: fewer are modelled in less time than a file takes
MOST_KEPT = 12  # sets of families: of so many tables, GPUs and versions of the code


@dataclass(frozen=True)
class Members:
    """Of one family: places (a row each) and logarithms of measured over modelled time."""

    at: Floats
    ratio: Floats


Families = dict[str, Members]
"""By name."""


@dataclass(frozen=True)
class Kept:
    """Where families of one table, modelled for one GPU, lie."""

    folder: Path

    def find(self, operators: Sequence[str], make: Callable[[], Families]) -> Families:
        """The families of `operators` (base names), from `make` if no file has them."""
        path = self.folder / f"{hashlib.sha256(' '.join(operators).encode()).hexdigest()[:24]}.npz"
        with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):  # missing, or not a whole file
            return _read(path)
        made = make()
        if sum(len(members.ratio) for members in made.values()) >= WORTH_KEEPING:
            with suppress(OSError):  # a folder that cannot be written to costs time only
                _write(path, made)
        return made


def kept_for(table_digest: str, gpu: Gpu) -> Kept | None:
    """None for a table that is in no file: `table_digest` is empty."""
    if not table_digest:
        return None
    name = hashlib.sha256(f"{table_digest} {gpu!r} {_code()}".encode()).hexdigest()[:24]
    root = cache_directory() / "families"
    return Kept(root / name)


@cache
def _code() -> str:
    """The code that makes families."""
    digest = hashlib.sha256(np.__version__.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Families:
    """Raises OSError, ValueError, KeyError, EOFError or BadZipFile for a file that is missing or broken."""
    with np.load(path, allow_pickle=False) as archive:
        names = archive["names"].tobytes().decode().split("\n")
        rows, widths, at, ratio = (archive[name] for name in ("rows", "widths", "at", "ratio"))
    if not (len(names) == len(rows) == len(widths) and rows.sum() == len(ratio) and (rows * widths).sum() == len(at)):
        raise ValueError("counts that do not belong together")
    ends, at_ends = np.cumsum(rows), np.cumsum(rows * widths)
    return {
        name: Members(at[at_end - count * width : at_end].reshape(count, width), ratio[end - count : end])
        for name, count, width, end, at_end in zip(names, rows, widths, ends, at_ends, strict=True)
    }


def _write(path: Path, families: Families) -> None:
    if not path.parent.exists():
        _make_room(path.parent.parent)
        make_folder(path.parent)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez(
            file,
            names=np.frombuffer("\n".join(families).encode(), np.uint8),
            rows=np.array([len(members.ratio) for members in families.values()]),
            widths=np.array([members.at.shape[1] for members in families.values()]),
            at=np.concatenate([members.at.reshape(-1) for members in families.values()]),
            ratio=np.concatenate([members.ratio for members in families.values()]),
        )
    part.replace(path)


def _make_room(root: Path) -> None:
    """Removes the sets of families that were written longest ago."""
    if root.is_dir():
        oldest = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in oldest[: max(0, len(oldest) + 1 - MOST_KEPT)]:
            shutil.rmtree(folder, ignore_errors=True)
