"""phantora trace: run a script on a simulated cluster."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from phantora import defaults
from phantora.cli.options import (
    IGNORED,
    WHAT_IF,
    host_option,
    ignored_options,
    output_options,
    report_options,
    run_spec,
    torchrun_options,
    what_if_options,
)
from phantora.errors import PhantoraError
from phantora.rank.assume import KEYS
from phantora.rank.assume import OPTION as ASSUME
from phantora.rank.patches import disk, loading
from phantora.spec import COMMAND, MODULE, SCRIPT, RunSpec

# Options that may also stand behind the script.
TRAILING = {"cluster": ("-c", "--cluster"), "output": ("-o", "--output")}


# Headings of --help, with the options below each. Others are below the last.
SECTIONS = {
    "Cluster and script": (
        "cluster",
        "nnodes",
        "nproc_per_node",
        "processes_per_gpu",
        "gpu_memory",
        "module",
        "preload",
        "seed",
    ),
    "Output": (
        "output",
        "force",
        "recording",
        "flows",
        "modules",
        "missing",
        "summary",
        "as_json",
        "verbose",
        "quiet",
        "price",
    ),
    "Source of times": ("host", "host_time", "host_scale", "profile", "data_loading", "disk", "null"),
    "Unknown values and calls": ("moe_routing", "assume", "unsupported"),
    "Folding (fewer processes than GPUs)": ("fold", "real_ranks"),
    "Faults of the cluster": tuple(name for name, _, _ in WHAT_IF),
    "Checks": ("check", "fail", "validate", "validate_within", "hang_timeout"),
    "Ranks' output and rendezvous, as torchrun": (
        "log_dir",
        "redirects",
        "tee",
        "ranks_filter",
        "run_id",
        "master_port",
    ),
    "Other": (),
}


class TraceCommand(click.Command):
    """Records whether the command line has a ``--`` before the script."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options below the headings of SECTIONS."""
        section = {name: heading for heading, names in SECTIONS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in SECTIONS}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)) is not None:
                rows[section.get(parameter.name or "", "Other")].append(row)
        for heading, found in rows.items():
            with formatter.section(heading):
                formatter.write_dl(found)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; takes ``--cluster``, ``-o`` and ``-c`` behind a script, none behind ``--``."""
        whole = list(args)
        rest = super().parse_args(ctx, args)
        target: tuple[str, ...] = ctx.params.get("target") or ()
        before = whole[: len(whole) - len(target)]
        ctx.meta["phantora.command"] = bool(target) and bool(before) and before[-1] == "--"
        if not ctx.meta["phantora.command"]:
            self._take_trailing(ctx)
        return rest

    def _take_trailing(self, ctx: click.Context) -> None:
        """Takes ``--cluster``, ``-c``, ``--output`` and ``-o`` from behind the script, unless they stand before it.

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
                ctx.meta["phantora.behind"] = {**ctx.meta.get("phantora.behind", {}), name: flag}
                del arguments[index : index + (1 if equals else 2)]
                break
        if len(arguments) < cut:
            theirs = theirs[1:]  # it stood between our options and the script's
        ctx.params["target"] = (*script, *arguments, *theirs)


@click.command(
    cls=TraceCommand,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
    epilog="""Put options before SCRIPT and its own arguments after it. Only -c, --cluster, -o and --output may also
follow it, up to a --. torchrun's rendezvous options are accepted and ignored.

Examples:

\b
  phantora trace train.py --cluster 2x8xH100 -o run.perfetto
  phantora trace -m my.trainer --cluster dgx-h100:16 -- --batch 4
  phantora trace --cluster 1x4xA100-80GB -- torchrun --nproc-per-node 4 train.py
  phantora trace --degrade 'h0.nic0>*=0.5' --modules train.py
""",
)
@click.option(
    "-c",
    "--cluster",
    default=defaults.CLUSTER,
    show_default=True,
    metavar="SPEC",
    help="HOSTSxGPUSxMODEL, for example 2x8xH100, or the path of a .toml file.",
)
@click.option(
    "--processes-per-gpu",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Let N processes share each GPU at a time: they take turns, or run concurrently under MPS.",
)
@output_options("SCRIPT.arrow, or SCRIPT-2.arrow and so on if it exists")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@host_option("the host of the cluster's file, else default")
@click.option(
    "--host-time",
    type=click.Choice(["modelled", "measured", "none"]),
    default="modelled",
    show_default=True,
    help="Source of the host time: the host model, this machine's CPU time, or none.",
)
@click.option(
    "--host-scale", type=float, default=1.0, metavar="X", help="Multiply the CPU time of --host-time measured by X."
)
@click.option(
    loading.OPTION,
    default=loading.FREE,
    show_default=True,
    metavar="COST",
    help="Cost of a DataLoader's batch: free, measured (this machine's CPU time), measured:X (X times as much), or a "
    "time such as 12ms.",
)
@click.option(
    disk.OPTION,
    default=disk.DEFAULT,
    show_default=True,
    metavar="RATE",
    help="Rate at which checkpoints are written: 2GB/s per host, 20GB/s,shared by the cluster, or free.",
)
@click.option(
    "--moe-routing",
    default=defaults.MOE_ROUTING,
    show_default=True,
    metavar="R",
    help="Tokens per expert of a mixture of experts: balanced, zipf:S, a .json file with shares per layer, or "
    "framework (the framework's own routing, on values of 0).",
)
@click.option(
    ASSUME,
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace unknown values: " + "; ".join(f"{key}={text}" for key, text in KEYS.items()) + ".",
)
@click.option(
    "--unsupported",
    type=click.Choice(["error", "warn"]),
    default="error",
    show_default=True,
    help="Effect of a call that Phantora does not cover.",
)
@click.option(
    "--hang-timeout",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Report a hang after SECONDS without progress.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed random and NumPy of rank r with SEED + r.",
)
@click.option("--preload", multiple=True, metavar="MODULE", help="Import MODULE once, before the ranks fork.")
@click.option(
    "--profile",
    type=click.Choice(["tables", "live"]),
    default="tables",
    show_default=True,
    help="Source of kernel times: tables and models, or also this machine's GPU, which measures each unmeasured "
    "operator once.",
)
@click.option(
    "--missing",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the unmeasured operators to FILE, for `phantora profile`.",
)
@click.option(
    "--gpu-memory",
    type=click.FloatRange(min=1),
    metavar="GIB",
    help="Override the GPU memory in GiB, for example to find the need of a run that does not fit.",
)
@click.option("--null", is_flag=True, help="Run on the stubs without simulation or log: the lower bound of benchmarks.")
@click.option(
    "--modules",
    is_flag=True,
    help="Log time, flops and memory by nn.Module, forward and backward. Costs no virtual time.",
)
@click.option(
    "--check",
    type=click.Choice(["races"]),
    help="Report accesses to memory that nothing orders: reads of pinned memory before a copy has ended, tensors on "
    "other streams without an event or record_stream.",
)
@click.option("--fail", is_flag=True, help="End with status 1 if --check finds something.")
@click.option(
    "--fold",
    default="auto",
    show_default=True,
    metavar="auto|off|AXES",
    help="Run some ranks of a mesh as processes; they represent the others. AXES: the axes of the mesh with their "
    "sizes, largest stride first (pp=4,dp=64,tp=8). A pipeline (pp) runs all its stages. After a size, :all runs all "
    "ranks (tp=8:all), :first runs the first rank, :uneven compares communication only. auto: fold over rank 0's "
    "process groups if the ranks do not fit this machine's memory.",
)
@click.option("--real-ranks", metavar="R,...", help="More ranks of a folded run that are processes.")
@click.option(
    "--validate",
    type=click.Path(),
    metavar="REAL.ARROW",
    help="Compare step, classes and memory with the log of a real run (phantora import).",
)
@click.option(
    "--validate-within",
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="End with status 1 if the step or the memory differs by more than SHARE.",
)
@torchrun_options
@report_options
@what_if_options
@ignored_options
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|-m MODULE|-- COMMAND [ARGS]...")
@click.pass_context
def trace(ctx: click.Context, /, target: tuple[str, ...], **options: Any) -> None:
    """Run SCRIPT on a simulated cluster and write its timeline.

    Each simulated GPU has one process. The options of torchrun are accepted. With `--`, COMMAND (torchrun, accelerate
    launch, python) runs once. Its processes become ranks by their launcher's variables, or at their first use of a GPU.
    """
    if not target:
        raise click.UsageError("name a script, -m MODULE, or -- COMMAND", ctx)
    if options["fail"] and not options["check"]:
        raise click.UsageError("--fail needs --check", ctx)
    is_command = ctx.meta["phantora.command"]
    behind = [] if is_command else _ours_behind(ctx, target)
    if not options["quiet"] and not options["module"]:
        _note_behind([flag for flag in behind if not _mentions(target[0], flag)], target[0])
    try:
        status = _run(ctx, run_spec(target, _kind(options, is_command), options), options)
    except PhantoraError as error:
        # An error about what such an option was given may come from the script's own option of that name.
        taken_behind = ctx.meta.get("phantora.behind", {}).items()
        flags = [flag for name, flag in taken_behind if str(ctx.params[name]) in str(error)]
        if not flags:
            raise
        taken = " and ".join(f"{flag} behind {target[0]}" for flag in flags)
        raise PhantoraError(f"{error} ({taken} was taken as ours; arguments after -- are the script's)") from error
    if status:
        _note_behind([flag for flag in behind if options["module"] or _mentions(target[0], flag)], target[0])
    ctx.exit(status)


def read_command(words: Sequence[str]) -> RunSpec:
    """The run of a command line behind ``phantora trace``. Raises PhantoraError."""
    try:
        context = trace.make_context("trace", list(words))
    except click.UsageError as error:
        raise PhantoraError(error.format_message()) from error
    options = dict(context.params)
    target = options.pop("target")
    if not target:
        raise PhantoraError("name a script, -m MODULE, or -- COMMAND")
    return run_spec(target, _kind(options, context.meta["phantora.command"]), options)


def _kind(options: Mapping[str, Any], is_command: bool) -> str:
    if options["no_python"]:
        raise PhantoraError("--no-python runs a program that is not Python; write `phantora trace -- PROGRAM` instead")
    return COMMAND if is_command else MODULE if options["module"] else SCRIPT


def _run(ctx: click.Context, spec: RunSpec, options: Mapping[str, Any]) -> int:
    """Runs it and prints its report; the exit status."""
    from phantora.cli.report import Report
    from phantora.cli.status import follow
    from phantora.launch.output import Console
    from phantora.runs.local import run

    quiet, as_json = spec.ranks.quiet, options["as_json"]
    validated = _Validated(options["validate"], options["validate_within"]) if options["validate"] else None
    # JSON shall be all that stands on stdout.
    ranks_out = sys.stderr if as_json else sys.stdout
    console = Console(ranks_out.buffer, sys.stderr.buffer, not quiet and spec.kind != COMMAND and sys.stderr.isatty())
    given = [f"--{name}" for name, _ in IGNORED if options["ignored_" + name.replace("-", "_")]]
    if given and not quiet:
        console.message(f"phantora: note: {', '.join(given)}: ignored, since all ranks run on this machine")
    summary = options["summary"] and not quiet
    report = Report(summary=summary, as_json=as_json, verbose=options["verbose"], price=options["price"])
    result = run(spec, console, None if quiet else follow(spec.arguments), report.analyze)
    report.end(result)
    if validated is not None and not result.status and result.log is not None:
        return validated.check(str(result.log))
    if options["fail"] and not result.status and result.log is not None:
        return 1 if _found(str(result.log)) else 0
    return result.status


def _found(path: str) -> bool:
    """True if --check found something."""
    from phantora.trace.analysis.races import races
    from phantora.trace.reader import open_log

    return bool(races(open_log(path)))


class _Validated:
    """The real run that a simulated one is compared with."""

    def __init__(self, path: str, within: str) -> None:
        """Raises PhantoraError for a file that is no log of a real run, before the simulation begins."""
        from phantora.cli.diff import parse_share
        from phantora.trace.reader import open_log

        self._within = parse_share(within, "--validate-within")
        self._real = open_log(path)
        if not self._real.metadata.real:
            raise PhantoraError(f"{path}: --validate needs the log of a real run (`phantora import`)")

    def check(self, path: str) -> int:
        """Prints the table of the run whose log is `path`; 1 if it is beyond the bound."""
        from phantora.cli.terminal import report_console
        from phantora.trace.diff.between import validation
        from phantora.trace.diff.render import headline
        from phantora.trace.diff.validation import beyond, render
        from phantora.trace.reader import open_log

        found, difference = validation(self._real, open_log(path))
        console = report_console(stderr=True)
        console.print(headline(difference), highlight=False, markup=False, style="bold", soft_wrap=True)
        render(found, self._within, console)
        return 1 if beyond(found, self._within) else 0


def _ours_behind(ctx: click.Context, target: tuple[str, ...]) -> list[str]:
    """Words behind the script that are long options of ours, and that the script gets."""
    cut = target.index("--") if "--" in target else len(target)
    ours = {flag for parameter in ctx.command.params for flag in parameter.opts if flag.startswith("--")}
    words = (word.partition("=")[0] for word in target[1:cut])
    return list(dict.fromkeys(word for word in words if word in ours))


def _mentions(script: str, flag: str) -> bool:
    """True if the text of `script` contains the name of the option `flag`: the script may read it."""
    try:
        text = Path(script).read_text(errors="replace")
    except OSError:
        return True
    return re.search(rf"\b{flag[2:].replace('-', '[-_]')}\b", text) is not None


def _note_behind(flags: list[str], script: str) -> None:
    """A note on options of ours that `script` gets."""
    if flags:
        went = f"{', '.join(flags)} behind {script} went to the script; ours stand before it"
        click.echo(f"phantora: note: {went}", err=True)
