"""The terminal's supervisor: starts the ranks of a plan, carries their output, and ends everything in order.

Whatever happens (a failing rank, Ctrl-C, a killed fork server, an error of the simulation), no
process, descriptor or temporary file outlives the run.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from phantora import process
from phantora.errors import PhantoraError, Reason, reason_of
from phantora.launch import daemon
from phantora.launch.ending import (
    Elsewhere,
    Ending,
    Outcome,
    RunningSimulator,
    SharedArea,
    Signals,
    SimulatorThread,
    drain,
    error_message,
    signals_received,
)
from phantora.launch.environment import follower_environment
from phantora.launch.forkserver import received
from phantora.launch.machine_memory import SECONDS, MachineMemory
from phantora.launch.output import Console, Outputs, Stream
from phantora.launch.plan import MASTER_ADDRESS, STDERR, Plan, rank_environment
from phantora.launch.shared_forkserver import VARIABLE, ForkedServer, connected_to, open_server, send

GRACE_SECONDS = 2.0
"""Seconds for which the others may continue after the first rank failed, to report errors."""
DRAIN_SECONDS = 1.0
"""Seconds for which a pipe is read after its rank ended (a grandchild may keep it open)."""


class RankSupervisor:
    """One run of a plan. Create it, call :meth:`run` once."""

    def __init__(
        self,
        plan: Plan,
        console: Console,
        *,
        stubs: Path,
        status_line: Callable[[int, int], str | None] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._plan = plan
        self._elsewhere = elsewhere
        self._console = console
        self._load = {
            "do": "load",
            "stubs": str(stubs),
            "devices": plan.ranks.devices,
            "argv": [plan.spec.target, *plan.spec.arguments],
            "imports": list(plan.imports),
            "shared": list(plan.shared),
            "ranks": plan.ranks.to_json(),
        }
        self._stubs = stubs
        self._status_line = status_line
        self._outputs = Outputs(plan)
        self._outputs.check()
        self._outcome = Outcome() if elsewhere is None else Outcome(node_of=elsewhere.node_of)
        self._ending = Ending()
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, list[Stream]] = {}
        self._last_words: dict[int, str] = {}
        self._alive: dict[int, int] = {}  # rank -> pid
        self._ended: dict[int, float] = {}  # rank -> when
        self._started = False
        self._shared = True
        self._store = MASTER_ADDRESS, 0
        self._begin = time.monotonic()
        self._memory = MachineMemory() if elsewhere is None else None
        self._next_look = self._begin
        self._session: SharedArea | None = None
        self._simulator: SimulatorThread | None = None
        process.raise_descriptor_limit()
        self._link, self._server = self._start_server()

    def _start_server(self) -> tuple[socket.socket, subprocess.Popen[bytes] | ForkedServer | Elsewhere]:
        """The server imports torch while the caller prepares the simulator."""
        server: subprocess.Popen[bytes] | ForkedServer | Elsewhere
        if self._elsewhere is not None:
            self._elsewhere.link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            send(self._elsewhere.link, self._load)
            link, server = self._elsewhere.link, self._elsewhere
        else:
            link, server = open_server(self._load, self._shared_link() if self._shared else None)
        process.adopt_orphans()
        self._selector.register(link, selectors.EVENT_READ, self._on_server)
        return link, server

    def _shared_link(self) -> socket.socket | None:
        """A link to a server of several runs; None if this run has its own."""
        if path := os.environ.get(VARIABLE):
            return connected_to(path)
        minutes = daemon.idle_minutes(os.environ)
        if not minutes or not self._plan.spec.daemon:
            return None
        try:
            return daemon.connected(minutes)
        except PhantoraError as error:
            self._console.message(f"phantora: note: no daemon ({error}): this run imports torch itself")
            return None

    # ------------------------------------------------------------------ the loop

    def run(self, session: SharedArea | None, simulator: RunningSimulator | None) -> Outcome:
        """Blocks until all ranks and the simulator have ended. Never raises for a failing run."""
        self._session = session
        try:
            with signals_received() as signals:
                if simulator is not None:
                    self._simulator = SimulatorThread(simulator, signals.wake)
                    self._simulator.start()
                self._selector.register(signals.read, selectors.EVENT_READ, lambda: drain(signals.read))
                self._draw()
                while not self._finished():
                    self._step(signals)
                self._look_at_simulator()
        except BrokenPipeError:  # the reader of our output has gone, as with `| head`
            self._outcome.status = self._outcome.status or 128 + signal.SIGPIPE
        except PhantoraError as error:  # or that cannot be written
            self._fail(error.exit_status, str(error), reason=error.reason)
        finally:
            try:
                self.close()
            except KeyboardInterrupt as error:  # the ranks have ended: their log is worth keeping
                self._outcome.interrupt(error)
                self.close()
        if self._outcome.failed_rank is not None:
            self._outcome.last_words = self._last_words.get(self._outcome.failed_rank, "")
        self._outcome.printed_mfu = self._outputs.mfu.value()
        self._outcome.wall_seconds = time.monotonic() - self._begin
        return self._outcome

    def _finished(self) -> bool:
        if self._server_gone and not self._streams:
            return True
        if not self._started or self._alive or self._streams:
            return False
        return self._simulator is None or self._simulator.done

    def _step(self, signals: Signals) -> None:
        for key, _ in self._selector.select(self._timeout()):
            key.data()
        while signals.received:
            number = signals.received.pop(0)
            self._outcome.interrupted = self._outcome.interrupted or number
            self._fail(128 + number, f"interrupted by {process.signal_name(number)}", reason=Reason.INTERRUPTED)
        self._look_at_simulator()
        self._look_at_memory()
        number = self._ending.due()
        if number:
            self._signal_ranks(number)
        self._close_orphaned_pipes()
        self._draw()

    def _draw(self) -> None:
        if self._status_line is not None:
            reported, alive = self._status_line, len(self._alive)
            self._console.draw(lambda width: reported(alive, width))

    def _look_at_simulator(self) -> None:
        simulator = self._simulator
        if simulator is None or not simulator.done or simulator.error is None or self._outcome.status:
            return
        if os.environ.get("PHANTORA_DEBUG"):
            self._console.message("".join(traceback.format_exception(simulator.error)).rstrip())
        status, reason = getattr(simulator.error, "exit_status", 1), reason_of(simulator.error)
        self._fail(status, error_message(simulator.error), reason=reason)

    def _look_at_memory(self) -> None:
        """Ends the run before the machine is out of memory."""
        now = time.monotonic()
        if self._memory is None or self._ending.stage or now < self._next_look:
            return
        self._next_look = now + SECONDS
        text, ends = self._memory.look(lambda: process.with_descendants(filter(None, self._alive.values())))
        if ends:
            self._fail(1, text, reason=Reason.REFUSED)
            self._signal_ranks(signal.SIGKILL)  # at once: SIGTERM gives time to take the rest
        elif text:
            self._console.message(f"phantora: note: {text}")

    def _timeout(self) -> float | None:
        timeouts = [t for t in (self._ending.timeout(),) if t is not None]
        if self._memory is not None and self._alive:
            timeouts.append(SECONDS)
        if self._status_line is not None:
            timeouts.append(0.25)
        if any(rank in self._ended for rank in self._streams):
            timeouts.append(0.1)
        return min(timeouts, default=None)

    def _fail(self, status: int, message: str, *, reason: Reason, grace: float = 0.0, rank: int | None = None) -> None:
        """Notes the first failure and starts ending the rest."""
        self._outcome.fail(status, reason, message, rank)
        self._ending.begin(grace)

    def _signal_ranks(self, number: int) -> None:
        if self._session is not None:
            self._session.abort()
        if not self._started or self._server_gone:
            self._server.kill()
        for pid in filter(None, self._alive.values()):  # 0: not forked yet, see _when_started
            self._signal(pid, number)

    def _signal(self, pid: int, number: int) -> None:
        if self._elsewhere is not None:
            self._elsewhere.signal(pid, number)
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    # ------------------------------------------------------------------ events

    @property
    def _server_gone(self) -> bool:
        return self._link.fileno() < 0

    def _on_server(self) -> None:
        data = received(self._link)
        if not data:
            self._selector.unregister(self._link)
            self._link.close()
            if isinstance(self._server, ForkedServer) and not self._server.is_known:  # the shared one has ended
                self._shared = False
                self._link, self._server = self._start_server()
                return
            code = self._server.wait()
            self._alive.clear()  # they died with it
            now = time.monotonic()
            self._ended.update(dict.fromkeys(self._streams, now))
            self._fail(
                process.shell_status(code) or 1, f"the fork server {process.describe_exit(code)}", reason=Reason.REFUSED
            )
            return
        message: dict[str, Any] = json.loads(data)
        getattr(self, "_when_" + message.pop("is"))(**message)

    def _when_here(self, pid: int) -> None:
        assert isinstance(self._server, ForkedServer)
        self._server.known(pid)

    def _when_printed(self, text: str) -> None:
        self._console.write(STDERR, text.encode())

    def _when_failed(self, message: str) -> None:
        self._fail(1, message, reason=Reason.REFUSED)

    def _when_spoiled(self) -> None:
        """The imports of the script cannot be shared: each rank imports by itself."""
        self._load["shared"] = []
        if isinstance(self._server, ForkedServer):  # none was forked; another has the rest
            self._selector.unregister(self._link)
            self._link.close()
            self._link, self._server = self._start_server()
        else:
            send(self._link, self._load)

    def _when_loaded(self, seconds: float, threads: int) -> None:
        if threads > 1:
            self._console.message(
                f"phantora: warning: an imported module started {threads - 1} threads, which do not exist "
                "in the ranks; if a rank hangs at its start, look at --preload and at sitecustomize"
            )
        send(self._link, {"do": "store", "port": self._plan.spec.launch.master_port})

    def _when_store(self, port: int, pid: int, address: str = MASTER_ADDRESS) -> None:
        self._store = address, port
        if self._simulator is not None:
            self._simulator.simulator.watch(pid)
        self._outcome.startup_seconds = time.monotonic() - self._begin
        if self._ending.stage:
            return
        for rank in self._plan.processes:
            self._start_rank(rank)
        self._started = True

    def _start_rank(self, rank: int) -> None:
        plan = self._plan
        streams, ends = self._outputs.open(rank)
        self._streams[rank] = streams
        for stream in streams:
            self._selector.register(stream.fd, selectors.EVENT_READ, lambda s=stream, r=rank: self._on_output(r, s))
        task = {
            "do": "rank",
            "rank": rank,
            "local_rank": rank % plan.ranks_per_host,
            "environment": rank_environment(plan, rank, *self._store) | self._of_children(),
            "target": plan.spec.target,
            "arguments": plan.spec.arguments,
            "module": plan.module,
        }
        fds = [*ends] if self._session is None or rank != self._plan.processes[0] else [*ends, self._session.fd]
        send(self._link, task, fds)
        for end in ends:
            os.close(end)
        self._alive[rank] = 0

    def _of_children(self) -> dict[str, str]:
        """Environment with which Python processes that a rank starts see the simulated GPUs."""
        if self._session is None or self._elsewhere is not None:  # the agent of their node has its own session
            return {}
        ranks = replace(self._plan.ranks, session=self._session.path, stubs=str(self._stubs), joined=True)
        return follower_environment(os.environ, ranks)

    def _when_started(self, rank: int, pid: int) -> None:
        self._alive[rank] = pid
        if self._ending.stage >= 2:
            self._signal(pid, signal.SIGTERM if self._ending.stage == 2 else signal.SIGKILL)

    def _when_not_forked(self, rank: int, message: str) -> None:
        self._fail(1, f"rank {rank}: {message}", reason=Reason.REFUSED, rank=rank)
        self._gone(rank, 1)

    def _when_ended(self, rank: int, code: int) -> None:
        if code != 0 and not self._ending.stage:
            reason = Reason.UNSUPPORTED if code == os.EX_CONFIG else Reason.SCRIPT_FAILED
            what = self._describe_failure(rank, code)
            self._fail(process.shell_status(code), what, reason=reason, grace=GRACE_SECONDS, rank=rank)
            self._outcome.log_path = str(self._outputs.log_path(rank, STDERR) or "")
        self._gone(rank, process.shell_status(code))

    def _gone(self, rank: int, status: int) -> None:
        self._alive.pop(rank, None)
        self._ended[rank] = time.monotonic()
        if self._simulator is not None:
            self._simulator.simulator.rank_died(rank, status)

    def _describe_failure(self, rank: int, code: int) -> str:
        plan = self._plan
        host, local = divmod(rank, plan.ranks_per_host)
        node = f", node {name}" if (name := self._outcome.node_of(rank)) else ""
        where = f" (host {host}, GPU {local}{node})" if plan.world_size > 1 else ""
        log = self._outputs.log_path(rank, STDERR)
        return f"rank {rank}{where} {process.describe_exit(code)}" + (f"; its log is {log}" if log else "")

    def _on_output(self, rank: int, stream: Stream) -> None:
        if not stream.pump(self._console):
            self._close_stream(rank, stream)

    def _close_stream(self, rank: int, stream: Stream) -> None:
        self._selector.unregister(stream.fd)
        stream.close()
        self._streams[rank].remove(stream)
        if stream.number == STDERR:
            self._last_words[rank] = stream.last_words
        if not self._streams[rank]:
            del self._streams[rank]

    def _close_orphaned_pipes(self) -> None:
        now = time.monotonic()
        for rank in [r for r in self._streams if now - self._ended.get(r, now) > DRAIN_SECONDS]:
            for stream in list(self._streams[rank]):
                self._close_stream(rank, stream)

    def close(self) -> None:
        """Ends what is left. Safe to call at any time and more than once."""
        self._console.clear()
        if self._session is not None and (self._outcome.status or self._alive):
            self._session.abort()
        if not self._server_gone:
            self._link.close()
        if isinstance(self._server, ForkedServer):
            self._server.wait()  # it ends its ranks, and what they left behind
        if self._server.poll() is None:
            self._server.kill()
        self._server.wait()
        if self._simulator is not None:
            self._simulator.finish(stop=True)
        process.kill_descendants()
        for rank in list(self._streams):
            for stream in list(self._streams[rank]):
                self._close_stream(rank, stream)
        if repeated := self._outputs.repeats.line():
            self._console.message(repeated)
        self._selector.close()
