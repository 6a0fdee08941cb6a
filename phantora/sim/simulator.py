"""The loop around the engine: prices for what is new, rows for the log, release of sleepers, diagnosis of hangs."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from phantora.cost.wanted import Wanted
from phantora.errors import PhantoraError, Reason
from phantora.hardware.types import Gpu
from phantora.sim.collectives import NcclEnvironment
from phantora.sim.config import SimulatorConfig, Stats
from phantora.sim.engine import library as native
from phantora.sim.hang import describe, working
from phantora.sim.idle import IdleDetector, LocalProcesses, Processes, descendants
from phantora.sim.kernel_profile import limit_power
from phantora.sim.pricing import Pricing
from phantora.sim.sharing import CONTEXT_SWITCH_NS, TIME_SLICE_NS
from phantora.trace.writer import LogWriter
from phantora.wire import layout
from phantora.wire.session import Session

_SLEEP_US = 2000  # longest sleep while a rank waits for an answer
_LONG_SLEEP_US = 20_000  # longest sleep where an iteration takes long, since many ranks are polled
_ITERATIONS_SHARE = 0.02  # of a core for iterations that find nothing new
_REST_US = 50_000  # longest sleep while no rank waits
_SLEEP_CHECK_S = 0.004  # nothing has moved for so long: are ranks asleep outside CUDA?
_POLLS_SHARE = 0.02  # of a core at most, while some rank computes: a poll costs more the more threads it has
_POLL_AGAIN_S = 0.25
_SECOND_POLL_S = 0.02  # to the second poll, where no rank ran at the first, which proves nothing
_LONG_SLEEP_S = 0.02  # as _SLEEP_CHECK_S, when no rank waits for an answer: a thread may poll for one
_ABSENT_S = 1.0  # all processes of a command sleep for so long: none is about to become a rank
_START_FACTOR = 10  # a rank's start (imports, a cold disk, a busy machine) may take ten hang timeouts
_GIVE_UP_S = 5.0  # all ranks wait for each other for so long: no other thread of theirs (a watchdog, a timer) aborts it
_NOTICE_FACTOR = 4  # from one notice of working ranks to the next
_STALL_S = 1.0  # a pause that is shorter may be chance
_AWAKE_SHARE = 0.05  # of the hang timeout: a process that was awake for longer was not blocked


def timing_of(gpu: Gpu, nccl: NcclEnvironment | None = None) -> native.Timing:
    """Times that streams of `gpu` add to durations.

    A peer has half of the channels of sends, with a buffer each: 64 MiB on 2 H200 with NCCL 2.28, which a send of
    64 MiB fits into and one of 128 MiB does not.
    """
    measured = gpu.calibration
    nvlink = gpu.nvlink_bandwidth > 0
    channels = measured.nccl_peer_channels // 2 if nvlink else measured.nccl_pcie_channels
    return native.Timing(
        launch_latency_ns=round(measured.launch_latency_ns),
        kernel_gap_ns=round(measured.kernel_gap_ns),
        crowded_gap_ns=round(measured.crowded_gap_ns),
        graph_gap_ns=round(measured.graph_gap_ns),
        time_slice_ns=TIME_SLICE_NS,
        context_switch_ns=CONTEXT_SWITCH_NS,
        communication_start_ns=round(measured.communication_start_ns),
        send_buffer_bytes=channels * (nccl or NcclEnvironment()).buffer_bytes,
        filling_copy_bytes=measured.filling_copy_bytes,
    )


class Simulator:
    """Simulates one session until every rank has exited.

    Raises PhantoraError from :meth:`run` for a hang, mismatched collectives, or a log that cannot be written; the log
    so far stays readable.
    """

    def __init__(self, session: Session, log: LogWriter, config: SimulatorConfig) -> None:
        self._session = session
        self._log = log
        self._config = config
        self._engine = native.Engine(config.engine, session)
        if config.flows:
            self._engine.log_flows()
        if config.brief:
            self._engine.log_briefly()
        self._pricing = Pricing(self._engine, log.tables, session.world_size, config)
        fold = config.fold
        if fold is not None:
            self._engine.fold(fold)
        for kind, part in enumerate(config.cluster.parts):
            timing = timing_of(part.gpu, config.nccl)
            if config.measured is not None:
                timing.launch_latency_ns = config.measured.launch_latency_ns
                timing.kernel_gap_ns = timing.crowded_gap_ns = timing.graph_gap_ns = config.measured.kernel_gap_ns
            self._engine.set_timing(timing, kind)
        limit_power(self._engine, config.cluster, session.world_size, fold)
        self.powers: dict[int, native.PowerState | None] = dict.fromkeys(session.real)
        """State of each rank's power limiter once it has settled, if its steps are repeated; None: it has no steps, or
        nothing is recorded."""
        if config.record:
            self._engine.record()
            for rank in session.real:
                self._engine.start_power(rank, None)
        self._began = self._last_progress = 0.0
        self._stop = threading.Event()
        self._deaths: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._rows = 0
        self._bystanders: tuple[int, ...] = ()
        self._root: int | None = None
        self._ended = False
        self._next_notice = config.hang_timeout
        self._stalled_at: float | None = None
        self._stats = Stats(
            virtual_ns=0,
            records=0,
            rows=0,
            alive=0,
            exited=0,
            optimizer_steps=0,
            late=0,
            releases=0,
            device_peak=0,
            host_memory=0,
            host_pinned=0,
            cpu_seconds=0.0,
        )
        self.processes: Processes = LocalProcesses()
        """The ranks' processes; set it before :meth:`run` if they are on other nodes."""
        self.unlike: int | None = None
        """The representative of a folded run that matches none of its neighbours, which has ended the run."""

    def rank_died(self, rank: int, status: int) -> None:
        """A rank process has ended without saying so; `status` is 128 + signal, or its exit status."""
        with self._lock:
            self._deaths.append((rank, status))
        self._wake()

    def watch(self, pid: int) -> None:
        """A process that ranks may wait for (the TCPStore's): while it works, they do not sleep."""
        self._bystanders = (*self._bystanders, pid)

    def follow(self, pid: int) -> None:
        """The ranks are processes that `pid` starts, now or later, or none: a GPU may stay without one."""
        self._root = pid
        self._engine.keep_open(True)

    def command_ended(self, status: int) -> None:
        """The process of :meth:`follow` has ended: no rank joins any more; ranks without a reported end are gone."""
        with self._lock:
            self._ended = True
            self._deaths += [(rank, status) for rank in range(self._session.world_size)]
        self._wake()

    def stop(self) -> None:
        """Ends :meth:`run` early; what is final is in the log."""
        self._stop.set()
        self._wake()

    def _wake(self) -> None:
        self._session.ring()

    def stats(self) -> Stats:
        """Counts of the run so far."""
        return self._stats

    def operators(self) -> list[Wanted]:
        """The operators of the run and what their prices depend on, the longest first."""
        return self._pricing.operators()

    def run(self) -> None:
        """Blocks until all ranks have exited. Run it in a thread of its own."""
        self._session.header["sim_state"] = layout.SimState.RUNNING
        self._began = time.thread_time()
        try:
            self._loop()
            self.powers = {rank: self._engine.power(rank) for rank in self.powers}
            self._drain(everything=True)
        except PhantoraError:
            with contextlib.suppress(PhantoraError, ValueError):  # the log itself may be what failed
                self._drain()
            raise
        finally:
            self._refresh()
            self._engine.close()

    def _iterate(self, waiting_us: int, resting_us: int) -> int:
        """Lets the engine go on and answers its questions; bits of reasons."""
        reason = self._engine.run(waiting_us, resting_us)
        if reason & native.ERROR:
            folding = self._engine.error_kind() == native.CANNOT_FOLD
            self.unlike = self._engine.unlike()
            raise PhantoraError(self._engine.error(), Reason.CANNOT_FOLD if folding else Reason.REFUSED)
        if reason & native.PRICES:
            self._pricing.serve()
        if reason & native.ROWS:
            self._drain()
        now = time.monotonic()
        if now - self._last_progress > 0.25:
            self._last_progress = now
            self._refresh()
            if self._config.progress:
                self._config.progress(self._stats)
        return reason

    def _loop(self) -> None:
        idle_since: float | None = None
        idle = IdleDetector(self.processes)
        next_poll = 0.0
        waits = self._session.control["waiting"]
        pause = _SLEEP_US
        while not self._stop.is_set():
            with self._lock:
                deaths, self._deaths = self._deaths, []
                if self._ended:
                    self._engine.keep_open(False)
            for rank, status in deaths:
                self._engine.rank_died(rank, status)
            begin = 0.0 if idle_since is None else time.thread_time()  # a system call
            reason = self._iterate(pause, _REST_US)
            if reason & native.DONE and not reason & native.PRICES:
                return
            if reason not in (native.IDLE, native.SLEPT):
                idle_since = self._stalled_at = None
                self._next_notice = self._config.hang_timeout
                pause = _SLEEP_US
                if not reason & native.SLEPT:
                    continue
            waiting = bool(waits.any())
            iteration = time.thread_time() - begin if idle_since is not None else 0.0
            now = time.monotonic()
            if idle_since is None:
                idle_since = now
                idle.restart()
            if now - idle_since > (_SLEEP_CHECK_S if waiting else _LONG_SLEEP_S) and now >= next_poll:
                begin = time.thread_time()
                works = self._poll_sleepers(idle, now - idle_since)
                again = _POLL_AGAIN_S if works and idle.any_runs(self._pids().values()) else _SECOND_POLL_S
                next_poll = now + min((time.thread_time() - begin) / _POLLS_SHARE, again) if works else now
                # A working rank may do so for long; sleepers, where none works, are released one after the other.
                rest = int(iteration * 1e6 / _ITERATIONS_SHARE) if again == _POLL_AGAIN_S else 0
                pause = min(max(_SLEEP_US, rest), _LONG_SLEEP_US)

    def _poll_sleepers(self, idle: IdleDetector, since: float) -> bool:
        """Nothing has moved for `since` seconds: release an answer, or diagnose. True if a rank works, or will."""
        states = {rank: self._engine.rank_state(rank) for rank in self._session.real}
        running = [rank for rank, state in states.items() if state in (native.NOT_STARTED, native.RUNS)]
        if self._root is not None and all(state in (native.NOT_STARTED, native.EXITED) for state in states.values()):
            return False  # the command does something else, perhaps before it starts processes again
        pids = {rank: int(self._session.control["pid"][rank]) for rank in running if states[rank] == native.RUNS}
        kept = {pid for rank, pid in pids.items() if self._session.control["holding"][rank]}
        if self._config.places is not None:
            kept = set(pids.values())  # an idle actor of Ray polls, and others on its GPU wait for its clock
        if not idle.all_asleep(pids.values(), self._bystanders, _SLEEP_CHECK_S, kept):
            self._report_working_ranks(pids, since)
            return True
        blocked = idle.blocked(pids.values(), _AWAKE_SHARE * self._config.hang_timeout)
        if self._root is not None and self._finalize(self._root, states, blocked, idle):
            idle.restart()
            return False
        # Of a rank that has not joined we know nothing but that its process has not ended.
        patience = self._config.hang_timeout * (_START_FACTOR if len(pids) < len(running) else 1)
        if len(pids) < len(running) and (blocked < patience or not (pids or self._bystanders)):
            return False  # with no process to poll, the server still imports what is to be preloaded
        asleep = list(pids)
        if self._engine.release_sleepers(asleep):
            idle.restart()
            self._stalled_at = None
            return False
        self._count_stall(blocked)
        if blocked > (patience if running else min(patience, _GIVE_UP_S)):
            if self._engine.give_room():
                idle.restart()
                return False
            if since < _START_FACTOR * self._config.hang_timeout and idle.other_threads_work(pids.values()):
                idle.restart()
                return False
            raise PhantoraError(describe(self._engine.diagnose(), self.processes.places(self._pids())), Reason.HANG)
        return False

    def _count_stall(self, blocked: float) -> None:
        """No rank can go on: torch's timeouts count real time (stub/rank/torch_hooks/group_time.c)."""
        now = time.monotonic()
        if self._stalled_at is not None and blocked > _STALL_S:
            self._session.header["stalled_ns"] += int((now - self._stalled_at) * 1e9)
        self._stalled_at = now

    def _report_working_ranks(self, running: dict[int, int], since: float) -> None:
        """Nothing is wrong yet, but ranks wait for a few others that compute outside of CUDA or are stopped: says
        where, at longer and longer intervals."""
        waits = len(self._session.real) > len(running) > 0
        if self._config.notice is None or not waits or since < self._next_notice:
            return
        self._next_notice = since * _NOTICE_FACTOR
        halted = {rank: pid for rank, pid in running.items() if self.processes.stopped(pid)}
        places = self.processes.places({rank: pid for rank, pid in running.items() if rank not in halted})
        self._config.notice(working(since, places, halted))

    def _pids(self) -> dict[int, int]:
        return {rank: pid for rank in self._session.real if (pid := int(self._session.control["pid"][rank])) > 0}

    def _finalize(self, root: int, states: dict[int, int], blocked: float, idle: IdleDetector) -> bool:
        """Ranks without their process have ended; GPUs that no process of a command is about to use stay idle.

        Called when no rank works. True if something was finalized.
        """
        pids = self._pids()
        alive = {rank: pid for rank, pid in pids.items() if states[rank] in (native.RUNS, native.WAITS)}
        gone = [rank for rank, pid in alive.items() if not os.path.exists(f"/proc/{pid}")]
        absent = [rank for rank, state in states.items() if state == native.NOT_STARTED and rank not in pids]
        if absent and not gone and blocked >= _ABSENT_S and pids:
            others = {root, *descendants(root)} - set(pids.values())
            asleep = [idle.asleep(pid, _ABSENT_S, children=False) for pid in others]  # each must be polled
            if all(asleep):
                gone = [rank for rank in absent if self._session.close_place(rank)]
        for rank in gone:
            self._engine.rank_died(rank, 0)
        return bool(gone)

    def _drain(self, everything: bool = False) -> None:
        while True:
            rows = self._engine.take_rows(everything)
            if not len(rows):
                break
            self._pricing.sync_tables()
            self._pricing.count(rows)
            self._log.append(rows)
            self._rows += len(rows)
        for rank in self._session.real if self._config.record else ():
            while len(records := self._engine.take_records(rank, everything)):
                self._log.record(rank, records)

    def _refresh(self) -> None:
        status = self._engine.status()
        host_memory, host_pinned = self._session.host_memory()
        data, data_rank = self._session.data()
        self._stats = Stats(
            virtual_ns=status.final_time,
            records=status.records,
            rows=self._rows + status.rows,
            alive=status.alive,
            exited=status.exited,
            optimizer_steps=status.marks,
            late=status.late,
            releases=status.releases,
            device_peak=max(status.device_peak, int(self._session.control["memory_peak"].max())),
            host_memory=host_memory,
            host_pinned=host_pinned,
            cpu_seconds=time.thread_time() - self._began,
            data=data,
            data_rank=data_rank,
            loader=self._session.loader(),
            uncounted=self._session.uncounted(),
        )
