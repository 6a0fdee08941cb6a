"""``phantora cluster``: show, draw and check a cluster."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from phantora.errors import PhantoraError, cause_of
from phantora.units import GIB

if TYPE_CHECKING:
    from phantora.cli.printed import ShownCluster
    from phantora.hardware import Cluster, Topology


@click.group(
    "cluster",
    epilog="""Examples:

\b
  phantora cluster show dgx-h100:16 -o cluster.svg
  phantora cluster check mine.toml --ranks 64
""",
)
def cluster() -> None:
    """Show, draw and check clusters."""


@cluster.command("show")
@click.argument("spec")
@click.option("-o", "--output", metavar="PATH.svg", help="Draw the cluster as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with every link.")
def show(spec: str, output: str | None, as_json: bool) -> None:
    """Print the links and collectives of SPEC: 2x8xH100, dgx-h100:16, or a .toml file.

    Bandwidths are of payload, per direction. The last table has NCCL's own estimates, with the NCCL_* variables of
    this environment.
    """
    from phantora.hardware import load_cluster
    from phantora.json_data import encode

    described = load_cluster(spec)
    facts = _facts(described)
    if output:
        _draw(described, facts.topology, output)
    if as_json:
        click.echo(orjson.dumps(encode(_shown(described, facts)), option=orjson.OPT_INDENT_2))
    else:
        _print(described, facts)
        if output:
            click.echo(f"drawn to {output}")


@cluster.command("check")
@click.argument("file")
@click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="Require at least N GPUs.")
def check(file: str, ranks: int | None) -> None:
    """Check a cluster file, and name the lines with errors.

    Errors are unknown keys, links without bandwidth, GPUs without a route, and more ranks than GPUs.
    """
    from phantora.hardware import load_cluster

    checked = load_cluster(file)
    if ranks and ranks > checked.world_size:
        raise PhantoraError(
            f"{file}: {ranks} ranks, but {checked.hosts} x {checked.gpus_per_host} = {checked.world_size} GPUs; "
            "raise hosts or gpus_per_host"
        )
    click.echo(f"{file}: {_hosts(checked)}, every GPU reaches every other")


@dataclass(frozen=True)
class _Class:
    """Links between two kinds of nodes, at one rate."""

    link: str
    count: int
    bandwidth: float
    latency_ns: int


@dataclass(frozen=True)
class _Facts:
    topology: Topology
    classes: list[_Class]
    routes: list[tuple[str, str]]
    collectives: list[tuple[str, str, float, float]]
    """Name, algorithm/protocol/channels, us, GB/s of bus bandwidth; 1 GiB over all GPUs."""


def _hosts(cluster: Cluster) -> str:
    """``2 x 8 x H100-SXM``, of several kinds joined by +."""
    return " + ".join(f"{part.hosts} x {part.gpus_per_host} x {part.gpu.name}" for part in cluster.parts)


def _facts(described: Cluster) -> _Facts:
    from phantora.sim.collectives import CollectiveModel, NcclEnvironment
    from phantora.sim.collectives.tuner import wire_share
    from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

    model = CollectiveModel(described, NcclEnvironment.read({**described.nccl, **os.environ}, described.wiring.nics))
    topology = model.topology
    kinds = Counter(
        (_kind(link.source), _kind(link.target), link.bandwidth, link.latency_ns) for link in topology.links
    )
    classes = [
        _Class(f"{source} > {target}", count, rate, latency) for (source, target, rate, latency), count in kinds.items()
    ]
    width = described.gpus_per_host
    ends = [(0, 1)] if width > 1 else []
    if described.hosts > 1:
        far = (described.hosts - 1) * width
        ends = list(dict.fromkeys([*ends, (0, width), (0, far), (0, far + width - 1)]))
    routes = {
        f"{topology.gpus[src]} > {topology.gpus[dst]}": " > ".join(
            topology.links[link].target for link in topology.route(src, dst)
        )
        for src, dst in ends
        if src != dst
    }
    collectives = []
    if described.world_size > 1:
        ranks, bf16 = tuple(range(described.world_size)), NCCL_DTYPE_NAMES.index("bfloat16")
        for name in ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL"):
            kind = getattr(Coll, name)
            price = model.collective(kind, ranks, GIB, bf16)
            how = f"{price.algorithm} {price.protocol}, {price.channels} channels"
            bus = wire_share(kind, len(ranks)) * GIB / price.duration_ns
            collectives.append((name.lower(), how, price.duration_ns / 1e3, bus))
    return _Facts(topology, classes, list(routes.items()), collectives)


def _kind(node: str) -> str:
    """``h3.gpu5`` -> ``gpu``, ``leaf2.1`` -> ``leaf``."""
    local = node.partition(".")[2] if node.startswith("h") and node[1:2].isdigit() else node
    return local.rstrip("0123456789.") or local


def _shown(described: Cluster, facts: _Facts) -> ShownCluster:
    from phantora.cli.printed import CollectiveTime, ShownCluster

    return ShownCluster(
        name=described.name,
        hosts=described.hosts,
        gpus_per_host=described.gpus_per_host,
        gpu=described.gpu.name,
        wiring=described.wiring,
        fabric=described.fabric,
        links=list(facts.topology.links),
        routes=dict(facts.routes),
        all_gpus_1_gib=[CollectiveTime(*collective) for collective in facts.collectives],
    )


def _print(described: Cluster, facts: _Facts) -> None:
    wiring, fabric = described.wiring, described.fabric
    console = Console(width=100, highlight=False)
    nics = min(wiring.nics, described.gpus_per_host)
    console.print(
        f"{described.name}: hosts {_hosts(described)}, "
        f"{wiring.kind}, {nics} NICs a host"
        + (f", NVLink over {wiring.nvlink_hosts} hosts" if wiring.nvlink_hosts > 1 else "")
        + (f", fabric {fabric.kind}, routes by {fabric.routing}" if described.hosts > 1 else "")
    )
    links = Table(box=box.SIMPLE_HEAD)
    for column in ("links", "count", "GB/s", "latency"):
        links.add_column(column, justify="left" if column == "links" else "right")
    for each in facts.classes:
        links.add_row(each.link, str(each.count), f"{each.bandwidth / 1e9:.1f}", f"{each.latency_ns} ns")
    console.print(links)
    for ends, way in facts.routes:
        console.print(f"{ends}\n    by {way}", soft_wrap=False)
    if facts.collectives:
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("1 GiB, all GPUs", "NCCL takes", "time", "bus bandwidth"):
            table.add_column(column, justify="right" if column in ("time", "bus bandwidth") else "left")
        for name, how, us, bus in facts.collectives:
            table.add_row(name, how, f"{us:,.0f} us", f"{bus:.1f} GB/s")
        console.print(table)


def _draw(described: Cluster, topology: Topology, output: str) -> None:
    from phantora.hardware.drawing import svg

    path = Path(output)
    if path.suffix.lower() != ".svg":
        raise PhantoraError(f"{output}: clusters are drawn as SVG; give a name that ends in .svg")
    try:
        path.write_text(svg(topology, described.name), encoding="utf-8")
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {cause_of(error)}") from error
