"""What-if options; and the links of real clusters under the prices of real collectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster
from phantora.hardware.topology import Flow
from phantora.sim.collectives import CollectiveModel
from phantora.sim.engine import library as native
from phantora.sim.links import Links
from phantora.sim.whatif import Background, Degrade, Straggler, WhatIf, parse_what_if
from phantora.wire.layout import Coll
from tests.support.fakeranks import Bench


def test_texts_become_changes() -> None:
    assert parse_what_if(
        ["h0.nic0>*=0.5", "a>b=0.25@optimizer2", "a>b=1@250ms"], ["rank=3:1.2"], ["0->8=10GB/s", "1->2=80Gb/s"]
    ) == WhatIf(
        (Degrade("h0.nic0>*", 0.5), Degrade("a>b", 0.25, optimizer_steps=2), Degrade("a>b", 1.0, time_ns=250_000_000)),
        (Straggler(3, 1.2),),
        (Background(0, 8, 10e9), Background(1, 2, 10e9)),
    )


def test_faults_last_for_a_time() -> None:
    gpu, flap, loss = parse_what_if(
        fault=["250ms,100ms,rank=3:1.5", "1s,1s,h0.nic0>*=0.01", "2s,500ms,h0.nic0>*=loss:0.1%"]
    ).fault
    assert (gpu.rank, gpu.slower, gpu.start_ns, gpu.end_ns) == (3, 1.5, 250_000_000, 350_000_000)
    assert (flap.links, flap.share_of(50e9), flap.active(999_999_999), flap.active(10**9)) == (
        "h0.nic0>*",
        0.01,
        False,
        True,
    )
    assert [one.disks for one in parse_what_if(fault=["0s,1s,disk=0.1", "0s,1s,h*.disk=0.1"]).fault] == ["*", "h*"]
    assert loss.share_of(50e9) == pytest.approx(0.999 / (0.999 + 0.001 * 122.07), rel=1e-4)


@pytest.mark.parametrize(
    "text", ["1s", "1s,0s,rank=1:2", "1s,1s,rank=1", "soon,1s,x=0.5", "1s,1s,x=2", "1s,1s,x=loss:2"]
)
def test_a_fault_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(PhantoraError, match=f"--fault {text}: write TIME,DURATION,WHAT"):
        parse_what_if(fault=[text])


@pytest.mark.parametrize(
    ("option", "text"),
    [(0, text) for text in ("x", "=0.5", "x=0", "x=2", "x=fast", "x=0.5@", "x=0.5@soon", "x=0.5@step3")]
    + [(0, "x=0.5@optimizer0")]
    + [(1, text) for text in ("3:1.2", "rank=x:1", "rank=1:0", "rank=1")]
    + [(2, text) for text in ("0-8=1GB/s", "0->8", "0->8=0GB/s", "0->8=fast", "a->b=1GB/s")],
)
def test_what_cannot_be_read_is_named(option: int, text: str) -> None:
    texts: list[list[str]] = [[], [], []]
    texts[option] = [text]
    with pytest.raises(PhantoraError, match=r"write|is no time") as caught:
        parse_what_if(*texts)
    assert text in str(caught.value)


def bench_of(library: Path, cluster: str, changes: WhatIf) -> tuple[Bench, CollectiveModel]:
    """Fake ranks over the links of a cluster, with the model's own prices."""
    model = CollectiveModel(load_cluster(cluster))
    world = load_cluster(cluster).world_size
    bench = Bench.create(library, world)
    Links(bench.engine, model.topology, world, changes)

    def flows(request: native.PriceRequest) -> tuple[int, Sequence[Flow]]:
        ranks = bench.engine.comm_ranks(request.comm)
        price = model.collective(request.sub, ranks, request.bytes, request.dtype, request.root)
        return price.latency_ns, price.flows

    bench.flows = flows
    return bench, model


@pytest.mark.parametrize("cluster", ["1x4xH200", "2x8xH100", "1x4xL40S", "4x8xA100-80GB"])
def test_alone_on_the_wires_a_collective_takes_what_the_model_says(engine_library: Path, cluster: str) -> None:
    bench, model = bench_of(engine_library, cluster, WhatIf())
    world = len(bench.ranks)
    calls = [
        (getattr(Coll, k), 1 << s)
        for k in ("ALL_REDUCE", "ALL_GATHER", "ALL_TO_ALL", "BROADCAST")
        for s in (10, 21, 28)
    ]
    for own, rank in enumerate(bench.ranks):
        rank.communicator(1, world, own)
        for kind, nbytes in calls:
            rank.collective(1, nbytes, kind=kind)
        rank.exit()
    assert not bench.run() & native.ERROR
    rows = [row for row in bench.rows() if row["kind"] == "COLLECTIVE" and row["rank"] == 0]
    took = [row["end"] - row["ready"] for row in rows]
    assert took == [model.collective(kind, tuple(range(world)), nbytes, 7, 0).duration_ns for kind, nbytes in calls]


def test_a_degraded_port_slows_its_collective(engine_library: Path) -> None:
    bench, model = bench_of(engine_library, "1x4xH200", WhatIf((Degrade("h0.gpu2>*", 0.5),)))
    for own, rank in enumerate(bench.ranks):
        rank.communicator(1, 4, own)
        rank.collective(1, 1 << 28, kind=Coll.ALL_GATHER)
        rank.exit()
    bench.run()
    (end,) = {row["end"] for row in bench.rows() if row["kind"] == "COLLECTIVE"}
    price = model.collective(Coll.ALL_GATHER, (0, 1, 2, 3), 1 << 28, 7)
    port = max(link.bandwidth for link in model.topology.links if link.name.startswith("h0.gpu2>"))
    through = sum(flow.bytes * flow.count for flow in price.flows if flow.src == 2)
    assert end == pytest.approx(price.latency_ns + through / (port / 2) * 1e9, abs=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (WhatIf((Degrade("nix", 0.5),)), "no link of this name"),
        (WhatIf(straggler=(Straggler(4, 2.0),)), "ranks 0 to 3"),
        (WhatIf(background=(Background(0, 4, 1e9),)), "two different GPUs of 0 to 3"),
    ],
)
def test_unknown_names_are_refused(engine_library: Path, changes: WhatIf, message: str) -> None:
    with pytest.raises(PhantoraError, match=message):
        bench_of(engine_library, "1x4xH200", changes)
