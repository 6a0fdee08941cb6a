"""``phantora calibrate``: a host file from a trace of a real run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from phantora.errors import PhantoraError

if TYPE_CHECKING:
    from phantora.calibrate import Calibration

_UNSTEADY = 0.1  # distance of a step from the median of which the user hears


@click.command(
    epilog="""Examples:

\b
  phantora import rank0.json.gz -o real.arrow
  phantora trace --cluster 1x4xH200 -o simulated.arrow train.py    # the same script and configuration
  phantora calibrate real.arrow simulated.arrow --out my-machine.toml
  phantora trace --calibration my-machine.toml --cluster 1x8xH200 train.py --layers 32
""",
)
@click.argument("real", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("simulated", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("my-machine.toml"),
    show_default=True,
    metavar="HOST.toml",
    help="Host file to write.",
)
@click.option("--name", default="calibrated", show_default=True, help="Name of the host in reports.")
def calibrate(real: Path, simulated: Path | None, out: Path, name: str) -> None:
    """Fit a host file to REAL, a log of `phantora import`.

    SIMULATED is a log of the same script and configuration on a built-in host. With it the file describes the script,
    also with other layers, batches, sequences and numbers of GPUs. Without it the file describes the machine.

    The cost of torch.profiler is subtracted. Two steps of one rank are enough. Shapes and stacks are optional.
    """  # fmt: skip
    from phantora import calibrate as calibrating
    from phantora.hardware.hosts import to_toml
    from phantora.trace.reader import open_log

    if out.suffix != ".toml":
        raise PhantoraError(f"--out {out}: the name of a host file ends in .toml")
    found = calibrating.calibrate(open_log(real), open_log(simulated) if simulated is not None else None, name)
    try:
        out.write_text(to_toml(found.host), encoding="utf-8")
    except OSError as error:
        raise PhantoraError(f"cannot write {out}: {error.strerror}; choose another file") from error
    _print(found)
    click.echo(f"{out}: use it with `phantora trace --calibration {out}`")


def _print(found: Calibration) -> None:
    step = found.real
    if step is not None and found.simulated is not None:
        click.echo(
            f"rank {step.rank}: {step.work_ns / 1e6:.2f} ms of host work a step under the profiler (median of "
            f"{step.steps}), of which the profiler takes {found.host.factor * step.profiler_ns / 1e6:.2f} ms"
        )
        if step.spread > _UNSTEADY:
            click.echo(f"its steps differ by {step.spread:.0%}; more of them make it surer")
        click.echo(f"simulated on {found.compared_with}: {found.simulated.work_ns / 1e6:.2f} ms a step")
    else:
        click.echo(f"compared by the own times of {found.operators} operators; for one script name a simulated log too")
    click.echo(f"{found.ratio:.2f} times as slow as {found.compared_with}, factor {found.host.factor:.2f}")
