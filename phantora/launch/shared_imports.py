"""Imports at the top of a script, found in the terminal's process and done once in the fork server.

Transformers and DeepSpeed take 4 s of CPU and 150 MB in every rank; ranks forked behind them share both. The
result is the same: only packages known to do nothing on import that a rank would do otherwise, and only
as far as nothing but imports of such packages stands before them (a variable of the environment, a path or another
package might change what they do). A script's folder may have a module with the name of such a package: then it is
that one which is meant.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = frozenset(
    (
        "accelerate",
        "datasets",
        "deepspeed",
        "diffusers",
        "lightning",
        "megatron",
        "torch_geometric",
        "torchvision",
        "transformers",
    )
)
_HARMLESS = frozenset((*sys.stdlib_module_names, "numpy", "torch"))


def shared_imports(script: str) -> tuple[str, ...]:
    """``module`` or ``module:name``, in the script's order."""
    try:
        body = ast.parse(Path(script).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ()  # no script, or an error that the rank reports better
    if any(_is_next_to(script, package) for package in PACKAGES):
        return ()
    found: list[str] = []
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Import(names=names):
                imported = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                imported = [f"{module}:{alias.name}" for alias in names]
            case _:
                break
        tops = {entry.partition(":")[0].partition(".")[0] for entry in imported}
        if not tops <= PACKAGES | _HARMLESS or any(_is_next_to(script, top) for top in tops):
            break
        if tops & PACKAGES:
            found += imported
    return tuple(dict.fromkeys(found))


def _is_next_to(script: str, name: str) -> bool:
    spec = PathFinder.find_spec(name, [str(Path(script).resolve().parent)])
    return spec is not None and spec.origin is not None  # a folder alone gives way to an installed package
