"""phantora profile: measure operators on the GPU of this machine, or its host."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phantora.errors import PhantoraError
from phantora.spec import RunSpec

if TYPE_CHECKING:
    from phantora.cost.wanted import Wanted

SHOWN = 20  # refused operators that are listed
OPERATORS = "operators"


class Profile(click.Group):
    """The first word names the measurement; a file, an option or nothing means operators."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's: without a sub-command the arguments are those of ``profile operators``."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else [OPERATORS, *args])


@click.group(
    cls=Profile,
    epilog="""Examples:

\b
  phantora trace --missing missing.jsonl train.py && phantora profile missing.jsonl --out mine.parquet
  phantora profile host --out host.toml
  phantora profile merge mine.parquet theirs.parquet --out both.parquet
""",
)
def profile() -> None:
    """Measure this machine's GPU or its host, or merge tables."""


@profile.command(OPERATORS, epilog="`phantora profile host` measures this machine's host instead.")
@click.argument("source", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="TABLE",
    help="Table of kernel times (.parquet). Its operators are not measured again.",
)
@click.option("--budget", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop after SECONDS.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def operators(source: Path | None, out: Path, budget: float | None, quiet: bool) -> None:
    """Measure the operators of SOURCE on this machine's GPU, with the installed torch.

    SOURCE is a file of `phantora trace --missing`, or a run's log (.arrow). Without it a built-in grid of operators
    is measured. After an interruption the same command continues.

    Workspaces of cuDNN's convolutions go to a table of the same name in the folder `workspaces` next to TABLE.
    """
    from phantora.profile.session import Book, measure_all
    from phantora.profile.workspaces import table_next_to

    if out.suffix != ".parquet":
        raise PhantoraError(f"--out {out}: a table's name ends in .parquet")
    book = Book(out)
    began = time.monotonic()
    operators = _wanted(source)
    wanted = book.missing(operators)
    known = len(book.entries)
    interrupted: KeyboardInterrupt | None = None
    try:
        if wanted:
            with click.progressbar(
                length=len(wanted), label="measuring", file=sys.stderr, show_pos=True, hidden=quiet
            ) as bar:
                measure_all(wanted, book.add, budget, bar.update)
    except KeyboardInterrupt as signal:
        interrupted = signal
    finally:
        table = book.finish()
    left = len(book.missing(wanted))
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
        raise interrupted
    if budget is None or time.monotonic() - began < budget:
        _workspaces(operators, table_next_to(out), None if budget is None else budget - (time.monotonic() - began))
    if wanted and len(book.refused) == len(wanted):
        raise PhantoraError(f"none of the {len(wanted)} operators could be measured; the reasons are above")


@profile.command(
    "host",
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

\b
  phantora profile host --out host.toml
  phantora profile host --out mine.toml --cluster 1x2xH100 -- train.py --steps 8
  phantora profile host --out mine.toml --for default --no-gpu -- train.py --steps 8
""",
)
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("host.toml"),
    show_default=True,
    metavar="HOST.toml",
    help="Host file for `phantora trace --host`.",
)
@click.option("--name", default="measured", show_default=True, help="Name of the host in reports.")
@click.option("--rounds", type=click.IntRange(min=3), default=48, show_default=True, help="Rounds of the measurement.")
@click.option("--gpu/--no-gpu", default=True, help="Measure CUDA calls on this machine's GPU, if it has one.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the times of each round to DIR/host_probe_stubs.jsonl and DIR/host_probe_gpu.jsonl.",
)
@click.option("--cluster", default=RunSpec.cluster, show_default=True, help="Cluster of SCRIPT; only its ranks matter.")
@click.option(
    "--for",
    "target",
    metavar="HOST",
    help="Write the file for HOST (as in `trace --host`) with SCRIPT's costs, instead of for this machine.",
)
def host(
    out: Path,
    name: str,
    rounds: int,
    gpu: bool,
    keep: Path | None,
    script: tuple[str, ...],
    cluster: str,
    target: str | None,
) -> None:
    """Measure the host time of PyTorch on this machine, and write a host file.

    Python, operators, autograd and the allocator run under the stub libraries. CUDA calls run on the GPU, if there
    is one. The rates of memory and files are measured on all processors. The measurement takes about a minute. Run
    it on an idle machine.

    With SCRIPT and its arguments, the file describes the host time of that script. SCRIPT runs once without CUDA and
    once simulated. It needs five optimizer steps.
    """
    from phantora.hardware import REFERENCE_HOST, host_names, load_host
    from phantora.hardware.hosts import GIVEN_SPREAD, to_toml
    from phantora.profile import host as measuring
    from phantora.profile import jitter_probe, memory_probe, probing
    from phantora.profile import script as scripts

    if target is not None and not script:
        raise PhantoraError("--for HOST transfers what a script takes: name the script, `... --for HOST -- train.py`")
    if script and not Path(script[0]).is_file():
        raise PhantoraError(f"{script[0]} is no file: name the script and its arguments, `... -- train.py --steps 8`")
    described = load_host(target) if target is not None else None
    if out.suffix != ".toml":
        raise PhantoraError(f"--out {out}: the name of a host file ends in .toml")
    what = "the host, and CUDA calls on this machine's GPU if it has one" if gpu else "the host"
    click.echo(f"phantora: measuring {what}", err=True)
    stubbed, real = probing.run_probes(rounds, keep, gpu)
    own_script = bool(script) and described is None
    least = scripts.SCRIPT_SPREAD if own_script else GIVEN_SPREAD
    rates = memory_probe.measure_apart(out.absolute().parent)
    here = measuring.profile_of(name, stubbed, real, least)
    jitter = here.jitter if stubbed.contended else jitter_probe.measure()
    here = replace(here, api_ns={**here.api_ns, **rates.costs()}, jitter=jitter)
    found = replace(described, name=name) if described is not None else here
    if script:
        click.echo(f"phantora: measuring {script[0]} without CUDA and simulated", err=True)
        with probing.on_the_same_cores():
            own = scripts.measure(script, cluster, here, measuring.between(stubbed, real))
        found = scripts.calibrated(found, own)
        click.echo(
            f"{script[0]}: {own.cpu_ns / 1e6:.2f} ms of CPU time a step without CUDA (mean of {own.steps}, known to "
            f"{own.uncertainty:.0%}); its work takes {own.ratio:.2f} times what counts say of this machine"
        )
        if own.uncertainty > scripts.UNCERTAIN:
            click.echo("its steps differ: more of them make it surer")
    out.write_text(to_toml(found), encoding="utf-8")
    click.echo(here.cpu)
    if stubbed.contended:
        click.echo("others used this CPU meanwhile: CPU times of the quietest rounds count; measure again when idle")
    for other in (load_host(known) for known in host_names()):
        compared = measuring.compare(stubbed, other)
        if compared is not None:
            parts = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in compared.by_kind.items())
            click.echo(
                f"{compared.factor:.2f} times as slow as {other.name} ({compared.low:.2f} to {compared.high:.2f}; "
                f"{parts}): {other.cpu}"
            )
    if real is not None:
        click.echo(
            f"with the real libraries it took {measuring.slower(stubbed, real):.2f} times as long for the same Python: "
            f"the file has the mean, {here.factor:.2f} times as slow as {REFERENCE_HOST}"
        )
    many = 1 / (rates.move / 24 + rates.saturated)
    click.echo(
        f"memory: {1 / rates.move:.1f} GiB/s a thread, {many:.0f} on 24 threads; files: {1 / rates.write:.1f} "
        f"written, {1 / rates.read:.1f} read; the disk of {out.absolute().parent}: --disk {rates.disk_option()}"
    )
    click.echo(
        f"jitter: its pace changes by {jitter.spread:.0%}, and it pauses {jitter.pauses_per_second:g} times a second "
        f"for {jitter.pause_ns / 1e6:.0f} ms" + (" (usual ones)" if stubbed.contended else "")
    )
    if gpu and real is None:
        click.echo("no GPU: CUDA calls are scaled like the rest")
    click.echo(f"{out}: use it with `phantora trace --host {out}`")


@profile.command("merge")
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="TABLE",
    help="Table (.parquet) to write.",
)
def merge(tables: tuple[Path, ...], out: Path) -> None:
    """Check TABLES of one GPU, torch and CUDA, and write them as one.

    The last table's time of an operator counts. Tables with times below the GPU's limits are refused. The difference
    of tables on common operators is printed; a few percent is usual.
    """
    from phantora.profile import merging

    if out.suffix != ".parquet":
        raise PhantoraError(f"--out {out}: a table's name ends in .parquet")
    merged, parts = merging.merge(tables, out)
    for part in parts:
        line = f"{part.path}: {part.operators} operators, {part.new} of them new"
        if part.ratio is not None:
            line += (
                f"; those known before take {part.ratio:.2f} times as long in the median, "
                f"{part.apart} differ by more than a quarter"
            )
        click.echo(line)
    click.echo(f"{out}: {len(merged)} operators on {merged.about.get('gpu')}")


def _workspaces(operators: list[Wanted], path: Path, budget: float | None) -> None:
    from phantora.profile.workspaces import calls_of, measure_workspaces

    if not calls_of(operators):
        return
    known, refused = measure_workspaces(operators, path, budget)
    click.echo(f"{path}: the workspaces of {known} convolutions")
    if refused:
        click.echo(f"{len(refused)} could not be measured, the first: {refused[0]}")


def _wanted(source: Path | None) -> list[Wanted]:
    if source is None:
        from phantora.profile.operator_grid import sweep

        return sweep()
    from phantora.cost.wanted import read_wanted, wanted_from

    if source.suffix == ".arrow":
        from phantora.trace.reader import open_log

        entries = (wanted_from(table, str(source)) for table in open_log(str(source)).operators())
        return [entry for entry in entries if not entry.tuning]
    return read_wanted(source)
