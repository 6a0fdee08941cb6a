"""phantora trace: run a script on a simulated cluster."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phantora.cli.report import print_report, simulation_report
from phantora.cli.whatif import take_what_if, what_if_options
from phantora.errors import PhantoraError
from phantora.launch.command import run_command
from phantora.launch.ending import Outcome
from phantora.launch.output import Console
from phantora.launch.plan import Plan, check_target
from phantora.launch.routing import BALANCED, OPTION, parse_routing
from phantora.launch.supervisor import RankSupervisor

if TYPE_CHECKING:
    from phantora.cli.simulation import Settings, Simulation
    from phantora.hardware import Cluster
    from phantora.sim.simulator import Stats
    from phantora.stubs import StubSet

# Options of torchrun that a simulated cluster has no use for: (name, takes a value).
IGNORED = (
    ("rdzv-backend", True), ("rdzv-endpoint", True), ("rdzv-conf", True), ("standalone", False),
    ("max-restarts", True), ("monitor-interval", True), ("start-method", True), ("node-rank", True),
    ("master-addr", True), ("local-addr", True), ("event-log-handler", True), ("numa-binding", True),
    ("signals-to-handle", True),
)  # fmt: skip
ARROW = ".arrow"


def both(name: str) -> tuple[str, ...]:
    """torchrun takes ``--nproc-per-node`` and ``--nproc_per_node``."""
    return tuple(dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")))


def ignored_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, takes_value in reversed(IGNORED):
        extra: dict[str, Any] = {} if takes_value else {"is_flag": True}
        function = click.option(*both(name), f"ignored_{name.replace('-', '_')}", hidden=True, **extra)(
            function
        )
    return function


# Options that may also stand behind the script.
TRAILING = {"cluster": ("--cluster",), "output": ("-o", "--output")}


class TraceCommand(click.Command):
    """Remembers whether the command line had a ``--`` before the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        whole = list(args)
        rest = super().parse_args(ctx, args)
        target: tuple[str, ...] = ctx.params.get("target") or ()
        before = whole[: len(whole) - len(target)]
        ctx.meta["phantora.command"] = bool(target) and bool(before) and before[-1] == "--"
        if not ctx.meta["phantora.command"]:
            self._take_trailing(ctx)
        return rest

    def _take_trailing(self, ctx: click.Context) -> None:
        """Takes ``--cluster`` and ``-o`` from behind the script, unless they stand before it as well.

        People write them last. A script that has such options of its own gets them when ours stand
        before it, or after the first ``--``, which is passed on unless it ended options of ours.
        """
        target: tuple[str, ...] = ctx.params.get("target") or ()
        script, behind = target[:1], list(target[1:])
        cut = behind.index("--") if "--" in behind else len(behind)
        arguments, theirs = behind[:cut], behind[cut:]
        for name, flags in TRAILING.items():
            if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                continue
            for index, argument in enumerate(arguments):
                flag, equals, value = argument.partition("=")
                if flag not in flags:
                    continue
                if not equals and index + 1 == len(arguments):
                    raise click.UsageError(f"{flag} needs a value", ctx)
                ctx.params[name] = value if equals else arguments[index + 1]
                del arguments[index : index + (1 if equals else 2)]
                break
        if len(arguments) < cut:
            theirs = theirs[1:]  # it stood between our options and the script's
        ctx.params["target"] = (*script, *arguments, *theirs)


@click.command(
    cls=TraceCommand,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
    epilog="Arguments after SCRIPT belong to it, but for --cluster and -o where they do not stand before it. "
    "torchrun's rendezvous options are accepted and ignored.",
)
@click.option(
    "-c",
    "--cluster",
    default="1x1xH100",
    show_default=True,
    metavar="SPEC",
    help="HOSTSxGPUSxMODEL, for example 2x8xH100, or the path of a .toml file.",
)
@click.option(
    "-o",
    "--output",
    default="run.arrow",
    show_default=True,
    metavar="PATH",
    help="Where the timeline goes; the suffix decides: .perfetto, .pftrace, .json, .json.gz or .arrow. "
    "The event log lies beside it with the suffix .arrow.",
)
@click.option(
    *both("nproc-per-node"), "nproc", default="auto", metavar="N", help="Ranks per host  [default: its GPUs]"
)
@click.option("--nnodes", default="auto", metavar="N", help="Hosts to use  [default: all of the cluster]")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option(
    "--host-time",
    type=click.Choice(["modelled", "measured", "none"]),
    default="modelled",
    show_default=True,
    help="What the host costs: by the host profile, this machine's CPU time, or nothing.",
)
@click.option(
    "--host-scale",
    type=float,
    default=1.0,
    metavar="X",
    help="Factor on the CPU time of --host-time measured.",
)
@click.option(
    OPTION,
    default=BALANCED,
    show_default=True,
    metavar="R",
    help="Tokens per expert of a mixture of experts: balanced, zipf:S, a .json file with shares per layer, or "
    "framework (its own, by values that are zeros).",
)
@click.option(
    "--unsupported",
    type=click.Choice(["error", "warn"]),
    default="error",
    show_default=True,
    help="What a call does that Phantora does not cover.",
)
@click.option(
    "--hang-timeout",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Nothing moves for so long: the run counts as hung.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seeds random and NumPy of rank r with SEED + r.",
)
@click.option(
    "--preload", multiple=True, metavar="MODULE", help="Import MODULE once, before the ranks are forked."
)
@click.option(
    *both("log-dir"),
    "log_dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the ranks' output to DIR/RUN_ID/attempt_0/RANK/.",
)
@click.option(
    "-r",
    "--redirects",
    default="0",
    metavar="N",
    help="Streams that go to files instead of the console (1 stdout, 2 stderr, 3 both, or RANK:N,...).",
)
@click.option("-t", "--tee", default="0", metavar="N", help="Streams that go to files as well.")
@click.option(
    *both("local-ranks-filter"),
    "ranks_filter",
    metavar="R,...",
    help="Show the output of these local ranks only.",
)
@click.option(*both("rdzv-id"), "run_id", metavar="ID", help="The run's id (TORCHELASTIC_RUN_ID).")
@click.option("--role", default="default", hidden=True)
@click.option(
    *both("master-port"),
    "master_port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port of the TCPStore  [default: any free one]",
)
@click.option(*both("no-python"), "no_python", is_flag=True, hidden=True)
@click.option(
    "--null",
    is_flag=True,
    help="Run on the stubs without simulating: the floor for benchmarks. Writes no log.",
)
@click.option(
    "--recording/--no-recording",
    default=True,
    show_default=True,
    help="Keep in the log what `phantora replay` needs.",
)
@click.option(
    "--summary/--no-summary", default=True, show_default=True, help="Print a summary on stderr at the end."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as one line of JSON on stdout at the end."
)
@click.option(
    "--profile",
    type=click.Choice(["tables", "live"]),
    default="tables",
    show_default=True,
    help="Where kernel times come from: tables and the model, or also this machine's GPU, which then "
    "measures each operator that no table has, once.",
)
@click.option(
    "--missing",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the operators whose price is not measured to FILE, for `phantora profile`.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing of our own but errors.")
@what_if_options
@click.option("--flows", is_flag=True, help="Log every flow of the network, and what its links carry.")
@ignored_options
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|-m MODULE|-- COMMAND [ARGS]...")
@click.pass_context
def trace(ctx: click.Context, /, target: tuple[str, ...], **options: Any) -> None:
    """Run SCRIPT on a simulated cluster, one process per GPU, and write its timeline.

    Takes what torchrun takes. With `--`, COMMAND is a launcher (torchrun ...) that starts the ranks itself.
    """
    if not target:
        raise click.UsageError("name a script, -m MODULE, or -- COMMAND", ctx)
    request = Request.of(options, target, ctx.meta["phantora.command"])
    ctx.exit(request.run())


@dataclass
class Request:
    """A checked command line."""

    options: dict[str, Any]
    cluster: Cluster
    settings: Settings
    plan: Plan
    command: tuple[str, ...]
    log: Path
    timeline: Path | None

    @classmethod
    def of(cls, options: dict[str, Any], target: tuple[str, ...], is_command: bool) -> Request:
        """Checks everything that can be checked before anything runs."""
        from phantora.cli.simulation import Settings
        from phantora.hardware import load_cluster

        if options["no_python"]:
            raise PhantoraError(
                "--no-python runs a program that is not Python; write `phantora trace -- PROGRAM` instead"
            )
        if is_command and target[0].endswith(".py"):
            is_command = False  # nothing but a script can be meant
        cluster = load_cluster(options["cluster"])
        hosts = _count("--nnodes", options["nnodes"], cluster.hosts, "hosts", options["cluster"])
        ranks = _count(
            "--nproc-per-node", options["nproc"], cluster.gpus_per_host, "GPUs per host", options["cluster"]
        )
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
        log, timeline = (Path(os.devnull), None) if settings.null else output_paths(options["output"])
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
            options["role"],
            master_port=options["master_port"],
            log_dir=log_dir,
            redirects=options["redirects"],
            tee=options["tee"],
            ranks_filter=_filter(options["ranks_filter"], ranks),
            quiet=options["quiet"],
            **more,
        )
        return cls(options, cluster, settings, plan, target if is_command else (), log, timeline)

    # ------------------------------------------------------------------ running

    def run(self) -> int:
        """Runs it; the exit status."""
        quiet = self.plan.quiet
        stats: list[Stats] = []
        console = Console(
            sys.stdout.buffer, sys.stderr.buffer, not quiet and not self.command and sys.stderr.isatty()
        )
        self._say_what_is_ignored(console)
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
        simulation.close({**report, "operators": [asdict(entry) for entry in operators]})
        if simulation.log is not None:
            report["rows"] = simulation.log.rows
        if self.timeline is not None and report["rows"]:
            report["timeline"] = self._export()
        print_report(report, summary=self.options["summary"] and not self.plan.quiet, as_json=self.options["as_json"])

    def _write_missing(self, simulation: Simulation) -> None:
        from phantora.cost.wanted import write_wanted

        path: Path | None = self.options["missing"]
        if path is None or simulation.simulator is None:
            return
        guessed = [entry for entry in simulation.simulator.operators() if entry.provenance != "measured"]
        write_wanted(path, guessed, gpu=self.cluster.gpu.name)

    def _say_what_is_ignored(self, console: Console) -> None:
        given = [name for name, _ in IGNORED if self.options["ignored_" + name.replace("-", "_")]]
        if given and not self.plan.quiet:
            names = ", ".join(f"--{name}" for name in given)
            console.message(f"phantora: note: {names}: ignored, since all ranks run on this machine")

    def _run_ranks(self, console: Console, stats: list[Stats]) -> tuple[Outcome, Simulation]:
        stub_set = _prepare_stubs(console)
        supervisor = RankSupervisor(
            self.plan,
            console,
            stubs=stub_set.directory,
            imports=self.plan.imports,
            shared=self.plan.shared,
            status_line=None
            if not sys.stderr.isatty() or self.plan.quiet
            else _status_line(self.plan, stats),
        )
        try:
            simulation = self._assemble(console, stats, stub_set)
        except BaseException:
            supervisor.close()
            raise
        return supervisor.run(simulation.session, simulation.simulator), simulation

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
        )

        outcome = run_command(self.command, environment, session, simulation.simulator)
        joined = sum(1 for pid in session.control["pid"] if pid)
        if not joined and not outcome.status:
            outcome.status = 1
            outcome.message = (
                f"{self.command[0]} started no rank that joined: a launcher written in Python is expected, "
                "that sets RANK for its workers; run a script with `phantora trace SCRIPT`"
            )
        return outcome, simulation

    def _assemble(self, console: Console, stats: list[Stats], stub_set: StubSet) -> Simulation:
        from phantora.cli.main import version
        from phantora.cli.simulation import assemble

        metadata = {
            "phantora": version(),
            "command": list(self.command or (self.plan.target, *self.plan.arguments)),
            "torch": stub_set.torch_version,
            "extra": {"moe_routing": self.plan.moe_routing},
        }
        simulation = assemble(
            self.cluster,
            self.settings,
            self.log,
            metadata,
            lambda now: stats.__setitem__(slice(None), [now]),
            stub_set.engine,
        )
        for note in () if self.plan.quiet else simulation.notes:
            console.message(f"phantora: note: {note}")
        return simulation

    # ------------------------------------------------------------------ afterwards

    def _export(self) -> list[str]:
        from phantora.trace.export.registry import export

        return export(self.log, str(self.timeline))

    def _report(self, outcome: Outcome, simulation: Simulation) -> dict[str, Any]:
        """What is known about the run without reading the log. Seconds."""
        report: dict[str, Any] = {
            "status": outcome.status,
            "ranks": self.plan.world_size,
            "startup_seconds": round(outcome.startup_seconds, 3),
            "wall_seconds": round(outcome.wall_seconds, 3),
        }
        if outcome.message:
            report["error"] = outcome.message
        if simulation.simulator is not None:
            report |= simulation_report(simulation.simulator.stats(), self.plan.world_size, self.log)
        return report


def output_paths(output: str) -> tuple[Path, Path | None]:
    """The event log and, if one is wanted, the timeline. Raises if either cannot be written."""
    from phantora.trace.export.registry import format_of

    path = Path(output)
    timeline = None
    if path.suffix != ARROW:
        suffixes = format_of(output).suffixes
        timeline = path
        suffix = max((s for s in suffixes if output.endswith(s)), key=len, default="")
        path = path.with_name(path.name.removesuffix(suffix) + ARROW)
    for file in filter(None, (path, timeline)):
        _check_writable(file)
    return path, timeline


def _check_writable(path: Path) -> None:
    existed = path.exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {error.strerror}; choose another -o") from error
    if not existed:
        path.unlink()


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


def _status_line(plan: Plan, stats: Sequence[Stats]) -> Callable[[int], str]:
    import time

    begin = time.monotonic()

    def line(alive: int) -> str:
        parts = [f"{alive}/{plan.world_size} ranks"]
        if stats:
            now, wall = stats[-1], max(time.monotonic() - begin, 1e-3)
            seconds = now.virtual_ns * 1e-9
            parts += [f"step {now.steps}"] if now.steps else []
            parts += [
                f"{seconds:.3f} s simulated",
                f"{now.records / wall:,.0f} events/s",
                f"{seconds / wall:.2f}x real time",
            ]
        return "phantora: " + ", ".join(parts)

    return line
