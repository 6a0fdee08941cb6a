"""First causes of `phantora diff`, for real steps that differ by one change."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import Filters
from phantora.trace.diff.causes import find_causes
from phantora.trace.diff.compare import Side, compare, gather
from phantora.trace.reader import Log, open_log
from tests.support import variants
from tests.support.runs import trace

CHANGES = list(variants.VARIANTS)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """All variants at once, each a rank of its own."""
    hosts, rest = divmod(len(CHANGES), 5)
    assert not rest
    run = trace(
        tmp_path_factory.mktemp("variants"), "--cluster", f"{hosts}x5xH100", str(Path(variants.__file__)), timeout=300
    )
    return open_log(run.log)


@pytest.fixture(scope="module")
def first(log: Log) -> Side:
    return gather(log, Filters(ranks=frozenset({0})))


@pytest.mark.parametrize("rank", range(1, len(CHANGES)))
def test_what_changed_is_named_first(log: Log, first: Side, rank: int) -> None:
    other = gather(log, Filters(ranks=frozenset({rank})))
    cause = find_causes(first, other, compare(first, other))[0]
    assert cause.text.startswith(CHANGES[rank])
    back = find_causes(other, first, compare(other, first))[0]
    assert back.kind == cause.kind
