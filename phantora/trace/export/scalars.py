"""A run's scalars by step, as TensorBoard's event files, as W&B's own log and as MLflow's database.

All have the same series, of the steps in their order: step time (s), MFU, tokens/s, samples/s, exposed communication
(s), peak memory (bytes). The times of events are virtual.

- TensorBoard: a directory with one event file (TFRecords of ``tensorboard.compat.proto.event_pb2.Event``).
- W&B: a file ``run-ID.wandb``, which ``wandb sync`` takes: blocks of LevelDB's log format with records of
  ``wandb.proto.wandb_internal_pb2.Record``.
- MLflow: an SQLite database, for ``mlflow ui --backend-store-uri sqlite:///PATH``. MLflow itself writes it.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from phantora.errors import PhantoraError
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.export import proto
from phantora.trace.export.files import replacing
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.reader import Log


@dataclass(frozen=True)
class Point:
    """The scalars of a step."""

    step: int
    seconds: float
    """End of the step in virtual seconds."""
    values: dict[str, float]


def points(log: Log, selection: Selection, progress: Progress | None = None) -> list[Point]:
    """Points of every selected step, in order."""
    report = analyze(log, Filters(selection.ranks, selection.steps), details=False, progress=progress)
    through = report.headline.throughput
    found = []
    for step in report.steps:
        times = step.times
        values = {"step_time_s": times.time * 1e-9, "exposed_communication_s": times.exposed * 1e-9}
        values |= {"memory/peak_allocated": times.peak_allocated, "memory/peak_reserved": times.peak_reserved}
        if times.mfu is not None:
            values["mfu"] = times.mfu
        for name, of_step in (
            ("tokens_per_second", through.tokens_per_step if through else 0),
            ("samples_per_second", through.samples_per_step if through else 0),
        ):
            if of_step and times.time and not step.note:
                values[name] = of_step / (times.time * 1e-9)
        found.append(Point(step.number, step.end * 1e-9, values))
    return found


def _config(log: Log) -> dict[str, str | int]:
    meta = log.metadata
    return {"cluster": meta.cluster, "command": " ".join(meta.command), "world_size": meta.world_size}


# ---------------------------------------------------------------------- TensorBoard


def write_tensorboard(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Writes a directory for ``tensorboard --logdir``."""
    os.makedirs(path, exist_ok=True)
    name = os.path.join(path, "events.out.tfevents.0.phantora")
    with replacing(name) as file:
        file.write(_tf_record(_event(0.0, 0, proto.blob(3, "brain.Event:2"))))
        for point in points(log, selection, progress):
            values = b"".join(
                proto.blob(1, proto.blob(1, tag), b"\x15" + struct.pack("<f", value))  # tag; 2: simple_value
                for tag, value in point.values.items()
            )
            file.write(_tf_record(_event(point.seconds, point.step, proto.blob(5, values))))
    return [name]


def _event(seconds: float, step: int, content: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", seconds) + proto.number(2, step) + content  # 1: wall_time


def _tf_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()

# ---------------------------------------------------------------------- W&B

_BLOCK, _CHUNK_HEAD = 32768, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SEED = [zlib.crc32(bytes([kind])) for kind in range(5)]


def write_wandb(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Writes the log of a W&B run, for ``wandb sync PATH``."""
    run = os.path.basename(path).removesuffix(".wandb").removeprefix("run-")
    config = _config(log).items()
    updates = [proto.blob(1, proto.blob(1, key), proto.blob(16, json.dumps(value))) for key, value in config]
    # Record.run: run_id 1, config 4, display_name 9; .history: item {key 1, value_json 16}; .exit: exit_code 1.
    records = [proto.blob(17, proto.blob(1, run), proto.blob(4, *updates), proto.blob(9, os.path.basename(log.path)))]
    for point in points(log, selection, progress):
        values = {"_step": point.step, "_timestamp": point.seconds, "_runtime": point.seconds, **point.values}
        items = [proto.blob(1, proto.blob(1, key), proto.blob(16, json.dumps(value))) for key, value in values.items()]
        records.append(proto.blob(2, *items, proto.blob(2, proto.number(1, point.step))))
    records.append(proto.blob(18, proto.number(1, 0)))
    with replacing(path) as file:
        file.write(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
        at = 7
        for number, record in enumerate(records, 1):
            for chunk in _chunks(proto.number(1, number) + record, at):
                file.write(chunk)
                at += len(chunk)
    return [path]


def _chunks(data: bytes, at: int) -> Iterator[bytes]:
    """`data` as LevelDB's log holds it from byte `at` of the file on: no chunk crosses the end of a block."""
    left, first = data, True
    while left or first:
        room = _BLOCK - at % _BLOCK
        if room < _CHUNK_HEAD.size:
            yield bytes(room)
            at += room
            continue
        part, left = left[: room - _CHUNK_HEAD.size], left[room - _CHUNK_HEAD.size :]
        kind = (_FIRST if left else _FULL) if first else (_MIDDLE if left else _LAST)
        yield _CHUNK_HEAD.pack(zlib.crc32(part, _SEED[kind]), len(part), kind) + part
        at += _CHUNK_HEAD.size + len(part)
        first = False


# ---------------------------------------------------------------------- MLflow

_MOST_METRICS, _LONGEST_PARAMETER = 1000, 6000
"""Limits of MLflow: metrics in one batch, characters of one parameter."""


def write_mlflow(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Adds a run to the database PATH, which is created if it does not exist. Raises PhantoraError without MLflow."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        import sqlalchemy.exc
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise PhantoraError(f"{path}: needs {error.name}; pip install phantora[mlflow]") from error

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    steps = points(log, selection, progress)
    metrics = [
        Metric(name, value, round(point.seconds * 1e3), point.step)
        for point in steps
        for name, value in point.values.items()
    ]
    try:
        client = MlflowClient(f"sqlite:///{os.path.abspath(path)}")
        experiment = client.get_experiment_by_name("phantora")
        number = experiment.experiment_id if experiment else client.create_experiment("phantora")
        run = client.create_run(number, start_time=0, run_name=os.path.basename(log.path)).info.run_id
        client.log_batch(run, params=[Param(k, str(v)[:_LONGEST_PARAMETER]) for k, v in _config(log).items()])
        for first in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(run, metrics[first : first + _MOST_METRICS])
        client.set_terminated(run, end_time=round(steps[-1].seconds * 1e3) if steps else 0)
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError) as error:
        reason = str(error).splitlines()[0]
        raise PhantoraError(f"cannot write MLflow's database {path}: {reason}") from error
    return [path]
