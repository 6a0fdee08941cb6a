"""The agent of one node: starts its ranks with a fork server, carries their output, relays their memory.

It reads its :class:`Order` from standard input and connects to the terminal. It ends with that connection, and its
ranks end with it.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from phantora import process, stubs
from phantora.errors import PhantoraError
from phantora.launch.environment import follower_environment
from phantora.launch.forkserver import received
from phantora.launch.shared_forkserver import VARIABLE as SHARED_SERVER
from phantora.launch.shared_forkserver import ForkedServer, connected_to, open_server, send
from phantora.nodes.channel import Channel, tune
from phantora.nodes.identity import identity
from phantora.nodes.relay import Relay
from phantora.sim.idle import Asked, LocalProcesses
from phantora.spec import VARIABLE, RankSpec
from phantora.wire.session import Session

CHECK_SECONDS = 0.5
"""Seconds from one check of the relay's connection to the next."""
CONNECT_SECONDS = 20.0
_PIECE = 1 << 16  # bytes of output in one message
_BOOTSTRAP = (
    "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "  # with its parent, while it imports too
    "from phantora.nodes.agent import main; main()"
)
_OF_NODE = (
    *("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "XDG_CACHE_HOME"),
)
"""Variables that an agent takes from its node, and not from the terminal."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What an agent is started with."""

    host: str
    port: int
    token: str
    node: int
    """Number of the node in the run."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


class Agent:
    """One agent. Create it, call :meth:`run` once."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._processes = LocalProcesses()
        self._selector = selectors.DefaultSelector()
        self._ended = False
        self._server: subprocess.Popen[bytes] | ForkedServer | None = None
        self._link: socket.socket | None = None
        self._session: Session | None = None
        self._relay: Relay | None = None
        self._load: dict[str, Any] = {}
        self._failures, self._tasks = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("failures", "tasks"))
        self._stub_set: stubs.StubSet | None = None
        self._channel = Channel(self._connect("messages"))
        self._channel.send(asdict(identity()))

    def _connect(self, what: str) -> socket.socket:
        link = socket.create_connection((self._order.host, self._order.port), timeout=CONNECT_SECONDS)
        link.settimeout(None)
        tune(link)
        Channel(link).send({"token": self._order.token, "node": self._order.node, "for": what})
        return link

    def run(self) -> None:
        """Until the terminal ends the connection, or the node cannot go on."""
        process.raise_descriptor_limit()
        process.adopt_orphans()
        self._selector.register(self._channel.link, selectors.EVENT_READ, self._on_message)
        try:
            while not self._ended:
                for key, _ in self._selector.select(CHECK_SECONDS):
                    key.data()
                if self._relay is not None and self._relay.lost is not None:
                    break
        finally:
            self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        process.kill_descendants()
        if self._relay is not None:
            self._relay.close()

    # ------------------------------------------------------------------ from the terminal

    def _on_message(self) -> None:
        received = self._channel.receive()
        if received is None:
            self._ended = True
            return
        message, data = received
        what = message.pop("do")
        try:
            getattr(self, f"_do_{what}")(data=data, **message)
        except PhantoraError as error:
            self._channel.send({"is": "failed", "message": str(error)})

    def _do_load(
        self, environment: Mapping[str, str], folder: str, script: str, load: Mapping[str, Any], data: bytes
    ) -> None:
        self._enter(folder, script)
        for name in set(os.environ) - set(environment) - {*_OF_NODE, SHARED_SERVER}:
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if name not in _OF_NODE})
        self._stub_set = stubs.ensure(progress=lambda text: self._channel.send({"is": "progress", "text": text}))
        here = {"stubs": str(self._stub_set.directory), "ranks": self._ranks(load["ranks"])}
        self._load = {**load, **here}
        self._open_server()

    def _open_server(self) -> None:
        path = os.environ.get(SHARED_SERVER)
        self._link, self._server = open_server(self._load, connected_to(path) if path else None)
        self._selector.register(self._link, selectors.EVENT_READ, self._on_server)

    def _enter(self, folder: str, script: str) -> None:
        where = os.uname().nodename
        try:
            os.chdir(folder)
        except OSError:
            raise PhantoraError(
                f"{folder} does not exist on {where}: share the folder, or ship it with --working-dir"
            ) from None
        if script and not os.path.exists(script):
            raise PhantoraError(
                f"no script {script!r} in {os.getcwd()} on {where}: share its folder, or ship it with --working-dir"
            )

    def _ranks(self, text: str) -> str:
        """The ranks' spec with the files of this node."""
        failures, tasks = (f"/proc/{os.getpid()}/fd/{file}" for file in (self._failures, self._tasks))
        return replace(RankSpec.from_json(text), failures=failures, tasks=tasks).to_json()

    def _do_session(self, ranks: list[int], data: bytes) -> None:
        assert self._stub_set is not None
        self._session = Session.like(data, ranks)
        self._relay = Relay.of_node(self._stub_set.engine, self._session, self._order.node, self._connect("memory"))

    def _do_store(self, port: int, data: bytes) -> None:
        assert self._link is not None
        send(self._link, {"do": "store", "port": port})

    def _do_rank(self, rank: int, environment: dict[str, str], data: bytes, **task: Any) -> None:
        assert self._session is not None and self._stub_set is not None and self._link is not None
        ranks = RankSpec.from_json(self._ranks(environment[VARIABLE]))
        of_children = replace(ranks, session=self._session.path, stubs=str(self._stub_set.directory), joined=True)
        environment |= follower_environment(os.environ, of_children)
        ends = []
        for stream in (1, 2):
            read, write = os.pipe2(os.O_CLOEXEC)
            self._selector.register(read, selectors.EVENT_READ, self._reader(rank, stream, read))
            ends.append(write)
        task = {"do": "rank", "rank": rank, "environment": environment, **task}
        send(self._link, task, [*ends, self._session.fd])
        for end in ends:
            os.close(end)

    def _do_signal(self, pid: int, number: int, data: bytes) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def _do_look(self, asked: list[list[Any]], data: bytes) -> None:
        found = self._processes.activities([Asked(*one) for one in asked])
        self._channel.send(
            {"is": "answer", "found": [None if one is None else asdict(one) for one in found], "heads": self._heads()}
        )

    def _do_stopped(self, pid: int, data: bytes) -> None:
        self._channel.send({"is": "answer", "found": self._processes.stopped(pid)})

    def _do_places(self, pids: dict[str, int], data: bytes) -> None:
        found = self._processes.places({int(rank): pid for rank, pid in pids.items()})
        self._channel.send({"is": "answer", "found": {rank: asdict(place) for rank, place in found.items()}})

    def _heads(self) -> dict[int, int]:
        """Records that each rank of this node has written."""
        session = self._session
        return {} if session is None else {rank: int(session.control["head"][rank]) for rank in session.real}

    # ------------------------------------------------------------------ from the fork server and the ranks

    def _on_server(self) -> None:
        assert self._link is not None and self._server is not None
        data = received(self._link)
        if not data:
            self._selector.unregister(self._link)
            self._link.close()
            code = self._server.wait()
            self._channel.send({"is": "failed", "message": f"the fork server {process.describe_exit(code)}"})
            self._ended = True  # its ranks have died with it
            return
        message = json.loads(data)
        if message["is"] == "spoiled":  # each rank imports by itself
            self._load["shared"] = []
            if isinstance(self._server, ForkedServer):  # none was forked; another has the rest
                self._selector.unregister(self._link)
                self._link.close()
                self._open_server()
            else:
                send(self._link, self._load)
            return
        if message["is"] == "here":
            assert isinstance(self._server, ForkedServer)
            self._server.known(message["pid"])
            return
        if message["is"] == "ended":
            self._send_failures()
            message["head"] = self._heads()[message["rank"]]
        self._channel.send(message)

    def _send_failures(self) -> None:
        if news := b"".join(iter(lambda: os.read(self._failures, _PIECE), b"")):
            self._channel.send({"is": "noted"}, news)

    def _reader(self, rank: int, stream: int, read: int) -> Callable[[], None]:
        def forward() -> None:
            data = os.read(read, _PIECE)
            self._channel.send({"is": "output", "rank": rank, "stream": stream}, data)
            if not data:
                self._selector.unregister(read)
                os.close(read)

        return forward


def start_agent(order: str) -> subprocess.Popen[str]:
    """Starts an agent as a child of the calling thread, with an :class:`Order` as JSON; what it prints can be read."""
    agent = subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP, str(os.getpid())],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert agent.stdin is not None
    agent.stdin.write(order + "\n")
    agent.stdin.close()
    return agent


def main() -> None:
    """The agent's process."""
    process.die_with_parent(int(sys.argv[1]))
    order = Order(**json.loads(sys.stdin.readline()))
    try:
        agent = Agent(order)
    except OSError as error:
        sys.exit(f"phantora: {os.uname().nodename} cannot reach {order.host}:{order.port}: {error}")
    agent.run()
