"""Runs tasks on a cluster of Ray: placed by cores and memory, begun anew where a worker died."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.nodes.ray_cluster import join
from phantora.sweeps.pool import cores_of, memory_of, run_alone
from phantora.sweeps.result import Result
from phantora.sweeps.task import Task

RETRIES = 5  # of a task whose worker or node dies
POLL_SECONDS = 1.0


class RayEngine:
    """`address` as ``ray.init`` takes it (``auto``, ``HOST:PORT``, ``ray://HOST:10001``), or ``local`` for a cluster
    that is begun on this machine. The folder of the sweep and the script must be found under the same path on every
    node."""

    def __init__(self, address: str) -> None:
        self._ray = join(address)
        self._running: dict[Any, Task] = {}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._cores = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        self._all_cores = sum(int(node.get("CPU", 0)) for node in nodes)
        self._memory = max((int(node.get("memory", 0)) for node in nodes), default=0)
        if not self._cores:
            self.close()
            raise PhantoraError(f"--ray {address}: its nodes have no CPU to run on")

    def has_room(self, task: Task) -> bool:
        """True if one more task can begin now, by CPU cores."""
        taken = sum(cores_of(one, self._cores) for one in self._running.values())
        return not self._running or taken + cores_of(task, self._cores) <= self._all_cores

    def begin(self, task: Task) -> None:
        """Gives the task to Ray."""
        remote = self._ray.remote(_run).options(
            num_cpus=cores_of(task, self._cores),
            memory=min(memory_of(task), self._memory),
            max_retries=RETRIES,
            name=f"phantora {task.point.label()}",
        )
        self._running[remote.remote(task, os.getcwd())] = task

    def finished(self) -> list[tuple[Task, Result]]:
        """Tasks that ended, with their results; waits for one. Empty if none is running."""
        if not self._running:
            return []
        ready: list[Any] = []
        while not ready:  # Ctrl-C is heard between two waits
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
        return [(self._running.pop(reference), self._result(reference)) for reference in ready]

    def _result(self, reference: Any) -> Result:
        try:
            result: Result = self._ray.get(reference)
            return result
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PhantoraError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise PhantoraError(
                f"Ray gave up a point after {RETRIES} workers: {str(error).splitlines()[0]}; "
                "start the same sweep again: it goes on where it was"
            ) from error

    def close(self) -> None:
        """Cancels what is running and leaves Ray."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _run(task: Task, folder: str) -> Result:
    """On a worker. Its child ends when it does."""
    if not Path(folder).is_dir():
        where = os.uname().nodename
        raise PhantoraError(f"{folder} does not exist on {where}: a sweep over nodes needs a shared folder")
    os.chdir(folder)
    return run_alone(task)
