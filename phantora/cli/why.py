"""``phantora why``: the cause of a hang, of an out-of-memory error, or of a slow step."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from phantora.dumps.why import Answer

_WIDTH = 100
_INDENT = 10


@click.command(
    "why",
    epilog="""Examples:

\b
  phantora why nccl_trace_rank_*        # a hang, from the dumps of all ranks
  phantora why oom.pickle               # an out-of-memory error, from a memory snapshot
  phantora why real.pickle sim.pickle   # which blocks are in one alone
  phantora why run.arrow                # a slow step, from a log
""",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILES")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def why(files: tuple[str, ...], as_json: bool) -> None:
    """Name the cause of a hang, of an out-of-memory error, or of a slow step, in five lines.

    \b
    nccl_trace_rank_N   dumps of NCCL's flight recorder: TORCH_FR_BUFFER_SIZE=2000 in the job's environment
    .pickle             memory snapshots: torch.cuda.memory._record_memory_history(), _dump_snapshot(FILE)
    .arrow              logs of simulated and imported runs; traces of profilers are imported on the way

    Files are read without unpickling objects.
    """
    from phantora.cli.opening import log_of, note_newer
    from phantora.dumps.why import why as answer

    note_newer(files)
    print_answer(answer(files, log_of), as_json)


def print_answer(found: Answer, as_json: bool) -> None:
    """Prints an answer, wrapped at the terminal's width, or as JSON."""
    from dataclasses import asdict

    import orjson

    from phantora.cli.printed import Why, WhyLine

    if as_json:
        shown = Why(found.question, [WhyLine(word, text) for word, text in found.lines])
        click.echo(orjson.dumps(asdict(shown), option=orjson.OPT_INDENT_2))
        return
    for word, text in found.lines:
        first, *more = wrap(text, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False) or [""]
        click.echo(f"{word:<{_INDENT}}{first}")
        for part in more:
            click.echo(" " * _INDENT + part)
