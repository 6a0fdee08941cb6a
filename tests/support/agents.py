"""The `phantora` command with agents as plain processes where --ray places them on nodes; ``--ray 2`` starts two."""

from __future__ import annotations

import os
import subprocess

from phantora.cli.main import cli
from phantora.launch.output import Console
from phantora.launch.plan import Plan
from phantora.nodes import on_ray
from phantora.nodes.agent import start_agent
from phantora.nodes.driver import Agents
from phantora.nodes.placement import share_out


class Processes:
    """Implements ``phantora.nodes.driver.Nodes``."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.folder = os.getcwd()
        self._agents: dict[int, subprocess.Popen[str]] = {}

    def name(self, node: int) -> str:
        """``n0``, ``n1`` and so on."""
        return f"n{node}"

    def start(self, node: int, ranks: int, order: str) -> None:
        """A child of this process."""
        self._agents[node] = start_agent(order)

    def failure(self, node: int) -> str:
        """Its exit status."""
        status = self._agents[node].poll()
        return "" if status is None else f"status {status}"

    def stop(self) -> None:
        """Kills those that are left."""
        for agent in self._agents.values():
            agent.kill()
            agent.wait()


def start_agents(plan: Plan, console: Console, of_rank: int) -> Agents:
    """As ``phantora.nodes.on_ray.start_agents``."""
    rooms = [plan.world_size] * int(plan.spec.launch.ray)
    return Agents(Processes(), share_out(plan.hosts, plan.ranks_per_host, rooms), plan, console)


if __name__ == "__main__":
    on_ray.start_agents = start_agents
    cli()
