"""Reads of numbers that a simulation does not have, from the rows of the log (docs/values.md)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from phantora.trace.reader import Log

PREFIX = "assumed: "  # as in stub/tracer/assumptions.cpp
REAL = "the real 0 is read at "
# What decides host time, not work (stub/tracer/host_cost.cpp), the most decisive first.
HOST_TIME = ("products on the CPU take", "CPU operators run on")
_READ = re.compile(r" (is|are) read at ")  # what it decides is not known, except the end of a loop
_LISTS = ("unknown Longs are read at ", "unknown Ints are read at ")  # counts and lengths: sizes follow from them

_OPTIONS = {
    "GradScaler skips ": "overflow=N",
    "nonzero finds ": "mask=SHARE",
    "nms keeps ": "nms=SHARE",
    "gradients of unknown norm are clipped": "clip=never",
}
"""Beginnings of assumptions -> what ``--assume`` is given to change them. Reads have their line in it."""

MOST_LINES = 3
_LEAST = 0.01  # of a step
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CHECKS = frozenset({"isnan", "isinf", "isfinite"})


@dataclass(frozen=True)
class Assumption:
    """An unknown value that a program read."""

    what: str
    """``nonzero finds 0 in 5000 elements at train.py:12``"""
    times: int
    """Number of reads, over all ranks."""
    ends_loop: bool = False
    """True if the end of a loop of the source depends on it: ``if error.item() < tolerance: break``."""
    tested: bool = True
    """False if no branch or loop of the source depends on it; sizes may."""

    @property
    def rank(self) -> int:
        """0 of what decides an amount of work, 1 of other values that are read, from 2 on of host time."""
        for rank, begin in enumerate(HOST_TIME, 2):
            if self.what.startswith(begin):
                return rank
        return int(bool(_READ.search(self.what)) and not self.ends_loop and not self.what.startswith(_LISTS))

    @property
    def option(self) -> str:
        """In parentheses the option that changes it, after a space; empty if there is none or `what` names it."""
        given = next((option for begin, option in _OPTIONS.items() if self.what.startswith(begin)), "")
        if " is read at " in self.what and self.tested:
            given = f"iterations=N@{self.what.rpartition(' at ')[2]}"
            if self.ends_loop:
                given += " ends its loop at the N-th read"
            elif self.what.startswith(REAL):
                given = f"loss=VALUE or {given}"
        return f" (--assume {given})" if given else ""

    @property
    def shown(self) -> str:
        """For people; `what` is the text of the log."""
        return self.what.replace(REAL, "a float that is not computed reads as 0 at ", 1)


def assumptions(log: Log) -> list[Assumption]:
    """The assumptions of a run: those that decide the amount of work first, then the most frequent."""
    words = log.words("name")
    wanted = np.array([(word or "").startswith(PREFIX) for word in words], dtype=bool)
    if not wanted.any():
        return []
    counts = np.zeros(len(words), np.int64)
    for batch in log.batches(("name",)):
        codes = batch["name"]
        known = codes[(codes >= 0) & wanted[np.maximum(codes, 0)]]
        counts += np.bincount(known, minlength=len(words))
    found = [_by_source(words[i].removeprefix(PREFIX), int(counts[i])) for i in np.flatnonzero(counts)]
    return sorted((each for each in found if each), key=lambda a: (a.rank, -a.times, a.what))


def _by_source(what: str, times: int) -> Assumption | None:
    """None of a real that no branch or loop of the source depends on: most are only printed."""
    file, _, text = what.rpartition(" at ")[2].rpartition(":")
    read = _READ.search(what)
    tests = _tests_of(file) if read and text.isdigit() else _Tests()
    if what.startswith(REAL) and int(text or 0) not in tests.lines:
        return None
    line = int(text) if text.isdigit() else 0
    tested = not tests.found or line in tests.lines
    return Assumption(what, times, ends_loop=line in tests.ends_loop, tested=tested)


def relevant(found: Sequence[Assumption], step: float, host: float) -> list[Assumption]:
    """Without what changes under a per cent of a `step`: `host` is what its hosts may change of it, both in ns."""
    return [each for each in found if each.rank < 2 or host >= _LEAST * step]


def assumed(found: Sequence[Assumption]) -> list[str]:
    """The lines of a summary: what decides an amount of work, whatever line asks; else the first other value."""
    times: dict[str, int] = {}
    shown = [each for each in found if each.rank == 0] or list(found[:1])
    for each in shown:
        placed = each.rank == 1 or each.ends_loop or each.what.startswith(_LISTS)
        what = each.shown if placed else each.shown.rpartition(" at ")[0] or each.shown
        what += each.option
        times[what] = times.get(what, 0) + each.times
    if shown and shown[0].rank == 0:
        times = {f"{what}, {n} time{'s' * (n > 1)}": n for what, n in times.items()}
    lines = list(times)
    more = len(found) - len(shown) + max(0, len(lines) - MOST_LINES)
    lines = lines[:MOST_LINES]
    if lines:
        lines[-1] += f", and {more} more (phantora analyze)" if more else " (docs/values.md)"
    return lines


@dataclass(frozen=True)
class _Tests:
    """Lines of a source file by what depends on their values."""

    lines: frozenset[int] = frozenset()
    """Tests (``if``, ``while``, ``assert``), and what they depend on."""
    ends_loop: frozenset[int] = frozenset()
    """Lines with a ``while``, or with an ``if`` in a loop that breaks or returns."""
    found: bool = False
    """The source was read."""


@cache
def _tests_of(file: str) -> _Tests:
    """Empty where the source is not found: `file` is relative to the working directory or to a folder of packages."""
    paths = [Path(file), *(Path(folder) / file for folder in sys.path)]
    path = next((path for path in paths if path.is_file()), None)
    try:
        tree = ast.parse(path.read_text()) if path else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return _Tests()
    functions = [n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS)]
    scopes = [(getattr(scope, "name", ""), list(_inside(scope))) for scope in (tree, *functions)]
    return _Tests(_lines_behind(scopes, _tests), _lines_behind(scopes, _ends_of_loops), path is not None)


def _tests(nodes: Sequence[ast.AST]) -> Iterator[ast.expr]:
    yield from (n.test for n in nodes if isinstance(n, ast.If | ast.While | ast.IfExp | ast.Assert))


def _ends_of_loops(nodes: Sequence[ast.AST]) -> Iterator[ast.expr]:
    for loop in (n for n in nodes if isinstance(n, ast.While | ast.For)):
        if isinstance(loop, ast.While):
            yield loop.test
        for branch in (n for n in _inside(loop) if isinstance(n, ast.If)):
            if any(isinstance(n, ast.Break | ast.Return) for n in _inside(branch)):
                yield branch.test


def _lines_behind(
    scopes: Sequence[tuple[str, Sequence[ast.AST]]], tests: Callable[[Sequence[ast.AST]], Iterator[ast.expr]]
) -> frozenset[int]:
    """The lines of `tests` in the functions `scopes`, and of what they depend on: assignments to the names that they
    read, and what functions of this file return to them."""
    lines: set[int] = set()
    called: set[str] = set()
    before = -1
    while before != len(called):
        before = len(called)
        for function, nodes in scopes:
            returned = [n.value for n in nodes if isinstance(n, ast.Return) and n.value and function in called]
            found, calls = _behind(nodes, [*tests(nodes), *returned])
            lines |= found
            called |= calls
    return frozenset(lines)


def _behind(nodes: Sequence[ast.AST], tests: Sequence[ast.expr]) -> tuple[set[int], set[str]]:
    """Lines of `tests` and of the assignments in `nodes` behind them; names of the functions that these call."""
    wanted: list[ast.expr | ast.stmt] = list(tests)
    names = {name for test in tests for name in _names(test)}
    assignments = [n for n in nodes if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr)]
    while more := [n for n in assignments if n not in wanted and _targets(n) & names]:
        wanted += more
        names |= {name for node in more if node.value for name in _names(node.value)}
    calls = {n.func for each in wanted for n in ast.walk(each) if isinstance(n, ast.Call)}
    return {line for each in wanted for line in _lines_of(each)}, {ast.unparse(f).rpartition(".")[2] for f in calls}


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {name for target in targets for name in _names(target)}


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module or function, without those of functions in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, _FUNCTIONS):
            yield node
            yield from _inside(node)


def _names(test: ast.AST) -> Iterator[str]:
    """Variables and attributes (``self.loss``) whose values decide `test`."""
    if isinstance(test, ast.Name | ast.Attribute):
        yield ast.unparse(test)
    elif not _is_check(test):
        for child in ast.iter_child_nodes(test):
            yield from _names(child)


def _is_check(test: ast.AST) -> bool:
    """True if `test` has one answer for all finite numbers: a comparison with None, a search for NaN."""
    if isinstance(test, ast.Compare):
        return all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)
    return isinstance(test, ast.Call) and ast.unparse(test.func).rpartition(".")[2] in _CHECKS


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
