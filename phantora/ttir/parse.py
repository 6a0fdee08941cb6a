"""Triton IR: from text to functions, blocks and operations.

Only what :mod:`phantora.ttir.walk` asks for is kept: names, operands, attributes as text, types with shapes.
The language is MLIR's, of the dialects ``tt``, ``arith``, ``math``, ``scf`` and ``cf``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

_ENDS = ("scf.yield", "scf.condition", "tt.return", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return")


class Unreadable(Exception):
    """The text is no Triton IR that is understood; the message has the line."""


@dataclass(frozen=True)
class Type:
    """A scalar (`shape` empty) or a tensor. `element` is MLIR's name; `pointer`: elements are addresses of such."""

    shape: tuple[int, ...]
    element: str
    pointer: bool = False
    block: bool = False
    """A pointer to, or a descriptor of, a whole tensor of this shape."""

    @cached_property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def bits(self) -> int:
        """Bits of an element; 32 for a pointer or an index."""
        found = re.search(r"\d+", self.element)
        return 8 if self.element.startswith("f8") else int(found[0]) if found else 32


@dataclass
class Block:
    """Operations in order, up to a branch; `arguments` are values that a branch hands over."""

    name: str
    arguments: list[str]
    operations: list[Operation] = field(default_factory=list)


@dataclass(kw_only=True)
class Operation:
    """One line. `types` are those of its text from left to right; the last is usually the result's."""

    name: str
    results: list[str]
    operands: list[str]
    text: str
    types: list[Type]
    regions: list[list[Block]] = field(default_factory=list)

    @cached_property
    def count(self) -> int:
        """Elements of the last type: of most operations the result's."""
        return self.types[-1].count if self.types else 1

    @cached_property
    def ends(self) -> bool:
        """True if it ends its block."""
        return self.name in _ENDS or self.name.startswith("cf.")

    def attribute(self, name: str) -> int | None:
        """An integer attribute of the operation; None if it has none of this name."""
        found = re.search(rf"\b{name} = (-?\d+)", self.text)
        return int(found[1]) if found else None


@dataclass
class Function:
    """A kernel."""

    name: str
    arguments: list[str]
    types: list[Type]
    blocks: list[Block]
    even: frozenset[str] = frozenset()
    """Arguments that the compiler knew to be multiples of 16."""

    def block(self, name: str) -> Block:
        """The block of this name. Raises StopIteration if there is none."""
        return next(block for block in self.blocks if block.name == name)


_TYPE = re.compile(
    r"!tt\.(?:ptr|tensordesc)<tensor<([\dx]+)x([\w.]+)>>|tensor<([\dx]+)x!tt\.ptr<([\w.]+)(?:, \d+)?>>|"
    r"tensor<([\dx]+)x([\w.]+)>|!tt\.ptr<([\w.]+)(?:, \d+)?>|(?<![\w%.<])(index|i\d+|f\d+\w*|bf16|tf32)(?![\w.])|"
    r"<tensor<([\dx]+)x([\w.]+)>>"
)
_OPERATION = re.compile(r'(?:(%[\w:$.-]+(?:, %[\w:$.-]+)*) = )?"?([a-z_]+\.[\w.]+)"?(.*)$')
_LOCATION = re.compile(r" loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_OPERAND = re.compile(r"%[\w$.-]+(?:#\d+)?")


def types_in(text: str) -> list[Type]:
    """All types in `text`, in order."""
    found = []
    for m in _TYPE.finditer(text):
        if m[1] or m[9]:
            found.append(Type(_shape(m[1] or m[9]), m[2] or m[10], block=True))
        elif m[3]:
            found.append(Type(_shape(m[3]), m[4], pointer=True))
        elif m[5]:
            found.append(Type(_shape(m[5]), m[6]))
        else:
            found.append(Type((), m[7] or m[8], pointer=bool(m[7])))
    return found


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.strip("x").split("x"))


def _results(text: str | None) -> list[str]:
    names: list[str] = []
    for part in (text or "").split(", ") if text else []:
        name, _, count = part.partition(":")
        names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
    return names


def parse(text: str) -> dict[str, Function]:
    """The functions of a module by name; the kernel is the first. Raises Unreadable."""
    bare = _LOCATION.sub("", text)
    lines = [line.rstrip() for line in bare.splitlines() if line.strip() and not line.startswith("#")]
    functions: dict[str, Function] = {}
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        if line.startswith("tt.func"):
            function, at = _function(lines, at)
            functions[function.name] = function
        else:
            at += 1
    if not functions:
        raise Unreadable("no function in the IR")
    return functions


def _function(lines: list[str], at: int) -> tuple[Function, int]:
    head = lines[at].strip()
    named = re.search(r"@\"?([\w$.]+)\"?\(", head)
    if not named:
        raise Unreadable(head)
    body = head[named.end() :]
    arguments, types = [], []
    for argument in re.finditer(r"(%[\w$.-]+): ((?:!tt\.)?[\w.]+(?:<[^{},]*(?:, \d+)?>+)?)", body):
        arguments.append(argument[1])
        types.append((types_in(argument[2]) or [Type((), "opaque")])[0])
    even = frozenset(found[1] for found in re.finditer(r"(%[\w$.-]+): [^%]*?\{tt\.divisibility = 16", body))
    if not head.endswith("{"):
        return Function(named[1], arguments, types, []), at + 1
    blocks, at = _region(lines, at + 1)
    _distinct(blocks, {name: name for name in arguments}, Counter(arguments))
    return Function(named[1], arguments, types, blocks, even), at + 1


def _distinct(blocks: list[Block], names: dict[str, str], taken: Counter[str]) -> None:
    """Gives each value of a function a name of its own: MLIR prints the same names in regions that lie side by side."""
    names = dict(names)

    def define(name: str, scope: dict[str, str]) -> str:
        scope[name] = f"{name}~{taken[name]}" if taken[name] else name
        taken[name] += 1
        return scope[name]

    for block in blocks:
        block.arguments = [define(name, names) for name in block.arguments]
    for operation in (operation for block in blocks for operation in block.operations):
        inside = dict(names)
        bound = _BOUND[operation.name](len(operation.operands)) if operation.name in _BOUND else ()
        operation.operands = [
            define(name, inside) if place in bound else names.get(name, name)
            for place, name in enumerate(operation.operands)
        ]
        for region in operation.regions:
            _distinct(region, inside, taken)
        operation.results = [define(name, names) for name in operation.results]


# Which of an operation's operands are names for its region: of a loop the index and what it carries.
_BOUND: dict[str, Callable[[int], set[int]]] = {
    "scf.for": lambda count: {0, *range(4, count, 2)},
    "scf.while": lambda count: set(range(0, count, 2)),
}


def _region(lines: list[str], at: int) -> tuple[list[Block], int]:
    """Blocks up to the line that closes the region, and that line's index."""
    blocks = [Block("", [])]
    while at < len(lines):
        line = lines[at].strip()
        if line.startswith("}"):
            return blocks, at
        if line.startswith("^"):
            name = re.match(r"\^(\w+)", line)
            blocks.append(Block(name[1] if name else "", _OPERAND.findall(line.partition("//")[0])))
            if not blocks[0].operations and not blocks[0].arguments and len(blocks) == 2 and not blocks[0].name:
                blocks.pop(0)
            at += 1
            continue
        operation, at = _operation(lines, at)
        blocks[-1].operations.append(operation)
    raise Unreadable("a region without end")


def _operation(lines: list[str], at: int) -> tuple[Operation, int]:
    line = lines[at].strip()
    found = _OPERATION.match(line)
    if not found:
        raise Unreadable(line[:200])
    results, name, rest = _results(found[1]), found[2], found[3]
    head, _, tail = rest.rpartition(" : ") if " : " in rest else (rest, "", "")
    if name in ("scf.for", "scf.while", "scf.if"):
        head, tail = rest, ""
    operation = Operation(name=name, results=results, operands=_OPERAND.findall(head), text=rest, types=types_in(tail))
    while line.endswith("{"):  # a region follows; `} else {` and `} do {` begin another
        blocks, at = _region(lines, at + 1)
        operation.regions.append(blocks)
        line = lines[at].strip()
        if line.startswith("})"):
            operation.types = types_in(line)
            operation.text += line
    return operation, at + 1
