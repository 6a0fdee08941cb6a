"""Bytes of collectives on the links: as many as arithmetic gives."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.hardware import load_cluster
from phantora.sim.collectives import CollectiveModel, NcclEnvironment
from phantora.sim.collectives.patterns import _double_tree
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

BF16 = NCCL_DTYPE_NAMES.index("bfloat16")
S = 1 << 28
MODELS = {
    (spec, algorithm): CollectiveModel(load_cluster(spec), NcclEnvironment.read({"NCCL_ALGO": algorithm}))
    for spec in ("1x8xH100", "2x8xH100", "5x4xH100", "6x1xH100", "aws-p4d:3", "1x4xL40S")
    for algorithm in ("Ring", "Tree", "NVLS,NVLSTree")
}


def carried(model: CollectiveModel, kind: int, root: int = 0) -> dict[str, float]:
    """Bytes by name of the link."""
    ranks = tuple(range(model.cluster.world_size))
    total: dict[str, float] = defaultdict(float)
    for flow in model.collective(kind, ranks, S, BF16, root).flows:
        for link in flow.links:
            total[model.topology.links[link].name] += flow.bytes * flow.count
    return total


@pytest.mark.parametrize(("kind", "share"), [(Coll.ALL_REDUCE, 2 * 7 / 8), (Coll.ALL_GATHER, 7 / 8)])
def test_ring_inside_a_host(kind: int, share: float) -> None:
    links = carried(MODELS["1x8xH100", "Ring"], kind)
    assert len(links) == 16
    assert list(links.values()) == pytest.approx([share * S] * 16)


@pytest.mark.parametrize("kind", [Coll.ALL_REDUCE, Coll.ALL_GATHER, Coll.REDUCE_SCATTER])
@pytest.mark.parametrize("spec", ["2x8xH100", "5x4xH100", "6x1xH100", "aws-p4d:3"])
def test_ring_across_hosts(spec: str, kind: int) -> None:
    """Every hop of the ring carries the same; a host's NICs share what leaves it, both ways."""
    model = MODELS[spec, "Ring"]
    n, links = model.cluster.world_size, carried(model, kind)
    wire = (2 if kind == Coll.ALL_REDUCE else 1) * (n - 1) / n * S
    nics = model.cluster.wiring.nics
    for host in range(model.cluster.hosts):
        out = [links[f"h{host}.nic{nic}>switch"] for nic in range(nics)]
        into = [links[f"switch>h{host}.nic{nic}"] for nic in range(nics)]
        assert sum(out) == pytest.approx(wire) and sum(into) == pytest.approx(wire)
        assert out == pytest.approx([wire / nics] * nics)
        nvlink = sum(b for name, b in links.items() if name.startswith(f"h{host}.gpu") and name.endswith("nvswitch"))
        assert nvlink == pytest.approx(wire * (model.cluster.gpus_per_host - 1))


@pytest.mark.parametrize("root", [0, 5, 15])
def test_broadcast_and_reduce_are_chains(root: int) -> None:
    """Nothing flows into a broadcast's root, nothing out of a reduction's; everybody else has it once."""
    model = MODELS["2x8xH100", "Ring"]
    ranks = tuple(range(16))
    for kind, end, other in ((Coll.BROADCAST, "dst", "src"), (Coll.REDUCE, "src", "dst")):
        got: dict[int, float] = defaultdict(float)
        for flow in model.collective(kind, ranks, S, BF16, root).flows:
            got[getattr(flow, end)] += flow.bytes * flow.count
        assert set(got) == set(ranks) - {root}, other
        assert list(got.values()) == pytest.approx([float(S)] * 15)


@pytest.mark.parametrize("spec", ["2x8xH100", "5x4xH100", "6x1xH100"])
def test_trees_send_and_spread_once(spec: str) -> None:
    """Up and down each host pair of two half-size trees: a host sends and gets at most 2 S in all."""
    model = MODELS[spec, "Tree"]
    links, hosts = carried(model, Coll.ALL_REDUCE), model.cluster.hosts
    between = sum(b for name, b in links.items() if name.startswith("switch>"))
    assert between == pytest.approx(2 * (hosts - 1) * S)  # two trees of S/2, each edge both ways
    for host in range(hosts):
        out = sum(b for name, b in links.items() if name.startswith(f"h{host}.nic") and name.endswith("switch"))
        assert out <= 2 * S * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300))
def test_double_tree(hosts: int) -> None:
    """Both trees reach every host from one root; no host has children in both."""
    inner = []
    for tree in (0, 1):
        parents = dict(_double_tree(hosts, tree))
        (root,) = set(range(hosts)) - set(parents)
        for host in range(hosts):
            steps = 0
            while host != root:
                host, steps = parents[host], steps + 1
                assert steps <= hosts.bit_length()
        children = {parent: list(parents.values()).count(parent) for parent in parents.values()}
        assert all(count <= 2 for count in children.values())
        inner.append({parent for parent in children if parent != root})
    assert not inner[0] & inner[1] or hosts < 4


def test_reduction_in_the_switch() -> None:
    links = carried(MODELS["1x8xH100", "NVLS,NVLSTree"], Coll.ALL_REDUCE)
    assert list(links.values()) == pytest.approx([S * 9 / 8] * 16)


@pytest.mark.parametrize("hosts", [2, 12])
def test_all_to_all(hosts: int) -> None:
    """Each GPU sends 1/n to every other: the same in flows by pair (16) and by link (96 members)."""
    model = CollectiveModel(load_cluster(f"{hosts}x8xH100"))
    n, links = hosts * 8, carried(model, Coll.ALL_TO_ALL)
    for gpu in range(8):
        assert links[f"h0.nic{gpu}>switch"] == pytest.approx(S / n * (n - 8))
        assert links[f"switch>h1.nic{gpu}"] == pytest.approx(S / n * (n - 8))
        # To seven neighbours, and to the seven other rails' doors what is for those rails elsewhere.
        assert links[f"h0.gpu{gpu}>h0.nvswitch"] == pytest.approx(S / n * 7 * hosts)
    flows = model.collective(Coll.ALL_TO_ALL, tuple(range(n)), S, BF16).flows
    assert len(flows) == (16 * 15 if hosts == 2 else len(links))


def test_lanes_of_a_rail_are_hashed_one_by_one() -> None:
    """Channels between hosts are flows of their own; those that meet on every link count as one class."""
    flows = MODELS["2x8xH100", "Ring"].collective(Coll.ALL_GATHER, tuple(range(16)), S, BF16).flows
    assert {flow.count for flow in flows if flow.src // 8 != flow.dst // 8} == {2}


def test_rings_follow_the_wiring() -> None:
    """Ranks in another order than the GPUs' still make a ring of neighbours."""
    model = MODELS["1x4xL40S", "Ring"]
    shuffled = model.collective(Coll.ALL_GATHER, (2, 0, 3, 1), S, BF16)
    assert {(flow.src, flow.dst) for flow in shuffled.flows} == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_hosts_that_nobody_looks_at_are_left_out() -> None:
    """The price stays; of the flows those remain that touch a host that is looked at, or the fabric."""
    cluster = load_cluster("4x8xH100")
    whole, few = CollectiveModel(cluster), CollectiveModel(cluster, hosts=frozenset({1}))
    for kind in (Coll.ALL_GATHER, Coll.ALL_REDUCE, Coll.ALL_TO_ALL):
        every = whole.collective(kind, tuple(range(32)), 1 << 28, 7)
        kept = few.collective(kind, tuple(range(32)), 1 << 28, 7)
        assert (kept.duration_ns, kept.algorithm) == (every.duration_ns, every.algorithm)
        touching = [flow for flow in every.flows if any(whole.topology.host_of_link(link) == 1 for link in flow.links)]
        assert list(kept.flows) == touching and 0 < len(touching) < len(every.flows)
