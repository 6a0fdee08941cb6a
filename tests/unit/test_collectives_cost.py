"""The price of collectives: what physics and NCCL's rules demand of any constants."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster, load_gpu
from phantora.hardware.builders import NVLINK_SHARE
from phantora.sim.collectives import CollectiveModel, CollectivePrice, NcclEnvironment, kernel_name
from phantora.sim.collectives.timing import REFERENCE_LINK, p2p_channels
from phantora.sim.collectives.tuner import ring_steps, wire_share
from phantora.units import MIB
from phantora.wire.layout import NCCL_DTYPE_NAMES, SYMMETRIC, Coll
from tests.support.network import Class, Network

BF16 = NCCL_DTYPE_NAMES.index("bfloat16")
KINDS = [kind for kind, name in enumerate(Coll.names()) if name != "BARRIER" and kind not in SYMMETRIC]  # NCCL's
SPECS = ("1x8xH200", "1x8xH100", "1x8xA100-SXM-80GB", "1x4xL40S", "2x8xH100", "8x8xH100", "4x1xH100", "1x8xB200-SXM")
MODELS = {spec: CollectiveModel(load_cluster(spec)) for spec in SPECS}
WITHOUT_NVLS = {spec: CollectiveModel(load_cluster(spec), NcclEnvironment(nvls=False)) for spec in SPECS}

# Device times in us on H200 (bf16, NVLS off): nccl_graph.py and nccl_bw.py, torch 2.11, NCCL 2.28.9.
MEASURED = (
    ("ALL_REDUCE", 4, 1 << 10, 14.4),
    ("ALL_REDUCE", 4, 1 << 20, 22.8),
    ("ALL_REDUCE", 4, 1 << 26, 323.4),
    ("ALL_REDUCE", 2, 1 << 28, 885.6),
    ("ALL_GATHER", 4, 1 << 16, 14.0),
    ("ALL_GATHER", 4, 1 << 28, 658.5),
    ("ALL_GATHER", 2, 1 << 26, 158.3),
    ("REDUCE_SCATTER", 4, 1 << 24, 58.8),
    ("REDUCE_SCATTER", 2, 1 << 28, 583.5),
    ("BROADCAST", 4, 1 << 28, 758.6),
    ("ALL_TO_ALL", 4, 1 << 20, 19.0),
    ("ALL_TO_ALL", 4, 1 << 28, 654.9),
)


def price(spec: str, kind: int, size: int, members: int | None = None) -> CollectivePrice:
    model = MODELS[spec]
    return model.collective(kind, tuple(range(members or model.cluster.world_size)), size, BF16)


def _crosses_hosts(model: CollectiveModel, paid: CollectivePrice) -> bool:
    return any("nic" in model.topology.links[link].name for flow in paid.flows for link in flow.links)


@pytest.mark.parametrize(("name", "members", "size", "us"), MEASURED)
def test_agrees_with_h200(name: str, members: int, size: int, us: float) -> None:
    predicted = price("1x8xH200", getattr(Coll, name), size, members)
    assert predicted.duration_ns / 1e3 == pytest.approx(us, rel=0.15)
    assert predicted.provenance == "fitted"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(KINDS), st.integers(0, 1 << 30), st.integers(1, 8))
def test_no_collective_counts_as_measured(spec: str, kind: int, size: int, members: int) -> None:
    """Each is computed by formulas, also where their constants were fitted to this very operation."""
    members = min(members, MODELS[spec].cluster.world_size)
    assert price(spec, kind, size, members).provenance in {"fitted", "scaled", "analytic"}


def test_what_the_price_of_a_collective_rests_on() -> None:
    """The formulas were fitted on 2 and 4 H200. More GPUs, another GPU and a network are further away."""
    for kind in KINDS:
        on = {gpus: price("1x8xH200", kind, MIB, gpus).provenance for gpus in (2, 3, 4, 8)}
        assert on == {2: "fitted", 3: "fitted", 4: "fitted", 8: "scaled"}
        assert price("1x8xH100", kind, MIB, 4).provenance == "scaled"
        assert price("2x8xH100", kind, MIB).provenance == "analytic"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(KINDS), st.integers(1, 1 << 30), st.integers(2, 8))
def test_four_times_the_bytes_never_take_less(spec: str, kind: int, size: int, members: int) -> None:
    members = min(members, MODELS[spec].cluster.world_size)
    less, more = price(spec, kind, size, members), price(spec, kind, 4 * size, members)
    same = (less.algorithm, less.protocol) == (more.algorithm, more.protocol)
    # NCCL chooses by an estimate, so not always what is fastest.
    assert more.duration_ns >= less.duration_ns * (1.0 if same else 0.75)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(KINDS), st.integers(1, 1 << 32), st.booleans())
def test_no_link_carries_more_than_its_rate(spec: str, kind: int, size: int, nvls: bool) -> None:
    model = MODELS[spec] if nvls else WITHOUT_NVLS[spec]
    cluster = model.cluster
    paid = model.collective(kind, tuple(range(cluster.world_size)), size, BF16)
    rates = Counter[int]()
    for flow in paid.flows:
        for link in flow.links:
            rates[link] += flow.rate * flow.count  # type: ignore[assignment]
    for link, rate in rates.items():
        assert rate <= model.topology.links[link].bandwidth * (1 + 1e-3)
    assert paid.flows
    longest = max(flow.bytes / flow.rate for flow in paid.flows)
    assert paid.duration_ns == round(paid.latency_ns + longest * 1e9)
    if size > 64 * cluster.world_size:
        assert _crosses_hosts(model, paid) == (cluster.hosts > 1)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 1 << 30))
def test_spread_over_hosts_is_slower(kind: int, size: int) -> None:
    model = MODELS["2x8xH100"]
    inside = model.collective(kind, tuple(range(8)), size, BF16)
    across = model.collective(kind, (0, 1, 2, 3, 8, 9, 10, 11), size, BF16)
    assert across.duration_ns > inside.duration_ns
    assert across.provenance == "analytic"


def test_small_messages_use_ll_and_large_ones_simple() -> None:
    for kind in (Coll.ALL_REDUCE, Coll.ALL_GATHER, Coll.REDUCE_SCATTER, Coll.BROADCAST):
        assert price("1x8xH200", kind, 4096, 4).protocol == "LL"
        assert price("1x8xH200", kind, 256 * MIB, 4).protocol == "SIMPLE"


def test_ll128_needs_nvlink() -> None:
    sizes = [1 << k for k in range(10, 31)]
    assert any(price("1x8xH200", Coll.ALL_REDUCE, size, 4).protocol == "LL128" for size in sizes)
    assert all(price("1x4xL40S", Coll.ALL_REDUCE, size).protocol != "LL128" for size in sizes)


def test_trees_win_small_all_reduces_on_many_hosts() -> None:
    assert price("8x8xH100", Coll.ALL_REDUCE, 4096).algorithm == "TREE"
    assert price("8x8xH100", Coll.ALL_GATHER, 4096).algorithm == "RING"
    assert price("1x8xA100-SXM-80GB", Coll.ALL_REDUCE, 1 << 30).algorithm == "RING"


# us on published systems (validation/published/nccl.json): hosts, bytes, environment.
PUBLISHED = (
    ("gcp-a3-mega:2", 4 << 20, 364.6),
    ("gcp-a3-mega:2", 16 << 20, 977.6),
    ("gcp-a3-mega:2", 256 << 20, 2360.9),
    ("dgx-h100:4", 64 << 20, 565.2),
    ("dgx-h100:64", 256 << 20, 2010.9),
    ("dgx-h100:128", 256 << 20, 2179.4),
)


@pytest.mark.parametrize(("system", "size", "us"), PUBLISHED)
def test_trees_of_hosts_pass_whole_chunks_on(system: str, size: int, us: float) -> None:
    cluster = load_cluster(system)
    model = CollectiveModel(cluster, NcclEnvironment.read(cluster.nccl))
    predicted = model.collective(Coll.ALL_REDUCE, tuple(range(cluster.world_size)), size, BF16)
    assert predicted.algorithm == ("TREE" if "gcp" in system else "NVLS_TREE")
    assert predicted.duration_ns / 1e3 == pytest.approx(us, rel=0.1)


def test_channels_limit_trees_of_racks() -> None:
    """1,440 GB200: github.com/coreweave/nccl-tests/pull/48. Of a chain of 72 the port carries more than 24 channels."""
    cluster = load_cluster("gb200-nvl72:360")
    predicted = CollectiveModel(cluster).collective(Coll.ALL_REDUCE, tuple(range(1440)), 4 << 30, BF16)
    assert predicted.algorithm == "TREE"
    assert predicted.duration_ns / 1e3 == pytest.approx(24782, rel=0.15)


def test_binomial_trees_gather_among_one_gpu_per_host() -> None:
    model = MODELS["8x8xH100"]
    each = tuple(range(0, 64, 8))
    small, large = (model.collective(Coll.ALL_GATHER, each, size, BF16) for size in (1 << 20, 1 << 28))
    assert (small.algorithm, large.algorithm) == ("PAT", "RING")
    sent = sum(flow.bytes * flow.count for flow in small.flows) / 8
    assert sent == pytest.approx(7 / 8 * (1 << 20))
    assert model.collective(Coll.ALL_GATHER, tuple(range(16)), 1 << 20, BF16).algorithm == "RING"


def test_switch_reduction_from_five_gpus_on() -> None:
    """NCCL's own estimate: with 4 GPUs rings stay ahead, with 2 it does not even try."""
    sizes = [1 << k for k in range(10, 33)]
    assert {price("1x8xH200", Coll.ALL_REDUCE, size, 4).algorithm for size in sizes} == {"RING"}
    assert {price("1x8xH200", Coll.ALL_REDUCE, size, 2).algorithm for size in sizes} == {"RING"}
    with_switch = price("1x8xH100", Coll.ALL_REDUCE, 1 << 30)
    assert with_switch.algorithm == "NVLS"
    bus = wire_share(Coll.ALL_REDUCE, 8) * (1 << 30) / with_switch.duration_ns
    assert 450 < bus < 500
    assert price("1x8xH100", Coll.ALL_GATHER, 1 << 30).algorithm == "RING"
    assert price("8x8xH100", Coll.ALL_REDUCE, 1 << 30).algorithm == "NVLS_TREE"
    without = WITHOUT_NVLS["1x8xH100"].collective(Coll.ALL_REDUCE, tuple(range(8)), 1 << 30, BF16)
    assert without.algorithm == "RING"
    assert without.duration_ns > with_switch.duration_ns


def test_the_share_of_nvlink_is_that_of_the_reference() -> None:
    assert load_gpu("H200").nvlink_bandwidth * NVLINK_SHARE / 1e6 == pytest.approx(REFERENCE_LINK, rel=1e-4)


def test_send_and_receive_get_more_channels_above_16_mib_each() -> None:
    assert [p2p_channels(4, size * MIB, 32) for size in (1, 128, 129, 256, 257, 1024)] == [8, 8, 16, 16, 32, 32]
    assert [p2p_channels(2, size * MIB, 32) for size in (1, 256, 257)] == [16, 16, 32]
    model = MODELS["1x8xH200"]
    rates = [
        size * MIB / model.transfer(0, 1, size * MIB, 1, members=4, duplex=True).duration_ns
        for size in (64, 128, 256, 1024)
    ]
    assert rates == pytest.approx([157, 162, 304, 361], rel=0.05)  # measured, GB/s


def test_transfers_that_share_a_port_share_its_rate() -> None:
    model = MODELS["2x8xH100"]
    near, far = model.transfer(0, 1, 64 * MIB, 1), model.transfer(0, 8, 64 * MIB, 1)
    assert far.duration_ns > 5 * near.duration_ns
    assert _crosses_hosts(model, far) and not _crosses_hosts(model, near)
    assert model.transfer(0, 8, 64 * MIB, 4).duration_ns > 3.5 * far.duration_ns
    assert not model.transfer(3, 3, MIB, 1).flows


def ends(library: Path, model: CollectiveModel, prices: list[CollectivePrice]) -> list[int]:
    """Ends of transfers that begin together, ns, as their flows share the links."""
    network = Network(library, [link.bandwidth for link in model.topology.links])
    for number, each in enumerate(prices):
        flows = [Class(flow.links, flow.bytes, flow.rate, flow.count) for flow in each.flows]
        network.begin(each.latency_ns, flows, number)
    return [end for _, end in sorted(network.run().items())]


@pytest.mark.parametrize("size", [4096, 65536, MIB, 16 * MIB, 256 * MIB])
@pytest.mark.parametrize("gpus", [4, 8])
def test_grouped_transfers_take_what_an_all_to_all_takes(engine_library: Path, gpus: int, size: int) -> None:
    """Neither does sharing count twice, by price and by links, nor does a port reach more than with several peers."""
    model = MODELS["1x8xH200"]
    pairs = [(src, dst) for src in range(gpus) for dst in range(gpus) if src != dst]
    prices = [model.transfer(src, dst, size, gpus - 1, members=gpus, duplex=True) for src, dst in pairs]
    whole = model.collective(Coll.ALL_TO_ALL, tuple(range(gpus)), size * gpus, 7)
    assert ends(engine_library, model, prices) == pytest.approx([whole.duration_ns] * len(pairs), abs=2)


def test_grouped_transfers_of_different_sizes_share_a_port_as_they_come_and_go(engine_library: Path) -> None:
    """Two of 64 and 128 MiB: half of the port each until the first is through, in the time of two of its size; the
    second has the port for the rest."""
    model = MODELS["1x8xH200"]
    alone = model.transfer(0, 1, 64 * MIB, 1, members=4, duplex=True)
    small, large = model.transfer(0, 1, 64 * MIB, 2, members=4), model.transfer(0, 2, 128 * MIB, 2, members=4)
    assert small.flows[0].links == alone.flows[0].links == model.topology.route(0, 1)
    assert small.flows[0].bytes / small.flows[0].rate == pytest.approx((alone.duration_ns - alone.latency_ns) / 1e9)
    port = model.topology.links[small.flows[0].links[0]].bandwidth
    first = small.duration_ns - small.latency_ns
    left = (large.duration_ns - large.latency_ns - first) * port / 2
    second = first + left / min(port, large.flows[0].rate)
    assert ends(engine_library, model, [small, large]) == pytest.approx(
        [small.latency_ns + first, large.latency_ns + second], abs=2
    )


def test_one_member_moves_nothing_between_gpus() -> None:
    alone = price("1x8xH200", Coll.ALL_REDUCE, MIB, 1)
    assert (alone.algorithm, alone.flows) == ("DIRECT", ())


def test_shares_and_steps() -> None:
    assert wire_share(Coll.ALL_REDUCE, 4) == 1.5
    assert wire_share(Coll.ALL_GATHER, 4) == 0.75
    assert wire_share(Coll.BROADCAST, 4) == 1.0
    assert [ring_steps(kind, 4) for kind in (Coll.ALL_REDUCE, Coll.REDUCE_SCATTER)] == [6, 3]


def test_kernel_names_are_those_of_nccl() -> None:
    suffix = "(ncclDevKernelArgsStorage<4096ul>)"
    names = {
        (Coll.ALL_REDUCE, "bfloat16", "RING"): "AllReduce_Sum_bf16_RING_LL",
        (Coll.ALL_REDUCE, "float32", "TREE"): "AllReduce_Sum_f32_TREE_LL",
        (Coll.ALL_REDUCE, "int64", "RING"): "AllReduce_Sum_u64_RING_LL",
        (Coll.ALL_GATHER, "int8", "RING"): "AllGather_RING_LL",
        (Coll.REDUCE_SCATTER, "float32", "RING"): "ReduceScatter_Sum_f32_RING_LL",
        (Coll.BROADCAST, "uint8", "RING"): "Broadcast_RING_LL",
        (Coll.REDUCE, "float16", "RING"): "Reduce_Sum_f16_RING_LL",
        (Coll.ALL_TO_ALL, "bfloat16", "P2P"): "SendRecv",
    }
    for (kind, dtype, algorithm), name in names.items():
        made = kernel_name(kind, 2, NCCL_DTYPE_NAMES.index(dtype), algorithm, "SIMPLE")
        assert made == f"ncclDevKernel_{name}{suffix}"


def test_unknown_type_is_refused() -> None:
    with pytest.raises(PhantoraError, match="data type 12"):
        MODELS["1x8xH200"].collective(Coll.ALL_REDUCE, (0, 1), 4, 12)
