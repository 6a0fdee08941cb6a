"""Detects, in the terminal's process, a script that starts its ranks itself: it is run once, not once per GPU."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

_MODULES = ("torch.multiprocessing", "multiprocessing")
_SPAWNERS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes", "accelerate.notebook_launcher")
_LAUNCHED = ("LOCAL_RANK", "RANK")
"""A script that asks for these can be started by torchrun, whatever else it can do."""
_SUBPROCESSES = frozenset(f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output"))
_PLAIN = frozenset(("torch", "numpy")) | sys.stdlib_module_names
"""A script with other imports may leave it to them to find out which rank it is."""


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
        if target in _SPAWNERS:
            return call.lineno
        if function == "Process" and joins_a_group and (module in _MODULES or "get_context" in ast.dump(tree)):
            return call.lineno
    return _starts_python(tree, calls, names)


def _starts_python(tree: ast.Module, calls: list[ast.Call], names: dict[str, str]) -> int | None:
    """The line on which a script that is no rank itself starts Python: whichever process uses a GPU then gets it."""
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if any(name.partition(".")[0] not in _PLAIN or name.startswith("torch.distributed") for name in imported):
        return None
    dotted = {_dotted(node, names) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if any(name.startswith("torch.distributed") for name in dotted | set(names.values())):
        return None
    for call in calls:
        parts = [node for part in (*call.args, *call.keywords) for node in ast.walk(part)]
        python = any(_dotted(node, names) == "sys.executable" for node in parts if isinstance(node, ast.expr))
        pip = any(isinstance(node, ast.Constant) and node.value == "pip" for node in parts)
        if _dotted(call.func, names) in _SUBPROCESSES and python and not pip:
            return call.lineno
    return None


def _bound_names(tree: ast.Module) -> dict[str, str]:
    """Full name behind each imported name: ``mp`` -> ``torch.multiprocessing``."""
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
