"""Description of a layout: enums, structs, and their C and NumPy forms.

Conventions: little endian, every struct a multiple of 8 bytes, no implicit padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUMPY = {
    "uint8_t": "<u1",
    "uint16_t": "<u2",
    "uint32_t": "<u4",
    "int32_t": "<i4",
    "uint64_t": "<u8",
    "int64_t": "<i8",
    "double": "<f8",
}


@dataclass(frozen=True)
class Enum:
    """A C enum: ``prefix`` + member; values count from 0 in order of listing."""

    name: str
    prefix: str
    members: tuple[tuple[str, str], ...]  # (NAME, meaning)

    def __getattr__(self, member: str) -> int:
        for value, (name, _) in enumerate(self.members):
            if name == member:
                return value
        raise AttributeError(f"{self.name} has no member {member}")

    def names(self) -> list[str]:
        """The members' names, in the order of their values."""
        return [name for name, _ in self.members]

    def c(self) -> list[str]:
        """Lines of C that define it."""
        lines = [f"enum {self.name} {{"]
        for value, (name, meaning) in enumerate(self.members):
            lines.append(f"  {self.prefix}{name} = {value}," + (f"  // {meaning}" if meaning else ""))
        return [*lines, f"  {self.prefix}COUNT_{self.name.upper()} = {len(self.members)}", "};"]


@dataclass(frozen=True)
class Struct:
    """A C struct of fields of scalar types or of other structs."""

    name: str
    fields: tuple[tuple[str, str, int, str], ...]  # (type, name, count, meaning)


def dtype(struct: Struct, known: Iterable[Struct] = ()) -> np.dtype[np.void]:
    """The NumPy dtype of `struct`, packed as the C compiler lays it out; `known`: structs it may hold."""
    fields: list[tuple[str, npt.DTypeLike] | tuple[str, npt.DTypeLike, tuple[int, ...]]] = []
    for ctype, name, count, _ in struct.fields:
        if ctype == "char":
            fields.append((name, f"S{count}"))
            continue
        nested = next((s for s in known if s.name == ctype), None)
        base: npt.DTypeLike = dtype(nested, known) if nested else NUMPY[ctype]
        fields.append((name, base) if count == 1 else (name, base, (count,)))
    return np.dtype(fields)


def c_field(ctype: str, name: str, count: int, meaning: str) -> str:
    """A field of a struct in C, an array if `count` is above 1."""
    array = f"[{count}]" if count > 1 else ""
    return f"{ctype} {name}{array};" + (f"  // {meaning}" if meaning else "")


def c_struct(struct: Struct, size: int) -> list[str]:
    """The struct in C, with a check that the compiler finds `size` bytes."""
    lines = [f"typedef struct {struct.name} {{"]
    lines += [f"  {c_field(*field)}" for field in struct.fields]
    return [*lines, f"}} {struct.name};", size_check(struct.name, size)]


def size_check(name: str, size: int) -> str:
    """A line of C that does not compile if the struct has not `size` bytes."""
    return f'PH_STATIC_ASSERT(sizeof({name}) == {size}, "{name}");'
