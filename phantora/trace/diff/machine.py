"""Causes in the machine: one rank alone, the network or the host takes another time for the same work."""

from __future__ import annotations

from statistics import median
from typing import Any

from phantora.trace.analysis.host_waits import BOUND
from phantora.trace.analysis.late_hosts import host_waits
from phantora.trace.analysis.slower_ranks import times_the_work
from phantora.trace.analysis.units import duration
from phantora.trace.diff.compare import Cause, Difference, Side, rank_compute
from phantora.trace.diff.reality import has_ranks

LATE_HOST = "late host"
MORE_WORK = "times the work of before"
"""In the text of a straggler that computes longer as it has more to do."""


def straggler_causes(a: Side, b: Side) -> list[Cause]:
    """One rank computes longer (or no longer does) while the others stay as they were. Next to kernels of collectives
    that wait for a late rank, others' own kernels slow down, in FSDP nearly as much. Then it must be the one that
    the collectives wait for."""
    x, y = rank_compute(a.report), rank_compute(b.report)
    if set(x) != set(y) or len(x) < 2:
        return []
    changes = sorted(((y[rank] - x[rank]) / x[rank], rank) for rank in x if x[rank])
    if not changes:
        return []
    share, rank = max(changes, key=lambda change: abs(change[0]))
    others = [abs(s) for s, r in changes if r != rank]
    alone = 1.0 if _waited_for(a, b, rank, y[rank] - x[rank]) else 3.0
    if abs(share) < 0.01 or abs(share) < alone * max(others):
        return []
    slower, longer = ("slower", "longer") if share > 0 else ("faster", "less")
    more = times_the_work(b.report.ranks, rank) / times_the_work(a.report.ranks, rank)
    what = f"has {more:.2f} {MORE_WORK}" if more != 1 else f"is {slower} than the others"
    text = f"rank {rank} {what}: it computes {100 * abs(share):.1f} % {longer}"
    return [Cause("straggler", text, y[rank] - x[rank])]


def late_host_causes(a: Side, b: Side) -> list[Cause]:
    """The GPU of one rank waits longer (or shorter) for its host than before, and collectives wait for that rank."""
    x, y = host_waits(a.report), host_waits(b.report)
    changes = {rank: y[rank] - x[rank] for rank in x if rank in y}
    rank = max(changes, key=lambda rank: abs(changes[rank]), default=-1)
    others = [change for other, change in changes.items() if other != rank]
    if not others:
        return []
    own, usual = changes[rank], median(others)
    steps = max(a.report.steady.time, b.report.steady.time)
    if abs(own - usual) < max(BOUND * steps, 3 * max(abs(change - usual) for change in others)):
        return []
    if not _waited_for(a, b, rank, own):
        return []
    more = "more" if own > 0 else "less"
    text = f"rank {rank}'s host: its GPU waits {duration(abs(own))} {more} a step for launches, and the others for it"
    return [Cause(LATE_HOST, text, own)]


def _waited_for(a: Side, b: Side, rank: int, change: float) -> bool:
    """True if the waits that `rank` causes grew (or shrank) with its compute's `change`, and no other's did."""
    if a.report.details is None or b.report.details is None:
        return False
    x, y = ({s.rank: s.caused for s in details.stragglers} for details in (a.report.details, b.report.details))
    caused = {r: y[r] - x[r] for r in x if r in y}
    others = max((abs(value) for r, value in caused.items() if r != rank), default=0.0)
    own = caused.get(rank, 0.0)
    return own * change > 0 and abs(own) > 0.5 * abs(change) and abs(own) > 3 * others


# ---------------------------------------------------------------------- network


def exposed_change(d: Difference) -> float:
    """Change of the communication that nothing hides, in ns."""
    return sum(c.change for c in d.times if c.name in ("transfer", "late rank", "pipeline bubble"))


def felt(d: Difference, change: float) -> float:
    """The part of a change of transfers that steps feel: no more than communication that nothing hides changed by."""
    exposed = exposed_change(d)
    if exposed * change <= 0:
        return 0.0
    return exposed if abs(exposed) < abs(change) else change


_DISTURBED, _SLOWED = 0.25, 0.05  # relative changes of collectives, and of the kernels next to them


def only_collectives(d: Difference) -> bool:
    """Collectives take another time, and kernels hardly more than what collectives that last longer cost them."""
    parts = (d.collectives, [work for work in d.operators if not work.part])
    changes = [sum(work.by_duration for work in part) for part in parts]
    before = [sum(work.b.time - work.by_duration for work in part) for part in parts]
    if not all(before):
        return False
    collectives, kernels = (change / whole for change, whole in zip(changes, before, strict=True))
    return abs(collectives) > _DISTURBED and abs(kernels) < _SLOWED and changes[0] * changes[1] > 0


def network_causes(a: Side, b: Side, d: Difference) -> list[Cause]:
    """Collectives of equal size and ranks take longer or shorter."""
    same = [c for c in d.collectives if c.by_duration]
    change = sum(c.by_duration for c in same)
    if not same:
        return []
    before = sum(c.a.time for c in same)
    most = max(same, key=lambda c: abs(c.by_duration))
    ratio = (before + change) / before if before else 0.0
    links = _links(a, b)
    clusters = [side.report.metadata["cluster"] for side in (a, b)]
    if not links and clusters[0] != clusters[1] and not d.reality:
        links = f"another cluster, {clusters[0]} -> {clusters[1]}"
    where = f"{links}: " if links else ""
    late = ", waits for late ranks included" if any(_waits_unknown(side) for side in (a, b)) else ""
    text = f"network: {where}the same collectives take {ratio:.2f} times as long{late}, most of it in {most.name}"
    return [Cause("network", text, felt(d, change))]


def _waits_unknown(side: Side) -> bool:
    """True for traces of a real run from which the arrivals of other ranks do not follow."""
    some = len(side.log.metadata.ranks) < side.log.metadata.world_size
    return side.real and (some or not has_ranks(side.transfers))


def _links(a: Side, b: Side) -> str:
    """Changed links: by the options of the runs, or by their link rows."""
    x, y = (degraded_links(side) for side in (a, b))
    changed = [(links, share) for links, share in y.items() if x.get(links) != share]
    shares = [f"links {links} carry {share:g} of their bandwidth" for links, share in changed]
    shares += [f"links {links} carry all of their bandwidth again" for links in x if links not in y]
    if shares:
        return ", ".join(shares)
    if not (a.report.details and b.report.details and a.report.details.links and b.report.details.links):
        return ""
    before = {link.name: link.peak * link.bandwidth for link in a.report.details.links}
    changes = {
        link.name: link.peak * link.bandwidth / before[link.name] - 1
        for link in b.report.details.links
        if before.get(link.name)
    }
    name = max(sorted(changes), key=lambda link: abs(changes[link]), default="")
    return f"link {name} reaches {1 + changes[name]:.2f} of its rate" if name and abs(changes[name]) > 0.05 else ""


def _what_if(side: Side) -> dict[str, Any]:
    return side.report.metadata.get("extra", {}).get("what_if") or {}


def degraded_links(side: Side) -> dict[str, float]:
    """Shares of bandwidth that the run's options leave, by links."""
    return {entry["links"]: float(entry["factor"]) for entry in _what_if(side).get("degrade", ())}


def slowed_ranks(side: Side) -> list[Any]:
    """Stragglers of the run's options."""
    return list(_what_if(side).get("straggler", ()))


# ---------------------------------------------------------------------- host


def _of_host(side: Side) -> dict[str, Any]:
    """Host options of the run. The pace of its slowest rank follows from the number of ranks."""
    extra = side.report.metadata.get("extra", {})
    host = extra.get("host") and {name: fact for name, fact in extra["host"].items() if name != "pace"}
    return {"host": host, **{name: extra.get(name) for name in ("host_scale", "data_loading")}}


def same_host(a: Side, b: Side) -> bool:
    """Both runs modelled their hosts by the same profile, and the loading of data."""
    if any(side.report.metadata["host_mode"] != "modelled" for side in (a, b)):
        return False
    return _of_host(a)["host"] is not None and _of_host(a) == _of_host(b)


def _host_change(x: dict[str, Any], y: dict[str, Any]) -> str:
    """``host``, or what is known to differ between the two."""
    loading = [side["data_loading"] or "free" for side in (x, y)]
    if loading[0] != loading[1]:
        return f"data loading {loading[0]} -> {loading[1]}"
    facts = [side["host"] or {} for side in (x, y)]
    scales = [(host.get("factor") or 1) * (side["host_scale"] or 1) for host, side in zip(facts, (x, y), strict=True)]
    known = any("name" in host for host in facts)
    names = [f"{host.get('name', '?')} x {scale:.3g}" for host, scale in zip(facts, scales, strict=True)]
    if not known:
        names = [f"{scale:.3g} times its time" for scale in scales]
    return f"another host: {names[0]} -> {names[1]}" if names[0] != names[1] else "host"


def _host_of_reality(a: Side, b: Side, effect: float) -> str:
    """``data loading`` where the DataLoader's time explains most of it, else ``host gaps``, with the hosts' times."""
    loading = b.loading - a.loading
    if loading * effect > 0 and abs(loading) > 0.5 * abs(effect):
        return f"data loading: the DataLoader takes {duration(b.loading)} a step, not {duration(a.loading)}"
    times = [side.report.host_time for side in (a, b)]
    reported = f", the host works {duration(times[1])} a step, not {duration(times[0])}" if min(times) > 0 else ""
    return f"host gaps{reported}"


def host_causes(a: Side, b: Side, d: Difference) -> list[Cause]:
    """GPUs wait longer or shorter for their host."""
    effect = sum(c.change for c in d.times if c.name in ("host", "synchronisation"))
    if not effect:
        return []
    more = "more" if effect > 0 else "less"
    more = more if d.recorded else f"{more} a step"
    if a.real != b.real:
        text = f"{_host_of_reality(a, b, effect)}: GPUs wait {duration(abs(effect))} {more}"
        return [Cause("host", text, effect)]
    change = _host_change(_of_host(a), _of_host(b))
    return [Cause("host", f"{change}: GPUs wait {duration(abs(effect))} {more} for launches", effect)]
