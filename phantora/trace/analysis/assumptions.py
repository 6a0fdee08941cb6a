"""Where the program read a number that no simulation has, as the rows of the log tell (docs/values.md)."""

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
_READ = re.compile(r" (is|are) read at ")  # what it decides is not known; the others decide amounts of work

MOST_LINES = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Assumption:
    """A value that a program read and that no simulation knows."""

    what: str
    """``nonzero finds 0 in 5000 elements at train.py:12``"""
    times: int
    """How often, over all ranks."""


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
    found = [Assumption(words[i].removeprefix(PREFIX), int(counts[i])) for i in np.flatnonzero(counts)]
    found = [each for each in found if not each.what.startswith(REAL) or _decides(each.what)]
    return sorted(found, key=lambda a: (bool(_READ.search(a.what)), -a.times, a.what))


def assumed(found: Sequence[Assumption]) -> list[str]:
    """The lines of a summary: what decides an amount of work, whatever line asks; else the first value that is read."""
    times: dict[str, int] = {}
    for each in found:
        if not _READ.search(each.what):
            what = each.what.rpartition(" at ")[0] or each.what
            times[what] = times.get(what, 0) + each.times
    shown = [f"{what}, {n} time{'s' * (n > 1)}" for what, n in list(times.items())[:MOST_LINES]] if times else []
    shown = shown or [each.what for each in found[:1]]
    more = len(found) - sum(each.what.rpartition(" at ")[0] in times for each in found) if times else len(found) - 1
    more += max(0, len(times) - MOST_LINES)
    if shown:
        shown[-1] += (f", and {more} more" if more else "") + " (docs/values.md)"
    return shown


def _decides(what: str) -> bool:
    """Whether a branch or a loop of the source depends on the real that is read there: most are only printed."""
    file, _, line = what.removeprefix(REAL).rpartition(":")
    return line.isdigit() and int(line) in _deciding_lines(file)


@cache
def _deciding_lines(file: str) -> frozenset[int]:
    """Lines of tests (``if``, ``while``, ``assert``), and of assignments to names that tests of the same function read.

    Empty where the source is not found: `file` is relative to the working directory or to a folder of packages."""
    paths = [Path(file), *(Path(folder) / file for folder in sys.path)]
    path = next((path for path in paths if path.is_file()), None)
    try:
        tree = ast.parse(path.read_text()) if path else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    lines: set[int] = set()
    functions = (n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS))
    for nodes in (list(_inside(scope)) for scope in (tree, *functions)):
        tests = [n.test for n in nodes if isinstance(n, ast.If | ast.While | ast.IfExp | ast.Assert)]
        names = {name for test in tests for name in _names(test)}
        for test in tests:
            lines.update(_lines_of(test))
        for node in nodes:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            given = {name for t in targets if t is not None for name in _names(t)}
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and given & names:
                lines.update(_lines_of(node))
    return frozenset(lines)


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module or function, without those of functions in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, _FUNCTIONS):
            yield node
            yield from _inside(node)


def _names(test: ast.AST) -> Iterator[str]:
    """Variables and attributes (``self.loss``) whose values `test` reads: not those that it compares with None."""
    if isinstance(test, ast.Name | ast.Attribute):
        yield ast.unparse(test)
    elif isinstance(test, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops):
        return
    else:
        for child in ast.iter_child_nodes(test):
            yield from _names(child)


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
