"""A real run next to a simulated one: names and shapes that both can have, and whether the runs differ at all.

Profilers give operators without their overloads, tensors without their device and lists of tensors without their
dtypes, or not at all. Where a log of a real run is compared with one of a simulated run, both are reduced to that.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from math import prod
from typing import TypeVar

import numpy as np

from phantora.trace.analysis.report import Report
from phantora.trace.analysis.throughput import EMBEDDING
from phantora.trace.diff.inventory import Amount, Operation, Transfer, add_amount
from phantora.trace.export.kineto_args import TENSOR
from phantora.trace.reader import Log

LOADING = "enumerate(DataLoader)"
"""Prefix of the annotations of torch's DataLoader."""
_STATE = 2  # elements: states of random numbers, of which profilers know no dtype
_LIST = re.compile(r"\(([^()]*)\)")
_COPY = re.compile(r"Memcpy .*$")
_REPORTED = re.compile(r"(?<=[\])] )(?:tf32|nhwc)(?: nhwc)?$")
_SET = "memset"
_OF_ROWS = ("copy", _SET)  # classes of rows, whatever operator they belong to
_Key = TypeVar("_Key", Operation, Transfer)


def plain_name(operator: str) -> str:
    """``aten::add`` of ``aten::add.Tensor``."""
    namespace, colons, name = operator.rpartition("::")
    return f"{namespace}{colons}{name.partition('.')[0]}" if colons else operator


def plain_shape(shape: str) -> str:
    """The tensors among an operator's arguments, without lists and without the smallest: ``bf16[64,64], i64[64]``, and
    what its kernels tell."""
    copy, reported = _COPY.search(shape), _REPORTED.search(shape)
    arguments = shape[: copy.start() if copy else len(shape)].split(" -> ")[0]
    tensors = [
        f"{dtype}[{extents}]"
        for dtype, extents in TENSOR.findall(_LIST.sub("", arguments))
        if extents and prod(int(n) for n in extents.split(",")) > _STATE
    ]
    return " ".join([", ".join(tensors), *(found[0] for found in (copy, reported) if found)]).strip()


def plain_operations(operations: dict[Operation, Amount], shapes: bool) -> dict[Operation, Amount]:
    """`operations` by what profilers see of them; without `shapes` by their names alone."""
    found: dict[Operation, Amount] = {}
    for own, amount in operations.items():
        shape = "" if not shapes else own.shape if own.name == EMBEDDING else plain_shape(own.shape)
        if own.cls != _SET:  # of libraries' workspaces, which simulated products do not set
            add_amount(found, Operation(plain_name(own.name), shape, own.cls, own.part), amount)
    return found


def align_classes(real: dict[Operation, Amount], simulated: dict[Operation, Amount]) -> dict[Operation, Amount]:
    """`real` with the classes that the same operators have in `simulated`."""
    known = {own.name: own.cls for own in simulated if own.cls not in _OF_ROWS}
    found: dict[Operation, Amount] = {}
    for own, amount in real.items():
        cls = own.cls if own.cls in _OF_ROWS else known.get(own.name, own.cls)
        add_amount(found, Operation(own.name, own.shape, cls, own.part), amount)
    return found


def plain_transfers(transfers: dict[Transfer, Amount], ranks: bool, sizes: bool) -> dict[Transfer, Amount]:
    """`transfers` without what one of the logs does not have."""
    found: dict[Transfer, Amount] = {}
    for own, amount in transfers.items():
        add_amount(found, Transfer(own.name, own.ranks if ranks else 0, own.bytes if sizes else 0), amount)
    return found


def has_ranks(transfers: Iterable[Transfer]) -> bool:
    """True if the group of every collective is known."""
    return all(transfer.ranks for transfer in transfers)


def has_sizes(transfers: Iterable[Transfer]) -> bool:
    """True if the size of every collective is known."""
    return all(transfer.bytes for transfer in transfers)


def loading(log: Log, report: Report) -> float:
    """ns a step that a rank's host spends in torch's DataLoader, 0 without annotations of it."""
    words = log.words("name")
    wanted = np.array([word.startswith(LOADING) for word in words] + [False])
    if not wanted.any():
        return 0.0
    times: list[int] = []
    ranks: set[int] = set()
    for batch in log.batches(("rank", "name", "start", "end"), kinds=("annotation",)):
        own = wanted[batch["name"]]
        times += (batch["end"] - batch["start"])[own].tolist()
        ranks.update(batch["rank"][own].tolist())
    a_step = len(times) / max(1, len(ranks)) / max(1, len(report.steps))
    return statistics.median(times) * max(1.0, round(a_step)) if times else 0.0


def within_bars(simulated: Report, real: Report) -> bool:
    """True if the real step lies within the error bars of the simulated one."""
    headline = simulated.headline
    below, above = headline.error or 0.0, headline.error_above or 0.0
    return headline.step_time * (1 - below) <= real.headline.step_time <= headline.step_time * (1 + above)
