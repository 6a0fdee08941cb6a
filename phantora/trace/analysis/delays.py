"""Time without compute by cause, and the share of the GPU's peak that each kind of work loses.

These rows are the table *Time without compute*, and the lines HELD UP and LOST of a summary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from phantora.trace.analysis.communicators import collective_kind
from phantora.trace.analysis.mfu import RECOMPUTED_LAYERS
from phantora.trace.analysis.report import Delay, Exposure, Loss, RankReport, Times
from phantora.trace.analysis.slower_ranks import kernel_time

_NAMES = {"copy": "copies", "dependency": "dependencies", "launch gap": "launch gaps"}
_LONGER_STAGE = 1.15  # times the median rank's kernels: such a stage makes others wait
_MOST = 0.5  # of the lateness, for a rank to be named alone


def delays(
    steady: Times,
    exposure: Sequence[Exposure],
    late: Mapping[int, float],
    slower: Mapping[int, float],
    waits: bool = False,
    gpu_of: Callable[[int], str] = lambda rank: "",
    healed: Mapping[str, float] | None = None,
) -> list[Delay]:
    """The rows of a steady step, longest first; their sum is ``steady.time - steady.compute``. `late`: ns that ranks
    came last, on any scale. `slower`: as :class:`SlowerRanks` gives it. `waits`: the log does not tell when the last
    rank arrived, so transfers include waits. `gpu_of`: the kind of a rank's GPU, where there are several. `healed`: by
    rank the share of a step that its factor of ``--straggler`` costs."""
    found: list[Delay] = []
    for cause, time in steady.stalls.items():
        if cause == "transfer":
            found += _transfers(time, exposure, waits)
        elif cause == "late rank":
            found += _late_ranks(time, late, slower, gpu_of)
        else:
            found.append(Delay(_NAMES.get(cause, cause), cause, time))
    for delay in found:
        if healed and (share := healed.get(str(delay.rank))) is not None:
            delay.gain = steady.time * share
    return sorted((delay for delay in found if delay.time > 0), key=lambda delay: (-delay.time, delay.name))


def _transfers(time: float, exposure: Sequence[Exposure], waits: bool) -> list[Delay]:
    """A row for each kind of collective, on all communicators."""
    by_kind: dict[str, float] = defaultdict(float)
    for e in exposure:
        by_kind[collective_kind(e.collective) or "communication"] += e.transfer
    whole = sum(by_kind.values())
    more = " with waits" if waits else ""
    if not whole:
        return [Delay("communication" + more, "transfer", time)]
    return [Delay(kind + more, "transfer", time * own / whole) for kind, own in by_kind.items()]


def _late_ranks(
    time: float, late: Mapping[int, float], slower: Mapping[int, float], gpu_of: Callable[[int], str]
) -> list[Delay]:
    """The rank, or the kind of GPUs, that causes most of the lateness, and the others."""
    whole = sum(late.values())
    rank = max(late, key=lambda rank: late[rank], default=-1)
    if not whole or rank < 0 or late[rank] < _MOST * whole:
        by_kind: dict[str, float] = defaultdict(float)
        for each, lateness in late.items():
            by_kind[gpu_of(each)] += lateness
        kind = max(by_kind, key=lambda name: by_kind[name], default="")
        named = f"late ranks on {kind}" if kind and by_kind[kind] >= _MOST * whole else "late ranks"
        return [Delay(named, "late rank", time)]
    own = time * late[rank] / whole
    on = f" on {gpu}" if (gpu := gpu_of(rank)) else ""
    alone = Delay(f"late rank {rank}{on}", "late rank", own, slower=slower.get(rank, 0.0), rank=rank)
    return [alone, Delay("other late ranks", "late rank", time - own)]


def lost_by(delay: Delay) -> float:
    """ns of a step that a delay costs: of a late rank not the waits alone."""
    return delay.gain if delay.gain is not None else max(delay.time, delay.slower)


def longest_stage(ranks: Sequence[RankReport]) -> str:
    """``rank 3 computes 2.5 times as long as others``, of a pipeline with one stage that all wait for; or ""."""
    longest = max(ranks, key=kernel_time)
    others = [kernel_time(one) for one in ranks if one is not longest]
    usual = median(others) if others else 0.0
    if not usual or kernel_time(longest) <= _LONGER_STAGE * usual:
        return ""
    return f"rank {longest.rank} computes {kernel_time(longest) / usual:.1f} times as long as others"


def losses(steady: Times, classes: Mapping[str, tuple[float, float]], peak: float | None) -> list[Loss]:
    """What kernels lose of the GPU's peak, largest first; with the shares of time without compute and the MFU they make
    up 1. `classes`: time and flops of kernels by class, on any scale. Empty where the MFU is unknown."""
    whole = sum(time for time, _ in classes.values())
    flops = sum(own for _, own in classes.values())
    if not whole or not flops or not steady.mfu or not steady.hfu or not peak:
        return []
    compute = steady.compute / steady.time
    found = [
        Loss(name, bool(own), compute * time / whole - steady.hfu * own / flops)
        for name, (time, own) in classes.items()
    ]
    found.append(Loss(RECOMPUTED_LAYERS, True, steady.hfu - steady.mfu))
    return sorted((loss for loss in found if loss.share), key=lambda loss: (-loss.share, loss.name))
