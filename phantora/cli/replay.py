"""phantora replay: simulate a recorded run on another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phantora.cli.options import report_options
from phantora.cli.report import Report
from phantora.options import HeadedCommand, run_options, run_spec
from phantora.spec import REPLAY


@click.command(
    cls=HeadedCommand,
    options_metavar="[OPTIONS]",
    epilog="""Examples:

\b
  phantora replay run.arrow --gpu H200 -o h200.arrow
  phantora replay run.arrow --straggler rank=3:1.2 -o slow.arrow
  phantora replay run.arrow --host-scale 1.5
  phantora replay real.arrow --stragglers none
""",
)
@click.argument("run", metavar="RUN.ARROW", type=click.Path(path_type=Path))
@click.option(
    "-c",
    "--cluster",
    metavar="SPEC",
    help="HOSTSxGPUSxMODEL or the path of a .toml file, with one GPU per recorded rank  [default: the run's]",
)
@click.option("--gpu", metavar="MODEL", help="GPU model, or its .toml file, with its own links, in the recorded hosts.")
@click.option(
    "--host-scale",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="X",
    help="Multiply the recorded host time by X (0: no host time).",
)
@click.option(
    "--stragglers",
    type=click.Choice(["measured", "none"]),
    default="measured",
    show_default=True,
    help="Of a real run. none: every launch takes the mean of its kind over ranks and steps.",
)
@run_options(REPLAY, unset={"host": "as recorded", "output": "replay.arrow"})
@report_options
def replay(run: Path, **options: Any) -> None:
    """Simulate the recorded run RUN.ARROW on another cluster.

    A replay takes seconds. Kernels, sizes, collectives and host times between waits are those of the recording
    (docs/replay.md).
    """
    from phantora.cli.opening import log_of, note_newer
    from phantora.runs.replay import ReplaySpec
    from phantora.runs.replay import replay as simulate

    chosen = run_spec(REPLAY, (), options)
    note_newer([str(run)])
    spec = ReplaySpec(
        log=Path(log_of(str(run)).path),
        cluster=options["cluster"],
        gpu=options["gpu"],
        host=chosen.host,
        host_scale=options["host_scale"],
        stragglers=options["stragglers"] == "measured",
        what_if=chosen.what_if,
        output=chosen.output,
    )
    summary = options["summary"] and not options["quiet"]
    report = Report(summary=summary, as_json=options["as_json"], verbose=options["verbose"], price=options["price"])
    report.end(simulate(spec, report.analyze))
