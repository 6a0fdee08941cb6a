"""The daemon: runs share what it has imported, until that changes; when it ends, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phantora import process
from phantora.errors import PhantoraError
from phantora.launch import daemon
from phantora.launch.shared_forkserver import surroundings
from phantora.run_process import PHANTORA
from phantora.stubs import StubSet

LONG = 5.0  # minutes


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the daemons of this test."""
    (tmp_path / ("long" * 30)).mkdir()  # longer than the address of a socket may be
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    yield daemon.folder()
    ended = [one.pid for one in daemon.running()]
    daemon.end()
    _until(lambda: not any(map(process.runs, ended)))
    assert not daemon.running()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _run(folder: Path, stubs: Path) -> str:
    """What the imports of a run printed, which are torch and `toyimport`."""
    imports = {"imports": ["torch", "toyimport"], "shared": []}
    load = {"do": "load", "stubs": str(stubs), "devices": 1, "argv": ["a.py"], **imports}
    with daemon.connected(LONG) as link:
        link.settimeout(60)
        link.send(json.dumps({**load, "ranks": "{}", **surroundings(), "folder": str(folder)}).encode())
        pid = json.loads(link.recv(1 << 16))["pid"]
        assert process.runs(pid)
        printed = str(json.loads(link.recv(1 << 16))["text"])
    _until(lambda: not process.runs(pid))
    return printed


def test_runs_share_what_is_imported_until_it_changes(
    place: Path, stub_set: StubSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module, imports = tmp_path / "toyimport.py", tmp_path / "imports"
    module.write_text(f"import os; open({str(imports)!r}, 'a').write('x'); print('a'); os.write(2, b'b'); print('c')\n")
    for _ in range(2):
        assert sorted("".join(_run(tmp_path, stub_set.directory).split())) == ["a", "b", "c"]
    assert imports.read_text() == "x"
    (first,) = daemon.running()
    module.write_text(module.read_text() + "# changed\n")
    _run(tmp_path, stub_set.directory)
    assert imports.read_text() == "xx"
    monkeypatch.setenv("WINDOWID", "7")  # another terminal
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "of a test")
    _run(tmp_path, stub_set.directory)
    assert imports.read_text() == "xx"
    monkeypatch.setenv("TORCH_LOGS", "all")
    _run(tmp_path, stub_set.directory)
    assert imports.read_text() == "xxx"
    (last,) = daemon.running()
    assert (first.pid, first.bases, last.pid, last.bases) == (last.pid, 1, first.pid, 2)
    assert last.memory > first.memory > 10e6


def test_an_idle_daemon_ends(place: Path) -> None:
    daemon.connected(0.005).close()
    (one,) = daemon.running()
    _until(lambda: not process.runs(one.pid))
    assert not list(place.glob("*.socket"))


def test_a_killed_daemon_is_replaced(place: Path) -> None:
    daemon.connected(LONG).close()
    (one,) = daemon.running()
    os.kill(one.pid, signal.SIGKILL)
    _until(lambda: not process.runs(one.pid))
    daemon.connected(LONG).close()
    assert [other.pid for other in daemon.running()] != [one.pid]


def test_a_command_starts_it_and_it_outlives_the_command(place: Path, tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text("import torch; torch.ones(8, device='cuda') + 1; print('done')")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != "CI"}
    ours[daemon.VARIABLE] = str(LONG)
    subprocess.run([*PHANTORA, "trace", "toy.py"], cwd=tmp_path, env=ours, check=True)
    (one,) = daemon.running()
    assert one.bases == 1
    ended = subprocess.run([*PHANTORA, "daemon", "--end"], env=ours, check=True, capture_output=True, text=True)
    assert ended.stdout == f"{one}, ended\n"
    _until(lambda: not process.runs(one.pid))


def test_a_folder_that_others_can_enter_is_refused(place: Path) -> None:
    place.chmod(0o755)
    with pytest.raises(PhantoraError, match="only you can enter"):
        daemon.connected(LONG)
    place.chmod(0o700)


def test_no_daemon_in_ci_under_pytest_and_where_none_is_wanted() -> None:
    assert daemon.idle_minutes({}) == daemon.IDLE_MINUTES
    assert daemon.idle_minutes({daemon.VARIABLE: "2.5"}) == 2.5
    for environment in ({"CI": "1"}, {"PYTEST_VERSION": "9"}, {"PYTEST_CURRENT_TEST": "a"}, {daemon.VARIABLE: "0"}):
        assert daemon.idle_minutes(environment) == 0
    with pytest.raises(PhantoraError, match="PHANTORA_DAEMON=soon: give the minutes"):
        daemon.idle_minutes({daemon.VARIABLE: "soon"})
