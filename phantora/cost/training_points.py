"""Measured operators as training points: places, and the ratio of measured to analytic time.

The analytic model of a table's entries takes seconds. So the training points of tables in files are cached on this
machine by table, GPU and code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from phantora.cache import cache_directory, make_folder, make_room
from phantora.cost.kriging import Floats
from phantora.hardware.types import Gpu

WORTH_KEEPING = 200  # entries: fewer are analytic in less time than a file takes
MOST_SETS = 12  # sets of families in the cache: a set is of one table, GPU and version of the code


@dataclass(frozen=True)
class TrainingPoints:
    """Training points of one family: places (a row each) and logarithms of measured over analytic time."""

    at: Floats
    ratio: Floats


Families = dict[str, TrainingPoints]
"""Families by name."""


@dataclass(frozen=True)
class PointsCache:
    """The folder of the families of one table and one GPU."""

    folder: Path

    def find(self, operators: Sequence[str], make: Callable[[], Families]) -> Families:
        """The families of `operators` (base names), from `make` if no file has them."""
        path = self.folder / f"{hashlib.sha256(' '.join(operators).encode()).hexdigest()[:24]}.npz"
        with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):  # missing, or not a whole file
            return _read(path)
        made = make()
        if sum(len(points.ratio) for points in made.values()) >= WORTH_KEEPING:
            with suppress(OSError):  # a folder that cannot be written to costs time only
                _write(path, made)
        return made


def points_cache(table_digest: str, gpu: Gpu) -> PointsCache | None:
    """The cache of a table; None for a table that is in no file, with an empty `table_digest`."""
    if not table_digest:
        return None
    name = hashlib.sha256(f"{table_digest} {gpu!r} {_code()}".encode()).hexdigest()[:24]
    root = cache_directory() / "families"
    return PointsCache(root / name)


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
        name: TrainingPoints(at[at_end - count * width : at_end].reshape(count, width), ratio[end - count : end])
        for name, count, width, end, at_end in zip(names, rows, widths, ends, at_ends, strict=True)
    }


def _write(path: Path, families: Families) -> None:
    if not path.parent.exists():
        make_room(path.parent.parent, MOST_SETS)
        make_folder(path.parent)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez(
            file,
            names=np.frombuffer("\n".join(families).encode(), np.uint8),
            rows=np.array([len(points.ratio) for points in families.values()]),
            widths=np.array([points.at.shape[1] for points in families.values()]),
            at=np.concatenate([points.at.reshape(-1) for points in families.values()]),
            ratio=np.concatenate([points.ratio for points in families.values()]),
        )
    part.replace(path)
