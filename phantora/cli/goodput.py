"""``phantora goodput``: how long a job takes and costs, with failures, checkpoints and restarts."""

from __future__ import annotations

import re
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from phantora.errors import PhantoraError
from phantora.jobs import job as defaults

if TYPE_CHECKING:
    from phantora.jobs.answer import Answer, Step
    from phantora.jobs.job import Job

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": defaults.HOUR, "d": defaults.DAY}
_RESTART = "10m"
_MTBF = round(defaults.GPU_MTBF_HOURS), round(defaults.HOST_MTBF_HOURS)


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
    default=_MTBF[0],
    show_default=True,
    metavar="HOURS",
    help="Mean time between failures of one GPU. The default is Llama 3's.",
)
@click.option(
    "--host-mtbf",
    type=click.FloatRange(min=1),
    default=_MTBF[1],
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
    default="0s",
    show_default=True,
    metavar="TIME",
    help="Time until an asynchronous checkpoint is safe.",
)
@click.option("--every", metavar="TIME", help="Time between checkpoints. [default: the best]")
@click.option(
    "--restart",
    default=_RESTART,
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

    from phantora.jobs.answer import answer, checkpoint_cost, step_of
    from phantora.json_data import encode
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.reader import open_log

    opened = open_log(log)
    step = step_of(analyze(opened))
    world, per_host = opened.metadata.world_size, opened.metadata.ranks_per_host
    step = replace(step, tokens=step.tokens * (options["gpus"] or world) / world)
    if options["cost"] is None and (logged := checkpoint_cost(opened)):
        options["cost"] = f"{logged:.6f}s"
    job, assumed = _job(step, world, per_host, options)
    found = answer(job, step, options["price"], options["trials"], assumed)
    if as_json:
        click.echo(orjson.dumps(encode(found), option=orjson.OPT_INDENT_2))
    else:
        _print(found)


def _job(step: Step, world: int, per_host: int, options: dict[str, Any]) -> tuple[Job, list[str]]:
    """The job, from a step of `world` GPUs, and what was assumed of it. Raises PhantoraError."""
    from phantora.cli.plan import parse_amount
    from phantora.jobs.answer import interval_of
    from phantora.jobs.job import Checkpoints, Job, Machines

    assumed = []
    gpus, steps = options["gpus"] or world, options["steps"]
    if options["tokens"] and steps:
        raise PhantoraError("--tokens and --steps both say how long the job is; give one of them")
    if options["tokens"]:
        if not step.tokens:
            raise PhantoraError("--tokens: the log does not show how many tokens a step has; give --steps")
        steps = parse_amount(options["tokens"]) / step.tokens
    if steps is None:
        steps = 30 * defaults.DAY / step.time
        assumed.append("30 days of steps (--tokens, --steps)")
    if options["cost"] is None:
        assumed.append("a checkpoint stops training for 30 s (--checkpoint-cost)")
    if options["restart"] == _RESTART:
        assumed.append("a restart takes 10 min (--restart)")
    if (options["gpu_mtbf"], options["host_mtbf"]) == _MTBF:
        assumed.append("failures are as frequent as Llama 3's (--gpu-mtbf, --host-mtbf)")
    if gpus > world:
        assumed.append(f"a step takes as long as in the log on {world:,} GPU{'s' * (world > 1)}, {per_host} a host")
    machines = Machines(
        gpus,
        min(per_host, gpus),
        options["gpu_mtbf"],
        options["host_mtbf"],
        options["spares"],
        seconds("--repair", options["repair"]),
        share("--stragglers", options["stragglers"]),
    )
    cost = seconds("--checkpoint-cost", options["cost"] or "30s")
    restart = seconds("--restart", options["restart"]) + step.first
    every = seconds("--every", options["every"]) if options["every"] else interval_of(cost, restart, machines.mtbf)
    if every <= 0:
        raise PhantoraError(f"--every {options['every']}: give a time above 0")
    saves = Checkpoints(cost, every, seconds("--checkpoint-lag", options["lag"]))
    if every + cost + restart > 20 * machines.mtbf:
        raise PhantoraError(
            f"the job fails every {machines.mtbf:.0f} s and needs {every + cost + restart:.0f} s from a restart to the "
            "next checkpoint: it never ends; shorten --every or --restart"
        )
    return Job(steps * step.time, machines, saves, restart, step.error), assumed


def seconds(option: str, text: str) -> float:
    """``20s``, ``10m``, ``8h``, ``1d``. Raises PhantoraError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)", text.strip())
    if match is None:
        raise PhantoraError(f"{option} {text}: give a time such as 20s, 10m or 8h")
    return float(match[1]) * _SECONDS[match[2]]


def share(option: str, text: str) -> float:
    """``0.5%`` or ``0.005``. Raises PhantoraError."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise PhantoraError(f"{option} {text}: give a share such as 0.5%")
    return value


def _print(found: Answer) -> None:
    from phantora.jobs.answer import spell
    from phantora.trace.analysis.units import duration

    job, machines, shares = found.job, found.job.machines, found.shares
    rows = [("ASSUMED", "; ".join(found.assumed))] if found.assumed else []
    spare = "always a spare host" if machines.spares is None else f"{machines.spares} spare hosts"
    best = spell(found.best_interval)
    if found.job.checkpoints.lag:
        best += " without the lag"
    rows += [
        (
            "GPUS",
            f"{machines.gpus:,} on {machines.hosts:,} host{'s' * (machines.hosts > 1)}, {spare}; "
            f"{found.spares} are enough for 99.9 % of failures",
        ),
        ("STEP", duration(1e9 * found.step.time) + (f", {found.step.tokens:,.0f} tokens" if found.step.tokens else "")),
        (
            "FAILURES",
            f"every {spell(found.mtbf)}; {found.failures[0]:,.0f} in the job "
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
