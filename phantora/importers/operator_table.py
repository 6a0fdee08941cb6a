"""Tables of a job's operators (Parquet), as what-if studies of stragglers publish them: a row for each forward and
backward pass of a micro-batch, send, receive, gradient reduction and optimizer step of a pipeline-parallel job.

The table has no launches. What each operator waits for follows from pipeline parallelism:

- the passes of a stage run one after the other, then what ends the step, then the optimizer;
- a pass waits for its receive, a send for its pass, a receive for the pass before;
- the first backward send and receive follow the forward pass before the last one of the warm-up;
- the first forward pass of a model chunk waits for its parameters;
- sends meet receives of the neighbour; reductions of gradients meet those of the stage's other replicas; embedding
  gradients those of the last stage; clipping those of all.

Times are seconds from the beginning of the step. A rank of the table stands for its tensor-parallel group.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from phantora.cost.types import OperatorSignature
from phantora.errors import PhantoraError
from phantora.importers.rank import CODES, Group, Operator, RankTrace, Record, RowBuilder, Vocabulary
from phantora.importers.reader import Reader, Report
from phantora.importers.schedule import LEAST_NS, Joint, Part, Schedule, Sync, Timeline, Wait
from phantora.wire.layout import Coll

_PARQUET = ".parquet"
_COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
_FORWARD, _BACKWARD = "forward-compute", "backward-compute"
_PASSES = (_FORWARD, _BACKWARD)
_PARAMETERS, _GRADIENTS, _SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
_EMBEDDING, _CLIP, _OPTIMIZER = "embedding-grads-all-reduce", "optimizer-clip-main-grad", "optimizer"
_TAIL = ("gc", "layernorm-grads-all-reduce", _EMBEDDING, _SEPARATE, _GRADIENTS, _CLIP, _OPTIMIZER)
"""End of a step, in this order; gradients come earlier if they overlap the backward passes."""
_COLLECTIVES = {
    _PARAMETERS: Coll.ALL_GATHER,
    _GRADIENTS: Coll.REDUCE_SCATTER,
    _SEPARATE: Coll.ALL_REDUCE,
    _EMBEDDING: Coll.ALL_REDUCE,
    _CLIP: Coll.ALL_REDUCE,
}
_PAIRS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""Sends and receives, and to which stage."""
_COMPUTE, _REPLICAS = 0, 5
_STREAMS = {kind: number for number, kind in enumerate(_PAIRS, 1)} | {_PARAMETERS: _REPLICAS}
_NS = 1e9
_CLOCKS_NS = 50_000  # by which the clocks of ranks may disagree


@dataclass(kw_only=True)
class _Op:
    """A row of the table; times in ns from the beginning of the step."""

    kind: str
    start: int
    end: int
    chunk: int
    """Model chunk of the stage."""
    place: int
    """Model chunk of the whole model, -1 if unknown."""
    stream: int = _COMPUTE
    after: list[_Op] = field(default_factory=list)
    """Operators of its rank that must end before it."""
    joint: Joint | None = None

    def follows(self, other: _Op) -> None:
        """It waits for `other`."""
        self.after.append(other)


@dataclass
class _Rank:
    """A rank of the table."""

    replica: int
    stage: int
    steps: dict[int, list[_Op]] = field(default_factory=dict)


def _read(path: str, words: Vocabulary, _: int, _report: Report | None) -> list[RankTrace]:
    """The ranks of the table `path`. Raises PhantoraError for a file that is none."""
    ranks = _ranks(path)
    stages = 1 + max(rank.stage for rank in ranks.values())
    chunks = stages * (1 + max(op.chunk for rank in ranks.values() for ops in rank.steps.values() for op in ops))
    steps = sorted({step for rank in ranks.values() for step in rank.steps})
    for step in steps:
        pairs: dict[tuple[int, str], list[_Op]] = {}
        for number, rank in ranks.items():
            pairs |= {(number, kind): ops for kind, ops in _depend(path, rank, step, stages, chunks).items()}
        _meet(ranks, step, pairs, stages, words)
    spans = [max(op.end for rank in ranks.values() for op in rank.steps.get(step, ())) for step in steps]
    begins = np.cumsum([0, *spans]).tolist()
    share = reduce(gcd, ranks) or 1
    world = max(ranks) + share
    return [
        _trace(number, rank, list(zip(steps, pairwise(begins), strict=True)), words, path, world)
        for number, rank in sorted(ranks.items())
    ]


def _ranks(path: str) -> dict[int, _Rank]:
    try:
        table = pq.read_table(path)
        missing = [name for name in _COLUMNS if name not in table.column_names]
        if missing:
            raise PhantoraError(
                f"{path}: not a table of operators: it has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}"
            )
        columns = {name: table[name].combine_chunks().to_pylist() for name in _COLUMNS}
    except (OSError, pa.ArrowException) as error:
        raise PhantoraError(f"{path}: cannot read the table: {str(error).splitlines()[0]}") from error
    ranks: dict[int, _Rank] = {}
    rows = list(zip(*(columns[name] for name in _COLUMNS), strict=True))
    rows.sort(key=lambda row: (row[3], row[2], row[5], row[7], row[4]))
    origin: dict[int, float] = {}
    for row in rows:
        origin[row[3]] = min(origin.get(row[3], row[5]), row[5])
    for replica, stage, rank, step, kind, start, duration, _, chunk, place in rows:
        if kind not in (*_PASSES, *_PAIRS, *_TAIL, _PARAMETERS):
            raise PhantoraError(f"{path}: unknown operator {kind!r}")
        begin = round((start - origin[step]) * _NS)
        op = _Op(
            kind=kind,
            start=begin,
            end=begin + max(0, round(duration * _NS)),
            chunk=max(0, chunk),
            place=place,
            stream=_STREAMS.get(kind, _COMPUTE),
        )
        ranks.setdefault(rank, _Rank(replica, stage)).steps.setdefault(step, []).append(op)
    if not ranks:
        raise PhantoraError(f"{path}: the table has no rows")
    return ranks


# ---------------------------------------------------------------------- one rank


def _depend(path: str, rank: _Rank, step: int, stages: int, chunks: int) -> dict[str, list[_Op]]:
    """Fills in what the operators of a step wait for; its sends and receives that have a partner, by kind."""
    ops = rank.steps.get(step, [])
    of: dict[str, list[_Op]] = defaultdict(list)
    for op in ops:
        of[op.kind].append(op)
    passes = [op for op in ops if op.kind in _PASSES]
    if not passes:
        raise PhantoraError(f"{path}: stage {rank.stage} has no forward or backward pass in step {step}")
    overlaps = bool(of[_SEPARATE])
    for op in of[_GRADIENTS] if overlaps else ():
        op.stream = _REPLICAS
    _chain(passes)
    tail = sorted((op for op in ops if op.kind in _TAIL and op.stream == _COMPUTE), key=lambda o: _TAIL.index(o.kind))
    _chain([max(passes, key=lambda op: op.end), *tail])
    replicas = [op for op in ops if op.stream == _REPLICAS]
    _chain(replicas)
    pairs = {kind: _match(path, rank, kind, of, stages, chunks) for kind in _PAIRS}
    for kind in _PAIRS:
        _chain(of[kind])
    _first_backward(passes, of)
    for op in reversed(of[_PARAMETERS]):
        first = next((each for each in passes if each.kind == _FORWARD and each.chunk == op.chunk), None)
        if first is not None:
            first.follows(op)
    if overlaps:
        for op in of[_GRADIENTS]:
            own = [each for each in passes if each.kind == _BACKWARD and each.chunk == op.chunk]
            if own:
                op.follows(max(own, key=lambda each: each.end))
        ends = next((op for op in tail if op.kind != "gc"), None)
        if ends is not None and of[_GRADIENTS]:
            ends.follows(of[_GRADIENTS][-1])
    return pairs


def _chain(ops: Sequence[_Op]) -> None:
    for before, after in pairwise(ops):
        after.follows(before)


def _match(path: str, rank: _Rank, kind: str, of: dict[str, list[_Op]], stages: int, chunks: int) -> list[_Op]:
    """Ties sends or receives to their passes, the k-th to the k-th; those that have a partner."""
    passes = of[_FORWARD if kind.startswith("forward") else _BACKWARD]
    receives = kind.endswith("recv")
    if not passes:
        return []
    if receives:  # profilers record some that never ran, at the end of a step or at its beginning
        own = [op for op in of[kind] if op.start <= max(each.start for each in passes) + _CLOCKS_NS]
    else:
        own = [op for op in of[kind] if op.end >= min(each.end for each in passes) - _CLOCKS_NS]
    first = len(passes) - len(own)
    if own and not (first == 0 or (first == 1 and receives)):
        raise PhantoraError(
            f"{path}: stage {rank.stage} has {len(own)} of {kind} for {len(passes)} passes; the table is incomplete"
        )
    found = []
    for place, op in enumerate(own, first):
        if receives:
            passes[place].follows(op)
            if place:
                op.follows(passes[place - 1])
        else:
            op.follows(passes[place])
        chunk = passes[place].place if passes[place].place >= 0 else rank.stage
        if 0 <= chunk + _PAIRS[kind] < chunks:
            found.append(op)
    return found


def _first_backward(passes: list[_Op], of: dict[str, list[_Op]]) -> None:
    place = next((place for place, op in enumerate(passes) if op.kind == _BACKWARD), 0)
    if place < 2:
        return
    for kind in ("backward-recv", "backward-send"):
        if of[kind]:
            of[kind][0].follows(passes[place - 2])


# ---------------------------------------------------------------------- ranks together


def _meet(
    ranks: dict[int, _Rank], step: int, pairs: dict[tuple[int, str], list[_Op]], stages: int, words: Vocabulary
) -> None:
    """Joins the operators of ranks that run together."""
    number_of = {(rank.replica, rank.stage): number for number, rank in ranks.items()}
    for (number, kind), sends in pairs.items():
        if not kind.endswith("send"):
            continue
        rank = ranks[number]
        other = number_of.get((rank.replica, (rank.stage + _PAIRS[kind]) % stages))
        receives = pairs.get((other, kind.replace("send", "recv")), []) if other is not None else []
        if other is None or other == number:
            continue
        members = tuple(sorted((number, other)))
        group = words.groups.number(Group(kind.partition("-")[0] + "-pipeline", kind.partition("-")[0], members))
        for send, receive in zip(sends, receives, strict=False):
            took = max(LEAST_NS, receive.end - max(send.start, receive.start))
            send.joint = Joint(
                [Part(group=group, bytes=0, dtype="", collective=-1, peer=members.index(other), sends=True)], took
            )
            receive.joint = Joint(
                [Part(group=group, bytes=0, dtype="", collective=-1, peer=members.index(number), sends=False)], took
            )
    together: dict[tuple[str, int, int], list[tuple[int, _Op]]] = defaultdict(list)
    for number, rank in ranks.items():
        count: dict[str, int] = defaultdict(int)
        for op in rank.steps.get(step, ()):
            if op.kind not in _COLLECTIVES:
                continue
            scope = -1 if op.kind == _CLIP else rank.replica if op.kind == _EMBEDDING else rank.stage
            together[op.kind, scope, count[op.kind]].append((number, op))
            count[op.kind] += 1
    for (kind, _, _), joined in together.items():
        members = tuple(sorted(number for number, _ in joined))
        if len(members) < 2 or len(set(members)) < len(members):
            continue
        group = words.groups.number(Group(kind, kind, members))
        last = max(op.start for _, op in joined)
        took = max(LEAST_NS, int(np.median([op.end for _, op in joined])) - last)
        joint = Joint([Part(group=group, bytes=0, dtype="", collective=_COLLECTIVES[kind])], took)
        for _, op in joined:
            op.joint = joint


# ---------------------------------------------------------------------- to rows and launches


def _trace(
    number: int, rank: _Rank, steps: Sequence[tuple[int, tuple[int, int]]], words: Vocabulary, path: str, world: int
) -> RankTrace:
    rows = RowBuilder()
    launch: list[int] = []
    delay: list[int] = []
    waits: list[Wait] = []
    syncs: list[Sync] = []
    joints: dict[int, Joint] = {}
    marks: list[Record] = []
    for step, (begin, end) in steps:
        order = _in_order(rank.steps.get(step, []))
        place = {id(op): len(launch) + i for i, op in enumerate(order)}
        for i, op in enumerate(order):
            time = begin + 2 * i + 1
            waits += [Wait(time - 1, op.stream, place[id(other)]) for other in op.after if other.stream != op.stream]
            due = max((other.end for other in op.after), default=0)
            delay.append(max(0, op.start - due))
            if op.joint is not None:
                joints[len(launch)] = op.joint
            launch.append(time)
        rows.add(_record(op, begin, words) for op in order)
        if order:
            marks.append(_annotation(step, begin, end, words))
            syncs.append(Sync(-1, begin + 2 * len(order) + 1, end, len(launch) - 1))
    count = len(launch)
    rows.add(marks)
    line = Timeline(np.arange(count), np.array(launch, np.int64), np.array(delay, np.int64), waits, syncs)
    return RankTrace(
        rank=number,
        source=path,
        rows=rows.rows(),
        world_size=world,
        schedule=Schedule(line, joints),
        missing={"kernels": "torch.profiler"},
    )


def _in_order(ops: Sequence[_Op]) -> list[_Op]:
    """Operators of a step so that none comes before what it waits for, else by their start."""
    missing = {id(op): len(op.after) for op in ops}
    waiting: dict[int, list[int]] = defaultdict(list)
    for place, op in enumerate(ops):
        for other in op.after:
            waiting[id(other)].append(place)
    ready = [(op.start, place) for place, op in enumerate(ops) if not op.after]
    heapq.heapify(ready)
    found: list[_Op] = []
    while ready:
        _, place = heapq.heappop(ready)
        found.append(ops[place])
        for following in waiting[id(ops[place])]:
            missing[id(ops[following])] -= 1
            if not missing[id(ops[following])]:
                heapq.heappush(ready, (ops[following].start, following))
    # The optimizer is what the step ends with.
    return sorted(found, key=lambda op: op.kind == _OPTIMIZER)


def _record(op: _Op, begin: int, words: Vocabulary) -> Record:
    kind = "kernel" if op.joint is None else "collective" if op.kind in _COLLECTIVES else "sendrecv"
    sig = words.signatures.number(Operator(OperatorSignature(op.kind, ()), ""))
    group = op.joint.parts[0].group if op.joint is not None else -1
    name = words.names.number(op.kind)
    return CODES[kind], op.stream, name, sig, group, begin + op.start, begin + op.end, 0, -1, -1, -1, 0, -1


def _annotation(step: int, begin: int, end: int, words: Vocabulary) -> Record:
    name = words.names.number(f"ProfilerStep#{step}")
    return CODES["annotation"], 0, name, -1, -1, begin, end, 0, -1, -1, -1, -1, -1


READER = Reader(
    reads=lambda path: path.endswith(_PARQUET),
    read=_read,
    suffixes=(_PARQUET,),
    description="tables of a job's operators (docs/replay.md)",
)
