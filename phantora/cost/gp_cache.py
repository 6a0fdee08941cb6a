"""Weights of Gaussian processes, cached on disk: a system of thousands of training points takes a second to solve.

Weights of the shipped tables are a file of the package, which ``validation/fits/gp_weights.py`` writes. Others are in
the cache of this machine. Weights are float32: prices differ from those of float64 weights by less than 0.1 %.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from phantora.cache import cache_directory, make_folder
from phantora.cost.kriging import Floats

SHIPPED = Path(__file__).parent / "data" / "gp_weights.npz"
WORTH_KEEPING = 500  # unknowns: fewer are solved in less time than a file takes


def folder() -> Path:
    """The folder with the weights that this machine has solved for."""
    return cache_directory() / "fields"


@cache
def shipped() -> dict[str, Floats]:
    """Weights of the shipped tables, by name."""
    if not SHIPPED.exists():
        return {}
    with np.load(SHIPPED, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def write_shipped(solved: dict[str, Floats]) -> None:
    """Writes the file of the package: weights by name."""
    np.savez_compressed(SHIPPED, **{name: solved[name].astype(np.float32) for name in sorted(solved)})  # type: ignore[arg-type]


def find(name: str, solve: Callable[[], Floats]) -> Floats:
    """The weights called `name`, from `solve` if no file has them."""
    known = shipped().get(name)
    if known is not None:
        return known
    path = folder() / f"{name}.npy"
    with suppress(OSError, ValueError):  # missing, or not written to the end
        found: Floats = np.load(path, allow_pickle=False)
        return found
    solved = solve().astype(np.float32)
    if len(solved) >= WORTH_KEEPING:
        with suppress(OSError):  # a folder that cannot be written to costs time only
            make_folder(path.parent)
            part = path.with_suffix(f".{os.getpid()}.part")
            with part.open("wb") as file:
                np.save(file, solved)
            part.replace(path)
    return solved
