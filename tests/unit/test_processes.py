"""Processes of a run: their environment, and the end of all of them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantora import process
from phantora.cli.doctor import doctor
from phantora.hardware import device_fields, load_cluster
from phantora.rank import hook
from phantora.wire.session import Session, SessionConfig


def personality() -> int:
    return int(ctypes.CDLL(None).personality(0xFFFFFFFF))


def test_addresses_of_a_started_program_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before = personality()
    program = [sys.executable, "-c", "import fractions; print(id(fractions.Fraction))"]
    with process.fixed_addresses():
        reported = {subprocess.run(program, capture_output=True, text=True, check=True).stdout for _ in range(3)}
    assert (len(reported) == 1) is process.addresses_are_fixed()
    assert personality() == before

    class Forbids:
        """The C library where a filter answers EPERM."""

        @staticmethod
        def personality(_: int) -> int:
            return -1

    monkeypatch.setattr(process, "_libc", Forbids)
    assert not process.addresses_are_fixed()
    with process.fixed_addresses():
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    report = json.loads(CliRunner().invoke(doctor, ["--json"]).output)
    assert report["fixed_addresses"] is False
    assert "personality(2)" in CliRunner().invoke(doctor).output


def test_a_killed_owner_of_a_server_leaves_no_folder() -> None:
    program = """if True:
        import time
        from phantora.launch.shared_forkserver import WarmServer
        server = WarmServer()
        print(server.path, flush=True)
        time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip()).parent
        assert folder.is_dir()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    until = time.monotonic() + 30
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not folder.exists()


def test_the_place_of_a_rank_belongs_to_the_process_that_runs() -> None:
    session = Session.create(SessionConfig(2, 2), device_fields(load_cluster("1x2xH100").gpu), {})
    with subprocess.Popen(["sleep", "60"]) as other:
        session.control["pid"][1] = other.pid
        assert hook._owner(session.fd, 0) == 0 and hook._owner(session.fd, 1) == other.pid
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert hook._owner(session.fd, 1) == 0  # a zombie
