"""C, C++ and Python agree on every layout that they share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from phantora.wire import layout
from phantora.wire.records import BODIES, KINDS, make, read
from phantora.wire.schema import NUMPY

COMPILERS = {"c": ("gcc", "-std=gnu11"), "cpp": ("g++", "-std=c++17")}


def values() -> dict[str, dict[str, int]]:
    """A value for every field of every body, no two equal, that fills the field's highest byte."""
    found: dict[str, dict[str, int]] = {}
    count = 0
    for body in BODIES.values():
        for ctype, name, _ in body.fields:
            count += 1
            size = np.dtype(NUMPY[ctype]).itemsize
            found.setdefault(body.name, {})[name] = count if ctype == "double" else (1 << (8 * size - 2)) + count
    return found


@pytest.mark.parametrize("language", sorted(COMPILERS))
def test_records_written_by_the_compiler_are_read_by_name(tmp_path: Path, language: str) -> None:
    given = {kind: values()[body] for kind, body, _ in KINDS if body}
    lines = []
    for kind, fields in given.items():
        body = next(body for name, body, _ in KINDS if name == kind)
        filled = " ".join(f"r.{body}.{name} = {value};" for name, value in fields.items())
        lines.append(f"  memset(&r, 0, sizeof r); r.kind = PH_{kind}; {filled} fwrite(&r, sizeof r, 1, stdout);")
    source = tmp_path / f"program.{language}"
    text = '#include <stdio.h>\n#include <string.h>\n#include "phantora_wire.h"\nint main(void) {\n'
    source.write_text(text + "\n".join(["  ph_record r;", *lines, "  return 0;", "}", ""]))
    (tmp_path / "phantora_wire.h").write_text(layout.c_header())
    program = tmp_path / "program"
    flags = ("-Wall", "-Wextra", "-Werror", "-I", str(tmp_path), "-o", str(program))
    subprocess.run([*COMPILERS[language], *flags, str(source)], check=True)
    raw = subprocess.run([program], capture_output=True, check=True).stdout
    records = np.frombuffer(raw, layout.dtype(layout.Record))
    assert [layout.Kind.names()[record["kind"]] for record in records] == list(given)
    for place, (kind, expected) in enumerate(given.items()):
        said = read(records[place : place + 1])
        assert {name: said[name] for name in expected} == expected, kind
        assert make(kind, **expected).tobytes() == records[place].tobytes()


def test_a_body_leaves_no_word_of_a_record_undefined() -> None:
    """An initialiser of some fields must make the rest zero: every body is as long as all words."""
    for name in BODIES:
        assert f'PH_STATIC_ASSERT(sizeof(ph_{name}_fields) == 40, "ph_{name}_fields");' in layout.c_header()


def test_the_checksum_tells_layouts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout.checksum()
    monkeypatch.setitem(layout.CONSTANTS, "PH_BLOB_BYTES", 57)
    assert layout.checksum() != before
