"""The answer as files: Parquet, CSV, JSON, a page, the best as a script."""

from __future__ import annotations

import csv
import io
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from phantora.errors import PhantoraError, cause_of
from phantora.sweeps.answer import Answer

NAMES = ("sweep.parquet", "sweep.csv", "sweep.json", "sweep.html", "best.sh")


def write_files(found: Answer) -> list[Path]:
    """Into the sweep's folder; each is there whole or not at all. Raises PhantoraError."""
    makers: dict[str, Callable[[], bytes]] = {
        "sweep.parquet": lambda: _parquet(found.table()),
        "sweep.csv": lambda: _csv(found),
        "sweep.json": lambda: orjson.dumps(found.as_data(), option=orjson.OPT_INDENT_2),
        "sweep.html": lambda: _page(found),
        "best.sh": lambda: _best(found),
    }
    written = []
    for name, make in makers.items():
        path = found.folder / name
        data = make()
        if not data:
            path.unlink(missing_ok=True)
            continue
        new = path.with_suffix(".new")
        try:
            new.write_bytes(data)
            os.replace(new, path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise PhantoraError(f"{path}: cannot be written: {cause_of(error)}; free space and start again") from error
        written.append(path)
    return written


def _parquet(table: pa.Table) -> bytes:
    nulls = [i for i, one in enumerate(table.schema) if pa.types.is_null(one.type)]
    for i in nulls:  # a column without a value has no type of its own
        table = table.set_column(i, table.schema[i].name, table.column(i).cast(pa.float64()))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _csv(found: Answer) -> bytes:
    rows = found.as_data()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "command": shlex.join(row["command"] or ())})
    return text.getvalue().encode()


def _page(found: Answer) -> bytes:
    from phantora.sweeps.page import sweep_page

    return sweep_page(found).encode()


def _best(found: Answer) -> bytes:
    """A shell script that starts the best layout's training on the cluster; empty if there is none."""
    best = found.best
    if best is None or best.entry.result is None:
        return b""
    lines = [
        "#!/bin/sh",
        f"# {found.title}",
        f"# Simulated: {shlex.join(best.entry.result.command)}",
        *(["# On every host; HOST is the first of them."] if best.entry.point.hosts > 1 else []),
        shlex.join(best.entry.task.real_words()) + ' "$@"',
    ]
    words = best.entry.point.environment
    if words:  # `NAME=VALUE command` needs NAME unquoted
        lines[-1] = " ".join(
            [f"{n}={shlex.quote(v)}" for n, v in words.items()]
            + [shlex.join(best.entry.task.real_words()[len(words) :]), '"$@"']
        )
    return ("\n".join(lines) + "\n").encode()
