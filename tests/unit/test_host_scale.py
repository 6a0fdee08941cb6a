"""``--host-scale`` of a run."""

from __future__ import annotations

import pytest

from phantora.runs.prepare import chosen_cluster
from phantora.spec import RunSpec


@pytest.mark.parametrize("host_time, times", [("modelled", 8), ("measured", 1)])
def test_a_scale_makes_the_modelled_host_slower(host_time: str, times: int) -> None:
    """A measured host is scaled by its ranks, as they measure it."""
    plain = chosen_cluster(RunSpec("train.py", (), cluster="1x2xH100")).host
    host = chosen_cluster(RunSpec("train.py", (), cluster="1x2xH100", host_time=host_time, host_scale=8.0)).host
    assert host.factor == times * plain.factor
    assert host.api_ns["LAUNCH"] == times * plain.api_ns["LAUNCH"]
