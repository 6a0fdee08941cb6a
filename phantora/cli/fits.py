"""``phantora fits``: does a script fit its GPUs, what would make it fit, and which largest batch does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phantora.cli.options import margin_option, module_option
from phantora.cli.sweep import note_folder, part_of, progress_of
from phantora.errors import PhantoraError
from phantora.options import ScriptCommand, run_options, run_spec
from phantora.spec import FITS, OFF
from phantora.units import SHARE


@click.command(
    "fits",
    cls=ScriptCommand,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

\b
  phantora fits --cluster 1x4xH100 train.py --batch 8
  phantora fits --cluster 1x4xH100 --largest --batch train.py
  phantora fits --cluster 1x4xH100 --worst-batch train.py
  phantora fits --cluster 1x4xH100 --snapshot oom.pickle train.py --batch 8
""",
)
@click.option("--largest", metavar="OPTION", help="Find the largest integer value of this option of SCRIPT that fits.")
@margin_option
@click.option(
    "--remedies/--no-remedies",
    default=True,
    show_default=True,
    help="Simulate what would help a run that does not fit: checkpointing, offload, smaller batches, FSDP.",
)
@click.option(
    "--snapshot",
    type=click.Path(),
    metavar="PICKLE",
    help="Memory snapshot of the real job: what it held beyond the simulated run counts as well.",
)
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
@run_options(FITS, defaults={"fold": OFF})
@module_option
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def fits(
    target: tuple[str, ...], largest: str | None, snapshot: str | None, as_json: bool, quiet: bool, **options: Any
) -> int:
    """Check whether SCRIPT fits the GPU memory.

    Prints the memory left or missing. Ends with status 0 if it fits, else 1. Each run is a short `phantora trace`.
    """
    import orjson

    from phantora.dumps.memory_snapshot import read_snapshot
    from phantora.json_data import encode
    from phantora.sweeps import questions

    if largest and snapshot:
        raise PhantoraError("--snapshot is of one run: leave out --largest, or give it --gpu-memory")
    real = read_snapshot(snapshot) if snapshot else None
    found = questions.fits(
        run_spec(FITS, target, options),
        Path(options["output"]),
        largest,
        progress_of(quiet),
        margin=SHARE.of("--margin", options["margin"]),
        remedies=options["remedies"],
        on_part=part_of(quiet),
    )
    if real is not None:
        found = questions.as_in_reality(found, real.path, real.peak)
    click.echo(orjson.dumps(encode(found), option=orjson.OPT_INDENT_2) if as_json else "\n".join(found.says))
    note_folder(options["output"], quiet)
    return 0 if found.fits else 1
