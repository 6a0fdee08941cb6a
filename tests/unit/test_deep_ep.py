"""Exchanges between experts: routes, published times, and the interface of DeepEP on two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from phantora.hardware import load_cluster
from phantora.rank.deep_ep.buffer import low_latency_sms
from phantora.rank.deep_ep.routes import Routes, drawn
from phantora.sim.collectives import CollectiveModel, CollectivePrice, Rows
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

UINT8 = NCCL_DTYPE_NAMES.index("uint8")


@pytest.mark.parametrize("counts", [(16,) * 32, (64, 64, 40, 1, 1, 2, 10, 10)])
def test_drawn_routes_have_the_given_counts(counts: tuple[int, ...]) -> None:
    chosen = drawn(counts, 64)
    assert chosen.sum(axis=0).tolist() == list(counts)
    assert set(chosen.sum(axis=1)) == {sum(counts) // 64}


def test_balanced_routes_reach_as_many_members_as_random_ones() -> None:
    """Eight of 256 experts lie on 5.29 of eight members on average; each rank gets what all send to it."""
    routes = Routes(drawn((128,) * 256, 4096), 8, 3)
    assert routes.sent / 4096 == pytest.approx(5.29, rel=0.02)
    assert sum(routes.counts) == 4096 * 8
    indices = routes.indices(8)
    assert indices.shape == (routes.received, 8)
    assert (indices >= 0).sum() == sum(routes.counts)
    assert np.bincount(indices[indices >= 0]).tolist() == routes.counts


def priced(cluster: str, members: int, kind: int, rows: Rows, size: float, sms: int) -> CollectivePrice:
    model = CollectiveModel(load_cluster(cluster))
    return model.collective(kind, tuple(range(members)), int(size), UINT8, 0, sms, rows)


def us(cluster: str, members: int, kind: int, rows: Rows, size: float, sms: int) -> float:
    return priced(cluster, members, kind, rows, size, sms).duration_ns / 1e3


@pytest.mark.parametrize(
    ("cluster", "kind", "tokens", "row_bytes", "reached", "sms", "published"),
    [
        ("1x8xH100", Coll.EXPERT_DISPATCH, 4096, 7392, 5.29, 20, 492),
        ("1x8xH100", Coll.EXPERT_COMBINE, 4096, 14336, 5.29, 20, 983),
        ("1x8xB200", Coll.EXPERT_DISPATCH, 4096, 7392, 5.29, 24, 440),
        ("1x4xGB200", Coll.EXPERT_COMBINE, 4096, 14336, 3.61, 24, 597),
        ("1x8xH100", Coll.LOW_LATENCY_DISPATCH, 128, 7392, 8, low_latency_sms(256, 132), 36.7),
    ],
)
def test_published_times_of_one_host(
    cluster: str, kind: int, tokens: int, row_bytes: int, reached: float, sms: int, published: float
) -> None:
    """Times of github.com/ai-dynamo/aiconfigurator: 7,168 elements, 8 of 256 experts."""
    members = load_cluster(cluster).world_size
    price = priced(cluster, members, kind, Rows(tokens, row_bytes), tokens * reached * row_bytes, sms)
    assert price.duration_ns / 1e3 == pytest.approx(published, rel=0.15)
    assert price.error < 0.3


def test_published_times_of_several_hosts() -> None:
    """Nine of ten within the error bar of exchanges over the network, half within a third of it."""
    path = Path(__file__).parents[2] / "validation" / "published" / "experts.json"
    off = []
    for entry in json.loads(path.read_text())["times"]:
        if entry["members"] <= 64:
            size = entry["tokens"] * entry["rows_of_token"] * entry["row_bytes"]
            rows, kind = Rows(entry["tokens"], int(entry["row_bytes"])), int(getattr(Coll, entry["kind"]))
            off.append(us(entry["cluster"], entry["members"], kind, rows, size, entry["sms"]) / entry["us"] - 1)
    assert np.median(np.abs(off)) < 0.1
    assert np.quantile(np.abs(off), 0.9) < 0.3


def test_the_member_with_most_rows_decides() -> None:
    rows = Rows(4096, 7392)
    few, many = (us("1x8xH100", 8, Coll.EXPERT_DISPATCH, rows, 4096 * n * 7392, 20) for n in (2, 4))
    assert few < many


def test_a_dispatch_goes_through_all_members_of_its_domain_for_each_token() -> None:
    """Of rows so small that the link waits: twice the members take twice the time."""
    rows = Rows(8192, 64)
    few, many = (us("gb200-nvl72", members, Coll.HYBRID_DISPATCH, rows, 8192 * 4 * 64, 32) for members in (32, 64))
    assert (many - 8) / (few - 8) == pytest.approx(2.0, rel=0.02)
