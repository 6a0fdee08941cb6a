"""Where the program read a number that no simulation has, as the rows of the log tell (docs/values.md)."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from phantora.trace.reader import Log

PREFIX = "assumed: "  # as in stub/tracer/assumptions.cpp
REAL = "the real 0 is read at "


@dataclass(frozen=True)
class Assumption:
    """A value that a program read and that no simulation knows."""

    what: str
    """``nonzero finds 0 in 5000 elements at train.py:12``"""
    times: int
    """How often, over all ranks."""


def assumptions(log: Log) -> list[Assumption]:
    """The assumptions of a run, the most frequent first."""
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
    return sorted(found, key=lambda a: (-a.times, a.what))


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
    scopes = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))]
    for scope in scopes:
        tests = [n.test for n in ast.walk(scope) if isinstance(n, ast.If | ast.While | ast.IfExp | ast.Assert)]
        names = {n.id for test in tests for n in ast.walk(test) if isinstance(n, ast.Name)}
        for test in tests:
            lines.update(_lines_of(test))
        for node in ast.walk(scope):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            given = {n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)}
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and given & names:
                lines.update(_lines_of(node))
    return frozenset(lines)


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
