"""``phantora sweep``: which layout is fastest, cheapest, and fits."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from phantora.cli.options import margin_option
from phantora.errors import PhantoraError
from phantora.options import HeadedCommand, run_options, run_spec, spec_of
from phantora.spec import SWEEP
from phantora.units import SHARE

if TYPE_CHECKING:
    from phantora.sweeps.expressions import Value
    from phantora.sweeps.run import Request
    from phantora.sweeps.runner import Entry
    from phantora.sweeps.space import Space


@click.command(
    "sweep",
    cls=HeadedCommand,
    options_metavar="[OPTIONS]",
    epilog="Arguments after -- are the script and its arguments; with --preset, more arguments of its script.",
)
@click.option(
    "--preset",
    metavar="NAME|FILE",
    help="Layouts of a known script (torchtitan, megatron, deepspeed, fsdp2, tp, pp), or a preset file.",
)
@click.option("--model", metavar="NAME", help="Model of the preset.")
@click.option("--wide", is_flag=True, help="Include more values of the preset's axes. Use it with --search.")
@click.option(
    "-c",
    "--cluster",
    "clusters",
    multiple=True,
    metavar="SPEC",
    help="Cluster, as for `phantora trace`; repeat it to compare clusters.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=V[,V...]", help="Set the values of an axis or of a computed name."
)
@click.option("--rule", "rules", multiple=True, metavar="EXPR", help="Add a rule, such as 'tp * pp <= 8'.")
@click.option(
    "-o",
    "--output",
    default="sweep",
    show_default=True,
    metavar="FOLDER",
    help="Folder of the journal, the results and the logs; the same command resumes from it.",
)
@click.option("--dry-run", is_flag=True, help="Print the layouts and the excluded ones, with reasons; run none.")
@click.option(
    "--screen", metavar="SPEC", help="Run all layouts on this smaller cluster, then only the best on the full one."
)
@click.option(
    "--finalists",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    metavar="N",
    help="Layouts that --screen runs on the full cluster.",
)
@click.option(
    "--search",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Search for the best layout with N runs (Optuna).",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--by", default="speed", show_default=True, help="Criterion of the ranking: speed, cost, energy, per-gpu, step."
)
@click.option("--price", metavar="DOLLARS", help="Price per GPU and hour: 2.5, or H100=2.5,H200=3.5.")
@margin_option
@click.option("--jobs", type=click.IntRange(min=0), default=0, metavar="N", help="Parallel runs  [default: what fits]")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT, or local.")
@click.option("--all", "everything", is_flag=True, help="Run also the layouts whose bound is slower than the best.")
@click.option("--again", is_flag=True, help="Repeat failed runs.")
@click.option(
    "--needs/--no-needs",
    default=True,
    show_default=True,
    help="Run layouts that do not fit with more memory, to find their need.",
)
@click.option(
    "--top", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the logs and timelines of the best N."
)
@click.option(
    "--fold",
    type=click.Choice(["one", "ends", "off"]),
    default="one",
    show_default=True,
    help="Ranks that are processes (docs/scale.md). one: one per stage, and representatives for the best "
    "layout; ends: representatives for all layouts; off: all ranks.",
)
@click.option("--trace", "options", multiple=True, metavar="OPTIONS", help="Options of `phantora trace`, as one word.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@run_options(SWEEP)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SWEEP.toml] [-- SCRIPT|-m MODULE [ARGS]...]")
def sweep(words: tuple[str, ...], **options: Any) -> int:
    """Run a script in many parallel layouts and rank them.

    The layouts come from SWEEP.toml (docs/sweeps.md) or from a preset. Each is a `phantora trace` with few steps.
    """
    request = _request(words, options)
    if options["dry_run"]:
        return _dry_run(request, options["as_json"])
    from phantora.sweeps.run import run_sweep

    try:
        outcome = run_sweep(request, progress_of(options["quiet"]), part_of(options["quiet"]))
    except KeyboardInterrupt:
        print(f"phantora: stopped; the same command goes on with what is in {request.folder}", file=sys.stderr)
        return 130
    if options["as_json"]:
        import orjson

        click.echo(orjson.dumps(outcome.answer.as_data(), option=orjson.OPT_INDENT_2))
    else:
        from phantora.sweeps.render import WIDTH, render

        console = Console(width=WIDTH, soft_wrap=False)
        render(outcome.answer, console)
        for line in outcome.search.summary() if outcome.search else ():
            console.print(line, markup=False, highlight=False)
        console.print(f"Page, tables, journal: {request.folder}/sweep.html", markup=False, highlight=False)
    return 0 if outcome.answer.best else 1


def _dry_run(request: Request, as_json: bool) -> int:
    from phantora.json_data import encode
    from phantora.sweeps.plan import planned
    from phantora.sweeps.render import WIDTH, render_plan
    from phantora.sweeps.run import plan_of

    plan = plan_of(request)
    if as_json:
        import orjson

        click.echo(orjson.dumps(encode(planned(plan)), option=orjson.OPT_INDENT_2))
    else:
        render_plan(plan, Console(width=WIDTH))
    return 0


def _request(words: tuple[str, ...], options: dict[str, Any]) -> Request:
    from phantora.sweeps.objective import Objective, parse_prices
    from phantora.sweeps.run import Request

    run = spec_of([word for text in options["options"] for word in shlex.split(text)], run_spec(SWEEP, (), options))
    return Request(
        space=replace(_space(words, options), run=run),
        folder=Path(options["output"]),
        objective=Objective(options["by"], parse_prices(options["price"]), SHARE.of("--margin", options["margin"])),
        screen=options["screen"],
        finalists=options["finalists"],
        search=options["search"] or 0,
        seed=options["seed"],
        jobs=options["jobs"],
        ray=options["ray"],
        everything=options["everything"],
        again=options["again"],
        needs=options["needs"],
        top=options["top"],
        fold=options["fold"],
    )


def _space(words: tuple[str, ...], options: dict[str, Any]) -> Space:
    from phantora.sweeps.space import CLUSTER
    from phantora.sweeps.spaces import space_from

    settings: dict[str, tuple[Value, ...]] = dict(parse_setting(text) for text in options["settings"])
    if options["clusters"]:
        settings[CLUSTER] = options["clusters"]
    file = None
    if options["preset"] is None and words and words[0].endswith(".toml"):
        file, words = words[0], words[1:]
    return space_from(file, options["preset"], options["model"], options["wide"], words, settings, options["rules"])


def parse_setting(text: str) -> tuple[str, tuple[Value, ...]]:
    """``tp=1,2,4``: whole numbers, numbers, true, false, else texts. Raises PhantoraError."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values:
        raise PhantoraError(f"--set {text!r}: write NAME=VALUE or NAME=VALUE,VALUE")
    return name.strip(), tuple(_value(part.strip()) for part in values.split(","))


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def note_folder(output: str, quiet: bool) -> None:
    """A line about the folder that a command leaves, behind its progress."""
    if not quiet:
        click.echo(f"phantora: {output} has the runs, and the same command resumes from it", err=True)


def progress_of(quiet: bool) -> Callable[[Entry, int, int], None]:
    """A function to call with each point that is done."""
    return _report_nothing if quiet else _report


def _report_nothing(entry: Entry, done: int, of: int) -> None:
    pass


def part_of(quiet: bool) -> Callable[[str], None]:
    """A function to call with what begins besides points."""
    return _nothing if quiet else _part


def _nothing(text: str) -> None:
    pass


def _part(text: str) -> None:
    print(f"phantora: {text}", file=sys.stderr, flush=True)


def _report(entry: Entry, done: int, of: int) -> None:
    from phantora.sweeps.render import progress_line

    print(f"phantora: {done}/{of} {progress_line(entry)}", file=sys.stderr, flush=True)
