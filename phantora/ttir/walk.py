"""Walking through a kernel's programs: which tiles each loads, stores and multiplies, and how often.

Each program has its true program id. Integers, masks and addresses are computed as on the GPU; floating-point work is
only counted. If two iterations of a loop count the same, the others are extrapolated. Integer tensors that decide the
path of a kernel (offsets, block indices) are read from memory.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import Any

import numpy as np

from phantora.ttir import functions
from phantora.ttir.launch import Descriptor, Launch, Memory, UnknownIntegers
from phantora.ttir.operations import (
    ACCESSES,
    ALU_OF,
    CONSTANTS,
    CONVERT,
    DESCRIPTORS,
    DOTS,
    DTYPES,
    EXCHANGED,
    MUFU,
    OF_LIBRARY,
    REDUCTIONS,
    ROUNDED,
    SHAPES,
)
from phantora.ttir.parse import Block, Function, Operation, Type, Unreadable
from phantora.ttir.reductions import combined
from phantora.ttir.slice import deciding, scalar_accesses
from phantora.ttir.values import UNKNOWN, Tile, Value, constant, integers, plain
from phantora.ttir.work import LOOPS, PAIR_BYTES, SECTOR_BYTES

SAME = 2  # iterations of a loop with equal counts, after which the others are extrapolated
PROBES = 6  # visits of an operation at which its addresses are counted
ADDRESS_SHARE = 0.125  # of address arithmetic that is left: an address per vector of elements
POINTED_BYTES = 1 << 20  # of integers that a program loads at once from a pointer that it loaded
VECTOR, ASYNCHRONOUS = 16, 4  # bytes that a thread moves at once: most; least for a loop that loads ahead

Counts = dict[Any, float]
"""Counts of a program, by counter (:data:`phantora.ttir.work.COUNTERS`); some keys are a counter and a memory or a
shape."""


class Walker:
    """Follows programs of one launch of `functions` (from :func:`phantora.ttir.parse.parse`)."""

    extrapolates = True
    """False: all iterations of a loop are run, also those that count the same."""

    def __init__(self, functions: dict[str, Function], launch: Launch) -> None:
        self.functions = functions
        self.kernel = next(iter(functions.values()))
        self.launch = launch
        self.memories = [
            a if isinstance(a, Memory) else a.memory for a in launch.arguments if isinstance(a, (Memory, Descriptor))
        ]
        self.values: dict[int, np.ndarray[Any, Any] | None] = {}
        self.counts: Counts = defaultdict(float)
        self.load_pending = False
        self.pipelined = False
        self.program = (0, 0, 0)
        self.operations_run = 0
        self.sector_probes: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self.unknown: set[str] = set()
        self.skipped_iterations = False
        self.scalar_operations = scalar_accesses(functions)
        self.vector_widths: dict[int, int] = {}
        self.sector_shares: dict[int, tuple[float, float]] = {}  # means of all probes of an operation
        self.constants: dict[int, Value] = {}  # by operation
        self.control = {"scf.for": self._for, "scf.while": self._while, "scf.if": self._if, "tt.call": self._call}
        self.index_memories: set[int | None] | None = None  # memories whose integers are indices only

    # ------------------------------------------------------------------ a program

    def run(self, program: tuple[int, int, int]) -> Counts:
        """The counts of one program."""
        self.program, self.load_pending, self.pipelined = program, False, False
        self.counts = defaultdict(float)
        self.first_visits: dict[tuple[int, int], int] = {}
        self.revisits: dict[int, bool] = {}
        environment = self._bind(self.kernel)
        self._blocks(self.kernel.blocks, environment)
        return self.counts

    def _bind(self, kernel: Function) -> dict[str, Value]:
        given: list[Value] = []
        for argument in self.launch.arguments:
            if isinstance(argument, Memory):
                given.append(argument.address)
            elif isinstance(argument, Descriptor):
                rank = len(argument.shape)
                given.append(Tile(argument.memory.address, argument.shape))
                given += [*argument.shape, *argument.strides][: 2 * rank]
            else:
                given.append(UNKNOWN if argument is None or isinstance(argument, float) else argument)
        if len(given) != len(kernel.arguments):
            raise Unreadable(f"{kernel.name} takes {len(kernel.arguments)} arguments, {len(given)} were given")
        return dict(zip(kernel.arguments, given, strict=True))

    def _blocks(self, blocks: list[Block], environment: dict[str, Value]) -> list[Value]:
        """Runs blocks from the first on; returns the values of the last one's end."""
        block = blocks[0]
        for _ in range(1000):
            end = self._block(block, environment)
            if end is None or not end.name.startswith("cf."):
                return [] if end is None else [self._get(environment, o) for o in end.operands]
            block = self._branch(blocks, end, environment)
        return []

    def _branch(self, blocks: list[Block], end: Operation, environment: dict[str, Value]) -> Block:
        targets = end.text.split("^")[1:]
        chosen = 0
        if end.name == "cf.cond_br":
            condition = self._get(environment, end.operands[0])
            if condition is UNKNOWN:
                self.unknown.add("whether it ends early, which it is taken not to")
            chosen = 0 if condition is not UNKNOWN and condition else 1
        name = targets[chosen].split("(")[0].split(",")[0].split()[0].strip()
        found = next(b for b in blocks if b.name == name)
        passed = [
            p.strip()
            for p in targets[chosen].partition("(")[2].partition(")")[0].partition(":")[0].split(",")
            if p.strip()
        ]
        environment.update(zip(found.arguments, (self._get(environment, p) for p in passed), strict=False))
        return found

    def _block(self, block: Block, environment: dict[str, Value]) -> Operation | None:
        """Runs a block; returns the operation that ends it."""
        for operation in block.operations:
            self.operations_run += 1
            if operation.ends:
                return operation
            found = self._operation(operation, environment)
            if len(operation.results) == 1:
                environment[operation.results[0]] = found
            elif operation.results:
                values = found if isinstance(found, list) else [found] * len(operation.results)
                environment.update(zip(operation.results, values, strict=False))
        return None

    @staticmethod
    def _get(environment: dict[str, Value], name: str) -> Value:
        return environment.get(name, UNKNOWN)

    # ------------------------------------------------------------------ control

    def _for(self, operation: Operation, environment: dict[str, Value]) -> list[Value]:
        index, low, high, step, *pairs = operation.operands
        names, values = pairs[0::2], [self._get(environment, p) for p in pairs[1::2]]
        first, last, by = (self._get(environment, n) for n in (low, high, step))
        if not all(isinstance(v, (int, bool)) for v in (first, last, by)):
            self.unknown.add(LOOPS)
            first, last, by = 0, 1, 1
        trips = max(0, -((first - last) // by)) if by else 0
        multiplies = any(o.name in DOTS for o in operation.regions[0][0].operations)
        outer, self.pipelined = self.pipelined, multiplies and self.launch.stages > 1
        done, same, previous = 0, 0, values
        before: Counts = {}
        while done < trips:
            if self.extrapolates and same >= SAME and trips - done > 1:
                skipped, self.skipped_iterations = trips - done - 1, True
                for key, value in before.items():
                    self.counts[key] += value * skipped
                values = [_ahead(a, b, skipped) for a, b in zip(previous, values, strict=True)]
                done += skipped
            start = dict(self.counts)
            environment[index] = first + done * by
            environment.update(zip(names, values, strict=False))
            self.counts["steps"] += 1
            self.load_pending = False
            previous = values
            values = self._blocks(operation.regions[0], environment)[: len(names)] or values
            delta = {key: value - start.get(key, 0.0) for key, value in self.counts.items()}
            delta = {key: value for key, value in delta.items() if value}
            same = same + 1 if delta == before else 0
            before = delta
            done += 1
        self.pipelined = outer
        self.load_pending = False
        return values

    def _while(self, operation: Operation, environment: dict[str, Value]) -> list[Value]:
        names, values = operation.operands[0::2], [self._get(environment, p) for p in operation.operands[1::2]]
        head, body = operation.regions
        for _ in range(100_000):
            environment.update(zip(names, values, strict=False))
            environment.update(zip(head[0].arguments, values, strict=False))
            condition, *passed = self._blocks(head, environment)
            if condition is UNKNOWN and not _waits(operation):
                self.unknown.add(LOOPS)
            if condition is UNKNOWN or not condition:
                return passed
            environment.update(zip(body[0].arguments, passed, strict=False))
            self.counts["steps"] += 1
            self.load_pending = False
            values = self._blocks(body, environment)
        raise Unreadable("a loop without end")

    def _if(self, operation: Operation, environment: dict[str, Value]) -> list[Value]:
        condition = self._get(environment, operation.operands[0])
        if condition is UNKNOWN:
            self.unknown.add("a condition, which counts as met")
            condition = True
        if condition:
            return self._blocks(operation.regions[0], environment)
        return self._blocks(operation.regions[1], environment) if len(operation.regions) > 1 else []

    def _call(self, operation: Operation, environment: dict[str, Value]) -> list[Value]:
        name = operation.text.partition("@")[2].partition("(")[0].strip('" ')
        called = self.functions.get(name)
        if called is None or not called.blocks:
            self.unknown.add(f"the function {name}")
            return []
        given = [self._get(environment, o) for o in operation.operands]
        return self._blocks(called.blocks, dict(zip(called.arguments, given, strict=False)))

    # ------------------------------------------------------------------ operations

    def _operation(self, operation: Operation, environment: dict[str, Value]) -> Value:
        name = operation.name
        if name in CONSTANTS:
            if id(operation) not in self.constants:
                self.constants[id(operation)] = self._shape(operation, [])
            return self.constants[id(operation)]
        control = self.control.get(name)
        if control is not None:
            found = control(operation, environment)
            return found[0] if len(operation.results) == 1 and found else found
        operands = [environment.get(o, UNKNOWN) for o in operation.operands]
        if name in ACCESSES:
            return self._access(operation, operands)
        if name.startswith(DESCRIPTORS):
            return self._descriptor(operation, operands)
        if name in DOTS:
            return self._dot(operation)
        if name in REDUCTIONS:
            return self._reduce(operation, operands, environment)
        shaped = self._shape(operation, operands)
        if shaped is not None:
            return shaped
        return self._arithmetic(operation, operands)

    def _shape(self, operation: Operation, operands: list[Any]) -> Value | None:
        """Operations that only move or make integers; None for others."""
        name = operation.name
        if name not in SHAPES:
            return None
        if name == "arith.constant":
            return constant(operation)
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = "xyz".index(operation.text.split()[0].strip(":"))
            return self.program[axis] if name.endswith("id") else self.launch.grid[axis]
        if name == "tt.make_range":
            return np.arange(operation.attribute("start") or 0, operation.attribute("end") or 0)
        if name in ("tt.make_tensor_ptr", "tt.make_tensor_descriptor"):
            rank = (len(operands) - 1) // (3 if name.endswith("ptr") else 2)
            offsets = tuple(operands[1 + 2 * rank :]) if name.endswith("ptr") else ()
            return Tile(operands[0], tuple(operands[1 : 1 + rank]), offsets)
        value: Any = operands[0] if operands else UNKNOWN
        if name == "tt.advance" and isinstance(value, Tile):
            moved = zip(value.offsets, operands[1:], strict=False)
            return Tile(value.base, value.shape, tuple(integers_add(a, b) for a, b in moved))
        if value is UNKNOWN or isinstance(value, Tile):
            return UNKNOWN
        if name == "tt.addptr":
            return self._add_address(operation, operands)
        shape = operation.types[-1].shape if operation.types else ()
        if name == "tt.splat":
            return np.full(shape, value) if shape else value
        if name == "tt.expand_dims":
            return np.expand_dims(value, operation.attribute("axis") or 0)
        if name == "tt.broadcast":
            return np.broadcast_to(value, shape)
        if name == "tt.reshape":
            return np.reshape(value, shape)
        if name == "tt.trans":
            order = operation.text.partition("array<i32: ")[2].partition(">")[0]
            return np.transpose(value, [int(n) for n in order.split(",")])
        if name in ("tt.int_to_ptr", "tt.ptr_to_int"):
            return value
        return plain(np.reshape(value, ())) if name == "tt.unsplat" else UNKNOWN

    def _add_address(self, operation: Operation, operands: list[Value]) -> Value:
        pointer, offset = operands
        if offset is UNKNOWN:
            return UNKNOWN
        kind = operation.types[0]
        self.counts["integer"] += kind.count * ADDRESS_SHARE if kind.shape else 0.0
        return plain(np.add(pointer, np.multiply(offset, max(1, kind.bits // 8))))

    def _arithmetic(self, operation: Operation, operands: list[Value]) -> Value:
        dialect, _, name = operation.name.partition(".")
        kind = operation.types[-1] if operation.types else Type((), "f32")
        count = float(kind.count) if kind.shape else 0.0
        whole = dialect == "arith" and (kind.element.startswith("i") or kind.pointer) and not name.endswith("f")
        if whole and name not in CONVERT:
            found = integers(operation, operands)
            known = found is not UNKNOWN
            self.counts["integer"] += count * (ADDRESS_SHARE if known else 1.0)
            return found
        if name == "select" and kind.pointer:
            return integers(operation, operands)
        if name in CONVERT:
            self.counts["convert"] += count
        elif name in MUFU:
            self.counts["mufu"] += count * MUFU[name]
            self.counts["alu"] += count * ALU_OF.get(name, 0.0)
        elif name in ROUNDED:
            self.counts["mufu"] += count
            self.counts["alu"] += 4.0 * count
        elif name == "extern_elementwise" or name in OF_LIBRARY:
            symbol = operation.text.partition('symbol = "')[2].partition('"')[0] or name
            self.counts["instructions"] += count * functions.of_symbol(symbol).slots
        elif name == "mulhiui":
            self.counts["integer"] += 2.0 * count
        elif name in EXCHANGED:
            self.counts["alu"] += EXCHANGED[name] * max(t.count for t in operation.types)
        elif name == "map_elementwise":
            own = sum(len(block.operations) - 1 for region in operation.regions for block in region)
            self.counts["alu"] += count * own
        else:
            self.counts["alu"] += count * (2.0 if name == "clampf" else 1.0)
            if dialect not in ("arith", "math") and name != "clampf":
                self.unknown.add(f"the operation {operation.name}")
        return UNKNOWN

    def _dot(self, operation: Operation) -> Value:
        a, c = operation.types[0], operation.types[-1]
        scaled = operation.name == "tt.dot_scaled"  # Hopper multiplies what it has converted to bfloat16
        dtype = "bfloat16" if scaled else DTYPES.get(a.element, "bfloat16")
        if dtype == "tfloat32" and "ieee" in operation.text:
            dtype = "float32"
        times = prod(a.shape[:-2]) * (3 if "tf32x3" in operation.text else 1)
        packed = 2 if scaled and "lhs = e2m1" in operation.text else 1  # elements in a byte
        m, k, n = a.shape[-2], a.shape[-1] * packed, c.shape[-1]
        self.counts["dot", m, n, k, dtype] += times
        self.counts["dots"] += times
        self.counts["flops"] += 2.0 * times * m * n * k
        self.load_pending = False
        return UNKNOWN

    def _reduce(self, operation: Operation, operands: list[Value], environment: dict[str, Value]) -> Value:
        count = max((t.count for t in operation.types), default=1)
        operations = max(1, sum(len(b.operations) for b in operation.regions[0]) - 1) if operation.regions else 1
        self.counts["scanned" if operation.name == "tt.scan" else "reduced"] += float(count) * operations
        if max((len(t.shape) for t in operation.types), default=0) > 2:
            self.counts["cubed"] += float(count)
        whole = len(operation.types[0].shape) <= 1 if operation.types else True
        self.counts["crossings" if whole else "reductions"] += 1
        self.load_pending = False
        counts, self.counts = self.counts, defaultdict(float)  # those of the region are counted above
        found = self._combined(operation, operands, environment)
        self.counts = counts
        return found if len(found) > 1 else found[0]

    def _combined(self, operation: Operation, operands: list[Value], environment: dict[str, Value]) -> list[Value]:
        if not operation.regions or any(o is UNKNOWN or isinstance(o, Tile) for o in operands):
            return [UNKNOWN] * max(1, len(operation.results))
        body = operation.regions[0]

        def combine(left: list[Value], right: list[Value]) -> list[Value]:
            environment.update(zip(body[0].arguments, [*left, *right], strict=True))
            return self._blocks(body, environment)

        return combined(operation, operands, combine)

    # ------------------------------------------------------------------ memory

    def _access(self, operation: Operation, operands: list[Value]) -> Value:
        kind = operation.types[0]
        atomic = operation.name.startswith("tt.atomic")
        stores = operation.name == "tt.store"
        pointer = operands[0]
        if kind.block or isinstance(pointer, Tile):
            return self._tile(pointer, pointer.offsets if isinstance(pointer, Tile) else (), kind, stores)
        place = {"tt.load": 1, "tt.atomic_cas": 3}.get(operation.name, 2)
        mask = operands[place] if len(operands) > place else True
        width = max(1, kind.bits // 8)
        active = kind.count
        if mask is not UNKNOWN and mask is not True:
            active = int(np.count_nonzero(np.broadcast_to(mask, kind.shape)))
        if atomic:
            self.counts["atomics"] += active
        memory, sectors, partial, vector = -1, float(active * width), 0.0, 1
        if pointer is UNKNOWN:
            self.unknown.add("an address")
        elif active:
            known = None if mask is UNKNOWN or mask is True else np.broadcast_to(mask, kind.shape)
            addresses = np.broadcast_to(pointer, kind.shape)
            memory = self._owner(addresses, known)
            if self._returns(operation, memory, int(addresses.flat[0])):
                self.counts["again"] += 0.0 if stores else active * width
            whole, cut = self._sectors(operation, addresses, known, width)
            sectors, partial = whole * active * width, cut * active * width
            vector = self._vector(operation, addresses, width)
        self.counts["accesses"] += max(1, active // max(1, vector))
        if not vector:  # no neighbours: the compiler does not know which dimension's are near
            self.counts["scattered"] += active
        self._moved(stores or atomic, active * width, sectors, memory, max(1, vector) * width)
        if stores:
            self.counts["asked", memory] += active * width
            self.counts["partial"] += partial
            self.counts["cut", memory] += partial
        if atomic:
            self._moved(False, active * width, sectors, memory)
            return UNKNOWN
        if stores or not kind.element.startswith("i"):
            return UNKNOWN
        if not active:  # all masked: what stands in for it, or what the compiler takes if nothing does
            other = operands[2] if len(operands) > 2 else 0
            return other if other is UNKNOWN else plain(np.broadcast_to(other, kind.shape) if kind.shape else other)
        if memory < 0:
            return self._pointed(pointer, mask, kind)
        return self._values(memory, pointer, mask, kind)

    def _vector(self, operation: Operation, addresses: np.ndarray[Any, Any], width: int) -> int:
        """Elements that a thread loads or stores at once: neighbours in memory along one dimension. 0: a tile of
        several dimensions has none."""
        found = self.vector_widths.get(id(operation))
        if found is None:
            longest = 1
            for axis, extent in enumerate(addresses.shape):
                apart = np.diff(addresses, axis=axis) != width
                longest = max(
                    longest,
                    extent
                    if not apart.any()
                    else int(np.argmax(apart.any(tuple(i for i in range(addresses.ndim) if i != axis)))) + 1,
                )
            threads = 32 * self.launch.warps
            most = min(VECTOR // width, longest, max(1, addresses.size // threads))
            found = 1 if id(operation) in self.scalar_operations else 1 << max(0, most.bit_length() - 1)
            if longest == 1 and addresses.ndim > 1 and addresses.size > threads:
                found = 0
            self.vector_widths[id(operation)] = found
        return found

    def _moved(self, stores: bool, size: float, sectors: float, memory: int, together: int = VECTOR) -> None:
        side = "store" if stores else "load"
        self.counts[f"{side}_bytes"] += size
        self.counts[f"{side}_sectors"] += sectors
        self.counts[f"{side}s"] += 1
        self.counts["written" if stores else "read", memory] += sectors
        if stores:
            self.load_pending = False
        elif self.pipelined and together >= ASYNCHRONOUS:
            self.counts["piped"] += 0.0 if self.load_pending else 1.0
            self.load_pending = True
        else:
            self.counts["phases"] += 0.0 if self.load_pending else 1.0
            self.load_pending = True

    def _returns(self, operation: Operation, memory: int, first: int) -> bool:
        """True if an operation begins at the place of another of the program (a second pass over the same data)."""
        found = self.revisits.get(id(operation))
        if found is None:
            owner = self.first_visits.setdefault((memory, first), id(operation))
            found = self.revisits[id(operation)] = owner != id(operation) and operation.types[0].count > 1
        return found

    def _owner(self, addresses: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None) -> int:
        """The memory of the first of the addresses; -1: none."""
        first = addresses.flat[0] if mask is None else addresses.flat[int(np.argmax(mask))]
        return next((i for i, m in enumerate(self.memories) if m.address <= first < m.address + m.span), -1)

    def _sectors(
        self, operation: Operation, addresses: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None, width: int
    ) -> tuple[float, float]:
        """Bytes of touched pairs of sectors per requested byte, and of those with partly touched sectors; the mean of
        an operation's first visits."""
        share = self.sector_shares.get(id(operation))
        if share is not None:
            return share
        seen = self.sector_probes[id(operation)]
        if len(seen) < PROBES:
            active = addresses if mask is None else addresses[mask]
            sectors, elements = np.unique(active // SECTOR_BYTES, return_counts=True)
            pairs = sectors * SECTOR_BYTES // PAIR_BYTES
            counted = [len(np.unique(some)) for some in (pairs, pairs[elements * width < SECTOR_BYTES])]
            each = PAIR_BYTES / (active.size * width)
            seen.append((counted[0] * each, counted[1] * each))
        whole, cut = np.mean(seen, axis=0)
        found = float(whole), float(cut)
        if len(seen) == PROBES:
            self.sector_shares[id(operation)] = found
        return found

    def _values(self, memory: int, pointer: Value, mask: Value, kind: Type) -> Value:
        """The integers that a load reads."""
        source = self.memories[memory]
        if source.values is None:
            return UNKNOWN
        if memory not in self.values:
            try:
                self.values[memory] = source.values()
            except UnknownIntegers:
                self.values[memory] = None
        width = max(1, kind.bits // 8)
        at = np.floor_divide(np.subtract(pointer, source.address), width)
        held = self.values[memory]
        if held is None:
            return self._stand_in(memory, at, kind)
        held = held[: len(held) // width * width].view(f"<i{width}")
        good = (at >= 0) & (at < len(held))
        if mask is not UNKNOWN and mask is not True:
            good = good & mask
        found = np.where(good, held[np.clip(at, 0, max(0, len(held) - 1))], 0).astype(np.int64)
        self.load_pending = False  # what follows waits for it
        return plain(np.broadcast_to(found, kind.shape) if kind.shape else found)

    def _pointed(self, pointer: Value, mask: Value, kind: Type) -> Value:
        """The integers at addresses that the kernel loaded itself, in no tensor among its arguments."""
        if self.launch.read is None or pointer is UNKNOWN or mask is UNKNOWN:
            return UNKNOWN
        width = max(1, kind.bits // 8)
        addresses = np.broadcast_to(pointer, kind.shape)
        active = np.broadcast_to(mask, kind.shape)
        first, last = int(addresses[active].min()), int(addresses[active].max())
        data = self.launch.read(first, last + width - first) if last - first < POINTED_BYTES else None
        if data is None:
            return UNKNOWN
        at = np.where(active, addresses - first, 0)[..., None] + np.arange(width)
        found = np.where(active, data[at].view(f"<i{width}")[..., 0], 0).astype(np.int64)
        self.load_pending = False  # what follows waits for it
        return plain(found)

    def _stand_in(self, memory: int, at: np.ndarray[Any, Any], kind: Type) -> Value:
        """For unknown integers: those that pick places count up, as the permutation that changes nothing."""
        if self.index_memories is None:
            decides, bound = deciding(self.functions), self._bind(self.kernel)
            places = {m.address: i for i, m in enumerate(self.memories)}
            owners = {name: places.get(where) for name in decides.read if isinstance(where := bound[name], int)}
            self.index_memories = {owner for name, owner in owners.items() if name not in decides.ranges}
        if memory not in self.index_memories:
            return UNKNOWN
        self.unknown.add("integers in memory, which are taken to count up")
        self.load_pending = False
        return plain(np.broadcast_to(at.astype(np.int64), kind.shape) if kind.shape else at.astype(np.int64))

    def _descriptor(self, operation: Operation, operands: list[Value]) -> Value:
        tile = operands[0]
        kind = operation.types[0]
        stores = "load" not in operation.name and "gather" not in operation.name
        if "reduce" in operation.name:
            self.counts["atomics"] += kind.count
        kind = Type(kind.shape, kind.element, block=True)
        indices = operands[1 : 1 + len(kind.shape)]
        self.counts["copied"] += kind.count
        return self._tile(tile, tuple(indices), kind, stores)

    def _tile(self, tile: Value, offsets: tuple[Value, ...], kind: Type, stores: bool) -> Value:
        active = float(kind.count)
        if isinstance(tile, Tile) and len(offsets) == len(tile.shape) == len(kind.shape):
            active = 1.0
            for block, extent, offset in zip(kind.shape, tile.shape, offsets, strict=True):
                inside = isinstance(extent, int) and isinstance(offset, int)
                active *= max(0, min(block, extent - offset)) if inside else block
        size = active * max(1, kind.bits // 8)
        base = tile.base if isinstance(tile, Tile) else UNKNOWN
        memory = self._owner(np.asarray(base), None) if isinstance(base, int) else -1
        self._moved(stores, size, size, memory)
        return UNKNOWN


def integers_add(a: Value, b: Value) -> Value:
    """Their sum, unknown if one is."""
    return UNKNOWN if a is UNKNOWN or b is UNKNOWN else plain(np.add(a, b))


def _ahead(before: Value, now: Value, times: int) -> Value:
    """`now`, after `times` more steps like the one from `before`."""
    if any(v is UNKNOWN for v in (before, now)):
        return now
    if isinstance(before, Tile) and isinstance(now, Tile):
        offsets = zip(before.offsets, now.offsets, strict=False)
        return Tile(now.base, now.shape, tuple(_ahead(a, b, times) for a, b in offsets))
    if isinstance(before, Tile) or isinstance(now, (Tile, bool)):
        return now
    return plain(np.add(now, np.multiply(np.subtract(now, before), times)))


def _waits(operation: Operation) -> bool:
    """True if a loop only tries an atomic: it waits for a lock, which counts as one try."""
    head, body = operation.regions
    names = {o.name for block in (*head, *body) for o in block.operations}
    return "tt.atomic_cas" in names and all(
        name.startswith(("tt.atomic_", "arith.", "scf.", "tt.splat")) for name in names
    )
