"""What the simulator asks about processes, answered by the agents of their nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from phantora.nodes.driver import Agents
from phantora.sim.idle import Activity, Asked
from phantora.wire.relayed import PID_BITS
from phantora.wire.stacks import Place


class NodeProcesses:
    """Implements ``phantora.sim.idle.Processes``."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.delay = 0.0
        """Seconds of the last answer: a message between two nodes takes less."""

    def activities(self, asked: Sequence[Asked]) -> list[Activity | None]:
        """A rank counts as awake while records of its node have not arrived."""
        questions: dict[int, dict[str, Any]] = {}
        places: dict[int, list[int]] = defaultdict(list)
        for place, one in enumerate(asked):
            node, (_, pid) = one.pid >> PID_BITS, self._agents.process(one.pid)
            question = questions.setdefault(node, {"do": "look", "asked": []})
            question["asked"].append([pid, one.only_clock_threads, one.children])
            places[node].append(place)
        began = time.monotonic()
        answers = self._agents.ask(questions)
        self.delay = time.monotonic() - began
        found: list[Activity | None] = [None] * len(asked)
        for node, answer in answers.items():
            if answer is None:
                continue
            come = self._agents.has_come(answer["heads"])
            for place, values in zip(places[node], answer["found"], strict=True):
                if values is not None:
                    asleep, switches = values["asleep"] and come, tuple(values["switches"])
                    found[place] = Activity(asleep, switches, values["ran"], values["disk"])
        return found

    def stopped(self, pid: int) -> bool:
        """Asks the process's node."""
        node, (_, own) = pid >> PID_BITS, self._agents.process(pid)
        answer = self._agents.ask({node: {"do": "stopped", "pid": own}})[node]
        return answer is not None and bool(answer["found"])

    def places(self, pids: Mapping[int, int]) -> dict[int, Place]:
        """Asks all nodes at once."""
        questions: dict[int, dict[str, Any]] = {}
        for rank, pid in pids.items():
            question = questions.setdefault(pid >> PID_BITS, {"do": "places", "pids": {}})
            question["pids"][str(rank)] = self._agents.process(pid)[1]
        answers = self._agents.ask(questions).values()
        return {int(r): Place(**place) for one in answers if one is not None for r, place in one["found"].items()}
