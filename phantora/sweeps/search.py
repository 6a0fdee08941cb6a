"""Looks for the best point of a space that is too large to try all: Optuna asks, our runs tell."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from phantora.errors import PhantoraError
from phantora.sweeps.expressions import Value
from phantora.sweeps.objective import Objective
from phantora.sweeps.plan import LeftOut, Point, judge
from phantora.sweeps.result import RAN, Result
from phantora.sweeps.space import Space
from phantora.sweeps.task import Shared, Task

PATIENCE = 300  # asks in a row that bring no new legal point: then the space counts as searched


@dataclass(frozen=True)
class Better:
    """A point that was better than all before it."""

    trial: int
    value: float
    seconds: float
    """Real time of all runs up to this one."""
    label: str


@dataclass(kw_only=True)
class Search:
    """At most `trials` points, by the tree-structured Parzen estimator. With one run at a time, and the same results,
    it proposes the same points; those of the journal come first."""

    space: Space
    objective: Objective
    trials: int
    seed: int = 0
    bettered: list[Better] = field(default_factory=list)
    asked: int = 0
    """Points that were run, skipped or taken from the journal."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        optuna = _optuna()
        if not self.space.axes:
            raise PhantoraError(f"{self.space.where}: a search needs axes in [matrix]")
        if self.space.listed:
            raise PhantoraError(f"{self.space.where}: a search takes axes in [matrix] and no [[list]]")
        self._lists = {name: list(values) for name, values in self.space.axes.items()}
        # By position in the list: values may be of several types.
        self._ranges = {
            name: optuna.distributions.CategoricalDistribution(range(len(each))) for name, each in self._lists.items()
        }
        self._study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=self.seed, constant_liar=True)
        )
        self._trials: dict[int, Any] = {}  # number of the point -> trial
        self._met: dict[tuple[int, ...], float | None] = {}
        self._waiting: list[Point] = []

    def learn(self, results: Iterable[Result], shared: Shared) -> None:
        """Results of the journal that belong to this space count as trials."""
        for result in results:
            position = self._position(result.values)
            point = judge(self.space, result.values, self.asked + 1) if position is not None else None
            if position is None or not isinstance(point, Point) or Task.of(point, shared).key != result.key:
                continue
            self._met[position] = None
            self.asked += 1
            self._trials[point.number] = None
            self._waiting.append(point)

    def _position(self, values: dict[str, Value]) -> tuple[int, ...] | None:
        if values.keys() != self._lists.keys():
            return None
        try:
            return tuple(_index(self._lists[name], values[name]) for name in self._lists)
        except ValueError:
            return None

    def next(self) -> Point | None:
        """The next point to run; None when the trials are used up or nothing new is proposed."""
        if self._waiting:
            return self._waiting.pop(0)
        optuna = _optuna()
        for _ in range(PATIENCE):
            if self.asked >= self.trials:
                return None
            trial = self._study.ask(self._ranges)
            position = tuple(trial.params[name] for name in self._lists)
            if position in self._met:
                value = self._met[position]
                self._study.tell(trial, value, state=None if value is not None else optuna.trial.TrialState.FAIL)
                continue
            values = {name: self._lists[name][at] for name, at in zip(self._lists, position, strict=True)}
            found = judge(self.space, values, self.asked + 1)
            if isinstance(found, LeftOut):
                self._met[position] = 0.0
                self._study.tell(trial, 0.0)  # what the rules forbid is as bad as what does not fit
                continue
            self._met[position] = None
            self.asked += 1
            self._trials[found.number] = trial
            return found
        return None

    def notify(self, point: Point, result: Result | None) -> None:
        """Tells the search what a point gave; `result` is None if it was not run."""
        optuna = _optuna()
        trial = self._trials.pop(point.number, None)
        value = 0.0
        if result is not None:
            self.seconds += result.seconds
            if result.status == RAN and result.measured is not None and self.objective.has_room(result.measured):
                rate, _ = self.objective.work(point, result.measured)
                value = self.objective.value(point, rate, result.measured.watts)
        position = self._position(point.values)
        assert position is not None
        self._met[position] = value
        if trial is not None:
            self._study.tell(trial, value)
        else:
            params = dict(zip(self._lists, position, strict=True))
            self._study.add_trial(optuna.trial.create_trial(params=params, distributions=self._ranges, value=value))
        if value > max((one.value for one in self.bettered), default=0.0):
            self.bettered.append(Better(point.number, value, self.seconds, point.label()))

    def gain_per_hour(self) -> float | None:
        """Share by which the best is better than the first that ran, per hour of runs."""
        if len(self.bettered) < 2 or not self.seconds:
            return None
        return (self.bettered[-1].value / self.bettered[0].value - 1) / (self.seconds / 3600)

    def summary(self) -> list[str]:
        """The course of the search, in lines."""
        size = math.prod(len(values) for values in self._lists.values())
        lines = [f"Searched {self.asked} points of {size:,} combinations in {self.seconds / 3600:.2f} hours of runs:"]
        first = self.bettered[0].value if self.bettered else 1.0
        for one in self.bettered:
            gain = f"{100 * (one.value / first - 1):+.1f}%"
            lines.append(f"  trial {one.trial}, after {one.seconds / 3600:.2f} h: {gain} {one.label}")
        gain_per_hour = self.gain_per_hour()
        if gain_per_hour is not None:
            lines.append(f"  gain over the first: {100 * gain_per_hour:.1f}% per hour of runs")
        return lines


def _index(values: list[Value], value: Value) -> int:
    """1 and true are different values."""
    return [repr(one) for one in values].index(repr(value))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise PhantoraError("a search needs Optuna: pip install 'phantora[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
