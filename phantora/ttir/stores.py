"""Integers that a launch stores, where they follow from its arguments and from integers that are known.

Inductor makes small integer tensors so, among them those that say how many blocks FlexAttention visits.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

import numpy as np

from phantora.ttir.launch import Descriptor, Launch, Memory
from phantora.ttir.parse import Block, Function, Operation, Type, Unreadable
from phantora.ttir.values import UNKNOWN, Tile, Value, plain
from phantora.ttir.walk import Walker

MOST_PROGRAMS = 64  # of a launch: each is followed
MOST_OPERATIONS = 20_000  # of a launch: each is run, in 0.1 s of CPU

Stores = list[tuple[int, bytes]]
"""Bytes, by their offset from a tensor's first element."""


class _Storing(Walker):
    """Keeps what is stored to each of `memories`; `lost` contains those to which something unknown is."""

    extrapolates = False

    def __init__(self, functions: dict[str, Function], launch: Launch) -> None:
        super().__init__(functions, launch)
        self.stored: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.lost: set[int] = set()

    def _access(self, operation: Operation, operands: list[Value]) -> Value:
        if operation.name != "tt.load":
            self._keep(operation, operands)
        return super()._access(operation, operands)

    def _block(self, block: Block, environment: dict[str, Value]) -> Operation | None:
        if self.operations_run > MOST_OPERATIONS:
            raise Unreadable(f"over {MOST_OPERATIONS} operations")
        return super()._block(block, environment)

    def _values(self, memory: int, pointer: Value, mask: Value, kind: Type) -> Value:
        """Unknown where the launch has stored something unknown, or where another program may have stored by then."""
        if memory not in self.stored and memory not in self.lost:
            return super()._values(memory, pointer, mask, kind)
        if memory in self.lost or mask is UNKNOWN or prod(self.launch.grid) > 1:
            return UNKNOWN
        before, stored, width = (
            super()._values(memory, pointer, mask, kind),
            self.stored[memory],
            max(1, kind.bits // 8),
        )
        found = np.empty(kind.shape, np.int64)
        addresses, active = np.broadcast_to(pointer, kind.shape), np.broadcast_to(mask, kind.shape)
        for place in np.ndindex(kind.shape):
            data = stored.get(int(addresses[place])) if active[place] else None
            if (data is None and before is UNKNOWN) or (data is not None and len(data) != width):
                return UNKNOWN
            found[place] = np.broadcast_to(before, kind.shape)[place] if data is None else _integer(data)
        return plain(found)

    def _keep(self, operation: Operation, operands: list[Value]) -> None:
        kind, pointer = operation.types[0], operands[0]
        if pointer is UNKNOWN or isinstance(pointer, Tile) or kind.block:
            self.lost.update(range(len(self.memories)))
            return
        addresses = np.broadcast_to(pointer, kind.shape).reshape(-1)
        value, mask = operands[1], operands[2] if len(operands) > 2 else True
        if operation.name != "tt.store" or value is UNKNOWN or mask is UNKNOWN or not kind.element.startswith("i"):
            self.lost.add(self._owner(addresses, None))
            return
        active = np.broadcast_to(mask, kind.shape).reshape(-1)
        if active.any():
            values = np.broadcast_to(value, kind.shape).reshape(-1).astype(f"<i{max(1, kind.bits // 8)}")
            pairs = zip(addresses[active].tolist(), values[active].tolist(), strict=True)
            width = values.itemsize
            kept = self.stored[self._owner(addresses, active)]
            kept.update((address, number.to_bytes(width, "little", signed=True)) for address, number in pairs)


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def stores_of(functions: dict[str, Function], launch: Launch) -> dict[int, Stores]:
    """Stores of `launch` by the place of an argument, if all stores to it are known.

    Raises Unreadable where the IR contains what is not understood, or takes too many operations.
    """
    if prod(launch.grid) > MOST_PROGRAMS:
        return {}
    walker = _Storing(functions, launch)
    x, y, z = launch.grid
    for i in range(x * y * z):
        walker.run((i % x, i // x % y, i // x // y))
    if walker.unknown or -1 in walker.lost or -1 in walker.stored:
        return {}
    places = [place for place, a in enumerate(launch.arguments) if isinstance(a, (Memory, Descriptor))]
    return {
        places[m]: sorted((address - walker.memories[m].address, data) for address, data in kept.items())
        for m, kept in walker.stored.items()
        if m not in walker.lost
    }
