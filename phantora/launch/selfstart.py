"""Does a script start its ranks itself (``torch.multiprocessing.spawn``)? Then it is run once, not once per GPU."""

from __future__ import annotations

import ast
from pathlib import Path

_MODULES = ("torch.multiprocessing", "multiprocessing")
_SPAWNERS = ("spawn", "start_processes")
_LAUNCHED = ("LOCAL_RANK", "RANK")
"""A script that asks for these can be started by torchrun, whatever else it can do."""


def starts_its_ranks(script: str) -> int | None:
    """The line on which `script` starts the processes that are to be its ranks; None if it starts none."""
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # the rank reports it better
    if any(isinstance(node, ast.Constant) and node.value in _LAUNCHED for node in ast.walk(tree)):
        return None
    names = _bound_names(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    joins_a_group = any(
        _last_name(call.func) == "init_process_group" and any(word.arg == "rank" for word in call.keywords)
        for call in calls
    )
    for call in calls:
        target = _dotted(call.func, names)
        module, _, function = target.rpartition(".")
        if module == "torch.multiprocessing" and function in _SPAWNERS:
            return call.lineno
        if function == "Process" and joins_a_group and (module in _MODULES or "get_context" in ast.dump(tree)):
            return call.lineno
    return None


def _bound_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: ``mp`` -> ``torch.multiprocessing``."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return found


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """``mp.spawn`` as ``torch.multiprocessing.spawn``; empty for what is no dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return "." + parts[0] if parts else ""
    return ".".join((names.get(node.id, node.id), *reversed(parts)))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
