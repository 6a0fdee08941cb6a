"""Fits the jitter of hosts (``HostJitter`` in hardware/types.py) to single steps of real runs, machine by machine.

    python -m validation.fits.jitter

Half of the programs of the ledger ``validation/runs.toml``, drawn by their names, are fitted. The other half are held
out. A session of the ledger is a machine.

- Pauses: steps that take at least 10 ms longer than the median of their run, where the host decides also 30 % longer.
  The model is between both kinds of runs: a GPU with work in its queues hides a pause, and a slow pace looks like one.
- Between machines: what the numbers of pauses vary by more than by chance, and the paces of runs by more than those of
  the model for as many steps.
- Spread of the pace: of steps that follow the host (predicted at a host 10 % slower, they are at least 9 % longer), the
  interquartile range next to that of the model for as many steps of that length.
- Speed of a GPU: single steps that follow the host by less than 5 %. The standard deviation is that of the
  interquartile range, over what as many steps of a normal distribution have; between runs that of its logarithm, from
  deciles, less chance.
- Time for which a pace lasts: 40 ms, by which neighbouring steps correlate about as the real ones do, and long and
  short steps ask for the same spread of the pace.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from phantora.hardware.types import HostJitter
from phantora.sim.noise import Warp
from validation.compare.bars import Run, ledger
from validation.compare.runs import at_host

FOLLOWS, DECIDES = 0.9, 0.05
LONG_S = 0.04
LEAST = 8  # steps of a run
SHORTEST_S = 0.005  # of a step: what is shorter is noisy by its own measurement
PAUSE_S, LONGEST_S = 0.010, 0.3  # what is longer is something else: compilation, the allocator
PAUSED = 1.3  # times a step that the host decides
PAUSES_S = (0.01, 0.02, 0.04, 0.08)
LASTS_NS = (10e6, 20e6, 40e6, 80e6, 160e6, 320e6)
ENOUGH_S = 2.0  # of steps of a machine whose pauses count
_Steps = npt.NDArray[np.float64]


def drawn(name: str, share: float) -> bool:
    """A share of the names, which depends on nothing else."""
    return zlib.crc32(name.encode()) / 2**32 < share


def follows_host(run: Run) -> float | None:
    """By how many per cent the step is longer on a host one per cent slower; None where that was not predicted."""
    by_host = run.predicted.get("by_host") or {}
    if len(by_host) < 2:
        return None
    factor = float(run.entry.get("host", 1.0))
    low, high = (at_host(by_host, factor * each) for each in (0.9, 1.1))
    return (high - low) / 0.2 / at_host(by_host, factor)


def is_fitted(run: Run) -> bool:
    """True for half of the programs, whatever machine ran them."""
    return zlib.crc32(run.real["run_id"].encode()) % 2 == 0


@dataclass
class Machine:
    """Steps of a session's programs, in s, a list for each run."""

    host_bound: list[_Steps] = field(default_factory=list)
    others: list[_Steps] = field(default_factory=list)

    def pauses(self) -> list[float]:
        """Seconds of each pause."""
        found: list[float] = []
        for runs, least in ((self.host_bound, PAUSED), (self.others, 1.0)):
            for steps in runs:
                median = float(np.median(steps))
                found += [step - median for step in steps if step > least * median and step > median + PAUSE_S]
        return [pause for pause in found if pause < LONGEST_S]

    @property
    def seconds(self) -> float:
        return float(sum(steps.sum() for steps in self.host_bound + self.others))

    def jitter(self, usual: HostJitter) -> HostJitter:
        """Of this machine; `usual` where it does not tell."""
        found = usual
        if self.seconds >= ENOUGH_S:
            found = replace(found, pauses_per_second=round(len(self.pauses()) / self.seconds, 2))
        if self.host_bound:
            ratios = [_middle(steps) / _modelled(steps, usual)[0] for steps in self.host_bound]
            found = replace(found, spread=round(usual.spread * statistics.median(ratios), 3))
        return found


def _middle(steps: _Steps) -> float:
    """Interquartile range, as a share of the median."""
    low, median, high = np.quantile(steps, (0.25, 0.5, 0.75))
    return float((high - low) / median)


def _neighbours(steps: _Steps) -> float:
    """Rank correlation of a step and the next: a pause counts as any long step."""
    places = np.argsort(np.argsort(steps))
    return float(np.corrcoef(places[:-1], places[1:])[0, 1])


def _modelled(steps: _Steps, jitter: HostJitter, repeats: int = 40) -> tuple[float, float]:
    """Median interquartile range and correlation of neighbours, of as many steps of this length without pauses."""
    random = np.random.default_rng(0)
    ends = (np.arange(len(steps) + 1) * float(np.median(steps)) * 1e9).astype(np.int64)
    quiet = replace(jitter, pauses_per_second=0.0)
    found = [np.diff(Warp(quiet, 1.0, random)(ends)).astype(np.float64) for _ in range(repeats)]
    return statistics.median(map(_middle, found)), statistics.median(map(_neighbours, found))


def machines(fitted: bool) -> dict[str, Machine]:
    """Of one half of the programs, by session."""
    found: dict[str, Machine] = defaultdict(Machine)
    for run in ledger():
        steps = np.asarray(run.real.get("iter_times") or ())
        follows = follows_host(run)
        if len(steps) < LEAST or np.median(steps) < SHORTEST_S or run.entry.get("varying") or is_fitted(run) != fitted:
            continue
        own = found[run.entry["real"]]
        if follows is not None and follows > FOLLOWS:
            own.host_bound.append(steps)
        elif follows is not None and follows < DECIDES:
            own.others.append(steps)
    return found


def show_lasting(runs: Sequence[_Steps]) -> None:
    """Prints, for paces that last for several times, the correlation of neighbours, and the spread of steps next to the
    model's for short and for long ones."""
    print(f"correlation of neighbouring steps: {statistics.median(map(_neighbours, runs)):.2f}")
    for lasts in LASTS_NS:
        found = [_modelled(steps, HostJitter(lasts_ns=lasts)) for steps in runs]
        ratios: dict[bool, list[float]] = {False: [], True: []}
        for steps, (own, _) in zip(runs, found, strict=True):
            ratios[bool(np.median(steps) > LONG_S)].append(_middle(steps) / own)
        short, long = (statistics.median(ratios[which]) for which in (False, True))
        correlation = statistics.median(each for _, each in found)
        print(f"  {lasts / 1e6:4.0f} ms: {correlation:.2f}; spread / model: {short:.2f} (short), {long:.2f} (long)")


def show_pauses(fitted: dict[str, Machine], held_out: dict[str, Machine], usual: HostJitter) -> None:
    """Prints how many steps in a second are longer than the median by more than a limit, and pauses of the model."""
    mean = usual.pauses_per_second * math.exp(usual.machines_pauses**2 / 2)
    print("steps per second that are longer by   host-bound: fitted, held out   others: fitted, held out   model")
    for limit in PAUSES_S:
        found = []
        for kind in ("host_bound", "others"):
            for half in (fitted, held_out):
                own = [Machine(**{kind: getattr(machine, kind)}) for machine in half.values()]
                number = sum(pause > limit for machine in own for pause in machine.pauses())
                found.append(number / sum(machine.seconds for machine in own))
        typical = math.log(usual.pause_ns * 1e-9) - usual.pause_spread**2 / 2
        share = 1 - NormalDist(typical, usual.pause_spread).cdf(math.log(limit))
        texts = "".join(f"{rate:14.2f}" for rate in (*found, mean * share))
        print(f"  {1e3 * limit:4.0f} ms {'':20s}{texts}")


def show_gpus(fitted: dict[str, Machine], held_out: dict[str, Machine]) -> None:
    """Prints the spread of steps that the GPU decides, of a typical run and between runs."""
    random = np.random.default_rng(0)
    for name, half in (("fitted", fitted), ("held out", held_out)):
        runs = [steps for machine in half.values() for steps in machine.others]
        normal = np.log(
            [[_middle(1 + 1e-3 * random.standard_normal(len(steps))) for _ in range(100)] for steps in runs]
        )
        found = np.log([_middle(steps) for steps in runs])
        low, high = np.quantile(found, (0.1, 0.9))
        chance = float(normal.std(axis=1).mean())
        between = math.sqrt(max(0.0, ((high - low) / 2.563) ** 2 - chance**2))
        typical = 1e-3 * math.exp(float(np.median(found) - np.median(normal)))
        print(f"steps that the GPU decides, {name}: {typical:.2%}, logarithm between runs {between:.2f}")


def show_machines(fitted: dict[str, Machine], held_out: dict[str, Machine], usual: HostJitter) -> None:
    """Prints the standard deviations of the logarithms of numbers of pauses and of paces, without what is chance."""
    for name, half in (("fitted", fitted), ("held out", held_out)):
        own = [(len(machine.pauses()), machine.seconds) for machine in half.values() if machine.seconds >= 1]
        rate = sum(number for number, _ in own) / sum(seconds for _, seconds in own)
        more = sum((number - rate * seconds) ** 2 - rate * seconds for number, seconds in own)
        pauses = math.sqrt(math.log1p(max(0.0, more / sum(seconds**2 for _, seconds in own)) / rate**2))
        runs = [steps for machine in half.values() for steps in machine.host_bound]
        ratios = np.log([_middle(steps) / _modelled(steps, usual)[0] for steps in runs])
        low, high = np.quantile(ratios, (0.25, 0.75))
        chance = statistics.median(1.166 / math.sqrt(len(steps)) for steps in runs)
        paces = math.sqrt(max(0.0, ((high - low) / 1.349) ** 2 - chance**2))
        print(f"between machines, {name}: pauses {pauses:.2f}, paces {paces:.2f}")


def main() -> None:
    ours, others = machines(True), machines(False)
    show_lasting([steps for machine in ours.values() for steps in machine.host_bound])
    usual = HostJitter()
    show_pauses(ours, others, usual)
    show_machines(ours, others, usual)
    show_gpus(ours, others)
    print(f"{'machine':40s}  spread of the pace       pauses per second")
    print(f"{'':40s}  fitted   held out        fitted   held out")
    found: dict[str, list[float]] = defaultdict(list)
    for name in sorted(ours.keys() | others.keys()):
        texts = {"spread": "", "pauses_per_second": ""}
        for half in (ours, others):
            machine = half.get(name, Machine())
            jitter = machine.jitter(usual)
            for key, known in (("spread", machine.host_bound), ("pauses_per_second", machine.seconds >= ENOUGH_S)):
                texts[key] += f"{getattr(jitter, key):9.3f}" if known else f"{'-':>9s}"
                if known and half is ours:
                    found[key].append(getattr(jitter, key))
        print(f"{name:40s}{texts['spread']}       {texts['pauses_per_second']}")
    print("median of the fitted:", {key: round(statistics.median(values), 3) for key, values in found.items()})


if __name__ == "__main__":
    main()
