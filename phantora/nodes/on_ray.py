"""Agents on a Ray cluster. Ray places them; what they say goes over connections of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.launch.output import Console
from phantora.launch.plan import Plan
from phantora.nodes.agent import start_agent
from phantora.nodes.driver import Agents
from phantora.nodes.placement import share_out
from phantora.nodes.ray_cluster import join


class RayNodes:
    """The living nodes of a cluster, the driver's first. Implements ``phantora.nodes.driver.Nodes``."""

    def __init__(self, address: str, working_dir: str, of_rank: int) -> None:
        self._of_rank = of_rank
        self._ray = join(address, working_dir)
        self.host = str(self._ray.util.get_node_ip_address())
        self.folder = "" if working_dir else str(Path.cwd())
        found = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not found:
            self.stop()
            raise PhantoraError(f"--ray {address}: its nodes have no CPU to run on")
        self._nodes = sorted(found, key=lambda node: (node["NodeManagerAddress"] != self.host, node["NodeID"]))
        self._actors: dict[int, Any] = {}
        self._ends: dict[int, Any] = {}

    @property
    def rooms(self) -> list[int]:
        """Ranks that each node has memory for."""
        return [int(node["Resources"].get("memory", 0)) // self._of_rank for node in self._nodes]

    def name(self, node: int) -> str:
        """Address, and name where it is another one."""
        address, name = self._nodes[node]["NodeManagerAddress"], self._nodes[node].get("NodeName", "")
        return f"{name} ({address})" if name and name != address else str(address)

    def start(self, node: int, ranks: int, order: str) -> None:
        """An actor with a core for each rank, or all of the node, and their memory."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cores = min(ranks, int(self._nodes[node]["Resources"]["CPU"]))
        actor = self._ray.remote(_Agent).options(
            num_cpus=cores,
            memory=ranks * self._of_rank,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._nodes[node]["NodeID"], soft=False),
        )
        self._actors[node] = actor.remote()
        self._ends[node] = self._actors[node].run.remote(order)

    def failure(self, node: int) -> str:
        """How the agent has ended, if it has."""
        ready, _ = self._ray.wait([self._ends[node]], timeout=0)
        if not ready:
            return ""
        try:
            return str(self._ray.get(ready[0]))
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return lines[0].rstrip(".") if lines else type(error).__name__

    def stop(self) -> None:
        """Ends the actors and leaves Ray."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.shutdown()


class _Agent:
    """On a node: runs the agent as a child of this process, with which it ends."""

    def run(self, order: str) -> str:
        """Until it has ended: the last line that it printed, or its status."""
        agent = start_agent(order)
        assert agent.stderr is not None
        lines = [line for line in agent.stderr.read().splitlines() if line.strip()]
        status = agent.wait()
        return (lines[-1] if lines else f"status {status}") if status else "it was not needed any more"


def start_agents(plan: Plan, console: Console, of_rank: int) -> Agents:
    """The agents of a run with --ray; a node reserves `of_rank` bytes for each of its ranks.

    Raises PhantoraError if the cluster does not answer or has no room."""
    nodes = RayNodes(plan.spec.launch.ray, plan.spec.launch.working_dir, of_rank)
    try:
        shares = share_out(plan.hosts, plan.ranks_per_host, nodes.rooms)
        agents = Agents(nodes, shares, plan, console)
    except BaseException:
        nodes.stop()
        raise
    console.message(f"phantora: ranks run on {', '.join(agents.described())}")
    return agents
