"""Chakra traces: what is exported comes back; a file of another producer, by its dependencies alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from phantora.errors import PhantoraError
from phantora.importers import import_traces
from phantora.trace.export import export, proto
from phantora.trace.reader import Log, open_log
from phantora.trace.schema import DEVICE_KINDS, KINDS
from tests.support.fakelog import small_run


def work(log: Log) -> list[tuple[int, str, str, int, int]]:
    """Rank, kind, name, start and end (us) of work on GPUs; collectives start when the last rank is ready."""
    names, found = log.words("name"), []
    columns = ("rank", "kind", "name", "start", "ready", "end")
    for batch in log.batches(columns, ("kernel", "collective", "memcpy", "memset")):
        for rank, kind, name, start, ready, end in zip(*(batch[c].tolist() for c in columns), strict=True):
            begin = max(start, ready) if KINDS[kind] == "collective" else start
            found.append((rank, KINDS[kind], names[name] if name >= 0 else "", begin // 1000, end // 1000))
    return sorted(found)


def test_an_export_comes_back(tmp_path: Path) -> None:
    simulated = open_log(small_run().write(tmp_path / "run.arrow"))
    *files, _ = export(simulated.path, str(tmp_path / "run.et"))
    imported = import_traces(files, str(tmp_path / "real.arrow"), gpu="H100")
    assert (imported.ranks, imported.gpu) == ([0, 1], "H100-SXM")
    own, back = work(simulated), work(open_log(tmp_path / "real.arrow"))
    first = min(row[3] for row in own)
    assert sorted((rank, start - first, end - first) for rank, _, _, start, end in own) == sorted(
        (rank, start, end) for rank, _, _, start, end in back
    )
    assert {name for _, kind, name, _, _ in back if kind == "collective"} == {
        name for _, kind, name, _, _ in own if kind == "collective"
    }


def node(number: int, name: str, kind: int, duration: int, *after: int, **attributes: int) -> bytes:
    parts = [proto.number(1, number), proto.blob(2, name), proto.number(3, kind), proto.number(7, duration)]
    parts += [proto.number(5, other) for other in after]
    parts += [proto.blob(10, proto.blob(1, name), proto.number(9, value)) for name, value in attributes.items()]
    message = b"".join(parts)
    return proto.varint(len(message)) + message


def test_without_times_nodes_follow_their_dependencies(tmp_path: Path) -> None:
    head = proto.blob(1, "0.0.4")
    nodes = (node(1, "a", 4, 10), node(2, "b", 4, 5), node(3, "comm", 7, 20, 1, 2, comm_type=0, comm_size=64))
    (tmp_path / "job.1.et").write_bytes(proto.varint(len(head)) + head + b"".join(nodes))
    (tmp_path / "job.groups.json").write_text(json.dumps({"0": [0, 1, 2, 3]}))
    import_traces([str(tmp_path / "job.1.et")], str(tmp_path / "real.arrow"))
    log = open_log(tmp_path / "real.arrow")
    assert [row[2:] for row in work(log)] == [("comm AllReduce", 10, 30), ("a", 0, 10), ("b", 0, 5)]
    assert log.metadata.world_size == 4
    streams = {int(s) for batch in log.batches(("stream",), DEVICE_KINDS) for s in np.unique(batch["stream"])}
    assert streams == {0, 1, 2}  # a and b overlap


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.0.et").write_bytes(b"\xff\xff\xff")
    with pytest.raises(PhantoraError, match="not a Chakra trace"):
        import_traces([str(tmp_path / "x.0.et")], str(tmp_path / "real.arrow"))
