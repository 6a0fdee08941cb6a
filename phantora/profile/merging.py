"""Several tables of kernel times as one, each checked first: what others measured and share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.table import Entry, Table, read_table, signature_key, write_table
from phantora.cost.tensors import HALVES
from phantora.cost.timing import launches_of
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu

SAME = ("gpu", "torch", "cuda")
"""Tags that tables to be merged have in common."""
FASTER_THAN_PEAK = 0.8
"""A time below this part of what the GPU's peak arithmetic allows is rejected: boost clocks are above the rated one
by less."""
MOST_IMPOSSIBLE = 5  # that are named


@dataclass(frozen=True)
class Part:
    """Contribution of one table to those before it."""

    path: Path
    operators: int
    new: int
    ratio: float | None
    """Median of its times over those of the tables before, of operators in both; None without any."""
    apart: int
    """Number of these that differ by more than a quarter."""


def merge(paths: Sequence[Path], out: Path) -> tuple[Table, list[Part]]:
    """Writes the tables in `paths` to `out` as one; of an operator in several the last counts.

    Raises PhantoraError for a file that is no table, tables of different GPUs, torch or CUDA versions, and a table with
    times that the GPU cannot reach.
    """
    tables = [read_table(path) for path in paths]
    first = tables[0]
    merged: dict[str, Entry] = {}
    parts = []
    for path, table in zip(paths, tables, strict=True):
        for name in SAME:
            if table.about.get(name) != first.about.get(name):
                raise PhantoraError(
                    f"{path} was measured with {name} {table.about.get(name)}, {paths[0]} with "
                    f"{first.about.get(name)}: one table contains one GPU, torch and CUDA; keep them apart"
                )
        _check(path, table)
        entries = {signature_key(entry.parsed, entry.compute): entry for entry in table}
        ratios = [_ns(entry) / _ns(merged[key]) for key, entry in entries.items() if key in merged and _ns(merged[key])]
        parts.append(
            Part(
                path,
                len(entries),
                len(entries.keys() - merged.keys()),
                statistics.median(ratios) if ratios else None,
                sum(not 0.8 <= ratio <= 1.25 for ratio in ratios),
            )
        )
        merged |= entries
    write_table(out, first.about, merged.values())
    return read_table(out), parts


def _ns(entry: Entry) -> float:
    return sum(kernel.cold + kernel.warm for kernel in entry.kernels) / 2.0


def _check(path: Path, table: Table) -> None:
    """Raises PhantoraError if the GPU cannot multiply as fast as in the table."""
    analytic = AnalyticModel(load_gpu(table.about.get("gpu", "")))
    impossible = []
    for entry in table:
        kernels = launches_of(entry.kernels)
        price = analytic.operator(entry.parsed, kernels)
        if price.cls != "gemm" or price.format not in HALVES:  # float32's peak depends on whether TF32 was allowed
            continue
        if _ns(entry) < FASTER_THAN_PEAK * price.flops / analytic.machine.peak(price.format):
            impossible.append(f"{signature_key(entry.parsed, entry.compute)[:90]}: {_ns(entry) / 1e3:.1f} us")
    if impossible:
        named = "; ".join(impossible[:MOST_IMPOSSIBLE])
        raise PhantoraError(f"{path}: {len(impossible)} operators are faster than the peak of this GPU: {named}")
