"""Checks everything of a spec that can be checked before anything runs, and reads its texts."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from phantora.errors import PhantoraError, Reason
from phantora.hardware import Cluster, load_calibration, load_cluster
from phantora.launch.machine_memory import available
from phantora.launch.plan import Plan, refuse_shares
from phantora.launch.selfstart import starts_its_ranks
from phantora.rank.assume import parse_assumptions
from phantora.rank.patches import disk, garbage, loading
from phantora.rank.routing import parse_routing
from phantora.runs import data
from phantora.runs import fold as folding
from phantora.runs.outputs import Outputs
from phantora.runs.preflight import preflight
from phantora.runs.setup import Setup, capped
from phantora.sim.whatif import WhatIf, parse_what_if
from phantora.spec import (
    COMMAND,
    COUNTED,
    FOUND,
    MODULE,
    OFF,
    SCRIPT,
    FoldSpec,
    LaunchSpec,
    RunSpec,
    SlowDisk,
    unfolded_elsewhere,
)
from phantora.units import GIB, MIB
from phantora.wire.layout import MAX_DEVICES

WORKER_BYTES = 40 * MIB
"""Memory of a DataLoader worker of a small data set, which is a fork of a rank: 256 of them took 9 GB (measured)."""


@dataclass(frozen=True)
class Prepared:
    """A checked run."""

    setup: Setup
    plan: Plan
    outputs: Outputs
    note: str
    """Note for the user about the way it is run."""

    @property
    def spec(self) -> RunSpec:
        """The run, with its texts in the form that the ranks read."""
        return self.setup.spec


def prepare(spec: RunSpec) -> Prepared:
    """Raises PhantoraError for what cannot be run."""
    refuse_shares(os.environ)
    spec, note = _started_by_itself(spec)
    spec = _elsewhere(spec)
    cluster = chosen_cluster(spec)
    if spec.kind == SCRIPT:
        check_script(spec.target)
    hosts = _count("--nnodes", spec.launch.nnodes, cluster.hosts, "hosts", spec.cluster)
    here = _ranks_per_host(spec, cluster)
    if here > MAX_DEVICES:
        raise PhantoraError(
            f"{spec.cluster}: {here} ranks on a host, and at most {MAX_DEVICES} are simulated; "
            "describe it as several hosts whose network is as fast (docs/clusters.md)"
        )
    loading.parse(spec.ranks.data_loading)
    disk.parse(spec.ranks.disk)
    if spec.ranks.garbage == COUNTED and not garbage.has_full_collections(sys.version_info[:3]):
        raise PhantoraError(
            f"--garbage counted: the collector of Python {platform.python_version()} begins no full collections; use "
            "Python 3.14.5 or newer, or 3.13 or older, or leave the option out"
        )
    spec = replace(
        spec,
        ranks=replace(
            spec.ranks,
            moe_routing=parse_routing(spec.ranks.moe_routing).spec,
            assume=parse_assumptions(spec.ranks.assume),
            python_ns=data.python_ns(cluster.host),
            cores=(host_cores := cluster.host.cores_per_gpu * cluster.gpus_per_host),
            host_cores=host_cores,
            threads=_threads(os.environ.get("OMP_NUM_THREADS", "")),
            per_gpu=spec.kind != COMMAND,
            devices=min(here, cluster.gpus_per_host) if hosts > 1 else cluster.gpus_per_host,
        ),
    )
    if here > cluster.gpus_per_host:
        spec = _not_folded(spec)
    fold = folding.choose(spec.fold, hosts * here, is_command=spec.kind == COMMAND)
    fold = folding.within_kinds(fold, cluster, here)
    to_be_found = spec.fold.axes in FOUND and spec.kind != COMMAND
    real = len(fold.real) if fold else hosts * here
    if not spec.launch.ray:
        preflight(1 if to_be_found and not fold else real)
        cores = _cores(spec.ranks.host_cores, min(real, here) if to_be_found else real)
        spec = replace(spec, ranks=replace(spec.ranks, cores=cores))
    what_if = parse_what_if(spec.what_if.degrade, spec.what_if.straggler, spec.what_if.background, spec.what_if.fault)
    spec = replace(spec, ranks=replace(spec.ranks, slow_disks=_slow_disks(what_if, hosts)))
    outputs = Outputs.nowhere() if spec.null else Outputs.of(spec)
    shown = _filter(spec.launch.ranks_filter, here)
    plan = Plan(
        spec=spec, hosts=hosts, ranks_per_host=here, ranks=spec.ranks, log_dir=_log_dir(spec.launch), ranks_filter=shown
    )
    if spec.launch.run_id:
        plan = replace(plan, run_id=spec.launch.run_id)
    mps = bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY"))
    return Prepared(
        Setup(spec=spec, cluster=cluster, hosts=hosts, ranks_per_host=here, what_if=what_if, fold=fold, mps=mps),
        plan.folded(fold),
        outputs,
        note,
    )


def _cores(host: int, ranks: int) -> int:
    """CPUs that scripts see: the host's, and at most as many as workers of all `ranks` find half of this machine's
    memory for (or as this machine has)."""
    workers = available()[0] // 2 // WORKER_BYTES // ranks
    return min(host, max(workers, os.cpu_count() or 1))


def _slow_disks(what_if: WhatIf, hosts: int) -> tuple[SlowDisk, ...]:
    """The faults of disks, for the ranks that write to them. Raises PhantoraError for a host that is not there."""
    names = [f"h{host}" for host in range(hosts)]
    for fault in what_if.fault:
        if fault.disks and not any(fnmatchcase(name, fault.disks) for name in names):
            raise PhantoraError(
                f"--fault {fault.text}: the hosts of the run are h0 to h{hosts - 1}; disk is all of theirs"
            )
    return tuple(
        SlowDisk(hosts=fault.disks, start_ns=fault.start_ns, end_ns=fault.end_ns, factor=fault.factor)
        for fault in what_if.fault
        if fault.disks
    )


def _ranks_per_host(spec: RunSpec, cluster: Cluster) -> int:
    gpus, sharing = cluster.gpus_per_host, spec.processes_per_gpu
    if sharing < 1:
        raise PhantoraError(f"--processes-per-gpu {sharing} must be at least 1")
    what = "GPUs per host" if sharing == 1 else f"places per host, {sharing} on each GPU"
    here = _count("--nproc-per-node", spec.launch.nproc_per_node, gpus * sharing, what, spec.cluster)
    if sharing > 1 and here <= gpus:
        raise PhantoraError(
            f"--processes-per-gpu {sharing}: {here} ranks do not share the {gpus} GPUs of a host; give more with "
            "--nproc-per-node, or fewer GPUs with --cluster"
        )
    return here


def _elsewhere(spec: RunSpec) -> RunSpec:
    """The run with what --ray implies."""
    if not spec.launch.ray:
        if spec.launch.working_dir:
            raise PhantoraError(
                "--working-dir ships a folder to the nodes of a Ray cluster: give --ray, or leave it out"
            )
        return spec
    if shipped := spec.launch.working_dir:
        folder = Path(shipped).resolve()
        if not folder.is_dir() or not Path.cwd().is_relative_to(folder):
            raise PhantoraError(
                f"--working-dir {shipped} must be a folder that has the current one, {Path.cwd()}, in it"
            )
    if spec.kind == COMMAND:
        raise PhantoraError(
            "--ray places the ranks of a script or a module, and a command starts its own processes: give the script, "
            "or leave out --ray"
        )
    if spec.fold.axes not in (*FOUND, OFF):
        raise PhantoraError(f"--ray runs every rank as a process: leave out --fold {spec.fold.axes}, or --ray")
    return unfolded_elsewhere(spec)


def _not_folded(spec: RunSpec) -> RunSpec:
    if spec.fold.axes not in (*FOUND, OFF):
        raise PhantoraError(
            f"--fold {spec.fold.axes}: a folded run has one process on each GPU; leave out --fold or "
            "--processes-per-gpu"
        )
    return replace(spec, fold=FoldSpec(OFF))


def _started_by_itself(spec: RunSpec) -> tuple[RunSpec, str]:
    """A command that is a script is one; a script that starts its ranks itself is a command, with a note."""
    if spec.kind == COMMAND and spec.target.endswith(".py"):
        spec = replace(spec, kind=SCRIPT)
    if spec.kind != SCRIPT or (line := starts_its_ranks(spec.target)) is None:
        return spec, ""
    note = f"{spec.target} starts its ranks itself (line {line}), so it is run once, as `-- python {spec.target}`"
    return as_command(spec), note


def as_command(spec: RunSpec) -> RunSpec:
    """The run of a script or a module as one process, which starts its ranks."""
    target = ("-m", spec.target) if spec.kind == MODULE else (spec.target,)
    return replace(spec, kind=COMMAND, target=sys.executable, arguments=(*target, *spec.arguments))


def check_script(path: str) -> None:
    """Raises PhantoraError if there is no such script, or if it cannot be compiled."""
    if not os.path.exists(path):
        hint = "check the path"
        if "/" not in path and not path.endswith(".py"):
            hint = f"a launcher is run by `phantora trace -- {path} ...`, a module by `-m {path}`"
        raise PhantoraError(f"no script {path!r} in {os.getcwd()}: {hint}")
    if not path.endswith(".py"):
        return  # a folder or an archive with a __main__
    try:
        compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else path  # null bytes have no line
        line = (error.text or "").strip()
        raise PhantoraError(
            f"{where}: {type(error).__name__}: {error.msg}" + (f": {line}" if line else ""), Reason.SCRIPT_FAILED
        ) from error
    except (OSError, ValueError) as error:
        raise PhantoraError(f"{path} cannot be read: {error}") from error


def chosen_cluster(spec: RunSpec) -> Cluster:
    """The cluster with the host and the memory that the spec names. Raises PhantoraError."""
    cluster = capped(load_cluster(spec.cluster), spec.what_if)
    if spec.host is not None:
        cluster = load_calibration(spec.host).applied(cluster)
    if spec.host_time == "modelled" and spec.host_scale != 1:
        cluster = cluster.each(lambda one: replace(one, host=one.host.slower(spec.host_scale)))
    if spec.gpu_memory is None:
        return cluster
    memory = round(spec.gpu_memory * GIB)
    return cluster.each(lambda one: replace(one, gpu=replace(one.gpu, memory_bytes=memory)))


def _log_dir(launch: LaunchSpec) -> Path | None:
    if launch.log_dir:
        return Path(launch.log_dir)
    if (launch.tee, launch.redirects) == ("0", "0"):
        return None
    return Path(tempfile.mkdtemp(prefix="phantora-logs-"))


def _threads(text: str) -> int:
    """The first number of OMP_NUM_THREADS; 0 where there is none."""
    first = text.split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _count(option: str, text: str, have: int, what: str, spec: str) -> int:
    """A number of hosts or ranks, as torchrun writes it: N, MIN:MAX, auto or gpu."""
    if text in ("auto", "gpu"):
        return have
    try:
        low, _, high = text.partition(":")
        least, most = int(low), int(high or low)
    except ValueError:
        raise PhantoraError(f"{option} {text!r} is not a number; the cluster {spec} has {have} {what}") from None
    if not 1 <= least <= most:
        raise PhantoraError(f"{option} {text!r} must be at least 1")
    if least > have:
        raise PhantoraError(
            f"{option} {text}: the cluster {spec} has {have} {what}; simulate a larger one with --cluster, or several "
            "processes on each GPU with --processes-per-gpu"
        )
    return min(most, have)


def _filter(text: str, ranks: int) -> tuple[int, ...] | None:
    if not text:
        return None
    try:
        chosen = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PhantoraError(f"--local-ranks-filter {text!r} is not a list of local ranks such as 0,1") from None
    if any(not 0 <= rank < ranks for rank in chosen):
        raise PhantoraError(f"--local-ranks-filter {text}: local ranks go from 0 to {ranks - 1}")
    return chosen
