"""The `phantora` command with agents as plain processes where --ray places them on nodes.

``--ray 2`` starts two; ``--ray 2@0.1`` delays what passes between them and the terminal, and between their ranks and
the store, by 0.1 ms each way. ``--working-dir`` is copied to a folder in which the agents start.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phantora.cache import cache_directory, make_folder
from phantora.cli.main import cli
from phantora.launch.output import Console
from phantora.launch.plan import Plan
from phantora.nodes import on_ray
from phantora.nodes.agent import start_agent
from phantora.nodes.driver import Agents
from phantora.nodes.placement import share_out
from phantora.stubs.sources import engine_directory

TRAFFIC = "PHANTORA_TEST_TRAFFIC"
"""A variable with the path of a file for what the relay has carried, as JSON."""


def _delay_program() -> Path:
    """``delay.cpp``, compiled once."""
    source = Path(__file__).with_name("delay.cpp")
    program = make_folder(cache_directory()) / f"delay-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        made = program.with_suffix(f".{os.getpid()}")
        engine = ["-I", str(engine_directory())]
        subprocess.run(["c++", "-std=c++17", "-O1", "-pthread", *engine, "-o", made, source], check=True)
        made.rename(program)
    return program


class Delay:
    """Ways to ports of this machine on which everything takes some time (``delay.cpp``)."""

    def __init__(self, milliseconds: float) -> None:
        self._process = subprocess.Popen(
            [_delay_program(), str(round(milliseconds * 1000))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ports: dict[int, int] = {}

    def to(self, port: int) -> int:
        """The port that leads to `port`."""
        if port not in self._ports:
            assert self._process.stdin is not None and self._process.stdout is not None
            print(port, file=self._process.stdin, flush=True)
            self._ports[port] = int(self._process.stdout.readline())
        return self._ports[port]

    def close(self) -> None:
        """Ends all ways."""
        self._process.kill()
        self._process.wait()


class Processes:
    """Implements ``phantora.nodes.driver.Nodes``."""

    host = "127.0.0.1"

    def __init__(self, working_dir: str, delay: Delay | None) -> None:
        self.folder = on_ray.folder_of_ranks(working_dir)
        self._begin = os.getcwd()
        if working_dir:
            self._begin = tempfile.mkdtemp(prefix="phantora-shipped-")
            shutil.copytree(working_dir, self._begin, dirs_exist_ok=True)
        self._shipped = bool(working_dir)
        self._delay = delay
        self._agents: dict[int, subprocess.Popen[str]] = {}

    def name(self, node: int) -> str:
        """``n0``, ``n1`` and so on."""
        return f"n{node}"

    def start(self, node: int, ranks: int, order: str) -> None:
        """A child of this process."""
        if self._delay is not None:
            given = json.loads(order)
            order = json.dumps({**given, "port": self._delay.to(given["port"])})
        here = os.getcwd()
        os.chdir(self._begin)
        self._agents[node] = start_agent(order)
        os.chdir(here)

    def failure(self, node: int) -> str:
        """Its exit status."""
        status = self._agents[node].poll()
        return "" if status is None else f"status {status}"

    def stop(self) -> None:
        """Kills those that are left."""
        for agent in self._agents.values():
            agent.kill()
            agent.wait()
        if self._shipped:
            shutil.rmtree(self._begin)
        if self._delay is not None:
            self._delay.close()


class _DelayedStore(Agents):
    """The store is a process of the first node: ranks of others reach it with a delay."""

    delay: Delay | None = None

    def _start_rank(self, task: dict[str, Any], fds: Sequence[int]) -> None:
        if self.delay is not None and self._agent_of[int(task["rank"])]:
            environment = task["environment"]
            environment["MASTER_PORT"] = str(self.delay.to(int(environment["MASTER_PORT"])))
        super()._start_rank(task, fds)

    def wait(self) -> int:
        """Writes the traffic too."""
        status = super().wait()
        if path := os.environ.get(TRAFFIC):
            Path(path).write_text(json.dumps(vars(self.traffic())))
        return status


def start_agents(plan: Plan, console: Console, of_rank: int) -> Agents:
    """As ``phantora.nodes.on_ray.start_agents``."""
    nodes, _, milliseconds = plan.spec.launch.ray.partition("@")
    rooms = [plan.world_size] * int(nodes)
    delay = Delay(float(milliseconds)) if float(milliseconds or 0) else None
    processes = Processes(plan.spec.launch.working_dir, delay)
    agents = _DelayedStore(processes, share_out(plan.hosts, plan.ranks_per_host, rooms), plan, console)
    agents.delay = delay
    return agents


if __name__ == "__main__":
    on_ray.start_agents = start_agents
    cli()
