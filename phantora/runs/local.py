"""Runs a spec on this machine: its ranks, or its command, and the simulator next to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from phantora.errors import PhantoraError, Reason
from phantora.fold.syntax import describe, split_at
from phantora.hardware import load_calibration
from phantora.hardware.gpus import memory_chosen
from phantora.launch.command import run_command
from phantora.launch.ending import Outcome
from phantora.launch.output import Console
from phantora.launch.supervisor import RankSupervisor
from phantora.outputs import unnamed
from phantora.rank import failures
from phantora.result import RunReport, RunResult, few
from phantora.runs import fold as folding
from phantora.runs.assemble import About, Recorded, Simulation, assemble, host_facts
from phantora.runs.data import slowdown
from phantora.runs.outputs import Logged, with_timeline
from phantora.runs.preflight import OF_RANK, preflight
from phantora.runs.prepare import Prepared, as_command, prepare
from phantora.spec import COMMAND, FOUND, RunSpec
from phantora.units import MIB

if TYPE_CHECKING:
    from phantora.fold.mesh import Fold
    from phantora.nodes.driver import Agents
    from phantora.sim.config import Stats
    from phantora.stubs import StubSet

StatusLine: TypeAlias = Callable[[int, int], "str | None"]
"""The line to show for a number of living ranks and a width in characters; None: nothing new."""
Follow: TypeAlias = "Callable[[int, list[Stats]], StatusLine | None]"
"""Makes a status line for a number of ranks; the list contains the newest counts."""


_MOST_STARTS = 8
"""Starts of a run with automatic folding, each with the kinds of ranks that the ones before have met."""


def run(
    spec: RunSpec, console: Console | None = None, follow: Follow | None = None, logged: Logged | None = None
) -> RunResult:
    """Runs `spec` to its end. A run that fails is a result. Raises PhantoraError for what cannot be run at all.

    Call it in the main thread of a process of its own: it handles signals, and ends every child process that is left
    (``phantora.run_process`` starts one).
    """
    return _Run(prepare(spec), console or _plain_console(), follow).run(logged)


def _plain_console() -> Console:
    return Console(sys.stdout.buffer, sys.stderr.buffer, False)


class _Run:
    def __init__(self, prepared: Prepared, console: Console, follow: Follow | None) -> None:
        self.prepared = prepared
        self.setup, self.plan = prepared.setup, prepared.plan
        self.console = console
        self.stats: list[Stats] = []
        self.follow = follow
        self.quiet = prepared.spec.ranks.quiet

    def run(self, logged: Logged | None) -> RunResult:
        spec, cluster = self.prepared.spec, self.setup.cluster
        calibration = load_calibration(spec.host).note(cluster) if spec.host is not None else ""
        crowded = "" if spec.launch.ray else preflight(self._processes())
        for note in filter(None, (self.prepared.note, _which_gpu(spec), calibration, crowded)):
            self._note(note)
        with unnamed("phantora-failures") as file, unnamed("phantora-tasks") as tasks:
            self.plan = replace(self.plan, ranks=replace(self.plan.ranks, failures=str(file), tasks=str(tasks)))
            how = self._run_command if self.prepared.spec.kind == COMMAND else self._run_ranks
            outcome, simulation = how()
            found = failures.read(file)
        starts = next((one for one in found if one.reason is Reason.STARTS_RANKS), None)
        if starts is None:
            return self._finish(outcome.why(found), simulation, logged)
        simulation.close({})
        self.prepared.outputs.discard()
        self._note(f"{starts.place} starts the ranks itself, so the run begins again as `-- python {spec.target}`")
        return _Run(prepare(as_command(spec)), self.console, self.follow).run(logged)

    def _note(self, text: str) -> None:
        if not self.quiet:
            self.console.message(f"phantora: note: {text}")

    def _processes(self) -> int:
        """Number of processes that start, as far as known."""
        spec = self.prepared.spec
        to_be_found = spec.kind != COMMAND and folding.is_wanted(spec.fold, self.plan.world_size)
        return 1 if to_be_found else len(self.plan.processes)

    # ------------------------------------------------------------------ running

    def _fold(self, stub_set: StubSet) -> None:
        """Finds the fold if the user gives none and the ranks need one, and reports it."""
        spec = self.prepared.spec.fold
        fold = self.setup.fold
        if folding.is_wanted(spec, self.plan.world_size):
            fold = self._found(stub_set)
            self._set_fold(fold)
        if fold and any(axis.uneven for axis in fold.axes):
            fold = folding.with_busiest(fold, self.plan, self.setup, self.console, stub_set)
            self._set_fold(fold)

    def _found(self, stub_set: StubSet) -> Fold | None:
        """The fold by the process groups; None, with a note, where they show none and all ranks may fit."""
        try:
            return folding.find(self.plan, self.setup, self.console, stub_set)
        except PhantoraError as error:
            if self.prepared.spec.fold.real_ranks:
                raise
            try:
                crowded = preflight(self.plan.world_size)
            except PhantoraError:
                raise error from None
            self._note(f"{error}; all ranks run" + (f": {crowded}" if crowded else ""))
            return None

    def _set_fold(self, fold: Fold | None) -> None:
        self.setup, self.plan = replace(self.setup, fold=fold), self.plan.folded(fold)

    def _report_fold(self) -> None:
        fold = self.setup.fold
        if fold and not self.quiet:
            self.console.message(
                f"phantora: folded: {len(fold.real)} of {fold.world_size} ranks run as processes ({describe(fold)}; "
                f"ranks {few(fold.real)})"
            )

    def _split(self, outcome: Outcome, simulation: Simulation) -> Fold | None:
        """The fold with a further kind of ranks, if automatic folding met one; None: none to be split."""
        unlike = simulation.simulator.unlike if simulation.simulator is not None else None
        if unlike is None or self.setup.fold is None or self.prepared.spec.fold.axes not in FOUND:
            return None
        fold = split_at(self.setup.fold, unlike)
        if fold is not None:
            preflight(len(fold.real))
            why = outcome.message.partition(". Run all ranks")[0]
            self._note(f"{why}; the run begins again with rank {unlike} as a kind of its own")
        return fold

    def _run_ranks(self) -> tuple[Outcome, Simulation]:
        stub_set = self._stubs()
        self._fold(stub_set)
        for left in reversed(range(_MOST_STARTS)):
            self._report_fold()
            outcome, simulation = self._run_once(stub_set)
            fold = self._split(outcome, simulation) if left else None
            if fold is None:
                break
            self._set_fold(fold)
            simulation.close({})
            self.prepared.outputs.discard()
            Path(self.plan.ranks.failures).write_bytes(b"")
        return outcome, simulation

    def _run_once(self, stub_set: StubSet) -> tuple[Outcome, Simulation]:
        status_line = self.follow(self.plan.world_size, self.stats) if self.follow else None
        agents = self._agents()
        supervisor = RankSupervisor(
            self.plan, self.console, stubs=stub_set.directory, status_line=status_line, elsewhere=agents
        )
        try:
            simulation = self._assemble(stub_set)
        except BaseException:
            supervisor.close()
            raise
        if agents is not None:
            from phantora.nodes.processes import NodeProcesses

            agents.share(simulation.session, stub_set.engine)
            if simulation.simulator is not None:
                simulation.simulator.processes = NodeProcesses(agents)
        return supervisor.run(simulation.session, simulation.simulator), simulation

    def _agents(self) -> Agents | None:
        """The agents of --ray."""
        if not self.prepared.spec.launch.ray:
            return None
        from phantora.nodes.on_ray import start_agents

        return start_agents(self.plan, self.console, OF_RANK)

    def _run_command(self) -> tuple[Outcome, Simulation]:
        from phantora.launch.environment import command_environment

        stub_set = self._stubs()
        simulation = self._assemble(stub_set)
        session, command = simulation.session, self._command()
        ranks = replace(self.plan.ranks, session=session.path, stubs=str(stub_set.directory))
        environment = command_environment(os.environ, ranks)
        outcome = run_command(command, environment, session, simulation.simulator, self.console)
        joined = sum(1 for pid in session.control["pid"] if pid)
        if not joined and not outcome.status:
            outcome.status, outcome.reason = 1, Reason.NO_GPU_WORK
            outcome.message = (
                f"no process of {command[0]} used a GPU of the simulation: its processes must be Python and find "
                "phantora in their environment; run a script with `phantora trace SCRIPT`"
            )
        return outcome, simulation

    def _command(self) -> list[str]:
        spec = self.prepared.spec
        return [spec.target, *spec.arguments]

    def _stubs(self) -> StubSet:
        """Builds the stub libraries if this torch is new to us."""
        from phantora import stubs

        return stubs.ensure(progress=lambda text: self.console.message(f"phantora: {text}"))

    def _assemble(self, stub_set: StubSet) -> Simulation:
        ranks = self.prepared.spec.ranks
        extra: dict[str, Any] = {
            "moe_routing": ranks.moe_routing,
            "assume": ",".join(ranks.assume),
            "data_loading": ranks.data_loading,
            "disk": ranks.disk,
        }
        if self.setup.spec.host_time == "modelled":
            extra["host"] = host_facts(self.setup)
        simulation = assemble(
            self.setup,
            self.prepared.outputs.written,
            About(self._command(), stub_set.torch_version, extra),
            stub_set.engine,
            progress=lambda now: self.stats.__setitem__(slice(None), [now]),
            notice=self._note,
        )
        for note in simulation.notes:
            self._note(note)
        return simulation

    # ------------------------------------------------------------------ afterwards

    def _finish(self, outcome: Outcome, simulation: Simulation, logged: Logged | None) -> RunResult:
        """Writes what is left to be written; an error there ends a run that had none."""
        outputs = self.prepared.outputs
        rows = simulation.log.rows if simulation.log is not None else 0
        if simulation.simulator is not None and not outcome.status and not rows:
            outcome.status, outcome.reason = 1, Reason.NO_GPU_WORK
            outcome.message = _nothing_on_a_gpu(self._command(), simulation.simulator.stats().device_peak)
        report = self._report(outcome, simulation)
        log: Path | None = None
        try:
            self._write_missing(simulation)
            report = self._close(report, simulation, outcome)
            if simulation.log is not None:
                rows = simulation.log.rows
                log = outputs.settle(outcome.status == 0, rows)
                report = replace(report, rows=rows, log=str(log) if log else "")
                self._report_replaced(log)
            result = RunResult(outcome.status, outcome.reason, outcome.message, log, report)
            return with_timeline(result, outputs, logged)
        except PhantoraError as error:
            if not outcome.status:
                raise
            self.console.message(f"phantora: {error}")  # what the script ended with counts more
        return RunResult(outcome.status, outcome.reason, outcome.message, log, report)

    def _close(self, report: RunReport, simulation: Simulation, outcome: Outcome) -> RunReport:
        """The log is complete. An interrupt ends what is simulated for its trailer, and the run has failed by it."""
        operators = simulation.simulator.operators() if simulation.simulator is not None else []
        more: dict[str, Any] = {"operators": [asdict(entry) for entry in operators]}
        if simulation.simulator is not None:
            stats, (fastest, slowest) = simulation.simulator.stats(), self.setup.cluster.host.spread
            for name, factor in (("data_fastest", fastest), ("data_step", 1.0), ("data_slowdown", slowest)):
                more[name] = round(slowdown(stats.data, factor), 2)
            if stats.data_rank is not None:
                more["data_rank"] = stats.data_rank
            if stats.uncounted:
                more["uncounted_cpu"] = stats.uncounted / 1e6  # for each ns of the run
            if stats.loader:
                more |= {"loader": stats.loader, "data_hosts": (fastest, 1.0, slowest)}
        if outcome.printed_mfu is not None:
            more["printed_mfu"] = outcome.printed_mfu
        if report.status == 0 and self.setup.spec.output.recording and simulation.log is not None:
            try:
                from phantora.runs.sensitivity import simulated_again
                from phantora.trace.recording import by_rank

                recorded = Recorded(by_rank(simulation.log.recording()), 1.0, {})
                more |= simulated_again(simulation, self.setup, recorded)
            except KeyboardInterrupt as interrupt:
                outcome.interrupt(interrupt)
                report = replace(report, status=outcome.status, error=outcome.message)
        if outcome.status:
            more["reason"] = outcome.reason.value
        simulation.close({**report.as_data(), **more})
        return report

    def _report_replaced(self, log: Path | None) -> None:
        outputs = self.prepared.outputs
        if log is not None and log != outputs.log:
            self._note(f"{outputs.log} is kept; the log of this run is {log}")
        elif log is not None and outputs.replaces:
            self._note(f"{log} replaces the log of an earlier run")
        elif log is None and outputs.replaces:
            self._note(f"{outputs.log} is kept: this run's log has no rows")

    def _write_missing(self, simulation: Simulation) -> None:
        from phantora.cost.wanted import with_kernel, write_wanted

        path = self.prepared.spec.output.missing
        if not path or simulation.simulator is None:
            return
        used = (entry for entry in simulation.simulator.operators() if not entry.tuning)
        unmeasured = [with_kernel(entry) for entry in used if not entry.provenance.startswith("measured")]
        write_wanted(Path(path), unmeasured, gpu=self.setup.cluster.gpu.name)

    def _report(self, outcome: Outcome, simulation: Simulation) -> RunReport:
        known: dict[str, Any] = {
            "status": outcome.status,
            "ranks": self.plan.world_size,
            "error": outcome.message,
            "startup_seconds": round(outcome.startup_seconds, 3),
            "wall_seconds": round(outcome.wall_seconds, 3),
        }
        if self.setup.fold:
            known |= {"processes": len(self.setup.fold.real), "fold": describe(self.setup.fold)}
        if simulation.simulator is None:
            return RunReport(**known)
        return RunReport(**known, **simulation.simulator.stats().facts(), log=str(self.prepared.outputs.written))


def _which_gpu(spec: RunSpec) -> str:
    """A note where the GPU of a cluster that was given is one of several of that name."""
    asked = "" if spec.cluster == RunSpec.cluster else spec.cluster.rpartition("x")[2]
    chosen = memory_chosen(asked)
    return f"{asked} is {chosen} here" if chosen else ""


def _nothing_on_a_gpu(command: list[str], peak: int) -> str:
    if peak:
        return (
            f"{command[0]} launched nothing on a GPU, so there is nothing to simulate: it took memory "
            f"({peak / MIB:,.0f} MiB with the CUDA context), but called no operator, copy or collective"
        )
    return (
        f"{command[0]} put nothing on a GPU, so there is nothing to simulate; move the model and its inputs to one "
        "(`.to('cuda')`; torch.cuda.is_available() is true here)"
    )
