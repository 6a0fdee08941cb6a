"""Clusters as wired: builders, routes, and what is said about files that cannot be."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.cli.cluster import cluster as command
from phantora.errors import PhantoraError
from phantora.hardware import Cluster, Fabric, Topology, build, load_cluster, system_names
from phantora.hardware.builders import FABRICS, NETWORK_SHARE
from phantora.hardware.clusters import check_reachable
from phantora.hardware.drawing import svg
from phantora.sim.collectives import CollectiveModel
from phantora.wire.layout import Coll
from tests.support.network import Class, Network

KINDS = sorted(set(FABRICS) - {"graph"})
GB = 1e9


def fabric(spec: str, **keys: object) -> Cluster:
    return replace(load_cluster(spec), fabric=Fabric(**keys))  # type: ignore[arg-type]


def nodes(topology: Topology, route: tuple[int, ...]) -> list[str]:
    return [topology.links[link].target for link in route]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    model = draw(st.sampled_from(["H100", "L40S", "A100-40GB"]))
    spec = f"{draw(st.integers(1, 12))}x{draw(st.integers(1, 8))}x{model}"
    cluster = fabric(
        spec,
        kind=draw(st.sampled_from(KINDS)),
        hosts_per_leaf=draw(st.integers(0, 5)),
        spines=draw(st.integers(0, 5)),
        leaves_per_pod=draw(st.integers(1, 4)),
        oversubscription=draw(st.sampled_from([1.0, 2.0, 4.0])),
        routing=draw(st.sampled_from(["ecmp", "adaptive"])),
        seed=draw(st.integers(0, 3)),
    )
    wiring = replace(
        cluster.wiring,
        nics=draw(st.integers(1, cluster.gpus_per_host)),
        gpus_per_pcie_switch=draw(st.integers(1, 8)),
        sockets=draw(st.integers(1, 3)),
    )
    return replace(cluster, wiring=wiring)


@settings(max_examples=150, deadline=None)
@given(clusters(), st.data())
def test_every_route_is_a_way_and_passes_no_gpu_or_nic_but_those_it_must(cluster: Cluster, data: st.DataObject) -> None:
    topology = build(cluster)
    check_reachable(topology)
    assert all(link.bandwidth > 0 for link in topology.links)
    gpu = st.integers(0, cluster.world_size - 1)
    src, dst, key = data.draw(gpu), data.draw(gpu), data.draw(st.integers(0, 3))
    route = topology.route(src, dst, key)
    assert route == topology.route(src, dst, key)
    here = topology.gpus[src]
    for link in route:
        assert topology.links[link].source == here
        here = topology.links[link].target
    assert here == topology.gpus[dst]
    assert len(set(route)) == len(route)
    passed = nodes(topology, route)
    assert sum(".nic" in node for node in passed) == (2 if topology.host_of(src) != topology.host_of(dst) else 0)
    # One GPU next to the target at most, and only to reach the target's rail over NVLink.
    assert sum(".gpu" in node for node in passed) <= 2


def test_rails() -> None:
    topology = build(fabric("4x8xH100", kind="rail", hosts_per_leaf=4))
    same = nodes(topology, topology.route(3, 8 + 3))
    assert same == ["h0.pcie3", "h0.nic3", "leaf0.3", "h1.nic3", "h1.pcie3", "h1.gpu3"]
    by_neighbour = nodes(topology, topology.route(0, 8 + 3))
    assert by_neighbour[:4] == ["h0.nvswitch", "h0.gpu3", "h0.pcie3", "h0.nic3"]
    without = build(fabric("4x8xH100", kind="rail", hosts_per_leaf=4), pxn=False)
    crossing = nodes(without, without.route(0, 8 + 3))
    assert crossing[:3] == ["h0.pcie0", "h0.nic0", "leaf0.0"] and crossing[3].startswith("spine")


def test_links_of_a_host_are_used_by_its_gpus_alone() -> None:
    topology = build(fabric("3x4xH100", kind="leaf-spine", hosts_per_leaf=1))
    for src in range(12):
        for dst in range(12):
            for link in topology.route(src, dst):
                assert topology.host_of_link(link) in (None, topology.host_of(src), topology.host_of(dst))
    assert {topology.host_of_link(link) for link in range(len(topology.links))} == {None, 0, 1, 2}


def test_gpus_that_share_a_nic() -> None:
    topology = build(load_cluster("aws-p4d:2"))
    assert [topology.rail_of(gpu) for gpu in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert nodes(topology, topology.route(1, 8))[1:3] == ["h0.nic0", "switch"]


def test_pairs_prefer_their_bridge() -> None:
    cluster = load_cluster("4xH100-PCIe")
    bridged = replace(
        cluster, intra=replace(cluster.intra, bandwidth=300e9), wiring=replace(cluster.wiring, kind="nvlink-pairs")
    )
    topology = build(bridged)
    assert nodes(topology, topology.route(0, 1)) == ["h0.gpu1"]
    assert "h0.cpu0" in nodes(topology, topology.route(1, 2))
    assert topology.by_nvlink(2, 3) and not topology.by_nvlink(1, 2)


def spread(topology: Topology, routes: list[tuple[int, ...]], library: Path) -> int:
    """ns that 1 GB over each of `routes` takes, all at once."""
    network = Network(library, [link.bandwidth for link in topology.links])
    for route in routes:
        network.begin(0, [Class(route, GB, 1e15)])
    return max(network.run().values())


def test_two_flows_over_two_spines_finish_in_the_time_of_one(engine_library: Path) -> None:
    """One spine's uplink is as fast as a NIC: two flows through it would take twice as long."""
    base = fabric("8x2xH100", kind="leaf-spine", hosts_per_leaf=1, spines=2, oversubscription=1.0)
    ways = {}
    for seed in range(16):
        topology = build(replace(base, fabric=replace(base.fabric, seed=seed)))
        pair = [topology.route(0, 2), topology.route(1, 3)]
        spines = {node for route in pair for node in nodes(topology, route) if node.startswith("spine")}
        ways[len(spines)] = spread(topology, pair, engine_library)
    alone = GB / (base.inter.bandwidth * NETWORK_SHARE) * 1e9
    assert ways[2] == pytest.approx(alone, rel=1e-6)
    assert ways[1] == pytest.approx(2 * alone, rel=1e-6)
    # Adaptive routing gives the second flow the other spine, whatever the seed.
    adaptive = build(replace(base, fabric=replace(base.fabric, routing="adaptive")))
    assert spread(adaptive, [adaptive.route(0, 2), adaptive.route(1, 3)], engine_library) == ways[2]


def test_ecmp_uses_all_equal_ways_about_alike() -> None:
    topology = build(fabric("32x8xH100", kind="leaf-spine", hosts_per_leaf=4, spines=8))
    used: dict[str, int] = {}
    for src in range(0, 128, 4):
        for key in range(8):
            for node in nodes(topology, topology.route(src, src + 128, key)):
                if node.startswith("spine"):
                    used[node] = used.get(node, 0) + 1
    assert len(used) == 8 and max(used.values()) < 2 * min(used.values())


@pytest.mark.parametrize("name", system_names())
def test_systems_that_ship(name: str) -> None:
    two = load_cluster(f"{name}:2")
    rack = two.wiring.nvlink_hosts > 1
    assert (two.hosts, two.gpus_per_host, two.name) == (2, 4 if rack else 8, f"{name}:2")
    assert load_cluster(name.upper()).hosts == (18 if rack else 1)


GRAPH = """hosts = 2
gpus_per_host = 1
gpu = "H100"

[fabric]
kind = "graph"

[[fabric.links]]
ends = ["h0.nic0", "s1"]
bandwidth = 50e9

[[fabric.links]]
ends = ["h1.nic0", "s1"]
bandwidth = 50e9
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", "2 x 1 x H100-SXM, every GPU reaches every other"),
        ('"h1.nic0", "s1"]\nbandwidth = 50e9', '"h1.nic0", "s1"]\nbandwidth = 0', ":14: .*bandwidth must be positive"),
        ('"h1.nic0", "s1"', '"h1.nic0", "s2"', ":5: fabric: no way from h0.nic0 to h1.nic0"),
        ('"h1.nic0", "s1"', '"h2.nic0", "s1"', ":13: .*there is no h2.nic0; NICs are h0.nic0 to h1.nic0"),
        ("bandwidth = 50e9\n\n", "bandwith = 50e9\n\n", ":10: .*unknown key 'bandwith'"),
        ('kind = "graph"', 'kind = "gaph"', ":6: fabric.kind is 'gaph'; known: switch, rail"),
        ('gpu = "H100"', 'gpu = "H100"\n[wiring]\nnics = 3', ":5: wiring.nics: 3 NICs for 1 GPUs"),
        ('gpu = "H100"', 'gpu = "L40S"\n[wiring]\nkind = "nvlink-pairs"', ":5: .*L40S has no NVLink of its own"),
    ],
)
def test_check_names_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(GRAPH.replace(old, new, 1) if old != '"h1.nic0"' else GRAPH)
    result = CliRunner().invoke(command, ["check", str(path)])
    text = result.output or str(result.exception)
    assert result.exit_code == 0 or isinstance(result.exception, PhantoraError)
    assert re.search(message, text), text


def test_more_ranks_than_gpus() -> None:
    result = CliRunner().invoke(command, ["check", "2x8xH100", "--ranks", "17"])
    assert "17 ranks, but 2 x 8 = 16 GPUs" in str(result.exception)


def test_show_prints_and_draws(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["show", "dgx-h100:20", "-o", str(tmp_path / "c.svg")])
    assert result.exit_code == 0, result.exception
    assert max(map(len, result.output.splitlines())) <= 100
    assert "NVLS_TREE" in result.output or "RING" in result.output
    drawing = (tmp_path / "c.svg").read_text()
    assert drawing.count('class="gpu"') == 8 and "20 x 8 GPUs" in drawing
    assert "nvswitch - gpu: 370.8 GB/s" in drawing
    refused = CliRunner().invoke(command, ["show", "H100", "-o", "c.png"])
    assert "drawn as SVG" in str(refused.exception)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fabric_can_be_drawn(kind: str) -> None:
    from xml.dom import minidom

    minidom.parseString(svg(build(fabric("8x4xH100", kind=kind)), "<8 hosts>"))


def test_nvlink_joins_the_hosts_of_a_domain() -> None:
    """Two racks of 18 hosts with 4 GPUs: NVLink inside a rack, the network between them."""
    cluster = load_cluster("gb200-nvl72:36")
    assert (cluster.hosts, cluster.gpus_per_host, cluster.world_size) == (36, 4, 144)
    topology = build(cluster)
    near, far = (nodes(topology, topology.route(0, gpu)) for gpu in (71, 72))
    assert near == ["h0.nvswitch", "h0.gpu71"]
    assert any(target.startswith("leaf") for target in far) and far[-1] == "h1.gpu0"
    assert len({topology.rail_of(gpu) for gpu in range(72)}) == 72


def test_collectives_of_a_domain_take_nvlink() -> None:
    model = CollectiveModel(load_cluster("gb200-nvl72:8"))
    whole = model.collective(Coll.ALL_REDUCE, tuple(range(32)), 1 << 30, 9)
    assert whole.algorithm == "NVLS"
    assert not any("nic" in model.topology.links[link].name for flow in whole.flows for link in flow.links)
    split = load_cluster("gb200-nvl72:8")
    apart = CollectiveModel(replace(split, wiring=replace(split.wiring, nvlink_hosts=1)))
    assert apart.collective(Coll.ALL_REDUCE, tuple(range(32)), 1 << 30, 9).duration_ns > 1.5 * whole.duration_ns


@pytest.mark.parametrize(("bytes", "us"), [(1 << 29, 1806.7), (1 << 31, 5589.1), (1 << 33, 20299)])
def test_reduction_in_the_switch_of_a_rack_takes_its_published_time(bytes: int, us: float) -> None:
    """72 GB200: github.com/coreweave/nccl-tests/pull/43."""
    model = CollectiveModel(load_cluster("gb200-nvl72"))
    price = model.collective(Coll.ALL_REDUCE, tuple(range(72)), bytes, 7)
    assert price.algorithm == "NVLS"
    assert price.duration_ns / 1e3 == pytest.approx(us, rel=0.05)


def test_nvlink_domains_need_switches(tmp_path: Path) -> None:
    (tmp_path / "pairs.toml").write_text(
        'gpu = "A100"\ngpus_per_host = 4\nhosts = 2\n[wiring]\nkind = "nvlink-pairs"\nnvlink_hosts = 2\n'
    )
    with pytest.raises(PhantoraError, match="nvlink_hosts"):
        load_cluster(str(tmp_path / "pairs.toml"))


def test_sends_of_all_hosts_of_a_leaf_take_ways_of_their_own() -> None:
    """Stages of a pipeline: rank r sends to r + 256, each send for itself, and no two share a link."""
    topology = build(load_cluster("dgx-h100:64"))
    used: Counter[int] = Counter()
    for rank in range(256):
        topology.begin()
        used.update(topology.route(rank, rank + 256))
    assert set(used.values()) == {1}
