"""Exports to other tools' own formats, read back by these tools or by what their formats say."""

from __future__ import annotations

import importlib.util
import json
import pickle
import struct
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from phantora.errors import PhantoraError
from phantora.trace.export import export
from phantora.trace.export.selection import Selection
from phantora.trace.reader import open_log
from tests.support.fakelog import FakeRun, Kind, small_run

MB = 1 << 20


def memory_viz() -> ModuleType:
    """torch's own reader of snapshots, without torch."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    path = Path(torch.origin).parent / "cuda" / "_memory_viz.py"
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_snapshot(tmp_path: Path) -> None:
    run = FakeRun()

    def row(at: int, name: str, level: int, **more: int) -> int:
        return run.add(Kind.MEMORY, 0, at, at, name, value=level * MB, bytes=600 * MB, stream=0, **more)

    row(0, "segment_alloc", 0)
    first = row(1000, "alloc", 100)
    row(1000, "train.py:12", 100)
    row(2000, "alloc", 350)
    row(2000, "model/layers.py:7", 350)
    row(3000, "free", 250, link=first)
    row(4000, "oom", 250, seq=900 * MB)
    (path,) = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "memory.pickle"))
    snapshot = pickle.loads(Path(path).read_bytes())
    (trace,) = snapshot["device_traces"]
    assert [(e["action"], e["size"] // MB) for e in trace] == [
        ("segment_alloc", 600),
        ("alloc", 100),
        ("alloc", 250),
        ("free_requested", 100),
        ("free_completed", 100),
        ("oom", 900),
    ]
    made = [e["frames"][0] for e in trace if e["action"] == "alloc"]
    assert [(f["filename"], f["line"]) for f in made] == [("train.py", 12), ("model/layers.py", 7)]
    reported = memory_viz().trace(snapshot)
    assert "100.0MiB" in reported and "raise OutOfMemoryError # 900.0MiB requested" in reported


def records(data: bytes) -> list[bytes]:
    """Records in LevelDB's log format."""
    assert data[:4] == b":W&B" and struct.unpack("<HB", data[4:7]) == (0xBEE1, 0)
    found: list[bytes] = []
    at, open_record = 7, b""
    while at < len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        crc, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + length]
        assert length + 7 <= room and crc == zlib.crc32(bytes([kind]) + part)
        open_record += part
        if kind in (1, 4):
            found.append(open_record)
            open_record = b""
        at += 7 + length
    assert not open_record
    return found


def messages(fields: dict[str, list[tuple[str, int, str]]]) -> dict[str, Any]:
    """Message classes by (name, number, type) of their fields; a type that is a message's name is that message."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{'_'.join(fields)}.proto", package="seen", syntax="proto3")
    kinds = {"string": 9, "int64": 3, "int32": 5, "double": 1, "float": 2}
    for name, own in fields.items():
        made = file.message_type.add(name=name)
        for field, number, kind in own:
            many = kind.endswith("*")
            entry = made.field.add(name=field, number=number, label=3 if many else 1)
            if kind.rstrip("*") in kinds:
                entry.type = kinds[kind.rstrip("*")]
            else:
                entry.type, entry.type_name = 11, f".seen.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"seen.{name}")) for name in fields}


def test_wandb_log(tmp_path: Path) -> None:
    run = small_run(steps=400)  # more than a block of the format holds
    (path,) = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "run-abc.wandb"))
    kinds = messages(
        {
            "Item": [("key", 1, "string"), ("value_json", 16, "string")],
            "Number": [("num", 1, "int64")],
            "History": [("item", 1, "Item*"), ("step", 2, "Number")],
            "Config": [("update", 1, "Item*")],
            "Run": [("run_id", 1, "string"), ("config", 4, "Config")],
            "Record": [("num", 1, "int64"), ("history", 2, "History"), ("run", 17, "Run")],
        }
    )
    read = [kinds["Record"].FromString(data) for data in records(Path(path).read_bytes())]
    assert Path(path).stat().st_size > 32768 and [record.num for record in read] == list(range(1, len(read) + 1))
    assert read[0].run.run_id == "abc"
    assert {item.key: json.loads(item.value_json) for item in read[0].run.config.update}["cluster"] == "1x2xH100"
    history = [{item.key: json.loads(item.value_json) for item in r.history.item} for r in read[1:-1]]
    assert [row["_step"] for row in history] == list(range(1, 401))
    assert history[1]["step_time_s"] == pytest.approx(1e-3) and history[1]["memory/peak_allocated"] == 3 << 30


def test_mlflow_reads_its_runs(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow.tracking")
    log, path = small_run().write(tmp_path / "run.arrow"), tmp_path / "runs.mlflow"
    assert export(log, str(path)) == export(log, str(path), Selection(steps=frozenset((1, 2)))) == [str(path)]
    client = mlflow.MlflowClient(f"sqlite:///{path}")
    some, whole = client.search_runs([client.get_experiment_by_name("phantora").experiment_id])
    assert whole.info.status == "FINISHED" and whole.data.params["cluster"] == "1x2xH100"
    history = client.get_metric_history(whole.info.run_id, "step_time_s")
    assert [metric.step for metric in history] == [1, 2, 3] and history[1].value == pytest.approx(1e-3)
    assert len(client.get_metric_history(some.info.run_id, "memory/peak_allocated")) == 2
    path.write_bytes(b"not a database")
    with pytest.raises(PhantoraError, match=r"cannot write MLflow's database .*runs\.mlflow"):
        export(log, str(path))


def test_tensorboard(tmp_path: Path) -> None:
    event_file = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    (path,) = export(small_run().write(tmp_path / "run.arrow"), str(tmp_path / "run.tensorboard"))
    found: dict[str, list[tuple[int, float]]] = {}
    for event in event_file.EventFileLoader(path).Load():
        for value in event.summary.value:
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            found.setdefault(value.tag, []).append((event.step, number))
    assert [step for step, _ in found["step_time_s"]] == [1, 2, 3]
    assert found["step_time_s"][1][1] == pytest.approx(1e-3) and found["mfu"][1][1] == pytest.approx(0.404, rel=0.01)


def test_parquet_has_the_selected_rows(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    log = open_log(small_run().write(tmp_path / "run.arrow", chunks=20))
    export(log, str(tmp_path / "all.parquet"))
    export(log, str(tmp_path / "some.parquet"), Selection(ranks=frozenset((1,)), kinds=frozenset(("kernel",))))
    whole, some = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("all", "some"))
    assert whole.num_rows == log.num_rows and whole.schema.metadata[b"phantora"] == log.schema.metadata[b"phantora"]
    assert set(some["rank"].to_pylist()) == {1} and set(some["kind"].to_pylist()) == {"kernel"}
    wanted = [row for row in whole.to_pylist() if row["rank"] == 1 and row["kind"] == "kernel"]
    assert some.to_pylist() == wanted and wanted


def chakra(path: str) -> tuple[str, list[Any]]:
    """The version and the nodes of a file, by the field numbers of MLCommons' et_def.proto."""
    from google.protobuf.internal.decoder import _DecodeVarint

    kinds = messages(
        {
            "Attribute": [("name", 1, "string"), ("int64_val", 9, "int64"), ("string_val", 29, "string")],
            "Metadata": [("version", 1, "string")],
            "Node": [
                ("id", 1, "int64"),
                ("name", 2, "string"),
                ("type", 3, "int32"),
                ("data_deps", 5, "int64*"),
                ("start_time_micros", 6, "int64"),
                ("duration_micros", 7, "int64"),
                ("attr", 10, "Attribute*"),
            ],
        }
    )
    data, at, read = Path(path).read_bytes(), 0, []
    while at < len(data):
        length, at = _DecodeVarint(data, at)
        read.append(data[at : at + length])
        at += length
    return kinds["Metadata"].FromString(read[0]).version, [kinds["Node"].FromString(one) for one in read[1:]]


def test_chakra_nodes(tmp_path: Path) -> None:
    paths = export(small_run(steps=2).write(tmp_path / "run.arrow"), str(tmp_path / "run.et"))
    assert [Path(path).name for path in paths] == ["run.0.et", "run.1.et", "run.groups.json"]
    assert json.loads(Path(paths[2]).read_bytes()) == {"0": [0, 1]}
    version, nodes = chakra(paths[0])
    assert version == "0.0.4"
    reduces = [node for node in nodes if node.type == 7]
    attributes = {one.name: one.int64_val for one in reduces[0].attr}
    assert len(reduces) == 2 and attributes["comm_type"] == 0 and attributes["group_size"] == 2
    by_id = {node.id: node for node in nodes}
    assert all(by_id[before].start_time_micros <= node.start_time_micros for node in nodes for before in node.data_deps)
    compute = [node for node in nodes if node.type == 4]
    assert [node.duration_micros for node in compute[:3]] == [200, 200, 50] and reduces[0].duration_micros == 150
    assert list(reduces[0].data_deps) == [compute[0].id] and compute[0].id in compute[1].data_deps


def test_chakra_sizes_are_those_of_inputs(tmp_path: Path) -> None:
    """As Chakra's converter of PyTorch traces counts them, and as ASTRA-sim reads them."""
    run = FakeRun()
    run.add(Kind.COMMUNICATOR, 0, 0, 0, "dp", comm=3, sig=run.signature("ranks", "0,1,2,3"))
    for place, kind in enumerate(("AllGather", "ReduceScatter", "AllReduce")):
        at = 1000 * place
        run.add(Kind.COLLECTIVE, 0, at, at + 500, f"ncclDevKernel_{kind}_RING_LL", comm=3, bytes=4096, ready=at)
    _, nodes = chakra(export(run.write(tmp_path / "run.arrow"), str(tmp_path / "run.et"))[0])
    sizes = [{one.name: one.int64_val for one in node.attr}["comm_size"] for node in nodes]
    assert sizes == [1024, 4096, 4096]
