"""``phantora goodput``: how long a job takes and costs, with failures, checkpoints and restarts."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from phantora.jobs.job import MODELS, MTBF_HOURS, WRITTEN
from phantora.units import COUNT, SHARE, TIME

if TYPE_CHECKING:
    from phantora.jobs.answer import Answer


@click.command(
    "goodput",
    epilog="""Examples:

\b
  phantora goodput run.arrow --tokens 15T --checkpoint-cost 20s --price 2.5
  phantora goodput run.arrow --tokens 15T --gpus 16384 --every 30m --spares 16 --repair 8h
""",
)
@click.argument("log", type=click.Path())
@click.option("--tokens", metavar="N", help="Total tokens of the job (15T).")
@click.option("--steps", "steps", type=click.IntRange(min=1), metavar="N", help="Total steps, instead of tokens.")
@click.option(
    "--gpus",
    type=click.IntRange(min=1),
    metavar="N",
    help="GPUs of the job: data-parallel copies of the run. [default: the run's]",
)
@click.option(
    "--gpu-mtbf",
    type=click.FloatRange(min=1),
    default=MTBF_HOURS[0],
    show_default=True,
    metavar="HOURS",
    help="Mean time between failures of one GPU. The default is Llama 3's.",
)
@click.option(
    "--host-mtbf",
    type=click.FloatRange(min=1),
    default=MTBF_HOURS[1],
    show_default=True,
    metavar="HOURS",
    help="Mean time between other failures of one host.",
)
@click.option(
    "--checkpoint-cost",
    "cost",
    metavar="TIME",
    help="Training stops for TIME (20s) at a checkpoint. [default: from the log, else 30s]",
)
@click.option(
    "--checkpoint-lag",
    "lag",
    metavar="TIME",
    help="Time until an asynchronous checkpoint is safe. [default: 30s if async, else 0s]",
)
@click.option(
    "--checkpoint",
    type=click.Choice(MODELS),
    default=WRITTEN,
    show_default=True,
    help="Stop until a checkpoint is written, until it is copied to the host, or to the memory of another host.",
)
@click.option(
    "--reclaim",
    default="0%",
    show_default=True,
    metavar="SHARE",
    help="Spot instances: share of the hosts that are reclaimed in an hour.",
)
@click.option(
    "--notice",
    default="2m",
    show_default=True,
    metavar="TIME",
    help="Time from the announcement of a reclaim: enough for a checkpoint, or not.",
)
@click.option("--every", metavar="TIME", help="Time between checkpoints. [default: the best]")
@click.option(
    "--restart",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="From a failure to the first step. The longer first step of the log comes on top.",
)
@click.option(
    "--stragglers",
    default="0%",
    show_default=True,
    metavar="SHARE",
    help="Standard deviation of the GPUs' speeds; a step waits for the slowest.",
)
@click.option("--spares", type=click.IntRange(min=0), metavar="N", help="Spare hosts. [default: always enough]")
@click.option("--repair", default="24h", show_default=True, metavar="TIME", help="Until a failed host is back.")
@click.option("--price", type=click.FloatRange(min=0, min_open=True), metavar="DOLLARS", help="Price per GPU and hour.")
@click.option(
    "--trials", type=click.IntRange(min=10), default=1000, show_default=True, metavar="N", help="Simulated jobs."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def goodput(log: str, as_json: bool, **options: Any) -> None:
    """Estimate days and cost of a long job from a short run's LOG.

    Simulates the job many times with random failures. Prints the share of useful time, the best checkpoint interval,
    and how long the job takes, each with the range of 90 % of these jobs.
    """
    import orjson

    from phantora.jobs.estimate import Inputs, estimate
    from phantora.json_data import encode
    from phantora.trace.reader import open_log

    def seconds(name: str, option: str) -> float | None:
        return TIME.of(option, options[name]) / 1e9 if options[name] is not None else None

    inputs = Inputs(
        tokens=COUNT.of("--tokens", options["tokens"]) if options["tokens"] else None,
        steps=options["steps"],
        gpus=options["gpus"],
        gpu_mtbf_hours=options["gpu_mtbf"],
        host_mtbf_hours=options["host_mtbf"],
        checkpoint_cost=seconds("cost", "--checkpoint-cost"),
        checkpoint_lag=seconds("lag", "--checkpoint-lag"),
        checkpoint=options["checkpoint"],
        reclaims=SHARE.of("--reclaim", options["reclaim"]),
        notice=seconds("notice", "--notice") or 0.0,
        every=seconds("every", "--every"),
        restart=seconds("restart", "--restart") or 0.0,
        stragglers=SHARE.of("--stragglers", options["stragglers"]),
        spares=options["spares"],
        repair=seconds("repair", "--repair") or 0.0,
        price=options["price"],
        trials=options["trials"],
    )
    found = estimate(open_log(log), inputs)
    if as_json:
        click.echo(orjson.dumps(encode(found), option=orjson.OPT_INDENT_2))
    else:
        _print(found)


def _print(found: Answer) -> None:
    from phantora.jobs.answer import spell
    from phantora.trace.analysis.units import duration

    job, machines, shares = found.job, found.job.machines, found.shares
    rows = [("ASSUMED", "; ".join(found.assumed))] if found.assumed else []
    spare = "always a spare host" if machines.spares is None else f"{machines.spares} spare hosts"
    best = spell(found.best_interval)
    if found.job.checkpoints.lag:
        best += " without the lag"
    reclaims = f", {machines.reclaimed:.1%} of them reclaims of hosts" if machines.reclaims else ""
    rows += [
        (
            "GPUS",
            f"{machines.gpus:,} on {machines.hosts:,} host{'s' * (machines.hosts > 1)}, {spare}; "
            f"{found.spares} are enough for 99.9 % of failures",
        ),
        ("STEP", duration(1e9 * found.step.time) + (f", {found.step.tokens:,.0f} tokens" if found.step.tokens else "")),
        (
            "FAILURES",
            f"every {spell(found.mtbf)}{reclaims}; {found.failures[0]:,.0f} in the job "
            f"({found.failures[1]:,.0f} to {found.failures[2]:,.0f})",
        ),
        (
            "CHECKPOINTS",
            f"every {spell(job.checkpoints.interval)}, stop of {spell(job.checkpoints.cost)}; best every "
            f"{best} (Young: {spell(found.young_interval)})",
        ),
        (
            "USEFUL",
            f"{100 * found.useful[0]:.1f} % of the time ({100 * found.useful[1]:.1f} to {100 * found.useful[2]:.1f})",
        ),
        (
            "LOST",
            ", ".join(
                f"{_WORDS[part]} {100 * value:.1f} %"
                for part, value in shares.items()
                if part != "useful" and value >= 5e-4
            )
            or "nothing",
        ),
        (
            "JOB",
            f"{spell(found.time[0])} ({spell(found.time[1])} to {spell(found.time[2])}), "
            f"{spell(job.work)} without failures",
        ),
    ]
    if found.dollars:
        rows.append(("COST", f"${found.dollars[0]:,.0f} (${found.dollars[1]:,.0f} to ${found.dollars[2]:,.0f})"))
    for word, text in rows:
        first, *more = wrap(text, 87)
        click.echo("\n".join([f"{click.style(f'{word:11}', bold=True)}  {first}", *(" " * 13 + line for line in more)]))


_WORDS = {
    "checkpoints": "checkpoints",
    "lost": "work done again",
    "restarts": "restarts",
    "hosts": "waits for hosts",
    "stragglers": "slowest GPU",
}
