"""phantora doctor: coverage of the installed torch, and requirements of this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

RANDOM = (
    "random, since a filter of this system forbids personality(2): two runs of a script that imports `regex` may "
    "differ by some 10 ns (in a container: --security-opt seccomp=unconfined)"
)


@click.command(
    epilog="""Examples:

\b
  phantora doctor
  phantora doctor train.py
  phantora doctor --ray auto
  phantora doctor --json > machine.json
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--ray", metavar="ADDRESS", help="Check the nodes of a Ray cluster: auto or HOST:PORT.")
@click.argument("script", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, ray: str | None, script: Path | None) -> None:
    """Check this machine and the installed torch; or, of SCRIPT, the packages that it imports.

    Ends with status 1 if a requirement is missing. SCRIPT is read and not run."""
    if ray is not None and script is not None:
        raise click.UsageError("give --ray or a script", ctx)
    if ray is not None:
        ctx.exit(_of_cluster(ray, as_json))
    if script is not None:
        ctx.exit(_of_script(script, as_json))
    from phantora import stubs
    from phantora.cli.printed import Machine
    from phantora.json_data import encode
    from phantora.launch.daemon import running
    from phantora.process import addresses_are_fixed

    report = stubs.doctor()
    distances = table_distances(report.torch or "", report.cuda or "")
    machine = Machine(addresses_are_fixed(), distances, running())
    if as_json:
        click.echo(json.dumps({**encode(report), **encode(machine)}, indent=1))
    else:
        click.echo(report.text())
        click.echo(f"addresses  {'the same in each run' if machine.fixed_addresses else RANDOM}")
        for name, distance in machine.tables.items():
            click.echo(f"table      {name}: {distance}")
        for one in machine.daemons:
            click.echo(f"daemon     {one}")
        click.echo("result     ready" if report.ok else "result     not ready: see `problem`")
    ctx.exit(0 if report.ok else 1)


def _of_cluster(address: str, as_json: bool) -> int:
    """Prints what each node is good for. 1: ranks cannot run on one."""
    from phantora.json_data import encode
    from phantora.nodes import on_ray
    from phantora.runs.preflight import OF_RANK

    found = on_ray.check_nodes(address, OF_RANK)
    if as_json:
        click.echo(json.dumps([encode(node) for node in found], indent=1))
    else:
        for node in found:
            room = f"{node.cores} cores, memory for {node.ranks:,} ranks"
            click.echo(f"node       {node.name}: {node.problem or room}")
        click.echo("result     " + ("not ready" if any(node.problem for node in found) else "ready"))
    return int(any(node.problem for node in found))


def _of_script(script: Path, as_json: bool) -> int:
    """Prints what a run makes of the script's packages. 1: one is not installed, or does not run."""
    from phantora.cli.script_needs import MISSING, needs
    from phantora.json_data import encode
    from phantora.rank.standins.packages import REFUSED

    found = needs(script)
    bad = [need for need in found if need.state in (MISSING, REFUSED) or not need.version]
    if as_json:
        click.echo(json.dumps([encode(need) for need in found], indent=1))
        return int(bool(bad))
    widths = [
        max([len(text), *(len(getattr(need, text)) for need in found)]) for text in ("module", "version", "state")
    ]
    for need in found:
        parts = (part.ljust(width) for part, width in zip((need.module, need.version, need.state), widths, strict=True))
        click.echo("  ".join((*parts, need.note)).rstrip())
        if need.install:
            click.echo(f"  install: {need.install}")
    click.echo(f"{len(found)} packages with kernels or not installed; " + ("see above" if bad else "all run"))
    return int(bool(bad))


def table_distances(torch: str, cuda: str) -> dict[str, str]:
    """Distance of `torch` (2.14.1+cu130) and `cuda` (13.0) from the versions of each table of kernel times."""
    from phantora.cost.table import table_about
    from phantora.cost.table_files import DATA, cache_folder

    found = {}
    for folder in (cache_folder(), DATA):
        for path in sorted(folder.glob("*.parquet")):
            about = table_about(path)
            measured = f"{about.get('gpu')}, torch {about.get('torch')}, CUDA {about.get('cuda')}"
            found[path.name] = f"{measured}; {_distance(about, torch, cuda)}"
    return found


def _distance(about: dict[str, str], torch: str, cuda: str) -> str:
    apart = []
    own, theirs = (re.match(r"(\d+)\.(\d+)", text) for text in (torch, about.get("torch", "")))
    if own and theirs and own.groups() != theirs.groups():
        minors = int(own[2]) - int(theirs[2])
        same_major = own[1] == theirs[1]
        how = f"{abs(minors)} minor version{'s' * (abs(minors) > 1)} {'newer' if minors > 0 else 'older'}"
        apart.append(f"torch is {how}" if same_major else "torch is of another major version")
    if cuda.partition(".")[0] != about.get("cuda", "").partition(".")[0]:
        apart.append(f"CUDA is {cuda}")
    if not apart:
        return "as installed here"
    return f"here {' and '.join(apart)}, so that kernels may differ (`phantora profile` measures them)"
