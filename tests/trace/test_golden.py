"""Golden timelines: what a small log is exported to may change on purpose only.

After such a change run ``python -m tests.trace.test_golden`` and look at the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as trace_pb2

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.report import to_json
from phantora.trace.export import export
from phantora.trace.export.selection import Selection
from phantora.trace.reader import open_log
from tests.support.fakelog import small_run

GOLDEN = Path(__file__).parents[1] / "golden"


def decoded_perfetto(path: Path) -> str:
    """The packets as text, one a line."""
    trace = trace_pb2.Trace.FromString(path.read_bytes())
    return "".join(text_format.MessageToString(packet, as_one_line=True) + "\n" for packet in trace.packet)


def products(directory: Path) -> dict[str, str]:
    log = open_log(GOLDEN / "small.arrow")
    export(log, str(directory / "small.perfetto"))
    export(log, str(directory / "small.json"), Selection(ranks=frozenset((0,))))
    summary = json.loads(to_json(analyze(log)))
    summary["path"] = "small.arrow"
    return {
        "small.perfetto.txt": decoded_perfetto(directory / "small.perfetto"),
        "small.json": (directory / "small.json").read_text(),
        "small.summary.json": json.dumps(summary, indent=1, sort_keys=True) + "\n",
    }


def test_exports_are_the_golden_ones(tmp_path: Path) -> None:
    for name, text in products(tmp_path).items():
        assert text.splitlines() == (GOLDEN / name).read_text().splitlines(), name


def test_the_log_holds_what_it_did(tmp_path: Path) -> None:
    """Compared decoded: compressed bytes may differ between versions of Arrow."""
    new = open_log(small_run(steps=1).write(tmp_path / "small.arrow"))
    old = open_log(GOLDEN / "small.arrow")
    assert new.metadata == old.metadata and new.trailer == old.trailer and new.schema.equals(old.schema)
    for a, b in zip(new.record_batches(), old.record_batches(), strict=True):
        assert a.to_pylist() == b.to_pylist()


def test_a_log_of_the_format_before_is_read() -> None:
    """It has no error bars; all else is the same."""
    old, new = open_log(GOLDEN / "small.format2.arrow"), open_log(GOLDEN / "small.arrow")
    assert (old.metadata.format, new.metadata.format) == (2, 3)
    for a, b in zip(old.batches(), new.batches(), strict=True):
        assert set(a.columns) == set(b.columns) and bool(np.isnan(a["error"]).all())
        assert all(np.array_equal(a[c], b[c]) for c in a.columns if c != "error")
    first, second = (analyze(log) for log in (old, new))
    assert first.steps == second.steps and first.details == second.details
    assert first.headline.error is not None


if __name__ == "__main__":
    import tempfile

    small_run(steps=1).write(GOLDEN / "small.arrow")
    with tempfile.TemporaryDirectory() as place:
        for file_name, content in products(Path(place)).items():
            (GOLDEN / file_name).write_text(content)
