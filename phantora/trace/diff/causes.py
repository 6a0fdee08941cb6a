"""What made one run slower or faster than another: the change that explains most comes first.

Every rule looks at one kind of evidence: what differs in the log if just that was changed. A rule's effect is
the time that its evidence accounts for; the ranking goes by it, but what can have one cause only comes
before the rest: another GPU, which the logs name, and a single rank that changed alone.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from phantora.trace.analysis.throughput import EMBEDDING, embedding
from phantora.trace.analysis.units import duration
from phantora.trace.diff.compare import Cause, Difference, Side, rank_compute
from phantora.trace.diff.inventory import Operation

_WORTH_NAMING = 0.002  # of a step


def find_causes(a: Side, b: Side, d: Difference) -> list[Cause]:
    """The causes, first the one to name; empty for equal runs."""
    if d.equal:
        return []
    found = [*_straggler(a, b), *_network(d), *_work(a, b, d), *_host(d)]
    found = [cause for cause in found if abs(cause.effect) >= _WORTH_NAMING * max(d.step.a, 1.0)]
    # That one rank alone changed explains, by itself, that operators took longer on average.
    alone = any(cause.kind == "straggler" for cause in found)
    found = [cause for cause in found if not (alone and cause.kind == "kernels")]
    found.sort(key=lambda cause: (cause.kind != "straggler", -abs(cause.effect)))
    settings = {name: (x, y) for name, x, y in d.settings}
    if "gpu" in settings:
        x, y = settings["gpu"]
        rest = [cause for cause in found if cause.kind not in ("kernels", "network", "host")]
        effect = sum(cause.effect for cause in found if cause.kind in ("kernels", "network"))
        found = [Cause("gpu", f"another GPU: {x or '?'} -> {y or '?'}", effect), *rest]
    if not found:
        text = "no change of work, durations or waits large enough to name"
        found = [Cause("other", text, d.step.change)]
    return found


# ---------------------------------------------------------------------- one rank alone


def _straggler(a: Side, b: Side) -> list[Cause]:
    """One rank computes longer (or no longer does) while the others stay as they were, or nearly: beside kernels of
    collectives that wait for a late rank, others' own kernels slow down a little. Then it must be the one
    that the collectives wait for."""
    x, y = rank_compute(a.report), rank_compute(b.report)
    if set(x) != set(y) or len(x) < 2:
        return []
    changes = sorted(((y[rank] - x[rank]) / x[rank], rank) for rank in x if x[rank])
    if not changes:
        return []
    share, rank = max(changes, key=lambda change: abs(change[0]))
    others = [abs(s) for s, r in changes if r != rank]
    alone = 1.5 if _waited_for(a, b, rank, y[rank] - x[rank]) else 3.0
    if abs(share) < 0.01 or abs(share) < alone * max(others):
        return []
    slower = "slower" if share > 0 else "faster"
    text = f"rank {rank} alone is {slower}: it computes {100 * abs(share):.1f} % {'longer' if share > 0 else 'less'}"
    return [Cause("straggler", text, y[rank] - x[rank])]


def _waited_for(a: Side, b: Side, rank: int, change: float) -> bool:
    """Whether the waits that `rank` causes grew (or shrank) with its compute's `change`, and no other's did."""
    if a.report.details is None or b.report.details is None:
        return False
    x, y = ({s.rank: s.caused for s in details.stragglers} for details in (a.report.details, b.report.details))
    caused = {r: y[r] - x[r] for r in x if r in y}
    others = max((abs(value) for r, value in caused.items() if r != rank), default=0.0)
    own = caused.get(rank, 0.0)
    return own * change > 0 and abs(own) > 0.5 * abs(change) and abs(own) > 3 * others


# ---------------------------------------------------------------------- network and host


def _network(d: Difference) -> list[Cause]:
    """The same collectives, of the same size and ranks, take longer or shorter."""
    effect = sum(c.by_duration for c in d.collectives)
    same = [c for c in d.collectives if c.by_duration]
    if not same:
        return []
    before = sum(c.a.time for c in same)
    most = max(same, key=lambda c: abs(c.by_duration))
    ratio = (before + effect) / before if before else 0.0
    text = f"network: the same collectives take {ratio:.2f} times as long, most of it in {most.name}"
    return [Cause("network", text, effect)]


def _host(d: Difference) -> list[Cause]:
    effect = sum(c.change for c in d.times if c.name in ("host", "synchronisation"))
    if not effect:
        return []
    more = "more" if effect > 0 else "less"
    return [Cause("host", f"host: GPUs wait {duration(abs(effect))} {more} a step for launches", effect)]


# ---------------------------------------------------------------------- work


def _work(a: Side, b: Side, d: Difference) -> list[Cause]:
    """Other shapes, other counts, other operators, other durations."""
    work = [*d.operators, *d.collectives]
    only = {*d.added, *d.removed}
    code = sum(c.change for c in d.operators if c.name in only)
    shape = sum(c.by_shape for c in work if c.name not in only)
    moved = sum(abs(c.by_shape) for c in work if c.name not in only)
    count = sum(c.by_count for c in work)
    kernels = sum(c.by_duration for c in d.operators)
    found = []
    if moved:
        # Shapes that shrink and collectives that grow partly cancel; what moved is the evidence.
        found.append(_shapes(a, b, shape if abs(shape) > 0.5 * moved else (moved if shape >= 0 else -moved)))
    if count:
        found.append(_counts(a, b, d, count))
    if code:
        names = ", ".join([f"+{name}" for name in d.added[:3]] + [f"-{name}" for name in d.removed[:3]])
        found.append(Cause("code", f"other operators: {names}", code))
    if kernels:
        same = [c for c in d.operators if c.by_duration]
        before = sum(c.a.time for c in same)
        ratio = (before + kernels) / before if before else 0.0
        text = f"kernels: the same operators take {ratio:.3f} times as long"
        found.append(Cause("kernels", text, kernels))
    return found


def _shapes(a: Side, b: Side, effect: float) -> Cause:
    """Other shapes: another batch or sequence, another layout, another model."""
    if a.groups != b.groups or len(a.report.ranks) != len(b.report.ranks):
        return Cause("layout", _layout(a, b), effect)
    x, y = _indices(a), _indices(b)
    # Of long lists of parameters only the first shapes are known: equal ones do not mean an equal model.
    if _weights(a) == _weights(b) and not (x and x == y):
        return Cause("batch", _batch(a, b), effect)
    share = _share_of_work(a, b)
    if share is not None:
        return Cause("layout", f"parallel layout: a rank does {share} work for each of its tokens", effect)
    return Cause("model", "the model's shapes: parameters of other sizes", effect)


def _share_of_work(a: Side, b: Side) -> str | None:
    """By which factor the work a token differs, if it is one of another division of the same model: 1, or the size of
    a group that communicates."""
    x, y = (side.report.headline.throughput for side in (a, b))
    if x is None or y is None or not (x.tokens_of_rank and y.tokens_of_rank):
        return None
    if not a.report.steady.flops or not b.report.steady.flops:
        return None
    ratio = (b.report.steady.flops / y.tokens_of_rank) / (a.report.steady.flops / x.tokens_of_rank)
    for size in (1, *a.groups):
        for factor, text in ((size, f"{size} times the" if size > 1 else "the same"), (1 / size, f"1/{size} of the")):
            if abs(ratio / factor - 1) < 0.01:
                return text
    return None


def _layout(a: Side, b: Side) -> str:
    def sizes(side: Side) -> str:
        groups = "/".join(map(str, side.groups)) or "none"
        return f"{groups} ({len(side.report.ranks)} ranks)"

    # Sharding parameters alone leave the products of matrices as they were.
    products_a, products_b = ({o.shape for o in side.operations if o.cls == "gemm"} for side in (a, b))
    split = "parallel" if products_a == products_b else "tensor-parallel"
    return f"{split} layout: sizes of the groups that communicate {sizes(a)} -> {sizes(b)}"


def _batch(a: Side, b: Side) -> str:
    x, y = _indices(a), _indices(b)
    if x and y and x != y and len(x) == len(y):
        names = ("batch", "sequence length") if len(x) == 2 else tuple(f"dimension {i}" for i in range(len(x)))
        changed = [f"{name} {p} -> {q}" for name, p, q in zip(names, x, y, strict=True) if p != q]
        return f"{' and '.join(changed)}: the same parameters, other sizes of activations"
    return "batch: the same parameters, other sizes of activations"


def _indices(side: Side) -> list[int]:
    """Shape of the indices of the largest embedding."""
    found: list[int] = []
    for operation in side.operations:
        arguments = embedding(operation.shape) if operation.name == EMBEDDING else None
        if arguments and prod(arguments[1]) > prod(found or [0]):
            found = arguments[1]
    return found


def _weights(side: Side) -> set[str]:
    """Shapes of the optimizer's operators, or else of embedding tables: the parameters' own."""
    shapes = {o.shape for o in side.operations if o.cls == "optimizer" and "[" in o.shape}
    if not shapes:
        tables = [embedding(o.shape) for o in side.operations if o.name == EMBEDDING]
        shapes = {f"{table[0]} rows" for table in tables if table}
    return shapes


def _counts(a: Side, b: Side, d: Difference, effect: float) -> Cause:
    """The same shapes, run more or less often: recomputation, micro-batches, layers."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for key, x in a.operations.items():
        y = b.operations.get(key)
        if y is not None and x.count and key.shape:
            ratios[_phase(key)].append(y.count / x.count)

    def typical(phase: str) -> float:
        values = sorted(ratios[phase])
        return values[len(values) // 2] if values else 1.0

    forward, backward, optimizer = typical("forward"), typical("backward"), typical("optimizer")
    more = "more" if effect > 0 else "less"
    again = _weighted_ratio(a, b, "forward")
    if abs(backward - 1) < 0.01 and abs(again - 1) > 0.01:
        what = "on" if again > 1 else "off"
        memory = {c.name: c.change for c in d.memory}.get("activations", 0.0)
        saved = f", and activations take {'less' if memory < 0 else 'more'} memory" if memory else ""
        return Cause(
            "recompute",
            f"activation checkpointing {what}: forward operators run {again:.2f} times as often{saved}",
            effect,
        )
    if abs(backward - 1) > 0.01 and abs(forward - backward) < 0.05 * backward:
        if abs(optimizer - 1) < 0.01:
            return Cause("count", f"micro-batches: forward and backward run {backward:.2f} times as often", effect)
        return Cause("count", f"layers: the same operators run {backward:.2f} times as often", effect)
    return Cause("count", f"the same operators run {more} often", effect)


def _weighted_ratio(a: Side, b: Side, phase: str) -> float:
    """Time of the phase's operators that both have, at a's durations, by b's counts over a's."""
    before = after = 0.0
    for key, x in a.operations.items():
        y = b.operations.get(key)
        if y is not None and x.count and _phase(key) == phase:
            before += x.time
            after += x.time / x.count * y.count
    return after / before if before else 1.0


def _phase(operation: Operation) -> str:
    if operation.cls == "optimizer" or "_foreach" in operation.name or "_fused_" in operation.name:
        return "optimizer"
    return "backward" if "backward" in operation.name else "forward"
