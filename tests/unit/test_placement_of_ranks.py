"""Ranks on other nodes: their placement, the fields that are relayed, versions that must be equal."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace

import pytest
from click.testing import CliRunner

from phantora.cli.doctor import doctor
from phantora.errors import PhantoraError
from phantora.nodes import on_ray
from phantora.nodes.driver import Agents
from phantora.nodes.identity import Identity, compare
from phantora.nodes.placement import share_out
from phantora.process import raise_descriptor_limit
from phantora.wire import layout, relayed

pytestmark = pytest.mark.unit

# Written before the ranks start.
CONSTANT = {
    *("magic", "version", "world_size", "ranks_per_host", "host_mode", "null_mode", "unsupported", "host_scale"),
    *("epoch_ns", "layout", "folded", "gpus_per_host", "mps", "size", "control_offset", "ring_offset", "reply_offset"),
    *("workspace_offset", "workspace_count", "api_ns", "devices", "gpu_kind", "pad0", "pad1"),
}


def test_every_field_of_the_shared_memory_has_a_way() -> None:
    fields = {name for struct in (layout.Header, layout.Control) for _, name, _, _ in struct.fields}
    ways = [relayed.TO_SIMULATOR, relayed.TO_RANK, relayed.TO_ALL, relayed.OF_A_NODE, CONSTANT]
    assert sorted(name for way in ways for name in way) == sorted(fields)


@pytest.mark.parametrize(
    ("hosts", "per_host", "rooms", "expected"),
    [
        (2, 2, [100, 100], [(0, (0, 1)), (1, (2, 3))]),
        (2, 1, [100, 99], [(0, (0,)), (1, (1,))]),
        (3, 1, [100, 1], [(0, (0, 1, 2))]),
        (1, 4, [100, 100], [(0, (0, 1, 2, 3))]),
        (3, 2, [3, 7], [(0, (0, 1)), (1, (2, 3, 4, 5))]),
    ],
)
def test_hosts_stay_on_one_node(
    hosts: int, per_host: int, rooms: list[int], expected: list[tuple[int, tuple[int, ...]]]
) -> None:
    assert [(share.node, share.ranks) for share in share_out(hosts, per_host, rooms)] == expected


def test_nodes_without_room_are_refused() -> None:
    with pytest.raises(PhantoraError, match="memory for 3 hosts of 2 ranks, and 4 are simulated"):
        share_out(4, 2, [5, 2])


@pytest.mark.parametrize(
    ("field", "words"), [("python", "Python 3.1"), ("torch", "torch 3.1"), ("sources", "phantora 3.1")]
)
def test_nodes_have_the_same_software(field: str, words: str) -> None:
    ours = Identity(host="here", python="3.12.1", torch="2.11.0", phantora="0.3.0", sources="abc")
    compare(ours, replace(ours, host="there"))
    with pytest.raises(PhantoraError, match=f"there has {words}, and this machine has"):
        compare(ours, replace(ours, host="there", **{field: "3.1"}))


@pytest.mark.parametrize(("problem", "status", "result"), [("", 0, "ready"), ("torch 2.9.1 there", 1, "not ready")])
def test_doctor_checks_a_cluster(problem: str, status: int, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        on_ray.NodeCheck(name=name, cores=8, ranks=300, problem=what) for name, what in (("a", ""), ("b", problem))
    ]
    monkeypatch.setattr(on_ray, "check_nodes", lambda address, of_rank: nodes if address == "auto" else [])
    shown = CliRunner().invoke(doctor, ["--ray", "auto"])
    second = problem or "8 cores, memory for 300 ranks"
    assert shown.output.splitlines() == [
        "node       a: 8 cores, memory for 300 ranks",
        f"node       b: {second}",
        f"result     {result}",
    ]
    assert shown.exit_code == status


def test_output_of_many_ranks_has_high_descriptors() -> None:
    raise_descriptor_limit()
    read, write = os.pipe()
    high = fcntl.fcntl(write, fcntl.F_DUPFD, 1500)  # select() takes those below 1,024
    agents = object.__new__(Agents)
    agents._outputs, agents._stopping = {(7, 1): high}, False
    agents._when_output(None, rank=7, stream=1, data=b"step 1\n")  # type: ignore[arg-type]
    agents._when_output(None, rank=7, stream=1, data=b"")  # type: ignore[arg-type]
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"step 1\n"
