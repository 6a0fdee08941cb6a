"""Describes the links to the engine: which there are, who can use them, and what happens to them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from phantora.errors import PhantoraError
from phantora.fold.mesh import Fold
from phantora.hardware.topology import Flow, NetworkLink, Topology
from phantora.sim.engine import library as native
from phantora.sim.whatif import Degrade, Fault, WhatIf
from phantora.trace.schema import OPTIMIZER_STEP
from phantora.wire.places import Places


class Links:
    """The links of `topology` in `engine`, with the same numbers. GPU g of the topology is rank g, unless `places` has
    more ranks for it.

    Raises PhantoraError if `what_if` names what is not there.
    """

    def __init__(
        self,
        engine: native.Engine,
        topology: Topology,
        world_size: int,
        what_if: WhatIf,
        fold: Fold | None = None,
        places: Places | None = None,
    ) -> None:
        self._engine = engine
        self._links = topology.links
        self._names: dict[tuple[int, ...], int] = {}
        changes = [(change, _matching(topology, change.links)) for change in what_if.degrade]
        engine.set_mark(OPTIMIZER_STEP)
        marked = {number for change, numbers in changes if change.optimizer_steps for number in numbers}
        numbers = {name: number for number, name in enumerate(topology.gpus)}
        gpus = len(topology.gpus) if places is not None else world_size
        for number, link in enumerate(topology.links):
            members = users(topology, numbers, link)
            if members and number in marked:
                members = sorted({0, *members})  # rank 0 gives the time
            # GPUs that no rank uses put nothing on any link; an empty list would mean everybody.
            # In a folded run any process may be the one whose collective uses the link of a rank that is none.
            present = [] if fold else [gpu for gpu in members if gpu < gpus] or [0] * bool(members)
            if places is not None:
                present = [rank for gpu in present for rank in places.ranks_of(gpu)]
            engine.add_link(link.bandwidth, engine.intern(native.NAMES, link.name), present)
        faults = [(fault, _matching(topology, fault.links, "--fault")) for fault in what_if.fault if fault.links]
        faulty = {number for _, links in faults for number in links}
        for number in sorted(faulty):
            self._fail(
                number,
                [one for one, links in changes if number in links],
                [one for one, links in faults if number in links],
            )
        for change, links in changes:
            for number in links:
                if number in faulty:
                    continue
                bandwidth = topology.links[number].bandwidth * change.factor
                if change.optimizer_steps:
                    engine.change_link_at_mark(number, change.optimizer_steps, bandwidth)
                else:
                    engine.change_link(number, change.time_ns, bandwidth)
        for straggler in what_if.straggler:
            _check_rank(straggler.rank, f"--straggler rank={straggler.rank}:{straggler.factor:g}", world_size, fold)
            engine.straggler(straggler.rank, straggler.factor)
        for fault in what_if.fault:
            if fault.rank is not None:
                _check_rank(fault.rank, f"--fault {fault.text}", world_size, fold)
                engine.throttle(fault.rank, fault.start_ns, fault.end_ns, fault.slower)
        for traffic in what_if.background:
            if max(traffic.src, traffic.dst) >= len(topology.gpus) or traffic.src == traffic.dst:
                raise PhantoraError(
                    f"--background {traffic.src}->{traffic.dst}: name two different GPUs of 0 to "
                    f"{len(topology.gpus) - 1}"
                )
            engine.background(topology.route(traffic.src, traffic.dst), traffic.rate)

    def _fail(self, number: int, changes: Sequence[Degrade], faults: Sequence[Fault]) -> None:
        """Sets the bandwidth of a link with faults, at every moment that changes it."""
        if any(change.optimizer_steps for change in changes):
            raise PhantoraError(
                f"--fault {faults[0].text}: its link {self._links[number].name} has a --degrade @optimizerN, too; give "
                "that a time"
            )
        bandwidth = self._links[number].bandwidth
        for time in sorted({*(c.time_ns for c in changes), *(t for f in faults for t in (f.start_ns, f.end_ns))}):
            before = [change.factor for change in changes if change.time_ns <= time]
            left = before[-1] if before else 1.0
            for fault in faults:
                left *= fault.share_of(bandwidth) if fault.active(time) else 1.0
            self._engine.change_link(number, time, bandwidth * left)

    def names(self, flows: Sequence[Flow]) -> list[int]:
        """Ids in the engine of the names of the flows' routes: ``h0.gpu0>h0.nvswitch>h0.gpu1``."""
        for flow in flows:
            if flow.links not in self._names:
                nodes = [self._links[flow.links[0]].source, *(self._links[link].target for link in flow.links)]
                self._names[flow.links] = self._engine.intern(native.NAMES, ">".join(nodes))
        return [self._names[flow.links] for flow in flows]


def users(topology: Topology, numbers: dict[str, int], link: NetworkLink) -> list[int]:
    """GPUs one of which takes part in whatever uses the link; none: anybody may use it.

    A link inside a host, or of one of its NICs, serves only flows that begin or end in that host; one of a
    GPU's own only that GPU's flows, unless neighbours reach their rails through it (PXN).
    """
    ends = [end for end in (link.source, link.target) if end in numbers]
    if ends and (topology.hosts == 1 or not topology.pxn):
        return [numbers[ends[0]]]
    for end in (link.source, link.target):
        host, dot, _ = end.partition(".")
        if dot and f"{host}.gpu0" in numbers:
            first = numbers[f"{host}.gpu0"]
            return list(range(first, first + len(topology.nic_of)))
    return []


def _check_rank(rank: int, option: str, world_size: int, fold: Fold | None) -> None:
    """Raises PhantoraError if `rank` is no process of the run."""
    if rank >= world_size:
        raise PhantoraError(f"{option}: the run has ranks 0 to {world_size - 1}")
    if fold and rank not in fold.real:
        raise PhantoraError(f"{option}: this rank is folded; add --real-ranks {rank}")


def _matching(topology: Topology, glob: str, option: str = "--degrade") -> list[int]:
    found = [number for number, link in enumerate(topology.links) if fnmatchcase(link.name, glob)]
    if not found:
        few = ", ".join(link.name for link in topology.links[:3])
        raise PhantoraError(
            f"{option} {glob}: the cluster has no link of this name; its {len(topology.links)} links are "
            f"called {few}, ... "
            "(`phantora cluster show` lists them)"
        )
    return found
