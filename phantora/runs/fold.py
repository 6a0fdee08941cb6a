"""Choice of the ranks that are processes: the user's, or by the process groups of rank 0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from phantora.errors import PhantoraError, Reason
from phantora.fold.discovery import FEW, mesh_of, splits_of
from phantora.fold.mesh import Fold
from phantora.fold.ranges import format_ranks
from phantora.fold.syntax import parse_fold
from phantora.hardware import Cluster
from phantora.launch.ending import Outcome
from phantora.launch.output import Console
from phantora.launch.plan import Plan
from phantora.launch.supervisor import RankSupervisor
from phantora.outputs import unnamed
from phantora.runs.assemble import create_session
from phantora.runs.preflight import OF_RANK, free_memory
from phantora.runs.setup import Setup
from phantora.spec import ALWAYS, AUTO, FOUND, OFF, FoldSpec

if TYPE_CHECKING:
    from phantora.stubs import StubSet


def choose(spec: FoldSpec, world_size: int, *, is_command: bool) -> Fold | None:
    """The fold that a spec names; None: none, or one that is still to be found. Raises PhantoraError."""
    if is_command and spec.axes not in (*FOUND, OFF):
        raise PhantoraError(
            "--fold: a command starts its ranks itself, all of them; run the script with `phantora trace SCRIPT`"
        )
    if spec.axes == OFF and spec.real_ranks:
        raise PhantoraError("--real-ranks names ranks of a folded run; give --fold its axes, as --fold dp=64")
    return None if spec.axes in (*FOUND, OFF) else parse_fold(spec.axes, world_size, spec.real_ranks)


def within_kinds(fold: Fold | None, cluster: Cluster, ranks_per_host: int) -> Fold | None:
    """The fold, if each process stands for ranks on its own kind of GPU. Raises PhantoraError for another."""
    if fold is None or not cluster.kinds:
        return fold
    for rank in range(fold.world_size):
        process = fold.process_of(rank)
        kinds = [cluster.kind_of(each // ranks_per_host) for each in (rank, process)]
        if kinds[0] != kinds[1]:
            own, other = (cluster.parts[kind].gpu.name for kind in kinds)
            raise PhantoraError(
                f"--fold: rank {process} on {other} cannot stand for rank {rank} on {own}: run all ranks (--fold off), "
                "or give an axis along the hosts, with all its ranks (dp=2:all)",
                Reason.CANNOT_FOLD,
            )
    return fold


def is_wanted(spec: FoldSpec, world_size: int) -> bool:
    """True if a fold is to be found: by `spec`, or since the ranks of a large model would take more memory than this
    machine has left."""
    if spec.axes == ALWAYS:
        return world_size > FEW
    return spec.axes == AUTO and (bool(spec.real_ranks) or 0 < free_memory() < world_size * OF_RANK)


def find(plan: Plan, setup: Setup, console: Console, stubs: StubSet) -> Fold | None:
    """Runs rank 0 alone, without a simulation, up to its first large communication. The process groups that it makes
    give the axes, the dimensions that it cuts for them the kinds of ranks along an axis. Raises PhantoraError."""
    with unnamed("phantora-groups") as groups:
        outcome = _alone(_with(plan, groups=str(groups)), setup, console, stubs, ends=True)
        if outcome.status:
            raise PhantoraError(
                f"--fold auto: rank 0, run alone to see the mesh, failed ({outcome.message}); give the axes, as --fold "
                "pp=4,dp=64,tp=8, or --fold off"
            )
        seen = [json.loads(line) for line in groups.read_text().splitlines()]
    made = [(one[0], one[1]) for one in seen if isinstance(one, list)]
    splits = splits_of(made, plan.world_size, [(one["rows"], one["parts"]) for one in seen if isinstance(one, dict)])
    fold = parse_fold(mesh_of(made, plan.world_size), plan.world_size, setup.spec.fold.real_ranks, splits)
    return within_kinds(fold, setup.cluster, setup.ranks_per_host)


LARGEST = 2  # ranks with pieces of the largest parameters: of a model's embedding and of its head


def with_busiest(fold: Fold, plan: Plan, setup: Setup, console: Console, stubs: StubSet) -> Fold:
    """The fold in which the rank that has the most pieces of an optimizer that is cut unevenly is a process too, and
    two with pieces of the largest parameters. Runs rank 0 alone, without a simulation, for a step."""
    with unnamed("phantora-parts") as parts:
        outcome = _alone(_with(plan, pieces=str(parts)), setup, console, stubs, ends=False)
        counted: list[tuple[int, int, int]] = json.loads(parts.read_text() or "[]")
    if outcome.status or not counted:
        seen = f"failed ({outcome.message})" if outcome.status else "gathered no buffer of parameters"
        console.message(
            f"phantora: note: rank 0, run alone to see which rank has the most pieces of the optimizer, {seen}; "
            "the ends and the representatives represent all; --real-ranks names further ranks"
        )
        return fold
    rank, most, _ = max(counted, key=lambda entry: (entry[1], -entry[0]))
    what = {rank: f"has the most pieces of the optimizer, {most},"}
    for rank, _, size in sorted(counted, key=lambda entry: (-entry[2], entry[0]))[:LARGEST]:
        what.setdefault(rank, f"has pieces of the largest parameters, {size / 2**20:,.0f} MiB in all,")
    more = [rank for rank in what if rank not in fold.real]
    for rank in () if plan.ranks.quiet else more:
        console.message(f"phantora: folded: rank {rank} {what[rank]} and runs too")
    return replace(fold, named=(*fold.named, *more))


def _with(plan: Plan, *, groups: str = "", pieces: str = "") -> Plan:
    return replace(plan, ranks=replace(plan.ranks, groups=groups, pieces=pieces))


def _alone(plan: Plan, setup: Setup, console: Console, stubs: StubSet, *, ends: bool) -> Outcome:
    """Runs rank 0 without a simulation; `ends`: up to its first large communication."""
    launch = replace(plan.spec.launch, redirects="0", tee="0")
    ranks = replace(plan.ranks, quiet=True, processes=format_ranks((0,)))
    spec = replace(plan.spec, launch=launch)
    plan = replace(plan, spec=spec, ranks=ranks, real=(0,), ranks_filter=(), log_dir=None)
    supervisor = RankSupervisor(plan, console, stubs=stubs.directory)
    try:
        setup = replace(setup, spec=replace(setup.spec, null=True))
        session = create_session(setup, None, alone=True, ends=ends)
    except BaseException:
        supervisor.close()
        raise
    try:
        return supervisor.run(session, None)
    finally:
        session.close()
