"""Speed of the log's writing, export and summary, next to the perfetto package's own builder.

    python -m benchmarks.log_speed [ROWS]

Prints seconds for ROWS rows (1,000,000 without) and exits with 1 when a limit is missed at that size.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from phantora.trace.analysis.analyze import analyze
from phantora.trace.export import export
from phantora.trace.reader import Log, open_log
from phantora.trace.schema import DEVICE_KINDS
from tests.support.fakelog import METADATA, large_rows, write_rows

LIMITS = {"write": 2.0, "perfetto": 3.0, "summary": 1.5}  # seconds for a million rows, 2 cores


def naive(log: Log, path: Path) -> int:
    """Slices of device rows with three arguments, a message object each, as the package's examples do."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    names, slices = log.words("name"), 0
    with open(path, "wb") as file:
        builder = StreamingTraceProtoBuilder(file)
        for batch in log.batches(("rank", "stream", "name", "start", "end", "id", "bytes"), kinds=DEVICE_KINDS):
            columns = (batch[c].tolist() for c in ("rank", "stream", "name", "start", "end", "id", "bytes"))
            for rank, stream, name, start, end, row_id, size in zip(*columns, strict=True):
                slices += 1
                for time_ns, kind in ((start, TrackEvent.TYPE_SLICE_BEGIN), (end, TrackEvent.TYPE_SLICE_END)):
                    packet = builder.create_packet()
                    packet.timestamp, packet.trusted_packet_sequence_id = time_ns, 1
                    event = packet.track_event
                    event.type, event.track_uuid = kind, 1 + rank * 1000 + stream
                    if kind == TrackEvent.TYPE_SLICE_BEGIN:
                        event.name = names[name]
                        for key, value in (("id", row_id), ("stream", stream), ("bytes", size)):
                            annotation = event.debug_annotations.add()
                            annotation.name, annotation.int_value = key, value
                    builder.write_packet(packet)
    return slices


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    tables, rows = large_rows(count)
    failed = False

    def measure(label: str, work: Callable[[], object], output: Path | None = None) -> None:
        nonlocal failed
        begin = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
        limit = LIMITS.get(label)
        failed |= limit is not None and seconds > limit * max(1.0, len(rows) / 1e6)
        size = f"{output.stat().st_size / 1e6:8.1f} MB" if output else ""
        print(f"{label:28} {seconds:7.2f} s {len(rows) / seconds / 1e3:9.0f} k rows/s {size}")

    with tempfile.TemporaryDirectory() as place:
        path, trace = Path(place) / "run.arrow", Path(place) / "run.perfetto"
        measure("write", lambda: write_rows(path, METADATA, tables, rows, {}, 20_000), path)
        measure("summary", lambda: analyze(open_log(path), details=False))
        measure("perfetto", lambda: export(path, str(trace)), trace)
        measure("perfetto package, slices only", lambda: naive(open_log(path), trace), trace)
        measure("chrome", lambda: export(path, str(Path(place) / "run.json")), Path(place) / "run.json")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
