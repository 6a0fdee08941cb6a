"""Time by phase of a reinforcement-learning loop, and the idle time of each role's GPUs.

A phase comes from the annotations that are open on the host when a kernel is launched (``record_function``, NVTX; those
of TRL's ``profiling_context`` are in the log). The innermost annotation whose name has a word of :data:`WORDS` counts.
A gap on the GPU belongs to the phase of the kernel that ends it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.json_data import Ns
from phantora.trace.analysis.annotations import innermost
from phantora.trace.analysis.windows import kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, DEVICE_KINDS

Ints = npt.NDArray[np.int64]

GENERATE, SCORE, TRAIN, SYNC, OTHER = "generate", "score", "train", "sync", "other"
WORDS = {
    SYNC: r"sync_?weights|weight_?sync|sync weights|update_weights|broadcast_weights|^sync$",
    GENERATE: r"generat|rollout",
    SCORE: r"scor|reward|advantage|ref_?log|_prepare_inputs$",
    TRAIN: r"train|^Optimizer\.step|update_policy|update_actor",
}
"""Words in the name of an annotation, by phase; the first match counts."""
_PHASES = (*WORDS, OTHER)
_COLLECTIVE = kind_mask(COMMUNICATION_KINDS)
_ROLE_SHARE = 0.01  # of the work of a rank: a phase with less is not part of its role


@dataclass(frozen=True)
class PhaseTime:
    """A phase on the GPUs of a role. Means over its ranks."""

    phase: str
    time: Ns
    share: float
    """Share of the whole time."""
    idle: Ns
    """No kernel runs, or the kernel of a collective waits for its last rank."""


@dataclass(frozen=True)
class Role:
    """Ranks whose GPUs work in the same phases."""

    name: str
    """The phases, without the synchronisation of weights: ``generate``, ``score + train``."""
    ranks: list[int]
    time: Ns
    idle: Ns
    phases: list[PhaseTime]


def phases(log: Log, ranks: Sequence[int], begin: int) -> list[Role]:
    """The roles of a run from `begin` (ns) on; empty where no annotation is one of generating, or none of another
    phase."""
    names = log.words("name")
    of_name = np.array([_phase(name or "") for name in names] + [-1], np.int64)
    spans: dict[int, list[tuple[int, int, int]]] = {rank: [] for rank in ranks}
    for batch in log.batches(("rank", "name", "start", "end"), kinds=("annotation",), ranks=ranks):
        code = of_name[batch["name"]]
        keep = (code >= 0) & (batch["end"] > batch["start"])
        columns = (values[keep].tolist() for values in (batch["rank"], batch["start"], batch["end"], code))
        for rank, start, end, phase in zip(*columns, strict=True):
            spans[rank].append((start, end, phase))
    known = {_PHASES[phase] for own in spans.values() for _, _, phase in own}
    if GENERATE not in known or len(known) < 2:
        return []
    times = {rank: _of_rank(log, rank, sorted(own, key=lambda s: (s[0], -s[1])), begin) for rank, own in spans.items()}
    roles: dict[str, list[int]] = {}
    for rank in ranks:
        roles.setdefault(_role(times[rank]), []).append(rank)
    return [_report(name, own, np.mean([times[rank] for rank in own], axis=0)) for name, own in roles.items()]


def _phase(name: str) -> int:
    for code, words in enumerate(WORDS.values()):
        if not name.startswith("module: ") and re.search(words, name, re.IGNORECASE):
            return code
    return -1


def _of_rank(log: Log, rank: int, spans: list[tuple[int, int, int]], begin: int) -> npt.NDArray[np.float64]:
    """ns by phase: the whole time, the part in which the GPU is idle, and that in which it computes or copies."""
    moments, open_ = innermost(spans)
    parts = []
    for batch in log.batches(("kind", "start", "end", "launch", "ready"), kinds=DEVICE_KINDS, ranks=(rank,)):
        launch = np.where(batch["launch"] >= 0, batch["launch"], batch["start"])
        phase = open_[np.searchsorted(moments, launch, "right")] if len(moments) else np.full(len(launch), -1)
        # A collective makes the GPU busy from the arrival of its last rank on.
        collective = _COLLECTIVE[batch["kind"]]
        arrived = np.clip(batch["ready"], batch["start"], batch["end"])
        busy = np.where(collective, arrived, batch["start"])
        parts.append(np.stack([busy, batch["end"], phase, collective]))
    found = np.zeros((len(_PHASES), 3))
    if not parts:
        return found
    busy, end, phase, collective = np.concatenate(parts, axis=1)
    order = np.argsort(busy, kind="stable")
    busy, end, phase, collective = (values[order] for values in (busy, end, phase, collective))
    reached = np.maximum(np.maximum.accumulate(np.concatenate([[begin], end[:-1]])), begin)
    whole = np.maximum(end - reached, 0)
    idle = np.clip(busy - reached, 0, whole)
    phase = np.where(phase < 0, len(_PHASES) - 1, phase)
    for column, values in enumerate((whole, idle, np.where(collective, 0, whole - idle))):
        found[:, column] = np.bincount(phase, values, len(_PHASES))
    return found


def _role(times: npt.NDArray[np.float64]) -> str:
    work = times[:, 2]  # a rank that only receives tokens does not generate
    working = [
        phase
        for phase, own in zip(_PHASES, work, strict=True)
        if phase not in (SYNC, OTHER) and own > _ROLE_SHARE * work.sum()
    ]
    return " + ".join(working) or OTHER


def _report(name: str, ranks: list[int], times: npt.NDArray[np.float64]) -> Role:
    whole = float(times[:, 0].sum())
    rows = [
        PhaseTime(phase, float(time), float(time) / whole if whole else 0.0, float(idle))
        for phase, (time, idle, _) in zip(_PHASES, times, strict=True)
        if time
    ]
    return Role(name, ranks, whole, float(times[:, 1].sum()), sorted(rows, key=lambda row: -row.time))
