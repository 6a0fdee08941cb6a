"""Rows of a table of kernel times as Arrow columns, found by key or operator.

Rows become Python objects when they are asked for. Large tables are cached on this machine as Arrow files, which are
mapped into memory: a run touches a few of 76,000 operators.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from phantora.cache import cache_directory, make_folder, make_room

OPERATOR = "operator"
"""Column of an indexed table, next to `key`: the base name of the operator, without namespace and overload."""
WORTH_KEEPING = 20_000  # rows: fewer are read in less time than a file takes
MOST_TABLES = 6  # in the cache; a table takes 60 MB
_SOURCES = ("table_rows.py", "table.py", "parse.py", "tensors.py")  # they decide what a cached file contains


class Rows:
    """The rows of an :func:`indexed` table; an entry is a range of rows, (first, one after the last)."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._columns: dict[str, Any] = {}
        self._seen: dict[str, dict[int, str]] = {}  # words of each text column that were asked for
        for field in table.schema:
            column = _array(table, field.name)
            if pa.types.is_dictionary(field.type):
                self._columns[field.name] = (np.asarray(column.indices), column.dictionary)
            elif pa.types.is_fixed_size_list(field.type):
                self._columns[field.name] = np.asarray(column.flatten()).reshape(-1, field.type.list_size)
            else:
                self._columns[field.name] = np.asarray(column)
        self._first = np.flatnonzero(self._columns["position"] == 0)
        if len(table) and (not len(self._first) or self._first[0] != 0):
            raise ValueError("its rows are not in order")
        indices, self._words = self._columns["key"]
        self._word_of = indices[self._first]  # of an entry
        self._entry_of = np.full(len(self._words), -1)  # of a word
        self._entry_of[self._word_of] = np.arange(len(self._first))
        self._entries: dict[str, int] = {}  # by key, once all keys were asked for
        self._listed: dict[str, int] = {}  # by key, of the operators that were asked for

    def keys(self) -> list[str]:
        """Keys of all entries, in the order of the table."""
        if not self._entries:
            words = self._words.to_pylist()
            self._entries = {words[word]: entry for entry, word in enumerate(self._word_of.tolist())}
        return list(self._entries)

    def keys_of(self, operator: str) -> list[str]:
        """Keys of the entries of an operator with base name `operator`, in the order of the table."""
        indices, names = self._columns[OPERATOR]
        number = names.index(operator).as_py()
        if number < 0:
            return []
        words = self._word_of[indices[self._first] == number]
        found = dict(zip(self._words.take(words).to_pylist(), self._entry_of[words].tolist(), strict=True))
        self._listed |= found
        return list(found)

    def find(self, key: str) -> tuple[int, int] | None:
        """The rows of the entry `key`."""
        entry = self._entries.get(key, -1) if self._entries else self._listed.get(key, -1)
        if entry < 0 and not self._entries:
            entry = self._search(key)
        if entry < 0:
            return None
        end = len(self.table) if entry + 1 == len(self._first) else int(self._first[entry + 1])
        return int(self._first[entry]), end

    def _search(self, key: str) -> int:
        word = bisect_left(range(len(self._words)), key, key=lambda at: str(self._words[at].as_py()))
        known = word < len(self._words) and self._words[word].as_py() == key
        return int(self._entry_of[word]) if known else -1

    def values(self, first: int, end: int, names: Iterable[str]) -> list[list[Any]]:
        """The values of a range of rows in the columns `names`."""
        return [self._values(name, first, end) for name in names]

    def _values(self, name: str, first: int, end: int) -> list[Any]:
        column = self._columns[name]
        if not isinstance(column, tuple):
            return list(column[first:end].tolist())
        indices, words = column
        seen = self._seen.setdefault(name, {})
        places = indices[first:end].tolist()
        for place in places:
            if place not in seen:
                seen[place] = words[place].as_py()
        return [seen[place] for place in places]


def indexed(rows: pa.Table, key_of: Callable[[str, str], str]) -> pa.Table:
    """`rows`, those of an entry together and in order, with a column of sorted keys and one of operators.

    `key_of` gives the key of a signature in a compute mode. Raises ValueError for missing values, and as `key_of`.
    """
    if any(column.null_count for column in rows.columns):
        raise ValueError("missing values")
    signatures, computes = _array(rows, "signature"), _array(rows, "compute")
    modes = len(computes.dictionary)
    pairs = np.asarray(signatures.indices).astype(np.int64) * modes + np.asarray(computes.indices)
    known, pair_of = np.unique(pairs, return_inverse=True)
    texts, compute = signatures.dictionary.to_pylist(), computes.dictionary.to_pylist()
    keys = [key_of(texts[pair // modes], compute[pair % modes]) for pair in known.tolist()]
    for name, values in (("key", keys), (OPERATOR, [base_of(key) for key in keys])):
        words, place = np.unique(np.array(values, object), return_inverse=True)
        indices = pa.array(place[pair_of].astype(np.int32))
        rows = rows.append_column(name, pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.utf8())))
    return rows.combine_chunks()


def base_of(key: str) -> str:
    """The operator's name in a key, without namespace and overload."""
    return key.partition("(")[0].rpartition("::")[2].partition(".")[0]


def cached(digest: str, read: Callable[[], pa.Table]) -> pa.Table:
    """The table of the file with SHA-256 `digest`, from `read` if the cache has none. Raises as `read`."""
    layout = hashlib.sha256(b"".join(Path(__file__).with_name(name).read_bytes() for name in _SOURCES)).hexdigest()
    path = cache_directory() / "tables" / f"{digest[:24]}-{layout[:8]}.arrow"
    with suppress(OSError, pa.ArrowException):  # missing
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    table = read()
    if len(table) >= WORTH_KEEPING:
        with suppress(OSError):  # a folder that cannot be written to costs time only
            _write(path, table)
    return table


def _write(path: Path, table: pa.Table) -> None:
    make_room(path.parent, MOST_TABLES)
    make_folder(path.parent)
    part = path.with_suffix(f".{os.getpid()}.part")
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    part.replace(path)


def _array(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
