"""``phantora import``: a log from the traces of a real run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from phantora.cli.formats import FormatsCommand
from phantora.cli.progress import progress

if TYPE_CHECKING:
    from phantora.importers import Imported

_MOST_SKEWS = 8  # ranks whose skew is shown


def _formats() -> list[tuple[str, str]]:
    from phantora.importers import readers

    ordered = sorted(readers(), key=lambda reader: not reader.takes_all)
    return [(", ".join(reader.suffixes), reader.description) for reader in ordered]


@click.command(
    "import",
    cls=FormatsCommand,
    formats=_formats,
    epilog="""Examples:

\b
  phantora import rank0.json.gz -o real.arrow
  phantora import traces/rank*.json -o real.arrow
  phantora diff real.arrow simulated.arrow
  phantora trace --cluster 1x8xH100 --validate real.arrow train.py
""",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILES")
@click.option("-o", "--output", default="real.arrow", show_default=True, metavar="LOG", help="Log to write.")
@click.option("--force", is_flag=True, help="Replace LOG if it exists.")
@click.option("--gpu", metavar="MODEL", help="GPU model of the run, where the traces do not tell it.")
def import_(files: tuple[str, ...], output: str, force: bool, gpu: str | None) -> None:
    """Make a log of a real run from its profiler traces.

    `analyze`, `diff`, `view`, `export` and `calibrate` read it. `analyze`, `diff` and `view` of a single trace import
    it by themselves. Collectives are matched across ranks, and the clock skew of the ranks is removed.
    """
    from phantora.runs.imports import import_run

    with progress("importing") as reported:
        log, imported = import_run(files, output, force, gpu, reported)
    _print(imported, log)


def _print(imported: Imported, log: str) -> None:
    ranks = len(imported.ranks)
    of = f"{ranks} of {imported.world_size} ranks" if imported.world_size > 1 else "1 rank"
    click.echo(f"{log}: {imported.rows:,} rows of {of}, {imported.gpu or 'unknown GPU'}")
    if ranks > 1:
        rest = (
            f"; a replay takes the other {imported.unmatched:,} for kernels of their time" if imported.unmatched else ""
        )
        click.echo(f"{imported.matched:,} collectives matched across ranks{rest}")
        for rank, skew in list(imported.skews.items())[:_MOST_SKEWS]:
            if skew.removed:
                ahead = "ahead" if skew.ns > 0 else "behind"
                click.echo(f"clock of rank {rank}: {abs(skew.ns) / 1e3:.1f} us {ahead}, removed")
    for what, option in imported.missing.items():
        click.echo(f"without {what}: profile with {option} to have them")
    for note in imported.notes:
        click.echo(note)
