"""One run of `phantora trace`: checked, put together, run, reported."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phantora.cli import folding
from phantora.cli.host import host_facts, with_host
from phantora.cli.options import IGNORED, take_what_if
from phantora.cli.outputs import Outputs
from phantora.cli.preflight import preflight
from phantora.cli.report import print_report, simulation_report
from phantora.cli.sensitivity import host_sensitivity
from phantora.cli.simulation import Settings, Simulation, assemble
from phantora.cli.status import Status, told_by
from phantora.errors import PhantoraError
from phantora.hardware import Cluster, load_cluster
from phantora.launch import loading
from phantora.launch.assume import parse_assumptions
from phantora.launch.command import run_command
from phantora.launch.ending import Outcome
from phantora.launch.modules import VARIABLE as MODULES
from phantora.launch.output import Console
from phantora.launch.plan import Plan, check_target, refuse_shares
from phantora.launch.routing import parse_routing
from phantora.launch.selfstart import starts_its_ranks
from phantora.launch.supervisor import RankSupervisor
from phantora.wire.fold import AUTO
from phantora.wire.layout import MAX_DEVICES

if TYPE_CHECKING:
    from phantora.sim.simulator import Stats
    from phantora.stubs import StubSet


@dataclass
class Request:
    """A checked command line."""

    options: dict[str, Any]
    cluster: Cluster
    settings: Settings
    plan: Plan
    command: tuple[str, ...]
    outputs: Outputs
    note: str
    """What the user should know of how it is run."""

    @classmethod
    def of(cls, options: dict[str, Any], target: tuple[str, ...], is_command: bool) -> Request:
        """Checks everything that can be checked before anything runs."""
        if options["no_python"]:
            raise PhantoraError(
                "--no-python runs a program that is not Python; write `phantora trace -- PROGRAM` instead"
            )
        refuse_shares(os.environ)
        if is_command and target[0].endswith(".py"):
            is_command = False  # nothing but a script can be meant
        note = ""
        if not is_command and not options["module"] and (line := starts_its_ranks(target[0])) is not None:
            note = f"{target[0]} starts its ranks itself (line {line}), so it is run once, as `-- python {target[0]}`"
            target, is_command = (sys.executable, *target), True
        cluster = _with_memory(with_host(load_cluster(options["cluster"]), options["host"]), options["gpu_memory"])
        hosts = _count("--nnodes", options["nnodes"], cluster.hosts, "hosts", options["cluster"])
        ranks = _count(
            "--nproc-per-node", options["nproc"], cluster.gpus_per_host, "GPUs per host", options["cluster"]
        )
        if ranks > MAX_DEVICES:
            raise PhantoraError(
                f"{options['cluster']}: {ranks} ranks on a host, and at most {MAX_DEVICES} are simulated; "
                "describe it as several hosts whose network is as fast (docs/clusters.md)"
            )
        loading.parse(options["data_loading"])
        settings = Settings(
            hosts,
            ranks,
            options["host_time"],
            options["host_scale"],
            options["unsupported"],
            options["null"],
            options["profile"] == "live",
            options["hang_timeout"],
            options["recording"],
            take_what_if(options),
            options["flows"],
        )
        fold = folding.choose(options["fold"], folding.read_ranks(options["real_ranks"]), hosts * ranks, is_command)
        settings = replace(settings, fold=fold)
        folds = fold or (options["fold"] == AUTO and not is_command)
        preflight(len(fold.real) if fold else 1 if folds else hosts * ranks)
        outputs = Outputs.nowhere() if settings.null else Outputs.of(options["output"], options["force"])
        if not is_command:
            check_target(Plan(target[0], module=options["module"]))
        log_dir = options["log_dir"]
        if log_dir is None and (options["tee"], options["redirects"]) != ("0", "0"):
            log_dir = Path(tempfile.mkdtemp(prefix="phantora-logs-"))
        more = {} if options["run_id"] is None else {"run_id": options["run_id"]}
        plan = Plan(
            target[0],
            tuple(target[1:]),
            options["module"],
            hosts,
            ranks,
            ranks if hosts > 1 else cluster.gpus_per_host,
            options["seed"],
            tuple(options["preload"]),
            parse_routing(options["moe_routing"]).spec,
            parse_assumptions(options["assume"]),
            options["data_loading"],
            options["role"],
            master_port=options["master_port"],
            log_dir=log_dir,
            redirects=options["redirects"],
            tee=options["tee"],
            ranks_filter=_filter(options["ranks_filter"], ranks),
            quiet=options["quiet"],
            real=fold.real if fold else None,
            **more,
        )
        return cls(options, cluster, settings, plan, target if is_command else (), outputs, note)

    # ------------------------------------------------------------------ running

    def run(self) -> int:
        """Runs it; the exit status."""
        quiet = self.plan.quiet
        if self.options["modules"]:
            os.environ[MODULES] = "1"  # the ranks inherit it
        stats: list[Stats] = []
        # JSON shall be all that stands on stdout.
        ranks_out = sys.stderr if self.options["as_json"] else sys.stdout
        console = Console(
            ranks_out.buffer, sys.stderr.buffer, not quiet and not self.command and sys.stderr.isatty()
        )
        self._say_what_is_ignored(console)
        for note in () if quiet else filter(None, (self.note, preflight(self._processes()))):
            console.message(f"phantora: note: {note}")
        if self.command:
            outcome, simulation = self._run_command(console, stats)
        else:
            outcome, simulation = self._run_ranks(console, stats)
        if outcome.message:
            console.message(f"phantora: {outcome.message}")
        try:
            self._write_missing(simulation)
            self._finish(self._report(outcome, simulation), simulation)
        except PhantoraError as error:
            if not outcome.status:
                raise
            console.message(f"phantora: {error}")  # what the script ended with counts more
        return outcome.status

    def _finish(self, report: dict[str, Any], simulation: Simulation) -> None:
        operators = simulation.simulator.operators() if simulation.simulator is not None else []
        more: dict[str, Any] = {"operators": [asdict(entry) for entry in operators]}
        if report["status"] == 0 and (found := host_sensitivity(simulation, self.cluster.host, self.settings)):
            more["host_sensitivity"] = found
        simulation.close({**report, **more})
        if simulation.log is not None:
            report["rows"] = simulation.log.rows
            log = self.outputs.settle(report["status"] == 0)
            report["log"] = str(log)
            if log != self.outputs.log and not self.plan.quiet:
                print(f"phantora: note: {self.outputs.log} is kept; the log of this run is {log}", file=sys.stderr)
            elif self.outputs.timeline is not None and report["rows"]:
                report["timeline"] = self._export(log)
        print_report(report, summary=self.options["summary"] and not self.plan.quiet, as_json=self.options["as_json"])

    def _write_missing(self, simulation: Simulation) -> None:
        from phantora.cost.wanted import with_kernel, write_wanted

        path: Path | None = self.options["missing"]
        if path is None or simulation.simulator is None:
            return
        used = (entry for entry in simulation.simulator.operators() if not entry.tuning)
        guessed = [with_kernel(entry) for entry in used if entry.provenance != "measured"]
        write_wanted(path, guessed, gpu=self.cluster.gpu.name)

    def _say_what_is_ignored(self, console: Console) -> None:
        given = [name for name, _ in IGNORED if self.options["ignored_" + name.replace("-", "_")]]
        if given and not self.plan.quiet:
            names = ", ".join(f"--{name}" for name in given)
            console.message(f"phantora: note: {names}: ignored, since all ranks run on this machine")

    def _processes(self) -> int:
        """How many start, as far as that is known."""
        to_be_found = self.options["fold"] == AUTO and not self.command
        return 1 if to_be_found and folding.too_many(self.plan.world_size) else len(self.plan.processes)

    def _fold(self, console: Console, stub_set: StubSet) -> None:
        """Finds the fold, if that is left to us and need be, and says what is folded."""
        more = folding.read_ranks(self.options["real_ranks"])
        if self.options["fold"] == AUTO and (more or folding.too_many(self.plan.world_size)):
            fold = folding.find(self.plan, self.settings, self.cluster, console, stub_set, more)
            self.settings = replace(self.settings, fold=fold)
            self.plan = replace(self.plan, real=fold.real if fold else None)
        if (fold := self.settings.fold) and any(axis.uneven for axis in fold.axes):
            fold = folding.with_busiest(fold, self.plan, self.settings, self.cluster, console, stub_set)
            self.settings, self.plan = replace(self.settings, fold=fold), replace(self.plan, real=fold.real)
        if (fold := self.settings.fold) and not self.plan.quiet:
            console.message(
                f"phantora: folded: {len(fold.real)} of {fold.world_size} ranks run as processes ({fold.describe()}; "
                f"ranks {_few(fold.real)})"
            )

    def _run_ranks(self, console: Console, stats: list[Stats]) -> tuple[Outcome, Simulation]:
        stub_set = _prepare_stubs(console)
        self._fold(console, stub_set)
        supervisor = RankSupervisor(
            self.plan,
            console,
            stubs=stub_set.directory,
            imports=self.plan.imports,
            shared=self.plan.shared,
            status_line=self._status_line(stats),
        )
        try:
            simulation = self._assemble(console, stats, stub_set)
        except BaseException:
            supervisor.close()
            raise
        return supervisor.run(simulation.session, simulation.simulator), simulation

    def _status_line(self, stats: list[Stats]) -> Callable[[int, int], str | None] | None:
        """A bar on a terminal; in CI, which sets the variable CI, lines."""
        lines = not sys.stderr.isatty()
        if self.plan.quiet or (lines and not os.environ.get("CI")):
            return None
        return told_by(Status(self.plan.world_size, stats, self.plan.arguments), lines)

    def _run_command(self, console: Console, stats: list[Stats]) -> tuple[Outcome, Simulation]:
        from phantora.launch.hook import command_environment

        stub_set = _prepare_stubs(console)
        simulation = self._assemble(console, stats, stub_set)
        session = simulation.session
        environment = command_environment(
            os.environ,
            session.path,
            self.plan.devices,
            stub_set.directory,
            self.plan.moe_routing,
            self.plan.assume,
            self.plan.data_loading,
            self.plan.quiet,
        )

        aside = sys.stderr.fileno() if self.options["as_json"] else None
        outcome = run_command(self.command, environment, session, simulation.simulator, aside)
        joined = sum(1 for pid in session.control["pid"] if pid)
        if not joined and not outcome.status:
            outcome.status = 1
            outcome.message = (
                f"no process of {self.command[0]} used a GPU of the simulation: its processes must be Python and find "
                "phantora in their environment; run a script with `phantora trace SCRIPT`"
            )
        return outcome, simulation

    def _assemble(self, console: Console, stats: list[Stats], stub_set: StubSet) -> Simulation:
        from phantora.cli.main import version

        extra: dict[str, Any] = {
            "moe_routing": self.plan.moe_routing,
            "assume": self.plan.assume,
            "data_loading": self.plan.data_loading,
        }
        if self.settings.host_time == "modelled":
            extra["host"] = host_facts(self.cluster.host)
        metadata = {
            "phantora": version(),
            "command": list(self.command or (self.plan.target, *self.plan.arguments)),
            "torch": stub_set.torch_version,
            "extra": extra,
        }
        simulation = assemble(
            self.cluster,
            self.settings,
            self.outputs.written,
            metadata,
            lambda now: stats.__setitem__(slice(None), [now]),
            stub_set.engine,
            notice=None if self.plan.quiet else lambda text: console.message(f"phantora: note: {text}"),
        )
        for note in () if self.plan.quiet else simulation.notes:
            console.message(f"phantora: note: {note}")
        return simulation

    # ------------------------------------------------------------------ afterwards

    def _export(self, log: Path) -> list[str]:
        from phantora.trace.export.registry import export

        return export(log, str(self.outputs.timeline))

    def _report(self, outcome: Outcome, simulation: Simulation) -> dict[str, Any]:
        """What is known about the run without reading the log. Seconds."""
        report: dict[str, Any] = {
            "status": outcome.status,
            "ranks": self.plan.world_size,
            "startup_seconds": round(outcome.startup_seconds, 3),
            "wall_seconds": round(outcome.wall_seconds, 3),
        }
        if self.settings.fold:
            report |= {"processes": len(self.settings.fold.real), "fold": self.settings.fold.describe()}
        if outcome.message:
            report["error"] = outcome.message
        if simulation.simulator is not None:
            report |= simulation_report(simulation.simulator.stats(), self.plan.world_size, self.outputs.written)
        return report


def _with_memory(cluster: Cluster, gib: float | None) -> Cluster:
    if gib is None:
        return cluster
    return replace(cluster, gpu=replace(cluster.gpu, memory_bytes=round(gib * (1 << 30))))


def _count(option: str, text: str, have: int, what: str, spec: str) -> int:
    """A number of hosts or ranks, as torchrun writes it: N, MIN:MAX, auto or gpu."""
    if text in ("auto", "gpu"):
        return have
    try:
        low, _, high = text.partition(":")
        least, most = int(low), int(high or low)
    except ValueError:
        raise PhantoraError(
            f"{option} {text!r} is not a number; the cluster {spec} has {have} {what}"
        ) from None
    if not 1 <= least <= most:
        raise PhantoraError(f"{option} {text!r} must be at least 1")
    if least > have:
        raise PhantoraError(
            f"{option} {text}: the cluster {spec} has {have} {what}; simulate a larger one with --cluster"
        )
    return min(most, have)


def _few(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks)) if len(ranks) <= 12 else f"{','.join(map(str, ranks[:10]))},...,{ranks[-1]}"


def _filter(text: str | None, ranks: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        chosen = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PhantoraError(
            f"--local-ranks-filter {text!r} is not a list of local ranks such as 0,1"
        ) from None
    if any(not 0 <= rank < ranks for rank in chosen):
        raise PhantoraError(f"--local-ranks-filter {text}: local ranks go from 0 to {ranks - 1}")
    return chosen


def _prepare_stubs(console: Console) -> StubSet:
    """Builds the stub libraries if this torch is new to us."""
    from phantora import stubs

    return stubs.ensure(progress=lambda text: console.message(f"phantora: {text}"))
