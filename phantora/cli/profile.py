"""phantora profile: measure operators on the GPU of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phantora.errors import PhantoraError

if TYPE_CHECKING:
    from phantora.cost.wanted import Wanted

SHOWN = 20  # refused operators that are listed


@click.command()
@click.argument("source", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="TABLE",
    help="The table of kernel times (.parquet). What it already holds is not measured again.",
)
@click.option("--budget", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop after so long.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def profile(source: Path | None, out: Path, budget: float | None, quiet: bool) -> None:
    """Measure the operators of SOURCE on this machine's GPU, with the torch that is installed.

    SOURCE is a file of `phantora trace --missing`, or a run's log (.arrow). Without it a built-in
    sweep is measured. Interrupt it when you like: what is measured stays, and the same command goes on.
    """
    from phantora.profile.session import Book, measure_all

    if out.suffix != ".parquet":
        raise PhantoraError(f"--out {out}: a table's name ends in .parquet")
    book = Book(out)
    wanted = book.lacks(_wanted(source))
    known, interrupted = len(book.entries), False
    try:
        if wanted:
            with click.progressbar(
                length=len(wanted), label="measuring", file=sys.stderr, show_pos=True, hidden=quiet
            ) as bar:
                measure_all(wanted, book.add, budget, bar.update)
    except KeyboardInterrupt:
        interrupted = True
        click.echo("\ninterrupted; the same command goes on where it stopped", err=True)
    finally:
        table = book.finish()
    left = len(book.lacks(wanted))
    click.echo(f"{out}: {len(table)} operators on {table.about.get('gpu', 'no GPU')}, {len(table) - known} of them new")
    if book.refused:
        click.echo(f"{len(book.refused)} could not be measured, and keep their estimates:")
        for text, reason in book.refused[:SHOWN]:
            click.echo(f"  {text[:60]}: {reason}")
        if len(book.refused) > SHOWN:
            click.echo(f"  and {len(book.refused) - SHOWN} more")
    if left:
        click.echo(f"{left} are left; run the same command again")
    if interrupted:
        sys.exit(130)
    if wanted and len(book.refused) == len(wanted):
        raise PhantoraError(f"none of the {len(wanted)} operators could be measured; the reasons are above")


def _wanted(source: Path | None) -> list[Wanted]:
    if source is None:
        from phantora.profile.sweep import sweep

        return sweep()
    from phantora.cost.wanted import read_wanted, wanted_from

    if source.suffix == ".arrow":
        from phantora.trace.reader import open_log

        return [wanted_from(table, str(source)) for table in open_log(str(source)).operators()]
    return read_wanted(source)
