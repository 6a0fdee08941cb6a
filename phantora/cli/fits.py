"""``phantora fits``: does a script fit its GPUs, what would make it fit, and which largest batch does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from phantora import defaults
from phantora.errors import PhantoraError


@click.command(
    "fits",
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

\b
  phantora fits --cluster 1x4xH100 train.py --batch 8
  phantora fits --cluster 1x4xH100 --largest --batch train.py
""",
)
@click.option(
    "-c",
    "--cluster",
    default=defaults.CLUSTER,
    show_default=True,
    metavar="SPEC",
    help="Cluster, as for `phantora trace`.",
)
@click.option("--largest", metavar="OPTION", help="Find the largest integer value of this option of SCRIPT that fits.")
@click.option(
    "-o",
    "--output",
    default="fits",
    show_default=True,
    metavar="FOLDER",
    help="Folder of the runs; the same command resumes from it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def fits(cluster: str, largest: str | None, output: str, as_json: bool, quiet: bool, target: tuple[str, ...]) -> int:
    """Check whether SCRIPT fits the GPU memory.

    Prints the memory left or missing. Ends with status 0 if it fits, else 1. Each run is a short `phantora trace`.
    """
    import orjson

    from phantora.cli.printed import Fits
    from phantora.cli.sweep import progress_of
    from phantora.cli.trace import read_command
    from phantora.json_data import encode
    from phantora.sweeps.questions import Tried, largest_that_fits, run_point, space_table
    from phantora.sweeps.run import Request
    from phantora.sweeps.space import space_of

    if largest and any(word.partition("=")[0] == largest for word in target):
        raise PhantoraError(f"--largest {largest}: leave {largest} out of the script's arguments, it is searched")
    space = space_of(space_table(target, cluster, largest), "fits")
    request = replace(Request(space, Path(output), read_command), fold="off")
    reported = progress_of(quiet)
    if largest is None:
        row = run_point(request, {}, reported)
        result, capacity = row.entry.result, row.entry.point.capacity
        if result is None:
            raise PhantoraError(f"{target[0]} was not run: {row.entry.skipped}")
        one = Tried(1, result)
        found = Fits(one.fits, one.bytes, capacity, _says(one, capacity))
    else:
        from phantora.hardware import load_cluster

        capacity = load_cluster(cluster).gpu.memory_bytes

        def run(number: int) -> Tried:
            result = run_point(request, {"largest": number}, reported).entry.result
            assert result is not None
            return Tried(number, result)

        tried = list(largest_that_fits(run, capacity))
        best = max((one.value for one in tried if one.fits), default=0)
        known = {one.value: one for one in tried}
        shown = known[best or 1]
        line = f"Largest {largest} that fits: {best}." if best else f"Not even {largest} 1 fits."
        says = [line, *_says(shown, capacity)]
        if best and (more := known.get(best + 1)) is not None and more.bytes:
            says.append(f"{largest} {best + 1} needs {more.bytes / 2**30:.1f} GiB.")
        found = Fits(bool(best), shown.bytes, capacity, says, best, {one.value: one.bytes for one in tried})
    click.echo(orjson.dumps(encode(found), option=orjson.OPT_INDENT_2) if as_json else "\n".join(found.says))
    return 0 if found.fits else 1


def _says(tried: Any, capacity: int) -> list[str]:
    """The verdict, and how much is left or missing."""
    taken = tried.bytes
    if tried.fits:
        left = capacity - taken
        text = f"{taken / 2**30:.1f} of {capacity / 2**30:.1f} GiB, {left / 2**30:.1f} GiB ({left / capacity:.0%}) left"
        return [f"Fits: {text} on the fullest GPU."]
    missing = ""
    if taken:
        needed = f"{taken / 2**30:.1f} of {capacity / 2**30:.1f} GiB"
        missing = f": it needs {needed}, {(taken - capacity) / 2**30:.1f} GiB more than there is"
    measured = tried.result.measured
    advice = measured.advice if measured else ""
    return [f"Does not fit{missing}.", *([advice] if advice else [])]
