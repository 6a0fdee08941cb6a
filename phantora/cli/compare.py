"""``phantora compare``: one script on several machines, in one table with a verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from phantora.cli.options import margin_option, module_option
from phantora.cli.sweep import progress_of
from phantora.errors import PhantoraError
from phantora.options import ScriptCommand, run_options, run_spec
from phantora.spec import COMPARE
from phantora.units import COUNT, SHARE, TIME

if TYPE_CHECKING:
    from phantora.cli.printed import Compared
    from phantora.spec import RunSpec
    from phantora.sweeps.compare import Choice, Comparison, Question

_NAMED = 8  # packages
_WIDE = 130  # columns of a table with the time and cost of a job


@click.command(
    "compare",
    cls=ScriptCommand,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

\b
  phantora compare --gpus H100,H200,B200 --count 8 train.py
  phantora compare --gpus H100,B200,GB200 --count 64 --tokens 2T --deadline 30d train.py
  phantora compare --gpus H200,B200 --count 8 --vary seq=8k:64k train.py
  phantora compare --gpus aws-p5,aws-p6-b200 --count 16 --price 'H100=3,B200=5' train.py
  phantora compare --gpus H100 --python .venv --python /tmp/newer train.py
""",
)
@click.option(
    "--gpus",
    required=True,
    metavar="MODEL,...",
    help="GPU models (H100,B200) or known systems (aws-p6-b200); the first is the base of speed-ups.",
)
@click.option("--count", default="8", show_default=True, metavar="N,...", help="Numbers of GPUs.")
@click.option(
    "--vary",
    metavar="NAME=VALUES",
    help="Vary the script's option --NAME: seq=8k,32k or seq=8k:256k (doubling; k is 1,024).",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="PYTHON",
    help="An interpreter, or its virtual environment: run on one machine under each of two or more, and diff the runs.",
)
@click.option("--tokens", metavar="N", help="Total tokens of the job (2T): its days and dollars, with failures.")
@click.option("--rate", metavar="N", help="Least tokens per second (200k).")
@click.option("--deadline", metavar="TIME", help="Longest time of the job (30d). Needs --tokens.")
@click.option(
    "--price", metavar="DOLLARS", help="Price per GPU and hour: 2.5, or H100=2.5,B200=5.  [default: --prices]"
)
@click.option(
    "--prices",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Prices by provider, source and date.  [default: public on-demand prices, their median]",
)
@margin_option
@click.option(
    "-o",
    "--output",
    default="compare",
    show_default=True,
    metavar="FOLDER",
    help="Folder of the runs; the same command resumes from it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@run_options(COMPARE)
@module_option
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def compare(target: tuple[str, ...], **options: Any) -> int:
    """Compare machines for a script: memory, speed, cost, and which one to rent.

    Each machine runs a few steps of SCRIPT, folded where its ranks repeat. Prices are public on-demand prices unless
    --price or --prices gives yours (docs/howto/which-machine.md). Ends with status 1 if no machine is enough.

    With --python, SCRIPT runs on one machine under several environments, and the answer is that of `phantora diff`.
    """
    import orjson

    from phantora.hardware.prices import SHIPPED, rental_prices
    from phantora.json_data import encode
    from phantora.sweeps.compare import Job, Question, parse_values
    from phantora.sweeps.compare import compare as answer
    from phantora.sweeps.compare_page import write_compare_page
    from phantora.sweeps.objective import parse_prices

    if options["deadline"] and not options["tokens"]:
        raise PhantoraError("--deadline needs the job's tokens: --tokens 2T")
    name, values = parse_values(options["vary"]) if options["vary"] else ("", ())
    job = Job(
        tokens=COUNT.of("--tokens", options["tokens"]) if options["tokens"] else None,
        rate=COUNT.of("--rate", options["rate"]) if options["rate"] else None,
        deadline=TIME.of("--deadline", options["deadline"]) / 1e9 if options["deadline"] else None,
        margin=SHARE.of("--margin", options["margin"]),
    )
    question = Question(
        gpus=tuple(part.strip() for part in options["gpus"].split(",")),
        counts=_counts(options["count"]),
        vary=name,
        values=values,
        job=job,
        prices=rental_prices(options["prices"] or SHIPPED),
        dollars=parse_prices(options["price"]),
    )
    run = run_spec(COMPARE, target, options)
    if options["pythons"]:
        return _environments(run, question, options)
    found = answer(run, Path(options["output"]), question, progress_of(options["quiet"]))
    page, replaces = write_compare_page(found, question)
    if replaces and not options["quiet"]:
        click.echo(f"phantora: note: {page} replaces the page of an earlier comparison; its runs are kept", err=True)
    if options["as_json"]:
        click.echo(orjson.dumps(encode(printed(found)), option=orjson.OPT_INDENT_2))
    else:
        _print(found, question.vary, page)
    return 0 if found.best else 1


def _environments(run: RunSpec, question: Question, options: dict[str, Any]) -> int:
    """One script under several environments."""
    from phantora.cli.diff import print_differences
    from phantora.sweeps.compare import clusters
    from phantora.sweeps.environments import changed, environment, run_in

    machines = clusters(question.gpus, question.counts)
    if run.launch.ray:
        raise PhantoraError("--python names interpreters of this machine: leave out --ray")
    if len(options["pythons"]) < 2 or len(machines) > 1 or question.vary:
        raise PhantoraError("give --python twice or more, with one GPU model, one --count and no --vary")
    found = [environment(path) for path in options["pythons"]]
    logs = run_in(found, replace(run, cluster=machines[0]), Path(options["output"]))
    if not options["as_json"]:
        for number, one in enumerate(found):
            name = chr(ord("a") + number)
            click.echo(f"{name}: torch {one.torch}, {one.python}")
            if number:
                differing = changed(found[0], one)
                more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
                click.echo(f"a -> {name}: {', '.join(differing[:_NAMED]) or 'the same packages'}{more}")
    print_differences([str(log) for log in logs], options["as_json"])
    return 0


def _counts(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise PhantoraError(f"--count {text}: write numbers of GPUs, as 8 or 8,64")
    return tuple(dict.fromkeys(int(part) for part in text.split(",")))


def printed(found: Comparison) -> Compared:
    """The data of ``--json``."""
    from phantora.cli.printed import Compared, ComparedRow

    rows = [
        ComparedRow(
            cluster=one.cluster,
            gpus=one.gpus,
            value=None if one.value is None else str(one.value),
            status=one.row.status,
            memory=one.measured.memory if one.measured else None,
            capacity=one.row.entry.point.capacity,
            step_time=one.measured.step_time if one.measured else None,
            error=one.measured.error if one.measured else None,
            error_above=one.measured.error_above if one.measured else None,
            rate=one.rate,
            unit=one.unit,
            mfu=one.measured.mfu if one.measured else None,
            watts=one.measured.watts if one.measured else None,
            joules=one.row.joules,
            dollars_per_hour=one.dollars_per_hour,
            dollars_per_million=one.dollars_per_million,
            time=one.time,
            dollars=one.dollars,
            speedup=one.speedup,
            speedup_error=one.speedup_error,
            speedup_error_above=one.speedup_error_above,
            parts=one.measured.parts if one.measured else {},
        )
        for one in found.choices
    ]
    return Compared(list(found.verdict), [one.cluster for one in found.best], rows)


def _print(found: Comparison, vary: str, page: Path) -> None:
    console = Console(width=100)
    for sentence in found.verdict:
        console.print(sentence, highlight=False, markup=False)
    unit = next((one.unit for one in found.choices if one.rate), "tokens")
    with_job = any(one.time is not None for one in found.choices)
    names = [
        *([vary] if vary else []),
        "machine",
        "GiB",
        "step",
        f"{unit}/s",
        "MFU",
        "speed",
        f"J/{unit.removesuffix('s')}",
        "$/h",
        "$/M",
    ]
    names += ["time", "cost"] if with_job else []
    table = Table(box=None, pad_edge=False, padding=(0, 1 if with_job else 2, 0, 0))
    for name in (*names, "limited by"):
        table.add_column(name, justify="left" if name in (vary, "machine", "limited by") else "right", no_wrap=True)
    for one in found.choices:
        table.add_row(*([str(one.value)] if vary else []), *_cells(one, with_job))
    Console(width=_WIDE if with_job else 100).print(table)
    where = f"page: {page}; runs: {found.folder}; prices: docs/howto/which-machine.md"
    console.print(where, highlight=False, style="dim")


def _dollars(amount: float | None) -> str:
    if amount is None:
        return "-"
    from phantora.cli.plan import dollars

    return dollars(amount) if amount < 1e5 else f"${amount / 1e3:,.0f}k" if amount < 1e8 else f"${amount / 1e6:,.0f}M"


def _cells(one: Choice, with_job: bool) -> list[str]:
    from phantora.cli.plan import days
    from phantora.trace.analysis.summary import counted, error_bar, rounded
    from phantora.units import GIB

    hourly = f"{one.dollars_per_hour:,.4g}" if one.dollars_per_hour is not None else "-"
    measured = one.measured
    if measured is None or not one.rate:
        needs = one.row.entry.result.needs if one.row.entry.result else None
        memory = f"{needs / GIB:.0f}/{one.row.entry.point.capacity / GIB:.0f}" if needs else "-"
        return [
            one.cluster,
            memory,
            "-",
            "-",
            "-",
            "-",
            "-",
            hourly,
            "-",
            *(["-", "-"] if with_job else []),
            one.row.status,
        ]
    bars = one.speedup_error or 0.0, one.speedup_error_above or 0.0
    error = f" {error_bar(*bars)}" if any(bars) else ""
    job = [days(one.time).replace(" days", " d") if one.time else "-", _dollars(one.dollars)]
    return [
        one.cluster,
        f"{measured.memory / GIB:.0f}/{measured.capacity / GIB:.0f}",
        rounded(measured.step_time, measured.error),
        counted(one.rate, measured.error),
        f"{measured.mfu:.0%}" if measured.mfu else "-",
        f"{one.speedup:.2f}{error}" if one.speedup else "-",
        f"{one.row.joules:.3g}" if one.row.joules is not None else "-",
        hourly,
        f"{one.dollars_per_million:.3g}" if one.dollars_per_million is not None else "-",
        *(job if with_job else []),
        one.limited_by,
    ]
