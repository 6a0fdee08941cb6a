"""Reads of numbers that a simulation does not have, from the rows of the log (docs/values.md)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from phantora.trace.reader import Log

PREFIX = "assumed: "  # as in stub/tracer/assumptions.cpp
REAL = "the real 0 is read at "
HOST_THREADS = "CPU operators run on"  # decides host time, not work (stub/tracer/host_cost.cpp)
_READ = re.compile(r" (is|are) read at ")  # what it decides is not known, except the end of a loop
_LISTS = ("unknown Longs are read at ", "unknown Ints are read at ")  # counts and lengths: sizes follow from them

MOST_LINES = 3
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
    """True if the source ends a loop by it: ``if error.item() < tolerance: break``."""

    @property
    def rank(self) -> int:
        """0 of what decides an amount of work, 1 of other values that are read, 2 of host time."""
        if self.what.startswith(HOST_THREADS):
            return 2
        return int(bool(_READ.search(self.what)) and not self.ends_loop and not self.what.startswith(_LISTS))


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
    return Assumption(what, times, ends_loop=text.isdigit() and int(text) in tests.ends_loop)


def assumed(found: Sequence[Assumption]) -> list[str]:
    """The lines of a summary: what decides an amount of work, whatever line asks; else the first other value."""
    times: dict[str, int] = {}
    shown = [each for each in found if each.rank == 0] or list(found[:1])
    for each in shown:
        if each.ends_loop:
            what = f"{each.what} and ends a loop (--assume iterations=N@FILE:LINE)"
        else:
            placed = each.rank == 1 or each.what.startswith(_LISTS)
            what = each.what if placed else each.what.rpartition(" at ")[0] or each.what
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
    """Tests (``if``, ``while``, ``assert``), and assignments to names that tests of the same function read."""
    ends_loop: frozenset[int] = frozenset()
    """Lines with a ``while``, or with an ``if`` in a loop that breaks or returns."""


@cache
def _tests_of(file: str) -> _Tests:
    """Empty where the source is not found: `file` is relative to the working directory or to a folder of packages."""
    paths = [Path(file), *(Path(folder) / file for folder in sys.path)]
    path = next((path for path in paths if path.is_file()), None)
    try:
        tree = ast.parse(path.read_text()) if path else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return _Tests()
    lines: set[int] = set()
    ends_loop: set[int] = set()
    functions = (n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS))
    for nodes in (list(_inside(scope)) for scope in (tree, *functions)):
        tests = [n.test for n in nodes if isinstance(n, ast.If | ast.While | ast.IfExp | ast.Assert)]
        lines |= _lines_that_decide(nodes, tests)
        ends_loop |= _lines_that_decide(nodes, list(_ends_of_loops(nodes)))
    return _Tests(frozenset(lines), frozenset(ends_loop))


def _ends_of_loops(nodes: Sequence[ast.AST]) -> Iterator[ast.expr]:
    for loop in (n for n in nodes if isinstance(n, ast.While | ast.For)):
        if isinstance(loop, ast.While):
            yield loop.test
        for branch in (n for n in _inside(loop) if isinstance(n, ast.If)):
            if any(isinstance(n, ast.Break | ast.Return) for n in _inside(branch)):
                yield branch.test


def _lines_that_decide(nodes: Sequence[ast.AST], tests: Sequence[ast.expr]) -> set[int]:
    """The lines of `tests`, and of assignments in `nodes` to the names that they read."""
    lines = {line for test in tests for line in _lines_of(test)}
    names = {name for test in tests for name in _names(test)}
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        given = {name for t in targets if t is not None for name in _names(t)}
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and given & names:
            lines.update(_lines_of(node))
    return lines


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
