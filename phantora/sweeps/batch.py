"""The option of a script that sets its batch: on its command line, else in its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from phantora.spec import RunSpec

_BATCH = re.compile(r"--?((micro|local|train|per[-_]device[-_]train)[-_])?(batch([-_]size)?|bs|mbs)")


def sets_batch(option: str) -> bool:
    """True for ``--batch``, ``--micro-batch-size``, ``-bs``."""
    return _BATCH.fullmatch(option) is not None


def batches(arguments: Sequence[str]) -> Iterator[tuple[str, int, bool]]:
    """Options of the batch among a script's arguments: each with its number, and whether ``=`` joins the two."""
    words = list(arguments)
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        value = value if equals else words[at + 1] if at + 1 < len(words) else ""
        if sets_batch(option) and value.isdigit():
            yield option, int(value), bool(equals)


def smaller_batch(arguments: Sequence[str], times: int) -> tuple[str, ...]:
    """The words that make the batch in a script's arguments `times` smaller; empty if they name none that can be."""
    for option, value, joined in batches(arguments):
        if value >= times and value % times == 0:
            smaller = str(value // times)
            return (f"{option}={smaller}",) if joined else (option, smaller)
    return ()


def larger_batches(run: RunSpec) -> str:
    """The run's batch, twice and four times of it, as ``--vary`` takes them: ``batch=1,2,4``; from 1 where the
    arguments do not name it. ``""`` where no option of the script is known that sets it."""
    given = ((option, value) for option, value, _ in batches(run.arguments) if option.startswith("--") and value)
    option, value = next(given, (next(_named(Path(run.target)), ""), 1))
    return f"{option.removeprefix('--')}={value},{2 * value},{4 * value}" if option else ""


def _named(script: Path) -> Iterator[str]:
    """Options of the batch in the text of the script and of its modules."""
    for node in nodes_of(script):
        match node:
            case ast.Constant(value=str(text)) if text.startswith("--") and sets_batch(text):
                yield text


def nodes_of(script: Path) -> Iterator[ast.AST]:
    """The syntax of a script, then that of the modules next to it that it imports."""
    left = [script]
    for number, file in enumerate(left):
        try:
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
        except (OSError, SyntaxError, ValueError):
            continue  # a module's name, or no Python
        yield from nodes
        for node in nodes:
            match node:
                case ast.Import(names=names) if number == 0:
                    left += [script.with_name(f"{alias.name}.py") for alias in names]
                case ast.ImportFrom(module=str(module)) if number == 0:
                    left.append(script.with_name(f"{module}.py"))
