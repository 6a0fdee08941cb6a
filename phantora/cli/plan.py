"""``phantora plan``: how many GPUs a job needs, how long it takes and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from phantora.cli.options import margin_option, module_option
from phantora.cli.sweep import note_folder, progress_of
from phantora.options import ScriptCommand, run_options, run_spec
from phantora.spec import OFF, PLAN
from phantora.units import COUNT, SHARE

if TYPE_CHECKING:
    from phantora.sweeps.questions import Offers


@click.command(
    "plan",
    cls=ScriptCommand,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

\b
  phantora plan --gpu H100 --gpus 16 --rate 200k train.py
  phantora plan --gpu H100 --gpus 8 --tokens 1T --price 2.5 train.py
""",
)
@click.option("--gpu", default="H100", show_default=True, metavar="MODEL", help="GPU model.")
@click.option(
    "--gpus",
    "most",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Try 1, 2, 4, ... GPUs, up to N.",
)
@click.option(
    "--per-host", type=click.IntRange(min=1), default=8, show_default=True, metavar="N", help="GPUs per host."
)
@click.option("--rate", metavar="N", help="Target rate in tokens per second (200k). Ends the search.")
@click.option("--tokens", metavar="N", help="Total tokens of the job (1T), for its time and cost.")
@click.option("--price", metavar="DOLLARS", help="Price per GPU and hour.  [default: the median of public ones]")
@margin_option
@click.option(
    "-o",
    "--output",
    default="plan",
    show_default=True,
    metavar="FOLDER",
    help="Folder of the runs; the same command resumes from it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@run_options(PLAN, defaults={"fold": OFF})
@module_option
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def plan(target: tuple[str, ...], **options: Any) -> int:
    """Find the fewest GPUs for a rate of tokens.

    Prints also the time and cost of a number of tokens. SCRIPT runs on 1, 2, 4, ... GPUs with the same arguments, a
    short run each. Ends with status 1 if no size is enough.
    """
    import orjson

    from phantora.cli.printed import Plan, PlanRow
    from phantora.json_data import encode
    from phantora.sweeps import questions
    from phantora.sweeps.objective import parse_prices

    rate = options["rate"]
    sizes = questions.Sizes(
        gpu=options["gpu"],
        most=options["most"],
        per_host=options["per_host"],
        rate=COUNT.of("--rate", rate) if rate else None,
        tokens=COUNT.of("--tokens", options["tokens"]) if options["tokens"] else None,
        prices=parse_prices(options["price"]),
        margin=SHARE.of("--margin", options["margin"]),
    )
    run = run_spec(PLAN, target, options)
    found = questions.plan(run, Path(options["output"]), sizes, progress_of(options["quiet"]))
    if options["as_json"]:
        rows = [
            PlanRow(
                cluster=o.cluster,
                gpus=o.gpus,
                rate_per_second=o.rate,
                time=o.seconds,
                cost=o.dollars,
                status=o.row.status,
            )
            for o in found.tried
        ]
        answer = Plan(found.enough.cluster if found.enough else None, rows)
        click.echo(orjson.dumps(encode(answer), option=orjson.OPT_INDENT_2))
    else:
        _print(found, rate, sizes.margin)
    note_folder(options["output"], options["quiet"])
    return 0 if found.enough else 1


def _print(answer: Offers, rate: str | None, margin: float) -> None:
    from phantora.sweeps.questions import BY_STEPS, unjoined
    from phantora.trace.analysis.summary import counted
    from phantora.trace.analysis.units import size

    console = Console(width=100)
    found, enough = answer.tried, answer.enough
    if rate and enough:
        gpus = f"{enough.gpus} GPU{'s run' if enough.gpus > 1 else ' runs'}"
        console.print(f"{gpus} {rate} tokens/s: {enough.cluster}.", highlight=False)
        above = (enough.row.measured.error_above if enough.row.measured else None) or 0.0
        least = (enough.rate or 0.0) / (1 + above)
        if least < COUNT.of("--rate", rate):
            text = f"Not sure: within its error bar it may run {counted(least, None)} tokens/s."
            console.print(text, highlight=False)
    elif rate:
        text = f"{found[-1].gpus} GPUs do not run {rate} tokens/s and leave {margin:.0%}; try more with --gpus."
        console.print(text, highlight=False)
    elif enough is None:
        text = "The script does not fit any of these clusters."
        if any(offer.rate for offer in found):
            text = f"The script leaves {margin:.0%} of the memory (--margin) on none of these clusters."
        console.print(text, highlight=False)
    for offer in answer.passed_over:
        assert offer.row.measured is not None
        left = f"{offer.row.measured.left:.1%} of its memory, less than {margin:.0%} (--margin)"
        console.print(f"{offer.cluster} is passed over: it leaves {left}.", highlight=False)
    for text in unjoined((offer.gpus, offer.row.measured) for offer in found):
        console.print(text, highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    unit = next((offer.unit for offer in found if offer.rate), "tokens")
    for column in ("cluster", f"{unit}/s", "of linear", "MFU", "memory", "time", "cost"):
        table.add_column(column, justify="left" if column == "cluster" else "right")
    first = next((offer for offer in found if offer.rate), None)
    for offer in found:
        measured, speed = offer.row.measured, offer.rate
        if measured is None or not speed or first is None or not first.rate:
            result = offer.row.entry.result
            needs = f"needs {size(result.needs)}" if result is not None and result.needs else offer.row.status
            table.add_row(offer.cluster, "-", "-", "-", needs, "-", "-")
            continue
        linear = speed / offer.gpus / (first.rate / first.gpus)
        table.add_row(
            offer.cluster,
            counted(speed, measured.error),
            f"{linear:.0%}" if unit != "steps" else "-",
            f"{measured.mfu:.0%}" if measured.mfu else "-",
            f"{measured.memory / measured.capacity:.0%}",
            days(offer.seconds) if offer.seconds else "-",
            dollars(offer.dollars) if offer.dollars else "-",
        )
    console.print(table)
    if unit == "steps" and len(found) > 1:
        console.print(BY_STEPS, highlight=False)
    if answer.public and any(offer.dollars for offer in found):
        text = f"Cost at {answer.public} per GPU and hour, the median of public on-demand prices; --price gives yours."
        console.print(text, highlight=False)


def dollars(amount: float) -> str:
    """``$1,234``; ``$0.12``."""
    return f"${amount:,.0f}" if amount >= 100 else f"${amount:.3g}"


def days(seconds: float) -> str:
    """``12.3 days``, ``5.1 h``, ``20 min``, ``12 s``."""
    if seconds < 3600:
        return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.3g} s"
    return f"{seconds / 86400:,.1f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:,.1f} h"
