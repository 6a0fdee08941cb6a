"""Options of ours that stand behind the script, which gets them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import click


def ours_behind(ctx: click.Context, target: Sequence[str]) -> list[str]:
    """Words behind the script that are options of ours, and that the script gets."""
    cut = target.index("--") if "--" in target else len(target)
    ours = {flag for parameter in ctx.command.params for flag in parameter.opts if flag.startswith("-")}
    words = (word.partition("=")[0] for word in target[1:cut])
    return list(dict.fromkeys(word for word in words if word in ours))


def reads(script: str, flag: str) -> bool:
    """True if `script` may read the option `flag`: it has its text, or its name as a text, a parameter, a field or an
    attribute. A variable of that name is none."""
    try:
        text = Path(script).read_text(errors="replace")
    except OSError:
        return True
    name = flag.lstrip("-").replace("-", "_")
    try:
        return any(word == flag or word.replace("-", "_") == name for word in _words(ast.parse(text)))
    except (SyntaxError, ValueError):
        return flag in text


def _words(tree: ast.AST) -> Iterator[str]:
    """Names by which a script may read an option, and its texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def note_behind(flags: Sequence[str], script: str) -> None:
    """A note on options of ours that `script` gets."""
    if flags:
        went = f"{', '.join(flags)} behind {script} went to the script; ours stand before it"
        click.echo(f"phantora: note: {went}", err=True)
