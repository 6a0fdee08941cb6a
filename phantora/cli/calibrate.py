"""``phantora calibrate``: a calibration file from a trace of a real run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phantora.errors import PhantoraError
from phantora.options import HeadedCommand, run_options, run_spec, spec_of
from phantora.spec import CALIBRATE

if TYPE_CHECKING:
    from phantora.calibration import Calibration

_UNSTEADY = 0.1  # distance of a step from the median that is reported


@click.command(
    cls=HeadedCommand,
    epilog="""Examples:

\b
  phantora import rank0.json.gz -o real.arrow
  phantora calibrate real.arrow --out my-machine.toml -- train.py --layers 8    # the script as it was traced
  phantora calibrate real.arrow --data-loading 12ms -- train.py --layers 8    # with options of phantora trace
  phantora calibrate real.arrow simulated.arrow --out my-machine.toml    # or its simulated log
  phantora trace --calibration my-machine.toml --cluster 1x8xH200 train.py --layers 32
""",
)
@click.argument("real", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("simulated", nargs=-1, type=click.UNPROCESSED, metavar="[SIMULATED | -- SCRIPT [ARGS]...]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("my-machine.toml"),
    show_default=True,
    metavar="FILE.toml",
    help="Calibration file to write. Its table of operators is next to it (.parquet).",
)
@click.option("--cluster", metavar="SPEC", help="Cluster of SCRIPT  [default: the GPUs of REAL]")
@click.option("--name", default="calibrated", show_default=True, help="Name of the host in reports.")
@run_options(CALIBRATE)
def calibrate(
    real: Path, simulated: tuple[str, ...], out: Path, cluster: str | None, name: str, **options: Any
) -> None:
    """Describe a machine by REAL, a log of `phantora import`.

    The description has host, operators, products and collectives.

    SCRIPT with its arguments is simulated in the traced configuration. The host's costs are then those of the script,
    also with other layers, batches, sequences and numbers of GPUs. SIMULATED is a log of such a run, on a built-in
    host. Without either, the costs are the machine's, for any script.

    The cost of torch.profiler is subtracted. Two steps of one rank are enough for the host. Shapes add the operators,
    the traces of all ranks add the collectives. The file leaves out what the trace does not show.
    """
    from phantora import calibration as calibrating
    from phantora.trace.reader import open_log

    if out.suffix != ".toml":
        raise PhantoraError(f"--out {out}: the name of a calibration file ends in .toml")
    log = open_log(real)
    if simulated and not simulated[0].endswith(".arrow"):
        run = spec_of(simulated, run_spec(CALIBRATE, (), options))
        run = replace(run, cluster=cluster or log.metadata.cluster)
        click.echo(f"phantora: simulating {' '.join(simulated)} on {run.cluster}", err=True)
        found = calibrating.calibrate_by(log, run, name)
    else:
        found = calibrating.calibrate(log, open_log(simulated[0]) if simulated else None, name)
    table = out.with_suffix(".parquet")
    calibrating.write(found, out, table)
    _print(found, table)
    click.echo(f"{out}: use it with `phantora trace --calibration {out}`")


def _print(found: Calibration, table: Path) -> None:
    fit = found.fit
    if fit.real is not None and fit.simulated is not None:
        click.echo(
            f"rank {fit.real.rank}: {fit.real.work_ns / 1e6:.2f} ms of host work a step under the profiler (median of "
            f"{fit.real.steps}), of which the profiler takes {found.host.factor * fit.real.profiler_ns / 1e6:.2f} ms"
        )
        if fit.real.spread > _UNSTEADY:
            click.echo(f"its steps differ by {fit.real.spread:.0%}; more of them make it surer")
        click.echo(f"simulated on {found.compared_with}: {fit.simulated.work_ns / 1e6:.2f} ms a step")
    for part, reported in (("host", _host(found)), *_gpu(found, table)):
        click.echo(f"{part:12} {reported}")


def _host(found: Calibration) -> str:
    fit = found.fit
    text = f"{fit.ratio:.2f} times as slow as {found.compared_with}, factor {found.host.factor:.2f}"
    if fit.pace > 1.0:
        text += f" (slowest rank: {fit.pace:.2f} times this one)"
    if fit.real is None:
        text += f"; fitted to {fit.operators} operators, for any script; name yours after -- for a closer fit"
    return text


def _gpu(found: Calibration, table: Path) -> list[tuple[str, str]]:
    """A line for each part of the GPU: what the file has, or why it is left out."""
    if found.gpu is None:
        return [("GPU", "left out: the log names no known GPU")]
    operators = f"{len(found.operators)} with shapes, in {table}"
    if found.differing:
        operators += f"; {found.differing} left out: their times differ between calls"
    low, high = found.products.quartiles
    products = f"{found.products.ratio:.3f} times the simulated time (quartiles {low:.3f} to {high:.3f})"
    curves = ", ".join(f"{curve.op} of {curve.members} at {len(curve.bytes)} sizes" for curve in found.gpu.collectives)
    return [
        ("operators", operators if found.operators else "left out: profile with record_shapes=True"),
        ("products", products if found.products.consistent else f"left out: {_no_products(found)}"),
        ("collectives", curves or "left out: import the traces of all ranks of a group, with three calls of a size"),
    ]


def _no_products(found: Calibration) -> str:
    if found.fit.simulated is None:
        return "name the script: they are compared with simulated ones"
    if found.products.number < 5:
        return f"{found.products.number} products of 20 us or more in both logs, and 5 are needed"
    return "their times are neither all longer nor all shorter than simulated"
