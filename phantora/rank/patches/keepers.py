"""Containers and sums of the script in which memory stays from one iteration to the next, and the line that fills them.

A list of outputs keeps their blocks. A sum of losses without ``backward()`` keeps the graph of each, and with it the
activations of each forward pass.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from phantora.rank.patches.object_tensors import blocks, tensors_in
from phantora.rank.user_code import is_users
from phantora.wire.shared import KEPT_LEAST

_FEWEST_KEPT = 3  # tensors of a container, or additions of a sum
_DEPTH = 4
_MOST_NODES = 200_000  # of graphs
_FILLS = frozenset(("append", "appendleft", "extend", "add", "update", "insert", "setdefault", "put"))
_CONTAINERS = (list, dict, set, tuple, deque)


@dataclass(frozen=True)
class Kept:
    """Blocks that one name of the script keeps."""

    place: str
    """``leak.py:27 (outs)``; of a deque with a maxlen ``leak.py:27 (outs, at most 50)``."""
    blocks: frozenset[int]
    """Addresses; of a sum its own, whose graph keeps the others."""
    nodes: int
    """Number of nodes of the graphs that it keeps."""
    apart: bool = False
    """The tensors are outputs of passes whose graphs share no more than parameters."""


def keepers(frames: Iterable[FrameType], objects: Iterable[Any]) -> list[Kept]:
    """What names in `frames` of the script, in their modules and in `objects` of its classes keep, most first."""
    found: dict[int, Kept] = {}
    for name, value, file, function in _names(frames, objects):
        if id(value) not in found:
            kept = _kept(name, value, file, function)
            if kept is not None:
                found[id(value)] = kept
    return sorted(found.values(), key=lambda kept: (-kept.nodes, -len(kept.blocks), kept.place))


def _names(frames: Iterable[FrameType], objects: Iterable[Any]) -> Iterator[tuple[str, Any, str, str]]:
    """Name, value, file and function of the variables and attributes in which a script keeps what it made."""
    modules: dict[str, dict[str, Any]] = {}
    for frame in frames:
        file = frame.f_code.co_filename
        if not is_users(file):
            continue
        modules.setdefault(file, frame.f_globals)
        if frame.f_locals is not frame.f_globals and frame.f_code.co_name != "forward":  # it ends with its iteration
            for name, value in list(frame.f_locals.items()):
                yield name, value, file, frame.f_code.co_name
    if not modules:
        return
    for file, values in modules.items():
        for name, value in list(values.items()):
            if not isinstance(value, ModuleType):
                yield name, value, file, ""
    files = {values.get("__name__"): file for file, values in modules.items()}
    for o in objects:
        if type(o).__module__ in files and hasattr(o, "__dict__"):
            for name, value in list(vars(o).items()):
                yield f"self.{name}", value, files[type(o).__module__], ""


def _kept(name: str, value: Any, file: str, function: str) -> Kept | None:
    from torch import Tensor

    if issubclass(type(value), Tensor):
        terms = _terms(value)
        if terms < _FEWEST_KEPT:
            return None
        return Kept(_place(name, file, function), frozenset(blocks(value, 1)), _nodes([value]))
    if not isinstance(value, _CONTAINERS):
        return None
    found = (tensor for _, tensor in tensors_in(value, _DEPTH))
    held = [tensor for tensor in found if not (tensor.is_leaf and tensor.requires_grad)]  # weights are none
    if len(held) < _FEWEST_KEPT:
        return None
    addresses = frozenset(address for tensor in held for address in blocks(tensor, KEPT_LEAST))
    nodes = _nodes(held)
    if len(addresses) < _FEWEST_KEPT and not nodes:
        return None
    if len(addresses) < _FEWEST_KEPT:  # losses
        addresses = frozenset(next(blocks(tensor, 1), 0) for tensor in held[:_FEWEST_KEPT]) - {0}
    place, most = _place(name, file, function), value.maxlen if isinstance(value, deque) else None
    if most is not None:
        place = f"{place.removesuffix(')')}, at most {most})"
    return Kept(place, addresses, nodes, _apart(held))


def _terms(tensor: Any) -> int:
    """Number of additions that made a tensor, one upon the other; 0 of a residual stream, whose terms are made from
    the sum before them."""
    node, found = tensor.grad_fn, 0
    while node is not None and node.name().startswith("AddBackward") and found < _MOST_NODES:
        found += 1
        addends = [n for n, _ in node.next_functions if n is not None]
        before = next((n for n in addends if n.name().startswith("AddBackward")), None)
        if found == 1 and before in _graph(n for n in addends if n is not before):
            return 0
        node = before
    return found


def _nodes(tensors: Iterable[Any]) -> int:
    """Number of nodes in the graphs of `tensors`."""
    return len(_graph(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None))


def _apart(tensors: list[Any]) -> bool:
    """True if the last tensors have graphs that share no more than parameters: no layer made one from another."""
    last = [tensor.grad_fn for tensor in tensors[-_FEWEST_KEPT:]]
    if len(last) < _FEWEST_KEPT or any(node is None for node in last):
        return False
    graphs = [{node for node in _graph([own]) if not hasattr(node, "variable")} for own in last]
    return sum(map(len, graphs)) == len(set[Any]().union(*graphs)) and min(map(len, graphs)) > 1


def _graph(nodes: Iterable[Any]) -> set[Any]:
    """`nodes` and those that they depend on."""
    todo = list(nodes)
    seen = set(todo)
    while todo and len(seen) < _MOST_NODES:
        for inner, _ in todo.pop().next_functions:
            if inner is not None and inner not in seen:
                seen.add(inner)
                todo.append(inner)
    return seen


def _place(name: str, file: str, function: str) -> str:
    """``leak.py:27 (outs)``: the last line of the file that adds to `name`; without a line, if there is none."""
    lines = _filled(file, name, function) or _filled(file, name, "")
    line = f":{lines[-1]}" if lines else ""
    return f"{Path(file).name}{line} ({name.removeprefix('self.')})"


@lru_cache(maxsize=64)
def _filled(file: str, name: str, function: str) -> tuple[int, ...]:
    """Lines of a file, or of its functions of this name, that add to `name`."""
    try:
        tree: ast.AST = ast.parse(Path(file).read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return ()
    parts: list[ast.AST] = [tree]
    if function:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        parts = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == function]
    found = (node for part in parts for node in ast.walk(part) if isinstance(node, (ast.Call, ast.stmt)))
    return tuple(sorted(node.lineno for node in found if _adds(node, name)))


def _adds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
        return _is(node.func.value, name)
    if isinstance(node, ast.AugAssign):
        return _is(node.target, name)
    if isinstance(node, ast.Assign):
        sums = isinstance(node.value, ast.BinOp) and any(_is(part, name) for part in ast.walk(node.value))
        return any((sums and _is(t, name)) or (isinstance(t, ast.Subscript) and _is(t, name)) for t in node.targets)
    return False


def _is(node: ast.AST, name: str) -> bool:
    """True for ``outs``, ``outs[key]``, and ``self.outs`` of the name "self.outs"."""
    if isinstance(node, ast.Subscript):
        return _is(node.value, name)
    if isinstance(node, ast.Attribute):
        return name.startswith("self.") and node.attr == name[5:]
    return isinstance(node, ast.Name) and node.id == name
