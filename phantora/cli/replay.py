"""phantora replay: simulate a recorded run again, on another cluster."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phantora.cli.host import host_facts, host_option, with_host
from phantora.cli.options import output_options, report_options, take_what_if, what_if_options
from phantora.cli.outputs import Outputs
from phantora.cli.report import print_report, simulation_report
from phantora.cli.simulation import Recorded, Settings, assemble
from phantora.errors import PhantoraError
from phantora.wire.fold import from_dict

if TYPE_CHECKING:
    from phantora.hardware import Cluster, HostProfile
    from phantora.trace.reader import Log
    from phantora.trace.recording import Chunk


@click.command(
    options_metavar="[OPTIONS]",
    epilog="""Examples:

\b
  phantora replay run.arrow --gpu H200 -o h200.arrow
  phantora replay run.arrow --straggler rank=3:1.2 -o slow.arrow
  phantora replay run.arrow --host-scale 1.5
""",
)
@click.argument("run", metavar="RUN.ARROW", type=click.Path(path_type=Path))
@click.option(
    "-c", "--cluster", metavar="SPEC",
    help="HOSTSxGPUSxMODEL or the path of a .toml file, with as many GPUs as the run had ranks  [default: the run's]",
)
@click.option("--gpu", metavar="MODEL", help="Another GPU in the same hosts, with its own links.")
@host_option("as recorded")
@click.option(
    "--host-scale", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="X",
    help="Factor on the recorded host time; 0: the host costs nothing.",
)
@output_options("replay.arrow")
@report_options
@what_if_options
def replay(run: Path, output: str, quiet: bool, **options: Any) -> None:
    """Simulate RUN.ARROW again on another cluster, network or GPU, in seconds, without its framework.

    What the framework did stays as it was recorded: kernels, sizes, collectives, and the host's time between
    waits (docs/replay.md).
    """  # fmt: skip
    from phantora.trace.reader import open_log

    log = open_log(run)
    cluster = with_host(chosen_cluster(log, options["cluster"], options["gpu"]), options["host"])
    chunks = whole_recording(log)
    outputs = Outputs.of(output, options["force"])
    if outputs.log.resolve() == run.resolve():
        raise PhantoraError(f"{run}: a replay cannot write over the log it reads; name another place with -o")
    ratio = host_ratio(log, cluster, options["host"])
    recorded = Recorded(chunks, options["host_scale"] * ratio, log.metadata.extra.get("nccl", {}))
    changes = {"record": options["recording"], "what_if": take_what_if(options), "flows": options["flows"]}
    host = cluster.host if options["host"] is not None else None
    report = simulate(log, cluster, recorded, outputs.written, changes, host)
    target = outputs.settle(succeeded=True)
    report["log"] = str(target)
    if outputs.timeline is not None and report["rows"]:
        from phantora.trace.export.registry import export

        report["timeline"] = export(target, str(outputs.timeline))
    print_report(report, summary=options["summary"] and not quiet, as_json=options["as_json"])


def chosen_cluster(log: Log, spec: str | None, gpu: str | None) -> Cluster:
    """The cluster that was asked for, or the run's own. Raises if the run does not fit on it."""
    from phantora.hardware import load_cluster

    run = log.metadata
    if spec is None:
        try:
            cluster = load_cluster(run.cluster)
        except PhantoraError:
            raise PhantoraError(
                f"{log.path}: the run's cluster {run.cluster!r} came from a file; name it again with --cluster"
            ) from None
    else:
        cluster = load_cluster(spec)
    if gpu is not None:
        if spec is not None and spec.endswith(".toml"):
            raise PhantoraError(f"--gpu and {spec}: set the GPU in the file")
        cluster = load_cluster(f"{cluster.hosts}x{cluster.gpus_per_host}x{gpu}")
    if spec is None and run.world_size <= cluster.world_size:
        return cluster
    if cluster.world_size != run.world_size:
        raise PhantoraError(
            f"{log.path}: the run had {run.world_size} ranks, one a GPU, and {cluster.name} has {cluster.world_size} "
            "GPUs; what each rank does depends on their number: run `phantora trace` on that cluster"
        )
    return cluster


def host_ratio(log: Log, cluster: Cluster, asked: str | None) -> float:
    """What the host of `cluster` takes over the one that was recorded; 1 if none was `asked` for. Single costs that a
    host file sets apart do not count: a recording holds the host's time between calls, not what it was spent on."""
    if asked is None:
        return 1.0
    if log.metadata.host_mode != "modelled":
        raise PhantoraError(
            f"{log.path}: --host needs a run with --host-time modelled, and this one was {log.metadata.host_mode}; "
            "scale its host time with --host-scale"
        )
    before = float(log.metadata.extra.get("host", {}).get("factor", 1.0))
    return cluster.host.factor / before


def whole_recording(log: Log) -> list[Chunk]:
    """The recording of every rank to its end. Raises if there is none."""
    chunks = log.recording()
    why = ""
    if not log.complete:
        why = "the run was killed"
    elif not chunks:
        why = "the run kept no recording (--no-recording)"
    elif log.trailer.get("status"):
        why = f"the run failed (status {log.trailer['status']})"
    if why:
        raise PhantoraError(f"{log.path}: cannot be replayed: {why}; run `phantora trace` again")
    return chunks


def simulate(
    log: Log,
    cluster: Cluster,
    recorded: Recorded,
    target: Path,
    changes: dict[str, Any],
    host: HostProfile | None = None,
) -> dict[str, Any]:
    """Writes the new log; the report of the simulation, seconds. `changes`: further fields of `Settings`; `host`: the
    one that was chosen in place of the recorded one."""
    from phantora import stubs
    from phantora.cli.main import version

    run = log.metadata
    part_of_it = run.world_size < cluster.world_size
    ranks_per_host = run.ranks_per_host if part_of_it else cluster.gpus_per_host
    if run.extra.get("fold"):
        changes = {**changes, "fold": from_dict(run.extra["fold"])}
    settings = Settings(run.world_size // ranks_per_host, ranks_per_host, run.host_mode, **changes)
    extra = run.extra if recorded.host_scale == 1 else {**run.extra, "host_scale": recorded.host_scale}
    if host is not None:
        extra = {**extra, "host": host_facts(host)}
    metadata = {"phantora": version(), "command": run.command, "torch": run.torch, "extra": extra}
    engine = stubs.ensure(lambda line: print(f"phantora: {line}", file=sys.stderr)).engine
    began = time.monotonic()
    simulation = assemble(cluster, settings, target, metadata, None, engine, recorded)
    simulator = simulation.simulator
    assert simulator is not None and simulation.log is not None
    report: dict[str, Any] = {"status": 1}
    try:
        simulator.run()
        report = simulation_report(simulator.stats(), run.world_size, target)
        report["wall_seconds"] = round(time.monotonic() - began, 3)
    finally:
        operators = [asdict(entry) for entry in simulator.operators()]
        simulation.close({**report, "replayed": str(log.path), "operators": operators})
    report["rows"] = simulation.log.rows
    return report
