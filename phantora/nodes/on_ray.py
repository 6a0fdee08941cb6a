"""Agents on a Ray cluster. Ray places them; what they say goes over connections of their own."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from phantora import process
from phantora.errors import PhantoraError
from phantora.launch.output import Console
from phantora.launch.plan import Plan
from phantora.nodes.agent import CONNECT_SECONDS, start_agent
from phantora.nodes.driver import Agents
from phantora.nodes.identity import Identity, compare, identity
from phantora.nodes.placement import share_out
from phantora.nodes.ray_cluster import join


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """What ``phantora doctor --ray`` finds on a node."""

    name: str
    cores: int
    ranks: int
    """Ranks for which it has memory."""
    problem: str
    """Reason why ranks cannot run there; "": none."""


CHECK_SECONDS = 60.0
"""Seconds in which a node must answer."""


def folder_of_ranks(working_dir: str) -> str:
    """The current folder on a node: its own path, or its place in the `working_dir` that an agent starts in."""
    return os.path.relpath(os.getcwd(), working_dir) if working_dir else os.getcwd()


class RayNodes:
    """The living nodes of a cluster, the driver's first. Implements ``phantora.nodes.driver.Nodes``."""

    def __init__(self, address: str, working_dir: str, of_rank: int) -> None:
        self._of_rank = of_rank
        self._ray = join(address, working_dir)
        self.host = str(self._ray.util.get_node_ip_address())
        self.folder = folder_of_ranks(working_dir)
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

    def check(self, node: int, port: int) -> NodeCheck:
        """Asks the node for its software, and lets it connect to `port` of this machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._nodes[node]["NodeID"], soft=False)
        asked = self._ray.remote(_visit).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        try:
            theirs, problem = self._ray.get(asked.remote(self.host, port), timeout=CHECK_SECONDS)
            compare(identity(), theirs)
        except PhantoraError as error:
            problem = str(error)
        except Exception as error:
            problem = _line(error, -1)
        cores = int(self._nodes[node]["Resources"]["CPU"])
        return NodeCheck(name=self.name(node), cores=cores, ranks=self.rooms[node], problem=problem)

    def failure(self, node: int) -> str:
        """How the agent has ended, if it has."""
        ready, _ = self._ray.wait([self._ends[node]], timeout=0)
        if not ready:
            return ""
        try:
            return str(self._ray.get(ready[0]))
        except Exception as error:
            return _line(error, 0)

    def stop(self) -> None:
        """Ends the actors and leaves Ray."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.shutdown()


def _line(error: Exception, place: int) -> str:
    """A line of an error's text."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[place].strip().rstrip(".") if lines else type(error).__name__


def _visit(host: str, port: int) -> tuple[Identity, str]:
    """On a node: its software, and the reason why it cannot connect to the driver."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return identity(), f"cannot connect to {host}, where the command runs: {error}"
    return identity(), ""


class _Agent:
    """On a node: runs the agent as a child of this process, with which it ends."""

    def run(self, order: str) -> str:
        """Until it has ended: the last line that it printed, or its status."""
        process.die_with_parent(os.getppid())  # Ray leaves a busy actor alone when the node's raylet is killed
        agent = start_agent(order)
        assert agent.stderr is not None
        lines = [line for line in agent.stderr.read().splitlines() if line.strip()]
        status = agent.wait()
        return (lines[-1] if lines else f"status {status}") if status else "it was not needed any more"


def check_nodes(address: str, of_rank: int) -> list[NodeCheck]:
    """All nodes of a cluster. Raises PhantoraError if it does not answer."""
    nodes = RayNodes(address, "", of_rank)
    try:
        with socket.create_server((nodes.host, 0)) as listener:
            return [nodes.check(node, listener.getsockname()[1]) for node in range(len(nodes.rooms))]
    finally:
        nodes.stop()


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
    if not plan.ranks.quiet:
        console.message(f"phantora: ranks run on {', '.join(agents.described())}")
    return agents
