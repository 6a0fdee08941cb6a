"""Tokens per expert: sums, bounds, proportions, files; what a shim says to a version it does not know."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora.errors import PhantoraError
from phantora.rank import shims
from phantora.rank.routing import Routing, parse_routing
from phantora.spec import VARIABLE, RankSpec


@given(st.integers(1, 300), st.integers(0, 20_000), st.data(), st.floats(0, 10), st.integers(0, 100))
def test_counts_add_up(experts: int, tokens: int, data: st.DataObject, exponent: float, layer: int) -> None:
    top_k = data.draw(st.integers(1, min(experts, 16)))
    counts = Routing("zipf", exponent).counts(layer, experts, tokens, top_k)
    assert counts.sum() == tokens * top_k
    assert counts.min() >= 0 and counts.max() <= tokens
    if exponent == 0:
        assert counts.max() - counts.min() <= 1


@given(st.lists(st.floats(0, 1), min_size=2, max_size=64).filter(lambda shares: sum(shares) > 0), st.data())
def test_counts_follow_the_shares(shares: list[float], data: st.DataObject) -> None:
    """Experts that are not full get the same number of tokens per share, whatever was cut off the others."""
    tokens, top_k = 4096, data.draw(st.integers(1, len(shares)))
    counts = Routing("file", layers={"*": shares}).counts(3, len(shares), tokens, top_k)
    assert counts.sum() == tokens * top_k and counts.max() <= tokens
    free = (counts < tokens - 1) & (np.array(shares) > 1e-3)
    if free.sum() > 1:
        given_shares = np.array(shares)[free]
        scale = counts[free].sum() / given_shares.sum()
        assert np.abs(counts[free] - given_shares * scale).max() <= 2


def test_zipf_is_by_rank_and_differs_by_layer() -> None:
    routing = parse_routing("zipf:1.0")
    first, second = (np.sort(routing.shares(layer, 8))[::-1] for layer in (0, 1))
    assert np.allclose(first, 1 / np.arange(1, 9) / (1 / np.arange(1, 9)).sum()) and np.array_equal(first, second)
    assert not np.array_equal(routing.shares(0, 8), routing.shares(1, 8))
    assert routing.shares(0, 8).argmax() == 3  # drawn once and for all


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    path.write_text(json.dumps({"2": [3, 1, 0, 0], "*": [1, 1, 1, 1]}))
    routing = parse_routing(str(path))
    assert routing.counts(2, 4, 100, 1).tolist() == [75, 25, 0, 0]
    assert routing.counts(2, 4, 100, 2).tolist() == [100, 100, 0, 0]
    assert routing.counts(2, 4, 100, 3).tolist() == [100, 100, 50, 50]  # no token chooses an expert twice
    assert routing.counts(7, 4, 100, 2).tolist() == [50] * 4
    with pytest.raises(PhantoraError, match="4 shares, the model has 8 experts"):
        routing.counts(0, 8, 100, 1)


@pytest.mark.parametrize(
    "text, says",
    [
        ("[1, 2]", "object"),
        ('{"a": [1]}', "neither"),
        ('{"0": [-1, 2]}', "none negative"),
        ('{"0": 3}', "list"),
        ('{"0": [0, 0]}', "all zero"),
        ("{", "not JSON"),
        ('{"0": [1e999]}', "list"),
    ],
)
def test_bad_files_end_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(PhantoraError, match=says):
        parse_routing(str(path))


@pytest.mark.parametrize("spec", ["zipf:", "zipf:-1", "zipf:nan", "zipf:x", "nowhere.json", "zipf"])
def test_bad_options(spec: str) -> None:
    with pytest.raises(PhantoraError, match=r"--moe-routing"):
        parse_routing(spec)


def test_an_unknown_version_is_refused_when_it_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = []
    shim = shims.Shim("numpy", ("0.1",), "some.moe", guarded="MoE.__init__", apply=lambda *_: applied.append(1))
    module = ModuleType("some.moe")
    module.MoE = type("MoE", (), {})  # type: ignore[attr-defined]
    monkeypatch.setattr(shims, "shims", lambda: (shim,))
    monkeypatch.setitem(sys.modules, "some.moe", module)
    monkeypatch.setenv(VARIABLE, RankSpec(moe_routing="balanced").to_json())
    finders = list(sys.meta_path)
    shims.install()
    monkeypatch.setattr(sys, "meta_path", finders)
    with pytest.raises(PhantoraError, match=r"numpy .* \(known: 0.1\); install numpy==0.1"):
        module.MoE()
    assert not applied
    monkeypatch.setattr(shims, "version", lambda _: "0.1.7")
    shim.meet(module, parse_routing("balanced"))
    assert applied
