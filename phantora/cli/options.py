"""Options that several commands have, each defined once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from phantora.errors import PhantoraError
from phantora.spec import FoldSpec, LaunchSpec, OutputSpec, RankSpec, RunSpec, Spec, WhatIfSpec

Decorated = Callable[..., Any]
WHAT_IF = (
    ("degrade", "LINK=FACTOR[@TIME|@optimizerN]", "Reduce links of this name (a glob) to FACTOR of their bandwidth."),
    ("straggler", "rank=R:FACTOR", "Multiply the kernel times of rank R by FACTOR."),
    ("background", "SRC->DST=RATE", "Add foreign traffic from GPU SRC to GPU DST, such as '0->8=10GB/s'."),
)
# Options of torchrun without a use on a simulated cluster: (name, takes a value).
IGNORED = (
    ("rdzv-backend", True),
    ("rdzv-endpoint", True),
    ("rdzv-conf", True),
    ("standalone", False),
    ("max-restarts", True),
    ("monitor-interval", True),
    ("start-method", True),
    ("node-rank", True),
    ("master-addr", True),
    ("local-addr", True),
    ("event-log-handler", True),
    ("numa-binding", True),
    ("signals-to-handle", True),
)


def what_if_options(function: Decorated) -> Decorated:
    """Options that change a cluster for one run."""
    for name, form, text in reversed(WHAT_IF):
        function = click.option(f"--{name}", multiple=True, metavar=form, help=f"{text} May be repeated.")(function)
    return function


def host_option(default: str) -> Callable[[Decorated], Decorated]:
    """The option ``--host``; `default` is reported in its help."""
    return click.option(
        "--host",
        "--calibration",
        "host",
        metavar="NAME|FILE|FACTOR",
        help="Host CPU model: a built-in name, a .toml file of `phantora profile host` or `phantora calibrate` (whose "
        "operators and collectives count on the same GPU), or a "
        f"multiplier of `default` (1.5 = 50 % slower) or of another built-in host (NAME:1.5)  [default: {default}]",
    )


def run_spec(target: Sequence[str], kind: str, options: Mapping[str, Any]) -> RunSpec:
    """The run that the options of `phantora trace` describe. Raises PhantoraError."""
    return RunSpec(
        target[0],
        tuple(target[1:]),
        kind,
        **_named(RunSpec, options),
        live=options["profile"] == "live",
        ranks=_named_spec(RankSpec, options),
        fold=FoldSpec(options["fold"], _ranks(options["real_ranks"])),
        what_if=_named_spec(WhatIfSpec, options),
        launch=_named_spec(LaunchSpec, options),
        output=output_spec(options),
    )


def output_spec(options: Mapping[str, Any]) -> OutputSpec:
    """The values of :func:`output_options`."""
    return OutputSpec(path=options["output"] or "", **_named(OutputSpec, options))


def what_if_spec(options: Mapping[str, Any]) -> WhatIfSpec:
    """The values of :func:`what_if_options`."""
    return _named_spec(WhatIfSpec, options)


def _named(spec: type[Spec], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are called like a field of `spec`; None leaves its default."""
    return {name: options[name] for name in spec.plain_fields() if options.get(name) is not None}


def _named_spec(spec: type[Spec], options: Mapping[str, Any]) -> Spec:
    return spec(**_named(spec, options))


def _ranks(text: str | None) -> tuple[int, ...]:
    """``0,5``. Raises PhantoraError."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise PhantoraError(f"--real-ranks {text!r} is not a list of ranks such as 0,5") from None


def output_options(default: str) -> Callable[[Decorated], Decorated]:
    """Options for the paths of log and timeline, and for the log's content; the help names `default`."""
    return _all(
        click.option(
            "-o",
            "--output",
            metavar="PATH",
            help="Timeline file; the suffix sets the format: .perfetto, .pftrace, .json, .json.gz or .arrow. "
            f"The event log has the same name with the suffix .arrow.  [default: {default}]",
        ),
        click.option(
            "--force",
            is_flag=True,
            help="Replace the log that -o names even if the run fails. By default a failed run keeps that log, "
            "and its own is NAME.partial.arrow.",
        ),
        click.option(
            "--recording/--no-recording",
            default=True,
            show_default=True,
            help="Include the recording for `phantora replay` in the log.",
        ),
        click.option("--flows", is_flag=True, help="Log all network flows and the traffic of each link."),
    )


def report_options(function: Decorated) -> Decorated:
    """Options for the text at the end of a run."""
    return _all(
        click.option(
            "--summary/--no-summary", default=True, show_default=True, help="Print a summary on stderr at the end."
        ),
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print the summary as one line of JSON on stdout. The ranks' output goes to stderr.",
        ),
        click.option("-v", "--verbose", is_flag=True, help="Print tables of steps, kernels, collectives and memory."),
        click.option("-q", "--quiet", is_flag=True, help="Print only errors and the script's output."),
        price_option,
    )(function)


def price_option(function: Decorated) -> Decorated:
    """The option for the price of a GPU."""
    return click.option(
        "--price",
        type=click.FloatRange(min=0, min_open=True),
        metavar="DOLLARS",
        help="Price per GPU and hour: the summary has the cost of a step and of a million tokens.",
    )(function)


def _all(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def both(name: str) -> tuple[str, ...]:
    """torchrun takes ``--nproc-per-node`` and ``--nproc_per_node``."""
    return tuple(dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")))


def torchrun_options(function: Decorated) -> Decorated:
    """Options of torchrun, with the same meaning."""
    return _all(
        click.option(*both("nproc-per-node"), default="auto", metavar="N", help="Ranks per host  [default: its GPUs]"),
        click.option("--nnodes", default="auto", metavar="N", help="Hosts to use  [default: all of the cluster]"),
        click.option(
            *both("log-dir"),
            "log_dir",
            type=click.Path(),
            metavar="DIR",
            help="Write the ranks' output to DIR/RUN_ID/attempt_0/RANK/.",
        ),
        click.option(
            "-r",
            "--redirects",
            default="0",
            metavar="N",
            help="Streams that go to files instead of the console (1 stdout, 2 stderr, 3 both, or RANK:N,...).",
        ),
        click.option("-t", "--tee", default="0", metavar="N", help="Streams that go to files as well."),
        click.option(
            *both("local-ranks-filter"),
            "ranks_filter",
            metavar="R,...",
            help="Show the output of these local ranks only.",
        ),
        click.option(*both("rdzv-id"), "run_id", metavar="ID", help="The run's id (TORCHELASTIC_RUN_ID)."),
        click.option("--role", default="default", hidden=True),
        click.option(
            *both("master-port"),
            "master_port",
            type=click.IntRange(0, 65535),
            default=0,
            metavar="PORT",
            help="Port of the TCPStore  [default: any free one]",
        ),
        click.option(*both("no-python"), "no_python", is_flag=True, hidden=True),
    )(function)


def ignored_options(function: Decorated) -> Decorated:
    """torchrun's options that are accepted and do nothing."""
    for name, takes_value in reversed(IGNORED):
        extra: dict[str, Any] = {} if takes_value else {"is_flag": True}
        function = click.option(*both(name), f"ignored_{name.replace('-', '_')}", hidden=True, **extra)(function)
    return function
