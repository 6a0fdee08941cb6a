"""Tables of measurements that apply to a GPU: those in the package, and those of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from pathlib import Path

from phantora.cache import cache_directory
from phantora.cost.table import Table, read_table, table_gpu
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu
from phantora.hardware.types import Gpu

DATA = Path(__file__).parent / "data"


def cache_folder() -> Path:
    """The folder of this machine's own measurements."""
    return cache_directory() / "kernel-times"


def tables_for(gpu: Gpu, folders: Sequence[Path]) -> tuple[list[Table], list[tuple[Table, Gpu]]]:
    """Tables of `gpu`, those in earlier folders first; without any, the table of the most similar GPU.

    Raises PhantoraError for a file that is no table.
    """
    paths = _products(folders)
    own = [read_table(path) for path, product in paths if product == gpu.product]
    if own:
        return own, []
    others = [(path, _gpu_of(path, product)) for path, product in paths]
    nearest = min(others, key=lambda pair: _difference(gpu, pair[1]), default=None)
    return [], [(read_table(nearest[0]), nearest[1])] if nearest else []


def same_architecture(gpu: Gpu, folders: Sequence[Path]) -> list[tuple[Table, Gpu]]:
    """Tables of other GPUs of the architecture of `gpu`. Raises PhantoraError for a file that is no table."""
    others = [(path, _gpu_of(path, product)) for path, product in _products(folders) if product != gpu.product]
    same = [pair for pair in others if pair[1].compute_capability == gpu.compute_capability]
    return [(read_table(path), other) for path, other in same]


def _products(folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """Table files with the products that they were measured on."""
    return [(path, table_gpu(path)) for folder in folders for path in sorted(folder.glob("*.parquet"))]


def _gpu_of(path: Path, product: str) -> Gpu:
    try:
        return load_gpu(product)
    except PhantoraError as error:
        raise PhantoraError(f"{path} was measured on {product!r}, which no GPU file describes ({error})") from error


def _difference(gpu: Gpu, other: Gpu) -> tuple[float, float]:
    """Generations, then octaves of memory bandwidth."""
    generation = abs(gpu.compute_capability[0] - other.compute_capability[0])
    return (float(generation), abs(log2(gpu.hbm_bandwidth / other.hbm_bandwidth)))
