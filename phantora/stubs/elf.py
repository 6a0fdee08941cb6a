"""Imports and exports of a 64-bit little-endian ELF file, read without loading it.

Files are mapped and only their dynamic sections are touched: libtorch_cuda.so is over 1 GB.
Layouts: System V ABI, ELF-64 object file format; symbol versions: LSB, "Symbol Versioning".
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phantora.errors import PhantoraError

SHT_SYMTAB, SHT_DYNAMIC, SHT_DYNSYM = 2, 6, 11
SHT_GNU_VERDEF, SHT_GNU_VERNEED, SHT_GNU_VERSYM = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
DT_NEEDED, DT_SONAME = 1, 14
STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 1, 2, 10
EXPORTED = (STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE)
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_TLS, STT_GNU_IFUNC = 0, 1, 2, 6, 10
STV_DEFAULT, STV_PROTECTED = 0, 3
SHN_UNDEF = 0
HIDDEN_VERSION = 0x8000

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr


@dataclass(frozen=True)
class Symbol:
    """`version` and `library` (the SONAME that shall provide it) are None for unversioned symbols.

    A `weak` import is optional: the code that has it asks whether its address is null.
    """

    name: str
    version: str | None
    library: str | None
    type: int
    weak: bool


@dataclass(frozen=True)
class Dynamic:
    """The dynamic part of a shared library."""

    soname: str | None
    needed: tuple[str, ...]
    undefined: tuple[Symbol, ...]
    defined: tuple[Symbol, ...]


@dataclass(frozen=True)
class _Section:
    type: int
    offset: int
    size: int
    link: int
    info: int


class _File:
    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            try:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:  # an empty file
                raise PhantoraError(f"{path} is not an ELF file; reinstall the package it belongs to") from error
        header = self.data[:64]
        if header[:6] != b"\x7fELF\x02\x01":
            raise PhantoraError(f"{path} is not a 64-bit little-endian ELF file; reinstall its package")
        offset, size, count = (struct.unpack_from("<Q", header, 40)[0], *struct.unpack_from("<HH", header, 58))
        self.sections = []
        for i in range(count):
            _, kind, _, _, start, length, link, info, _, _ = _SECTION.unpack_from(self.data, offset + i * size)
            self.sections.append(_Section(kind, start, length, link, info))

    def section(self, kind: int) -> _Section | None:
        return next((s for s in self.sections if s.type == kind), None)

    def text(self, strings: _Section, offset: int) -> str:
        start = strings.offset + offset
        return self.data[start : self.data.find(b"\0", start)].decode()

    def symbols(self, kind: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.void]], _Section] | None:
        table = self.section(kind)
        if table is None:
            return None
        array = np.frombuffer(self.data, _SYMBOL, table.size // _SYMBOL.itemsize, table.offset)
        return array, self.sections[table.link]


def _needed_versions(file: _File) -> dict[int, tuple[str, str]]:
    """Version index -> (version, library), from .gnu.version_r."""
    table = file.section(SHT_GNU_VERNEED)
    found: dict[int, tuple[str, str]] = {}
    if table is None:
        return found
    strings = file.sections[table.link]
    at = table.offset
    for _ in range(table.info):
        _, count, library, aux, following = struct.unpack_from("<HHIII", file.data, at)
        where = at + aux
        for _ in range(count):
            _, _, index, name, next_aux = struct.unpack_from("<IHHII", file.data, where)
            found[index & ~HIDDEN_VERSION] = (file.text(strings, name), file.text(strings, library))
            where += next_aux
        at += following
    return found


def _defined_versions(file: _File) -> dict[int, str]:
    """Version index -> version, from .gnu.version_d; index 1 is the file itself."""
    table = file.section(SHT_GNU_VERDEF)
    found: dict[int, str] = {}
    if table is None:
        return found
    strings = file.sections[table.link]
    at = table.offset
    for _ in range(table.info):
        _, flags, index, _, _, aux, following = struct.unpack_from("<HHHHIII", file.data, at)
        if not flags & 1:  # VER_FLG_BASE
            found[index] = file.text(strings, struct.unpack_from("<I", file.data, at + aux)[0])
        at += following
    return found


def read_dynamic(path: Path) -> Dynamic:
    """SONAME, NEEDED and the dynamic symbols of a shared library."""
    file = _File(path)
    table = file.section(SHT_DYNAMIC)
    loaded = file.symbols(SHT_DYNSYM)
    if table is None or loaded is None:
        raise PhantoraError(f"{path} has no dynamic section; reinstall the package it belongs to")
    strings = file.sections[table.link]
    entries = np.frombuffer(file.data, "<u8", table.size // 8, table.offset).reshape(-1, 2)
    sonames = [file.text(strings, int(v)) for tag, v in entries if tag == DT_SONAME]
    needed = tuple(file.text(strings, int(v)) for tag, v in entries if tag == DT_NEEDED)

    symbols, names = loaded
    versym = file.section(SHT_GNU_VERSYM)
    versions = (
        np.frombuffer(file.data, "<u2", len(symbols), versym.offset) if versym else np.ones(len(symbols), np.uint16)
    )
    needs, defines = _needed_versions(file), _defined_versions(file)
    undefined, defined = [], []
    for i in np.flatnonzero((symbols["section"] == SHN_UNDEF) & (symbols["name"] != 0)):
        version, library = needs.get(int(versions[i]) & ~HIDDEN_VERSION, (None, None))
        name = file.text(names, int(symbols[i]["name"]))
        info = int(symbols[i]["info"])
        undefined.append(Symbol(name, version, library, info & 15, info >> 4 == STB_WEAK))
    visible = (symbols["section"] != SHN_UNDEF) & np.isin(symbols["info"] >> 4, EXPORTED)
    visible &= (versions & HIDDEN_VERSION) == 0  # older versions of a name are not linked against
    for i in np.flatnonzero(visible):
        version = defines.get(int(versions[i]))
        name = file.text(names, int(symbols[i]["name"]))
        info = int(symbols[i]["info"])
        defined.append(Symbol(name, version, None, info & 15, info >> 4 == STB_WEAK))
    return Dynamic(sonames[0] if sonames else None, needed, tuple(undefined), tuple(defined))


def object_exports(path: Path) -> frozenset[str]:
    """Names that an object file (.o) defines with default visibility."""
    file = _File(path)
    loaded = file.symbols(SHT_SYMTAB)
    if loaded is None:
        return frozenset()
    symbols, names = loaded
    chosen = (
        (symbols["section"] != SHN_UNDEF)
        & np.isin(symbols["info"] >> 4, EXPORTED)
        & np.isin(symbols["other"] & 3, (STV_DEFAULT, STV_PROTECTED))
    )
    return frozenset(file.text(names, int(s["name"])) for s in symbols[chosen])
