"""The CPUs that a script sees are those of the simulated host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.hardware import load_host
from phantora.rank.patches.cores import Cores
from phantora.runs import prepare
from phantora.units import GIB


def test_a_process_uses_the_cores_that_it_chose() -> None:
    cores = Cores(64, 64)
    assert cores.count() == cores.usable() == 64 and cores.affinity(0) == set(range(64))
    cores.set_affinity(0, [40, 41, 99])
    assert cores.affinity(os.getpid()) == {40, 41} and cores.count() == 64
    with pytest.raises(OSError, match="Invalid argument"):
        cores.set_affinity(0, [64])


def test_scripts_see_as_many_cpus_as_this_machine_has_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "available", lambda: (24 * GIB, 20 * GIB))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert [prepare._cores(host, ranks) for host, ranks in ((16, 1), (128, 1), (128, 8), (32, 8192))] == [
        16,
        128,
        38,
        2,
    ]


def test_a_script_that_asks_is_told_once_that_it_sees_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr("phantora.rank.patches.cores.tell", notes.append)
    few, all_of_them = Cores(38, 128), Cores(128, 128)
    assert (few.count(), few.count(), all_of_them.count()) == (38, 38, 128)
    assert len(notes) == 1 and notes[0].startswith("os.cpu_count() is 38, and 128 on the simulated host")


def test_a_host_file_has_the_cores_of_its_base_or_its_own(tmp_path: Path) -> None:
    assert load_host("default:2").cores_per_gpu == 16 and load_host("grace").cores_per_gpu == 36
    file = tmp_path / "mine.toml"
    for line, cores in (("", 28), ("cores_per_gpu = 8\n", 8)):
        (path := tmp_path / f"{cores}.toml").write_text(f'name = "mine"\nbase = "xeon-8480"\n{line}')
        assert load_host(str(path)).cores_per_gpu == cores
    file.write_text('name = "mine"\nbase = "grace"\ncores_per_gpu = 0\n')
    with pytest.raises(PhantoraError, match="cores_per_gpu must be a number from 1"):
        load_host(str(file))
