"""The terminal's side of the agents: for the supervisor they are one fork server."""

from __future__ import annotations

import json
import os
import queue
import secrets
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from phantora.errors import PhantoraError
from phantora.launch.forkserver import MESSAGE_BYTES
from phantora.launch.output import Console
from phantora.launch.plan import Plan
from phantora.launch.shared_forkserver import VARIABLE as SHARED_SERVER
from phantora.nodes.agent import Order
from phantora.nodes.channel import Channel, tune
from phantora.nodes.identity import Identity, compare, identity
from phantora.nodes.placement import Share
from phantora.nodes.relay import Relay, Traffic
from phantora.result import few
from phantora.spec import MODULE
from phantora.wire.relayed import PID_BITS
from phantora.wire.session import Session

START_SECONDS = 300.0
"""Seconds until all agents must have connected; stubs may be compiled after that."""
END_SECONDS = 10.0
"""Seconds in which an agent ends its ranks."""
ANSWER_SECONDS = 60.0
"""Seconds in which an agent answers a question about its processes."""
_TICK_SECONDS = 0.25
_STATUS_SECONDS = 2.0
"""How long the status of an agent may come after the end of its connection, which the kernel closes first."""
_HEAD_SECONDS = 10.0


class Nodes(Protocol):
    """Machines that agents can be started on."""

    @property
    def host(self) -> str:
        """Address of this machine for them."""

    @property
    def folder(self) -> str:
        """Folder on each that stands for the current one here; relative to the one that an agent starts in."""

    def name(self, node: int) -> str:
        """Name of a node for messages."""

    def start(self, node: int, ranks: int, order: str) -> None:
        """Starts an agent for `ranks` ranks; `order` is an :class:`Order` as JSON."""

    def failure(self, node: int) -> str:
        """Reason why the agent of a node has ended or cannot start; "": it runs."""

    def stop(self) -> None:
        """Gives back what :meth:`start` took."""


@dataclass(kw_only=True)
class _Agent:
    share: Share
    name: str
    identity: Identity | None = None
    channel: Channel | None = None
    memory: socket.socket | None = None
    loaded: dict[str, Any] | None = None
    shares: bool = False
    """Whether it was sent the simulator's memory."""
    lost: bool = False
    running: set[int] = field(default_factory=set)
    """Ranks that were started and have not ended."""
    answers: queue.SimpleQueue[dict[str, Any] | None] = field(default_factory=queue.SimpleQueue)

    def __str__(self) -> str:
        return f"node {self.name} (ranks {few(self.share.ranks)})"

    def send(self, message: Mapping[str, Any], data: bytes = b"") -> None:
        if self.channel is not None and not self.lost:
            self.channel.send(message, data)

    def answer(self) -> dict[str, Any] | None:
        """Waits for the answer to a question; None if the agent is lost."""
        try:
            return None if self.lost else self.answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise PhantoraError(f"{self}: its agent has not answered for {ANSWER_SECONDS:.0f} s") from None


class Agents:
    """The agents of one run, and a thread that speaks with them. Implements ``phantora.launch.ending.Elsewhere``."""

    def __init__(self, nodes: Nodes, shares: Sequence[Share], plan: Plan, console: Console) -> None:
        self._nodes, self._plan, self._console = nodes, plan, console
        self._agents = [_Agent(share=share, name=nodes.name(share.node)) for share in shares]
        self._agent_of = {rank: number for number, share in enumerate(shares) for rank in share.ranks}
        self._own = identity()
        self._token = secrets.token_hex(16)
        self._outputs: dict[tuple[int, int], int] = {}
        self._load: dict[str, Any] | None = None
        self._session: Session | None = None
        self._engine: Path | None = None
        self._relay: Relay | None = None
        self._ready = self._stopping = False
        self._killed: float | None = None
        self._began = time.monotonic()
        self.link, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener = socket.create_server((nodes.host, 0))
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._theirs, selectors.EVENT_READ, self._on_supervisor)
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connection)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda: os.read(self._wake_read, 4096))
        self._thread = threading.Thread(target=self._run, name="phantora-agents", daemon=True)
        port = self._listener.getsockname()[1]
        try:
            for number, agent in enumerate(self._agents):
                order = Order(host=nodes.host, port=port, token=self._token, node=number)
                nodes.start(agent.share.node, len(agent.share.ranks), order.to_json())
        except BaseException:
            nodes.stop()
            raise
        self._thread.start()

    # ------------------------------------------------------------------ for the supervisor

    def described(self) -> list[str]:
        """Each node with its ranks."""
        return [str(agent) for agent in self._agents]

    def share(self, session: Session, engine: Path) -> None:
        """The simulator's memory, and the library with the relay. Ranks start after that."""
        self._session, self._engine = session, engine
        self._wake()

    def node_of(self, rank: int) -> str:
        """Name of the node on which `rank` runs; "" if it is no rank."""
        agent = self._agent_of.get(rank)
        return "" if agent is None else self._agents[agent].name

    def signal(self, pid: int, number: int) -> None:
        """Sends a signal to a process of a node."""
        agent, own = self.process(pid)
        agent.send({"do": "signal", "pid": own, "number": number})
        if number == signal.SIGKILL and self._killed is None:
            self._killed = time.monotonic()

    def poll(self) -> int | None:
        """None while an agent may run."""
        return None if self._thread.is_alive() else 0

    def kill(self) -> None:
        """Ends the agents."""
        self._stopping = True
        self._wake()

    def wait(self) -> int:
        """Until they have ended."""
        self._thread.join()
        return 1

    def traffic(self) -> Traffic:
        """What the relay has sent and received."""
        return self._relay.traffic() if self._relay is not None else Traffic(0, 0, 0, 0)

    # ------------------------------------------------------------------ for the simulator

    def process(self, pid: int) -> tuple[_Agent, int]:
        """The agent of a process, and its pid there."""
        return self._agents[pid >> PID_BITS], pid & ((1 << PID_BITS) - 1)

    def ask(self, questions: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any] | None]:
        """Answers of agents by number; None from one that is lost. Raises PhantoraError if one is silent."""
        for number, question in questions.items():
            self._agents[number].send(question)
        return {number: self._agents[number].answer() for number in questions}

    def has_come(self, heads: Mapping[str, int]) -> bool:
        """True if the mirror has all records that ranks had written."""
        assert self._session is not None
        return all(int(self._session.control["head"][int(rank)]) >= head for rank, head in heads.items())

    # ------------------------------------------------------------------ the thread

    def _wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        try:
            while not self._stopping:
                for key, _ in self._selector.select(_TICK_SECONDS):
                    key.data()
                self._check()
        finally:
            self._end()

    def _end(self) -> None:
        """Ends the agents, and waits until they have ended their ranks."""
        self._listener.close()
        channels = [agent.channel for agent in self._agents if agent.channel is not None and not agent.lost]
        for channel in channels:
            with suppress(OSError):
                channel.link.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + END_SECONDS
        for channel in channels:
            channel.link.settimeout(max(0.1, deadline - time.monotonic()))
            while channel.receive() is not None:
                pass
            channel.close()
        for agent in self._agents:
            agent.lost = True
            agent.answers.put(None)
        if self._relay is not None:
            self._relay.close()
        for descriptor in self._outputs.values():
            os.close(descriptor)
        self._outputs.clear()
        self._nodes.stop()
        self._theirs.close()
        self._selector.close()
        os.close(self._wake_read)

    def _check(self) -> None:
        """What no message reports."""
        waited = time.monotonic() - self._began
        for number, agent in enumerate(self._agents):
            if agent.lost:
                continue
            failure = self._nodes.failure(agent.share.node) if agent.channel is None else ""
            if not failure and agent.channel is None and waited > START_SECONDS:
                failure = (
                    f"its agent did not connect to {self._nodes.host} within {START_SECONDS:.0f} s: is it reachable?"
                )
            if failure:
                self._lose(agent, failure)
            elif agent.running and self._killed is not None and time.monotonic() - self._killed > END_SECONDS:
                self._lose(agent, "its agent does not end its ranks")
            elif self._relay is not None and self._relay.lost == number:
                self._lose_connection(agent)
        if not self._ready and self._session is not None:
            self._connect_memory()

    def _connect_memory(self) -> None:
        """Ranks can start when all agents have loaded their modules and have their memory."""
        assert self._session is not None and self._engine is not None
        agents = self._agents
        for agent in agents:
            if agent.loaded is not None and not agent.shares:
                agent.shares = True
                agent.send({"do": "session", "ranks": agent.share.ranks}, self._session.shared_start())
        if not all(agent.memory for agent in agents):
            return
        self._ready = True
        nodes = [(agent.memory, agent.share.ranks) for agent in agents if agent.memory is not None]
        self._relay = Relay.of_simulator(self._engine, self._session, nodes)
        loads = [agent.loaded for agent in agents if agent.loaded is not None]
        self._report("loaded", **{name: max(load[name] for load in loads) for name in ("seconds", "threads")})

    def _report(self, what: str, **fields: Any) -> None:
        with suppress(OSError):  # the supervisor has ended
            self._theirs.sendall(json.dumps({"is": what, **fields}).encode())

    # ------------------------------------------------------------------ from the supervisor

    def _on_supervisor(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._theirs, MESSAGE_BYTES, 3)
        except OSError:  # it has left messages unread
            data, fds = b"", []
        if not data:
            self._stopping = True
            return
        message = json.loads(data)
        what = message["do"]
        if what == "load":
            self._load = message
            for agent in self._agents:
                self._send_load(agent)
        elif what == "store":
            self._agents[0].send(message)
        else:
            self._start_rank(message, fds)

    def _start_rank(self, task: dict[str, Any], fds: Sequence[int]) -> None:
        rank = int(task["rank"])
        for descriptor in fds[2:]:  # of the simulator's memory
            os.close(descriptor)
        agent = self._agents[self._agent_of[rank]]
        if agent.lost:
            for descriptor in fds[:2]:
                os.close(descriptor)
            self._report("ended", rank=rank, code=1)
            return
        self._outputs |= {(rank, 1): fds[0], (rank, 2): fds[1]}
        agent.running.add(rank)
        agent.send(task)

    def _send_load(self, agent: _Agent) -> None:
        if self._load is None or agent.identity is None:
            return
        environment = {name: value for name, value in os.environ.items() if name != SHARED_SERVER}
        spec = self._plan.spec
        script = "" if spec.kind == MODULE else spec.target
        agent.send(
            {
                "do": "load",
                "environment": environment,
                "folder": self._nodes.folder,
                "script": script,
                "load": self._load,
            }
        )

    # ------------------------------------------------------------------ from the agents

    def _on_connection(self) -> None:
        link, _ = self._listener.accept()
        link.settimeout(END_SECONDS)
        tune(link)
        channel = Channel(link)
        with suppress(PhantoraError):
            received = channel.receive()
            if received is not None and secrets.compare_digest(str(received[0].get("token")), self._token):
                link.settimeout(None)
                agent = self._agents[int(received[0]["node"])]
                if received[0]["for"] == "memory":
                    agent.memory = link
                else:
                    agent.channel = channel
                    self._selector.register(link, selectors.EVENT_READ, self._reader(agent))
                return
        link.close()  # somebody else's

    def _reader(self, agent: _Agent) -> Callable[[], None]:
        def on_message() -> None:
            assert agent.channel is not None
            received = agent.channel.receive()
            if received is None:
                self._lose_connection(agent)
            elif agent.identity is None:
                self._greet(agent, Identity(**received[0]))
            else:
                message, data = received
                getattr(self, f"_when_{message.pop('is')}")(agent, data=data, **message)

        return on_message

    def _greet(self, agent: _Agent, theirs: Identity) -> None:
        agent.identity = theirs
        try:
            compare(self._own, theirs)
        except PhantoraError as error:
            self._report("failed", message=str(error))
            return
        self._send_load(agent)

    def _lose_connection(self, agent: _Agent) -> None:
        deadline = time.monotonic() + _STATUS_SECONDS
        while not (why := self._nodes.failure(agent.share.node)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._lose(agent, "the connection to its agent has ended" + (f" ({why})" if why else ""))

    def _lose(self, agent: _Agent, why: str) -> None:
        agent.lost = True
        if agent.channel is not None:
            self._selector.unregister(agent.channel.link)
            agent.channel.close()
        agent.answers.put(None)
        self._report("failed", message=f"{agent}: {why}")
        for rank in sorted(agent.running):
            self._forget(rank)
            self._report("ended", rank=rank, code=-9)
        agent.running.clear()

    def _forget(self, rank: int) -> None:
        for stream in (1, 2):
            self._close_output(rank, stream)

    def _close_output(self, rank: int, stream: int) -> None:
        descriptor = self._outputs.pop((rank, stream), None)
        if descriptor is not None:
            os.close(descriptor)

    def _number(self, agent: _Agent, pid: int) -> int:
        return self._agents.index(agent) << PID_BITS | pid

    def _when_progress(self, agent: _Agent, text: str, data: bytes) -> None:
        self._console.message(f"phantora: node {agent.name}: {text}")

    def _when_failed(self, agent: _Agent, message: str, data: bytes) -> None:
        self._report("failed", message=f"node {agent.name}: {message}")

    def _when_loaded(self, agent: _Agent, data: bytes, **load: Any) -> None:
        agent.loaded = load

    def _when_store(self, agent: _Agent, port: int, pid: int, data: bytes) -> None:
        assert agent.channel is not None
        address = agent.channel.link.getpeername()[0]
        self._report("store", port=port, pid=self._number(agent, pid), address=address)

    def _when_started(self, agent: _Agent, rank: int, pid: int, data: bytes) -> None:
        self._report("started", rank=rank, pid=self._number(agent, pid))

    def _when_not_forked(self, agent: _Agent, rank: int, message: str, data: bytes) -> None:
        agent.running.discard(rank)
        self._forget(rank)
        self._report("not_forked", rank=rank, message=f"node {agent.name}: {message}")

    def _when_ended(self, agent: _Agent, rank: int, code: int, head: int, data: bytes) -> None:
        deadline = time.monotonic() + _HEAD_SECONDS
        while not self.has_come({str(rank): head}) and time.monotonic() < deadline:
            time.sleep(0.001)  # its last records are on their way
        agent.running.discard(rank)
        self._report("ended", rank=rank, code=code)

    def _when_output(self, agent: _Agent, rank: int, stream: int, data: bytes) -> None:
        descriptor = self._outputs.get((rank, stream))
        if descriptor is None:
            return
        if not data:
            self._close_output(rank, stream)
            return
        room = select.poll()  # its descriptors may have any number
        room.register(descriptor, select.POLLOUT)
        with suppress(BrokenPipeError):
            while data and not self._stopping:  # then nobody reads any more
                if room.poll(_TICK_SECONDS * 1000):
                    data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]

    def _when_noted(self, agent: _Agent, data: bytes) -> None:
        with open(self._plan.ranks.failures, "ab") as file:
            file.write(data)

    def _when_answer(self, agent: _Agent, data: bytes, **answer: Any) -> None:
        agent.answers.put(answer)
