"""Arguments of a kernel that decide its control flow: those that reach addresses, masks, bounds and conditions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from phantora.ttir.parse import Block, Function, Operation

_MEMORY = {
    "tt.load": 2,
    "tt.store": 3,
    "tt.atomic_rmw": 3,
    "tt.atomic_cas": 1,
}  # the number of first operands that decide
_BRANCHES = ("scf.for", "scf.if", "scf.condition", "cf.cond_br")
_Made = dict[str, list[tuple[Operation | None, list[str]]]]
_STORED = {"tt.store": 1, "tt.atomic_rmw": 1}  # of which this one is what is stored


@dataclass(frozen=True)
class Deciding:
    """Names of arguments of the kernel: those that decide directly, and those whose integers in memory do."""

    direct: frozenset[str]
    read: frozenset[str]
    ranges: frozenset[str]
    """Pointers of `read` to integers that bound loops or decide branches."""


def deciding(functions: dict[str, Function]) -> Deciding:
    """Deciding arguments of the kernel. A name counts for all its definitions, and all arguments of called functions
    decide."""
    kernel = next(iter(functions.values()))
    made: _Made = defaultdict(list)
    branches: list[str] = []
    places: list[str] = []

    def visit(blocks: list[Block]) -> None:
        for block in blocks:
            for operation in block.operations:
                _sources(operation, made)
                (branches if operation.name in _BRANCHES else places).extend(_sinks(operation))
                for region in operation.regions:
                    visit(region)

    for function in functions.values():
        visit(function.blocks)
    arguments = set(kernel.arguments)
    direct, read = _reached([*branches, *places], made, arguments)
    return Deciding(frozenset(direct | read), frozenset(read), frozenset(_reached(branches, made, arguments)[1]))


def _reached(sinks: list[str], made: _Made, arguments: set[str]) -> tuple[set[str], set[str]]:
    """Arguments that reach `sinks` themselves, and those whose integers in memory do."""
    direct: set[str] = set()
    read: set[str] = set()
    seen: set[tuple[str, bool]] = set()
    wanted = [(name, False) for name in sinks]
    while wanted:
        name, loaded = wanted.pop()
        if (name, loaded) in seen:
            continue
        seen.add((name, loaded))
        if name in arguments:
            (read if loaded else direct).add(name)
        for operation, sources in made.get(name, ()):
            through = loaded or (operation is not None and operation.name == "tt.load" and _integers(operation))
            if operation is not None and operation.name == "tt.load" and not _integers(operation):
                continue  # reals decide nothing that is followed
            wanted.extend((source, through) for source in sources)
    return direct, read


_WRITES = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")


def written(functions: dict[str, Function]) -> frozenset[str]:
    """Names of the kernel's pointers that it stores to, or hands to a function that may."""
    kernel = next(iter(functions.values()))
    made: _Made = defaultdict(list)
    wanted: list[str] = []

    def visit(blocks: list[Block]) -> None:
        for block in blocks:
            for operation in block.operations:
                _sources(operation, made)
                if operation.name in _WRITES or operation.name.startswith(("tt.descriptor_store", "tt.descriptor_red")):
                    wanted.append(operation.operands[0])
                elif operation.name == "tt.call":
                    wanted.extend(operation.operands)
                for region in operation.regions:
                    visit(region)

    visit(kernel.blocks)
    pointers = {name for name, kind in zip(kernel.arguments, kernel.types, strict=True) if kind.pointer}
    found: set[str] = set()
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in pointers:
            found.add(name)
        for operation, sources in made.get(name, ()):
            if operation is None or operation.name != "tt.load":
                wanted.extend(sources)
    return frozenset(found)


def scalar_accesses(functions: dict[str, Function]) -> frozenset[int]:
    """Loads and stores (by ``id``) that go element by element, because an argument that the compiler did not know to
    be a multiple of 16 is part of their addresses."""
    kernel = next(iter(functions.values()))
    odd = {name for name, kind in zip(kernel.arguments, kernel.types, strict=True) if not kind.pointer} - kernel.even
    made: _Made = defaultdict(list)
    accesses: list[Operation] = []

    def visit(blocks: list[Block]) -> None:
        for block in blocks:
            for operation in block.operations:
                _sources(operation, made)
                if operation.name in ("tt.load", "tt.store"):
                    accesses.append(operation)
                for region in operation.regions:
                    visit(region)

    for function in functions.values():
        visit(function.blocks)
    return frozenset(id(o) for o in accesses if _reaches(o.operands[0], odd, made))


def _reaches(name: str, wanted: set[str], made: _Made) -> bool:
    """Through sums and products, not through quotients, comparisons or memory."""
    seen: set[str] = set()
    left = [name]
    while left:
        name = left.pop()
        if name in wanted:
            return True
        if name in seen:
            continue
        seen.add(name)
        for operation, sources in made.get(name, ()):
            if operation is None or not operation.name.startswith(_SCALE):
                left.extend(sources)
    return False


_SCALE = ("arith.div", "arith.rem", "arith.cmp", "arith.select", "arith.min", "arith.max", "tt.load", "arith.ceildiv")


def _integers(operation: Operation) -> bool:
    return operation.types[0].element.startswith("i")


def _sinks(operation: Operation) -> list[str]:
    name = operation.name
    if name in _MEMORY:
        chosen = operation.operands[: _MEMORY[name]]
        return [o for i, o in enumerate(chosen) if i != _STORED.get(name)]
    if name.startswith("tt.descriptor_"):
        return operation.operands
    if name == "scf.for":
        return operation.operands[1:4]
    if name in ("scf.if", "scf.condition", "cf.cond_br"):
        return operation.operands[:1]
    return []


def _sources(operation: Operation, made: _Made) -> None:
    """Adds what `operation` defines, and from what."""
    if operation.name in ("scf.for", "scf.while"):
        pairs = operation.operands[4:] if operation.name == "scf.for" else operation.operands
        for name, value in zip(pairs[0::2], pairs[1::2], strict=False):
            made[name].append((None, [value]))
        if operation.name == "scf.for":
            made[operation.operands[0]].append((None, operation.operands[1:4]))
    ends = [o for region in operation.regions for block in region for o in block.operations[-1:]]
    for place, result in enumerate(operation.results):
        made[result].append((operation, [] if operation.regions else operation.operands))
        for end in ends:  # what a region yields comes out, and into its next round
            passed = end.operands[1:] if end.name == "scf.condition" else end.operands
            if place < len(passed):
                made[result].append((None, [passed[place]]))
    if operation.name in ("scf.for", "scf.while") and ends:
        names = (operation.operands[4:] if operation.name == "scf.for" else operation.operands)[0::2]
        for name, value in zip(names, ends[-1].operands, strict=False):
            made[name].append((None, [value]))
        if operation.name == "scf.while":
            for name, value in zip(operation.regions[1][0].arguments, ends[0].operands[1:], strict=False):
                made[name].append((None, [value]))
    elif operation.name == "tt.call":
        for result in operation.results:
            made[result].append((None, operation.operands))
