"""Changes of what is run: the model, the batch, the layout, the code.

Every rule looks at one kind of evidence: what differs in the log if just that was changed. Each claims the kinds of
evidence that it accounts for, and the first of several takes it. What no rule claims is named by its operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from phantora.trace.analysis.memory import DDP
from phantora.trace.analysis.units import short_name
from phantora.trace.diff.compare import Cause, Difference, Side, WorkChange
from phantora.trace.diff.machine import exposed_change, felt
from phantora.trace.diff.traits import Repeats, Traits, activations, parameters, products_share_sizes, repeats, traits

WORTH_NAMING = 0.002  # of a step
_SAME = 0.01  # relative
_LEAST_PRODUCTS = 2  # operators that tell a clock
_LEAST_CLOCK = 0.02  # relative change of a clock that is named
REST = ("updates", "code", "calls", "shapes", "kernels")  # kinds of causes that no rule explains


@dataclass(frozen=True)
class _Change:
    """A change of what is run, and the kinds of evidence that it accounts for."""

    kind: str
    text: str
    claims: tuple[str, ...]


def changed_work(a: Side, b: Side, d: Difference) -> list[Cause]:
    """Causes in the work: other shapes, counts, operators, collectives; and operators with another duration."""
    evidence = _evidence(d)
    found = []
    x, y = traits(a), traits(b)
    for change in _changes(a, b, x, y, repeats(a, b, x, y), d):
        if "convolutions" in change.claims and "shape" in evidence:
            evidence["convolutions"] = sum(w.by_shape for w in d.operators if "convolution" in w.name)
            evidence["shape"] -= evidence["convolutions"]
        effect = sum(evidence.pop(claim, 0.0) for claim in change.claims)
        found.append(Cause(change.kind, change.text, effect))
    if not _alone(d, "optimizer"):  # its work follows from the parameters' shapes
        largest = max(("code", "shape", "count"), key=lambda kind: abs(evidence.get(kind, 0.0)))
        evidence[largest] = evidence.get(largest, 0.0) + evidence.pop("optimizer", 0.0)
    sizes = _mostly(d, "by_shape")
    resized = "copies" if sizes.endswith("aten::copy_") else "the model's shapes: operators"
    rest = (
        ("updates", "optimizer", _code(d, "optimizer")),
        ("code", "code", _code(d, "")),
        ("calls", "count", f"operators run more or less often{_mostly(d, 'by_count')}"),
        ("shapes", "shape", f"{resized} of other sizes{sizes}"),
    )
    found += [Cause(kind, text, evidence.pop(claim)) for kind, claim, text in rest if claim in evidence]
    same = _same_work(d)
    kernels, before = evidence.get("kernels", 0.0), sum(c.a.time for c in same)
    if kernels:
        ratio = (before + kernels) / before if before else 0.0
        text = f"kernels: the same operators take {ratio:.3f} times as long"
        found.append(Cause("kernels", _clocks(same) or text + _longest(same, kernels), kernels))
    return [cause for cause in found if cause.effect or cause.kind not in REST]


_BY_CLOCK = re.compile(r"(?:mm|bmm|linear|convolution|attention)(?:_\w+)?$")
_UNIFORM = 0.25  # of their change: how far products may differ from each other


def _clocks(same: list[WorkChange]) -> str:
    """Products all take longer (or shorter) by one factor: the GPU runs at another clock. Empty where they do not."""
    ratios = []
    for work in same:
        before = work.b.time - work.by_duration
        if _BY_CLOCK.search(work.name) and before > 0:
            ratios.append((work.b.time / before, before))
    whole = sum(weight for _, weight in ratios)
    if len(ratios) < _LEAST_PRODUCTS or not whole:
        return ""
    mean = sum(ratio * weight for ratio, weight in ratios) / whole
    spread = (sum((ratio - mean) ** 2 * weight for ratio, weight in ratios) / whole) ** 0.5
    if abs(mean - 1) < _LEAST_CLOCK or spread > _UNIFORM * abs(mean - 1):
        return ""
    return f"clocks: all products take {mean:.2f} times as long, as on a GPU of {1 / mean:.2f} times the clock"


def _longest(same: list[WorkChange], change: float) -> str:
    """The operator that makes most of the change."""
    most = max(same, key=lambda work: work.by_duration * (1 if change > 0 else -1))
    before = most.b.time - most.by_duration
    if before <= 0:
        return f", most of it in {most.name}"
    return f", most of it in {most.name} ({most.b.time / before:.2f} times)"


def _takes_lists(operator: str) -> bool:
    """True if the log has only the first few shapes of a list that `operator` takes."""
    return operator.startswith(("aten::_foreach", "aten::_fused_ada", "aten::_fused_sgd"))


def _other_sizes(d: Difference) -> bool:
    """True if any shape differs of an operator that both run: then those of lists do too, which the log shows in
    part."""
    return any(work.by_shape and work.a.count and work.b.count for work in d.operators if not work.part)


def _same_work(d: Difference) -> list[WorkChange]:
    """Operators whose time changed with the same shapes."""
    other = _other_sizes(d)
    return [work for work in d.operators if work.by_duration and not (other and _takes_lists(work.name))]


def _evidence(d: Difference) -> dict[str, float]:
    """ns a step by kind: operators that only one run has (code; clipping, dropout), run more often (count), with other
    shapes (shape), the optimizer's (optimizer), and exposed communication of collectives that differ in number or size
    (comm). And the time that the same operators take more (kernels): ranks of a larger job disturb each other."""
    found = dict.fromkeys(("code", *dict.fromkeys(_NAMED.values()), "count", "shape", "optimizer", "comm"), 0.0)
    differ, moved = _other_sizes(d), 0.0
    for work in d.operators:
        part = work.by_count + work.by_shape
        if differ and _takes_lists(work.name):
            part += work.by_duration
        if work.part:
            found["optimizer"] += part
        elif work.name == _READ:
            found["reads"] += work.change
        elif bool(work.a.count) != bool(work.b.count):
            found[_NAMED.get(work.name.removeprefix("aten::"), "code")] += work.change
        elif abs(work.b.count - work.a.count) <= _SAME * work.a.count:  # as many calls, of other sizes
            found["shape"] += part
            moved += abs(part)
        else:
            found["count"] += work.by_count
            found["shape"] += work.by_shape
            moved += abs(work.by_shape)
    if moved and not d.reality and abs(found["shape"]) <= 0.5 * moved:
        # Shapes that shrink and others that grow partly cancel; what moved is the evidence.
        found["shape"] = moved if found["shape"] >= 0 else -moved
    if any(c.by_count or c.by_shape for c in d.collectives):  # other pieces may be shorter and hide less
        found["comm"] = exposed_change(d) - felt(d, sum(c.by_duration for c in d.collectives))  # less what network has
    found["kernels"] = sum(work.by_duration for work in _same_work(d))
    return found


# Operators that say by themselves what was switched on or off.
_NAMED = {
    "_foreach_norm.Scalar": "clipping",
    "_foreach_mul_.Tensor": "clipping",
    "linalg_vector_norm": "clipping",
    "native_dropout": "dropout",
    "native_dropout_backward": "dropout",
    "_local_scalar_dense": "reads",
}
_READ = "aten::_local_scalar_dense"


def _changes(a: Side, b: Side, x: Traits, y: Traits, r: Repeats, d: Difference) -> Iterator[_Change]:
    """Changes in the order in which they claim evidence."""
    before, of_graphs = (side.report.details is not None and side.report.details.graphs for side in (a, b))
    regraphed = before != of_graphs
    recompiled = (x.triton > 0.02) != (y.triton > 0.02)
    if recompiled:
        kernels, eager = "kernels of torch.compile", "eager operators"
        compiled = f"compiled: {kernels} instead of {eager}"
        text = compiled if y.triton > x.triton else f"no longer compiled: {eager} instead of {kernels}"
        yield _Change("compiled", text + (f", and {_GRAPHS[of_graphs]}" if regraphed else ""), _WORK)
    elif regraphed:
        yield _Change("graphs", _GRAPHS[of_graphs], (*_WORK, "kernels"))
    precision = x.dtype != y.dtype and bool(x.dtype and y.dtype)
    yield from _layout(a, b, x, y, precision)
    yield from _sequence_parallel(x, y)
    if precision:
        yield _Change("precision", f"precision of products {x.dtype} -> {y.dtype}", ("shape", "code", "optimizer"))
    elif x.held != y.held and x.held and y.held and not {x.held, y.held} <= x.kept & y.kept:
        text = f"parameters held in {y.held} instead of {x.held}"
        yield _Change("precision", text, (*_WORK, "comm"))
    yield from _sizes(a, b, x, y, r, d)
    if not recompiled and not regraphed:  # operators of a graph are not counted
        yield from _trained(x, y, r)
        yield from _depth(r, d)
    yield from _optimizer(a, b, x, y)
    yield from _attention(x, y, d)
    yield from _switches(x, y, r, d)
    yield from _convolutions(x, y)
    yield from _schedule(x, y, r, d)
    yield from _collectives(x, y, r, d)


_WORK = ("code", "count", "shape", "optimizer")
_GRAPHS = {True: "work launched as CUDA graphs", False: "no CUDA graphs: each kernel is launched by itself"}


def _optimizer(a: Side, b: Side, x: Traits, y: Traits) -> Iterator[_Change]:
    names = ["/".join(side.optimizers) for side in (a, b)]
    if all(names) and names[0] != names[1]:
        yield _Change("optimizer", f"another optimizer: {names[0]} -> {names[1]}", ("optimizer",))
    elif x.form != y.form and x.form and y.form:
        text = f"another form of the optimizer: {x.form} -> {y.form}"
        yield _Change("optimizer", text, ("optimizer",))


def _attention(x: Traits, y: Traits, d: Difference) -> Iterator[_Change]:
    """Another operator for it, or products and a softmax of their own."""
    if x.attention == y.attention:
        return
    apart = {name for name in (*d.added, *d.removed) if "softmax" in name and "log_softmax" not in name}
    if (x.attention and y.attention) or apart:
        names = (name.removeprefix("aten::") or "products and a softmax" for name in (x.attention, y.attention))
        claims = ("code",) if x.attention and y.attention else ("code", "count", "shape")
        yield _Change("attention", f"attention by another operator: {' -> '.join(names)}", claims)


def _convolutions(x: Traits, y: Traits) -> Iterator[_Change]:
    if x.channels_last != y.channels_last:
        words = ("channels last", "contiguous images")[:: 1 if y.channels_last else -1]
        yield _Change("memory format", f"{words[0]} instead of {words[1]}", ("shape", "code", "count"))
    if x.trials != y.trials:
        yield _Change("trials", f"cudnn.benchmark {'on' if y.trials else 'off'}", ("convolutions",))


def _schedule(x: Traits, y: Traits, r: Repeats, d: Difference) -> Iterator[_Change]:
    """A pipeline that does equal work in another order keeps other activations."""
    kept = {c.name: c for c in d.memory}.get("activations")
    same = all(abs(ratio - 1) <= _SAME for ratio in (r.passes, r.products)) and not _other_sizes(d)
    if x.pipeline and y.pipeline and same and kept is not None and kept.a and abs(kept.b / kept.a - 1) > 0.05:
        text = f"another schedule of the pipeline: {kept.b / kept.a:.2g} times the activations are kept"
        yield _Change("schedule", text, ("comm", "kernels"))


def _switches(x: Traits, y: Traits, r: Repeats, d: Difference) -> Iterator[_Change]:
    """Changes that operators of one run show without the other run."""
    found = {work.name: work for work in d.operators if not work.part}
    for operator, kind, on, off in (
        ("_foreach_norm.Scalar", "clipping", "gradients are clipped", "gradients are no longer clipped"),
        ("native_dropout", "dropout", "dropout on", "dropout off"),
    ):
        work = found.get(f"aten::{operator}")
        if work is not None and not (work.a.count and work.b.count):
            yield _Change(kind, on if work.b.count else off, (kind,))
    # Each gradient is filled with zeros, and added to.
    works = [found.get(f"aten::{name}") for name in ("fill_.Scalar", "add_.Tensor", "_foreach_zero_")]
    more = [work.b.count - work.a.count if work else 0.0 for work in works]
    more[0] += more.pop() * x.trained  # one call fills them all
    each = bool(x.trained) and all(abs(abs(change) / x.trained - 1) < 0.1 for change in more)
    if each and x.trained == y.trained and r.passes == 1.0 and more[0] * more[1] > 0:
        kept = "zeroed and added to" if more[0] > 0 else "made anew"
        yield _Change("zeroing", f"gradients are {kept} (zero_grad's set_to_none)", ("shape", "count"))
    if (x.pinned > 0) != (y.pinned > 0):
        text = f"{'pinned' if y.pinned else 'pageable'} instead of {'pageable' if y.pinned else 'pinned'} memory"
        yield _Change("pinned", f"data comes from {text} of the host", ())
    read = found.get(_READ)
    if read is not None and abs(read.b.count - read.a.count) > _SAME * max(read.a.count, read.b.count):
        times = f"{read.a.count:.3g} -> {read.b.count:.3g} times a step"
        yield _Change("reads", f"the host reads values of the GPU {times} (.item() and the like)", ("reads",))


def _of_replicas(side: Side) -> bool:
    """Each rank has the whole model: one rank, or DistributedDataParallel with a group of all ranks only."""
    ranks = side.report.metadata["world_size"]
    return ranks == 1 or (side.groups == [ranks] and DDP in side.log.words("name"))


def _layout(a: Side, b: Side, x: Traits, y: Traits, precision: bool) -> Iterator[_Change]:
    """Changes of the division of work among ranks; shapes prove nothing if `precision` changed them all."""
    everything = (*_WORK, "comm")
    if x.spread and y.spread and x.spread != y.spread:
        yield _Change("layout", f"{y.spread} instead of {x.spread}", ("comm", "optimizer", "code", "count"))
        return  # shapes of sharded parameters are no others
    ranks = a.report.metadata["world_size"], b.report.metadata["world_size"]
    products = [{o.shape for o in side.operations if o.cls == "gemm" and not o.part} for side in (a, b)]
    if a.groups != b.groups or ranks[0] != ranks[1]:
        groups = ("/".join(map(str, side.groups)) or "none" for side in (a, b))
        sizes = [f"{own} ({number} rank{'s' * (number > 1)})" for own, number in zip(groups, ranks, strict=True)]
        replicas = all(_of_replicas(side) for side in (a, b))
        split = "parallel" if replicas or products[0] == products[1] or x.indices != y.indices else "tensor-parallel"
        text = f"{split} layout: sizes of the groups that communicate {' -> '.join(sizes)}"
        more = ranks[0] != ranks[1] and all(side.groups in ([], [n]) for side, n in zip((a, b), ranks, strict=True))
        if more and (split == "parallel" or not a.groups + b.groups):
            other = "" if products_share_sizes(a, b) else "another model, and "
            text = f"{other}number of ranks {ranks[0]} -> {ranks[1]}"
        yield _Change("layout", text, (*everything, "kernels") if ranks[0] != ranks[1] else everything)
        return
    batch = x.indices != y.indices and parameters(a) == parameters(b)
    unlike = ranks[0] == 1 or batch or precision or products[0] == products[1] or x.table != y.table
    share = None if unlike else _share_of_work(a, b)
    if share is not None:
        yield _Change("layout", f"parallel layout: a rank does {share} work for each of its tokens", everything)


def _sequence_parallel(x: Traits, y: Traits) -> Iterator[_Change]:
    """Activations that were summed on every rank are summed and scattered, and gathered again."""
    apart = [side.spread_out > side.summed for side in (x, y) if side.spread_out or side.summed]
    if apart in ([False, True], [True, False]):
        text = f"sequence parallelism {'on' if apart[1] else 'off'}: activations are " + (
            "gathered and scattered instead of summed" if apart[1] else "summed instead of gathered and scattered"
        )
        yield _Change("layout", text, (*_WORK, "comm", "kernels"))


def _share_of_work(a: Side, b: Side) -> str | None:
    """Factor of the work per token, if it belongs to another division of the same model: 1, or the size of a group that
    communicates."""
    x, y = (side.report.headline.throughput for side in (a, b))
    if x is None or y is None or not (x.tokens_of_rank and y.tokens_of_rank):
        return None
    if not a.report.steady.flops or not b.report.steady.flops:
        return None
    ratio = (b.report.steady.flops / y.tokens_of_rank) / (a.report.steady.flops / x.tokens_of_rank)
    for size in (1, *a.groups):
        for factor, text in ((size, f"{size} times the" if size > 1 else "the same"), (1 / size, f"1/{size} of the")):
            if abs(ratio / factor - 1) < _SAME:
                return text
    return None


def _sizes(a: Side, b: Side, x: Traits, y: Traits, r: Repeats, d: Difference) -> Iterator[_Change]:
    """Other sizes: of the batch, or of the model."""
    if x.table is not None and y.table is not None and x.table != y.table:
        rows = zip(("vocabulary", "width"), x.table, y.table, strict=True)
        changed = [f"{name} {p} -> {q}" for name, p, q in rows if p != q]
        yield _Change("model", f"another model: {' and '.join(changed)}", ("shape", "optimizer", "comm"))
    elif (x.table is None or x.table != y.table) and not products_share_sizes(a, b):
        text = "another model: no product has a size in common"
        yield _Change("model", text, (*_WORK, "comm", "kernels"))
    elif x.indices and y.indices and x.indices != y.indices and len(x.indices) == len(y.indices):
        kinds = ("batch", "sequence length") if x.table else ("batch", "image size")
        names = kinds if len(x.indices) == 2 else tuple(f"dimension {i}" for i in range(len(x.indices)))
        changed = [f"{n} {p} -> {q}" for n, p, q in zip(names, x.indices, y.indices, strict=True) if p != q]
        if abs(r.passes - 1) > _SAME:  # the same batch in other parts
            changed.append(_micro_batches(r))
        yield _Change("batch", " and ".join(changed), ("shape", "count", "comm") if len(changed) > 1 else ("shape",))
    elif (x.indices != y.indices or not x.indices) and not d.reality and _other_batch(a, b):
        yield _Change("batch", "batch: the same parameters, other sizes of activations", ("shape",))


def _other_batch(a: Side, b: Side) -> bool:
    held = parameters(a)
    return bool(held) and held == parameters(b) and activations(a) != activations(b)


def _trained(x: Traits, y: Traits, r: Repeats) -> Iterator[_Change]:
    """The optimizer changes other parameters of a model whose forward pass is no deeper and no shallower."""
    same = abs(r.forward / r.passes - 1) <= _SAME
    if x.trained and y.trained and x.trained != y.trained and same and abs(r.products / r.passes - 1) > _SAME:
        more = "more" if y.trained > x.trained else "fewer"
        text = f"{more} parameters are trained: {x.trained:g} -> {y.trained:g} tensors"
        yield _Change("trained", text, ("optimizer", "count"))


def _depth(r: Repeats, d: Difference) -> Iterator[_Change]:
    """Passes, layers, recomputation: the same operators more or less often."""
    layers = r.backward / r.passes
    if abs(layers - 1) > _SAME and abs(r.forward / r.passes - 1) <= _SAME:
        layers = r.forward / r.passes  # the backward pass alone is shorter: frozen parameters
    if abs(layers - 1) > _SAME:
        more = "more" if layers > 1 else "fewer"
        counted = r.layers is not None and all(abs(n - round(n)) < 0.02 for n in r.layers)
        reported = f"{r.layers[0]:.0f} -> {r.layers[1]:.0f}" if counted and r.layers else f"{layers:.2f} times as many"
        yield _Change("layers", f"{more} layers: {reported}", ("count", "optimizer", "comm"))
    if abs(r.passes - 1) > _SAME:
        yield _Change("count", _micro_batches(r), ("count", "comm"))
    again = r.forward / (layers * r.passes)
    if abs(again - 1) > _SAME:
        memory = {c.name: c.change for c in d.memory}.get("activations", 0.0)
        saved = f", and activations take {'less' if memory < 0 else 'more'} memory" if memory else ""
        on = "on" if again > 1 else "off"
        text = f"activation checkpointing {on}: forward operators run {again:.2f} times as often{saved}"
        yield _Change("recompute", text, ("count", "code"))


def _micro_batches(r: Repeats) -> str:
    more = "more" if r.passes > 1 else "fewer"
    return f"{more} micro-batches: {r.micro[0]:g} -> {r.micro[1]:g} a step"


def _collectives(x: Traits, y: Traits, r: Repeats, d: Difference) -> Iterator[_Change]:
    """Equal parameters, gathered more often or in other pieces."""
    gathered = sum(x.gathered.values()), sum(y.gathered.values())
    scattered = sum(x.scattered.values()), sum(y.scattered.values())
    if all(gathered) and all(scattered) and abs(scattered[1] / scattered[0] - 1) < _SAME:
        ratio = gathered[1] / gathered[0]
        if ratio < 0.8:
            text = "no resharding: parameters stay gathered for the backward pass"
            yield _Change("reshard", text, ("comm", "code", "count", "shape", "kernels"))
        if ratio > 1.25:
            text = "resharding: parameters are gathered again for the backward pass"
            yield _Change("reshard", text, ("comm", "code", "count", "shape", "kernels"))
    reduced = sum(x.reduced.values()) + x.summed, sum(y.reduced.values()) + y.summed
    sharded = all(gathered) and all(scattered)
    before, after = scattered if sharded else reduced
    groups = (x.scattered, y.scattered) if sharded else (x.reduced, y.reduced)
    known = (sharded or not any(gathered)) and (x.dtype, x.held) == (y.dtype, y.held)  # else of other sizes
    if before and after and known and groups[0].keys() == groups[1].keys() and x.trained == y.trained:
        ratio = after / before / r.passes
        if ratio < 0.8 or ratio > 1.25:
            calls = _calls_of(d, "reduce_scatter" if sharded else "all_reduce")
            text = f"gradients are reduced {ratio:.2g} times as often in each pass (no_sync){calls}"
            yield _Change("reduced", text, ("comm", "count", "kernels", *(("shape",) if sharded else ())))
    for work in d.collectives:
        large = abs(work.by_shape) > WORTH_NAMING * d.step.a
        if large and work.a.bytes and abs(work.b.bytes / work.a.bytes - 1) < 0.05:
            a, b = work.a.count, work.b.count
            if abs(b / a - 1) > 0.1:
                text = f"other buckets: the same bytes in {b:g} {work.name} instead of {a:g}"
                yield _Change("buckets", text, ("comm", "kernels"))  # other pieces run next to other kernels
    other = [work for work in d.collectives if abs(work.b.count - work.a.count) > _SAME * work.a.count]
    if other:
        calls = ", ".join(f"{work.a.count:.3g} -> {work.b.count:.3g} {work.name}" for work in other)
        yield _Change("collectives", f"other collectives: {calls} a step", ("comm",))


def _calls_of(d: Difference, kind: str) -> str:
    """``: 32 -> 8 reduce_scatter a step``; empty where as many run."""
    work = next((c for c in d.collectives if c.name == kind and c.a.count != c.b.count), None)
    return f": {work.a.count:.3g} -> {work.b.count:.3g} {kind} a step" if work else ""


def _alone(d: Difference, part: str) -> list[WorkChange]:
    """Operators of that part of the step that only one run has."""
    return [work for work in d.operators if work.part == part and bool(work.a.count) != bool(work.b.count)]


def _code(d: Difference, part: str) -> str:
    """The largest of them."""
    alone = _alone(d, part)
    names = [f"{'+' if work.b.count else '-'}{short_name(work.name, 48)}" for work in alone[:4]]
    more = f" and {len(alone) - 4} more" if len(alone) > 4 else ""
    where = " of the optimizer" if part else ""
    return f"other operators{where}: {', '.join(names)}{more}" if names else f"other work{where}"


def _mostly(d: Difference, share: str) -> str:
    most = max((w for w in d.operators if not w.part), key=lambda w: abs(getattr(w, share)), default=None)
    return f", most of it {most.name}" if most is not None and getattr(most, share) else ""
