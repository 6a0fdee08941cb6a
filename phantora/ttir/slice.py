"""Which arguments of a kernel decide where it goes: what reaches addresses, masks, bounds and conditions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from phantora.ttir.parse import Block, Function, Operation

_MEMORY = {
    "tt.load": 2,
    "tt.store": 3,
    "tt.atomic_rmw": 3,
    "tt.atomic_cas": 1,
}  # operands that decide, the first so many
_STORED = {"tt.store": 1, "tt.atomic_rmw": 1}  # of which this one is what is stored


@dataclass(frozen=True)
class Deciding:
    """Names of arguments of the kernel: those that decide directly, and those whose integers in memory do."""

    direct: frozenset[str]
    read: frozenset[str]


def deciding(functions: dict[str, Function]) -> Deciding:
    """Of the kernel. A name counts for all its definitions, and arguments of functions that are called all decide."""
    kernel = next(iter(functions.values()))
    made: dict[str, list[tuple[Operation | None, list[str]]]] = defaultdict(list)
    wanted: list[tuple[str, bool]] = []

    def visit(blocks: list[Block]) -> None:
        for block in blocks:
            for operation in block.operations:
                _sources(operation, made)
                wanted.extend((name, False) for name in _sinks(operation))
                for region in operation.regions:
                    visit(region)

    for function in functions.values():
        visit(function.blocks)
    direct: set[str] = set()
    read: set[str] = set()
    seen: set[tuple[str, bool]] = set()
    arguments = set(kernel.arguments)
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
    return Deciding(frozenset(direct | read), frozenset(read))


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


def _sources(operation: Operation, made: dict[str, list[tuple[Operation | None, list[str]]]]) -> None:
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
