"""phantora trace: run a script on a simulated cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from phantora.cli.behind import note_behind, ours_behind, reads
from phantora.cli.options import IGNORED, check_option, ignored_options, module_option, report_options
from phantora.cli.validating import Reality, show, validate_options
from phantora.errors import PhantoraError
from phantora.options import ScriptCommand, run_options, run_spec
from phantora.spec import COMMAND, TRACE, RunSpec

# Options that may also stand behind the script.
TRAILING = {"cluster": ("-c", "--cluster"), "output": ("-o", "--output")}


class TraceCommand(ScriptCommand):
    """Takes ``--cluster``, ``-c``, ``--output`` and ``-o`` also behind the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; takes ``--cluster``, ``-o`` and ``-c`` behind a script, none behind ``--``."""
        rest = super().parse_args(ctx, args)
        if not ctx.meta[COMMAND]:
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
@run_options(TRACE)
@module_option
@check_option("--fail", is_flag=True, help="End with status 1 if --check finds something.")
@validate_options(check_option)
@report_options
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
    is_command = ctx.meta[COMMAND]
    behind = [] if is_command else ours_behind(ctx, target)
    if not options["quiet"] and not options["module"]:
        note_behind([flag for flag in behind if not reads(target[0], flag)], target[0])
    try:
        status = _run(_spec(target, is_command, options), options)
    except PhantoraError as error:
        # An error about what such an option was given may come from the script's own option of that name.
        taken_behind = ctx.meta.get("phantora.behind", {}).items()
        flags = [flag for name, flag in taken_behind if str(ctx.params[name]) in str(error)]
        if not flags:
            raise
        taken = " and ".join(f"{flag} behind {target[0]}" for flag in flags)
        raise PhantoraError(f"{error} ({taken} was taken as ours; arguments after -- are the script's)") from error
    if status:
        note_behind([flag for flag in behind if options["module"] or reads(target[0], flag)], target[0])
    ctx.exit(status)


def _spec(target: tuple[str, ...], is_command: bool, options: Mapping[str, Any]) -> RunSpec:
    if options["ignored_no_python"]:
        raise PhantoraError("--no-python runs a program that is not Python; write `phantora trace -- PROGRAM` instead")
    spec = run_spec(TRACE, target, options, is_command=is_command)
    return replace(spec, ranks=replace(spec.ranks, quiet=options["quiet"]))


def _run(spec: RunSpec, options: Mapping[str, Any]) -> int:
    """Runs it and prints its report; the exit status."""
    from phantora.cli.report import Report
    from phantora.cli.status import follow
    from phantora.launch.output import Console
    from phantora.runs.local import run

    quiet, as_json = spec.ranks.quiet, options["as_json"]
    reality = Reality(options["validate"], options["validate_within"]) if options["validate"] else None
    # JSON shall be all that stands on stdout.
    ranks_out = sys.stderr if as_json else sys.stdout
    console = Console(ranks_out.buffer, sys.stderr.buffer, not quiet and spec.kind != COMMAND and sys.stderr.isatty())
    given = [f"--{name}" for name, _ in IGNORED if options["ignored_" + name.replace("-", "_")]]
    if given and not quiet:
        console.message(f"phantora: note: {', '.join(given)}: ignored, since all ranks run on this machine")
    summary = options["summary"] and not quiet
    report = Report(summary=summary, as_json=as_json, verbose=options["verbose"], price=options["price"])
    result = run(spec, console, None if quiet else follow(spec.arguments), report.analyze)
    ended = not result.status and result.log is not None
    validation = reality.compare(str(result.log)) if reality is not None and ended else None
    report.end(result, validation)
    if validation is not None:
        return show(validation)
    if options["fail"] and not result.status and result.log is not None:
        return 1 if _found(str(result.log)) else 0
    return result.status


def _found(path: str) -> bool:
    """True if --check found something."""
    from phantora.trace.analysis.races import races
    from phantora.trace.reader import open_log

    return bool(races(open_log(path)))
