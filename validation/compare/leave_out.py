"""Errors of predictions of unmeasured operators from measured ones.

    python -m validation.compare.leave_out [--gpu H200] [--other H100] [--seed N] [--worst N] [--family WORD] \
        [--moved SHARE]
    # hides these
    python -m validation.compare.leave_out --gpu H100 --table FILE.parquet

First a random fifth of the shipped table of --gpu is hidden and predicted from the rest; then the whole
table is predicted from that of --other. Each distinct operator counts once. Errors are of the operator's
kernels together, relative to the measured time.

The constants of the analytic models below were fitted to all rows. ``--moved 0.2`` tells how much of the result rests
on that: each constant is first moved by up to 20 % at random, much further than a fit to four fifths of the rows
would move it.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from phantora.cost import families
from phantora.cost.families import base_name, class_of
from phantora.cost.families.convolution.case import case_of
from phantora.cost.families.convolution.passes import INPUT, WEIGHT, passes_of
from phantora.cost.gpu_table import GpuTable
from phantora.cost.scaling import scaled_ns
from phantora.cost.sources.interpolated import ERRORS
from phantora.cost.sources.near import error_of
from phantora.cost.table import Entry, Table, read_table, signature_key
from phantora.cost.table_files import DATA, tables_for
from phantora.cost.timing import kernel_ns, launches_of, own_kernels
from phantora.cost.transfers import curve, in_pages, read_curve
from phantora.cost.types import KernelLaunch
from phantora.hardware import Gpu, load_gpu

HIDDEN = 5  # one operator in five
MODELS = ("phantora.cost.machine", "phantora.cost.timing")  # contain fitted constants, as the families do
USUAL = frozenset(224 >> halved for halved in range(6))
COPIES = ("d2d", "h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable")


@dataclass(frozen=True)
class Prediction:
    """One predicted operator: class, measured and predicted ns, octaves to its nearest neighbour."""

    cls: str
    measured: float
    predicted: float
    distance: float | None
    entry: Entry
    bar: float | None = None
    """The relative error that a run prints for it."""

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1.0)


def usable(table: Table) -> list[Entry]:
    """Entries of operators (copies and memsets are curves of their own)."""
    return [e for e in table if own_kernels(e) and not e.parsed.name.startswith("phantora::")]


def measured_ns(entry: Entry) -> tuple[str, float]:
    cls = class_of(base_name(entry.parsed.name))
    return cls, sum(kernel_ns(kernel, cls) for kernel in own_kernels(entry))


def move_constants(gpu: Gpu, share: float, seed: int) -> tuple[Gpu, int]:
    """Moves the fitted constants of the models, and the GPU's shares of its limits; returns how many there are."""
    draw = random.Random(seed)
    moved = 0

    def at_random(value: float) -> float:
        nonlocal moved
        moved += 1
        return value * (1 + draw.uniform(-share, share))

    for module in [importlib.import_module(name) for name in MODELS] + [
        importlib.import_module(info.name) for info in pkgutil.walk_packages(families.__path__, f"{families.__name__}.")
    ]:
        for name, value in sorted(vars(module).items()):
            if name.isupper() and isinstance(value, float):
                setattr(module, name, at_random(value))
    known = asdict(gpu.calibration)
    floats: dict[str, Any] = {name: at_random(value) for name, value in known.items() if isinstance(value, float)}
    return replace(gpu, calibration=replace(gpu.calibration, **floats)), moved


def hiding(table: Table, tables: Sequence[Path], gpu: Gpu) -> list[Prediction]:
    """Guesses at what is measured in `tables`, from the entries of `table` that are in none of them."""
    wanted = [entry for path in tables for entry in usable(read_table(path))]
    keys = {signature_key(entry.parsed, entry.compute) for entry in wanted}
    rest = [entry for entry in table if signature_key(entry.parsed, entry.compute) not in keys]
    return predicted_by(wanted, GpuTable(Table(table.about, rest), gpu))


def within(table: Table, gpu: Gpu, seed: int) -> list[Prediction]:
    """Guesses at a hidden fifth of `table`."""
    entries = sorted(usable(table), key=lambda e: (e.signature, e.compute))
    random.Random(seed).shuffle(entries)
    cut = len(entries) // HIDDEN
    return predicted_by(entries[:cut], GpuTable(Table(table.about, entries[cut:]), gpu))


def predicted_by(entries: Iterable[Entry], source: GpuTable) -> list[Prediction]:
    """Predictions of `entries` from the measurements of `source`."""
    predictions = []
    for entry in entries:
        kernels = launches_seen(entry)
        model = source.model(entry.parsed, entry.compute, kernels)
        near = source.neighbours.ratio(entry.parsed, entry.compute, kernels)
        cls, ns = measured_ns(entry)
        predicted = model * near.ratio if near else model
        bar = error_of(cls, near, ERRORS) if near else None
        predictions.append(Prediction(cls, ns, predicted, near.distance if near else None, entry, bar))
    return predictions


def launches_seen(entry: Entry) -> tuple[KernelLaunch, ...]:
    """Kernels that a simulated run sees of an operator: not the library's own choice."""
    library = base_name(entry.parsed.name).startswith("cudnn_")
    return () if library else launches_of(own_kernels(entry))


def by_kind(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Convolutions with a kind as their class: the share of groups, and whether the image has the sizes of networks for
    224 pixels."""
    found = []
    for prediction in predictions:
        case = case_of(prediction.entry.parsed, prediction.entry.compute) if prediction.cls == "convolution" else None
        if case is not None:
            groups = case.x.shape[1] // max(1, case.w.shape[1])
            usual = "usual image" if set(case.x.shape[2:]) <= USUAL else "other image"
            kind = "depthwise" if case.depthwise else "grouped" if groups > 1 else f"dense, {usual}"
            found.append(replace(prediction, cls=kind))
    return found


def by_passes(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Convolutions with dimensions, groups and direction as their class."""
    found = []
    for prediction in predictions:
        works = passes_of(prediction.entry.parsed, prediction.entry.compute) if prediction.cls == "convolution" else ()
        if works:
            groups = "depthwise" if works[0].depthwise else "grouped" if works[0].groups > 1 else "dense"
            backward, which = "backward" in prediction.entry.parsed.name, works[0].which
            transposed = which != WEIGHT and (which == INPUT) != backward
            way = "gradients" if backward else "output"
            kind = f"{works[0].dimensions}-D {groups}{', transposed' * transposed}, {way}"
            found.append(replace(prediction, cls=kind))
    return found


def transfers(table: Table) -> list[Prediction]:
    """Copies and memsets, each from those of its kind that are left when it is hidden."""
    predictions = []
    for name, kind in (("memset", ()), *(("copy", (word,)) for word in COPIES)):
        for whole in (True, False) if kind == ("d2d",) else (True,):
            points = curve(table, name, kind, whole)
            for size in [size for size in list(points)[1:-1] if whole or not in_pages(size)]:
                predicted = read_curve({s: ns for s, ns in points.items() if s != size}, size)
                entry = Entry(f"{name} {' '.join(kind)} {size}", "", ())
                label = f"transfer {' '.join(kind) or name}"
                predictions.append(Prediction(label, points[size], predicted, None, entry))
    return predictions


def across(table: Table, gpu_name: str, other: Table, other_name: str) -> list[Prediction]:
    """Guesses at all of `table` from `other`'s same signatures, scaled."""
    source = GpuTable(other, load_gpu(other_name))
    here = GpuTable(table, load_gpu(gpu_name)).analytic
    predictions = []
    for entry in usable(table):
        twin = other.get(signature_key(entry.parsed, entry.compute))
        if twin is None or not own_kernels(twin):
            continue
        kernels = launches_seen(entry)
        cls, ns = measured_ns(entry)
        predicted = scaled_ns(measured_ns(twin)[1], source.analytic, here, entry.parsed, entry.compute, kernels)
        predictions.append(Prediction(cls, ns, predicted, 0.0, entry))
    return predictions


def rows(predictions: Iterable[Prediction]) -> list[str]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        groups[prediction.cls].append(prediction)
    lines = ["| class | operators | median error | 90th percentile | error by time |", "|---|---|---|---|---|"]
    lines += [f"| {name} {_errors(group)}" for name, group in sorted(groups.items())]
    return [*lines, f"| all {_errors([g for group in groups.values() for g in group])}"]


def _errors(group: Sequence[Prediction]) -> str:
    errors = sorted(prediction.error for prediction in group)
    high = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    by_time = sum(abs(g.predicted - g.measured) for g in group) / sum(g.measured for g in group)
    return f"| {len(group)} | {statistics.median(errors):.1%} | {high:.1%} | {by_time:.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--other", default="H100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worst", type=int, default=0, help="list the N worst predictions of the hidden fifth")
    parser.add_argument("--family", default="", help="of these only, whose signature contains WORD")
    parser.add_argument("--table", type=Path, action="append", help="hide the operators of FILE instead of a fifth")
    parser.add_argument("--moved", type=float, help="move each constant by up to this share; only the hidden fifth")
    options = parser.parse_args()
    gpu = load_gpu(options.gpu)
    table = tables_for(gpu, [DATA])[0][0]
    if options.moved is not None:
        gpu, count = move_constants(gpu, options.moved, options.seed)
        predictions = within(table, gpu, options.seed)
        print(f"{count} constants moved by up to {options.moved:.0%}\n", *rows(predictions), sep="\n")
        return
    if options.table:
        hidden = hiding(table, options.table, gpu)
        kinds = by_passes(hidden)
        print(*rows(hidden), *(["\nIts convolutions\n", *rows(kinds)] if kinds else []), sep="\n")
        barred = [prediction for prediction in kinds if prediction.bar is not None]
        if barred:
            inside = sum(prediction.error <= prediction.bar for prediction in barred if prediction.bar is not None)
            print(f"\n{inside} of {len(barred)} convolutions lie within the error bar that a run prints for them")
        return
    other = tables_for(load_gpu(options.other), [DATA])[0][0]
    hidden = within(table, gpu, options.seed)
    print(f"A hidden fifth of {options.gpu}\n", *rows(hidden), sep="\n")
    print("\nThe hidden convolutions by kind\n", *rows(by_kind(hidden)), sep="\n")
    print("\nCopies and memsets, one hidden at a time\n", *rows(transfers(table)), sep="\n")
    print(f"\n{options.gpu} from {options.other}\n", *rows(across(table, options.gpu, other, options.other)), sep="\n")
    chosen = [g for g in hidden if options.family in g.entry.signature or options.family == g.cls]
    for g in sorted(chosen, key=lambda g: -g.error)[: options.worst]:
        near = "none" if g.distance is None else f"{g.distance:.2f}"
        relative = g.predicted / g.measured - 1
        print(f"{relative:+7.1%} {g.measured / 1e3:9.1f} us, near {near:>5}  {g.entry.signature[:150]}")


if __name__ == "__main__":
    main()
