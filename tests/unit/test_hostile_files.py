"""Damaged and hostile files end in one line; the rest of the fuzzer is `benchmarks/fuzz.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster
from phantora.hardware.hosts import load_host
from phantora.launch.routing import parse_routing

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fuzz

HOST = 'name = "x"\nbase = "default"\nfactor = {}\n'
CLUSTER = 'gpu = "H100"\ngpus_per_host = {}\n'


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "1e400", "nan", "-1"])
def test_numbers_without_end(tmp_path: Path, number: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HOST.format(number))
    with pytest.raises(PhantoraError, match=r"x\.toml"):
        load_host(str(path))
    path.write_text(CLUSTER.format(number))
    with pytest.raises(PhantoraError):
        load_cluster(str(path))


def test_nesting_without_end(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("a = " + "[" * 50_000)
    with pytest.raises(PhantoraError, match="not valid TOML"):
        load_cluster(str(path))
    path.write_text('{"*": ' + "[" * 50_000)
    with pytest.raises(PhantoraError, match="not JSON"):
        parse_routing(str(path))


@pytest.mark.parametrize("spec", ["999999x8xH100", "1x99999xH100", "dgx-h100:9999999"])
def test_clusters_larger_than_any(spec: str) -> None:
    with pytest.raises(PhantoraError, match="too large"):
        load_cluster(spec)


@pytest.mark.parametrize("target", ["log, analysed", "log, replayed", "cluster", "host", "sweep", "table", "routing"])
def test_a_short_run_of_each_fuzzer_finds_nothing(target: str, tmp_path: Path) -> None:
    assert fuzz.run(target, 0.3, 1, tmp_path) == 0
