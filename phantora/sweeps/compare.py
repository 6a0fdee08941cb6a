"""``phantora compare``: one script on several machines, with speed, cost and a verdict.

Each machine, and each value of a varied option, is a point of a sweep, so the folder's journal keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster, load_gpu, system_names
from phantora.hardware.prices import RentalPrice, rate_of
from phantora.jobs.job import CHECKPOINT, HOUR, RESTART, Machines, best_interval, expected_time
from phantora.json_data import Seconds
from phantora.spec import RunSpec, unfolded_elsewhere
from phantora.sweeps.answer import Row
from phantora.sweeps.batch import larger_batches, sets_batch
from phantora.sweeps.expressions import Value
from phantora.sweeps.fold import ONE
from phantora.sweeps.objective import Objective
from phantora.sweeps.precision import float8
from phantora.sweeps.questions import BY_STEPS, ChangesNothing, OnResult, report_nothing, unjoined
from phantora.sweeps.result import Measured
from phantora.sweeps.run import Request, run_sweep
from phantora.sweeps.space import CLUSTER, Space, Spelling
from phantora.trace.analysis.fit import MARGIN
from phantora.trace.analysis.loader import LOADER
from phantora.trace.analysis.summary import WIDE, error_bar, narrower
from phantora.units import GIB

PER_HOST = 8
_BAR = 1.645  # standard deviations on each side of an error bar: 90 %
DRAWS = 10_000  # of the errors, for the chance that the best is the best
_UNUSED = 0.5  # of a GPU's memory: a batch twice as large fits
_BINARY = {"k": 1 << 10, "m": 1 << 20}


@dataclass(frozen=True, kw_only=True)
class Job:
    """The training that is asked about."""

    tokens: float | None = None
    """All tokens."""
    rate: float | None = None
    """Least tokens per second."""
    deadline: Seconds | None = None
    """Longest time of all tokens, with failures."""
    margin: float = MARGIN
    """Share of the fullest GPU's memory that a recommended machine leaves."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One machine with one value of the varied option."""

    cluster: str
    gpu: str
    gpus: int
    value: Value | None
    row: Row
    unit: str
    dollars_per_hour: float | None
    """Price of all GPUs."""
    time: Seconds | None = None
    """Time of the job's tokens, with failures, checkpoints and restarts."""
    dollars: float | None = None
    """Dollars of the job's tokens."""
    speedup: float | None = None
    """Rate over that of the first machine with the same value; of steps whose samples are unknown, of the first one
    with as many GPUs."""
    speedup_error: float | None = None
    """Relative error of `speedup`, down."""
    speedup_error_above: float | None = None
    """Up."""

    @property
    def measured(self) -> Measured | None:
        """Numbers of the run; None unless it ran to its end."""
        return self.row.measured

    @property
    def rate(self) -> float | None:
        """Tokens (or samples, steps) per second of all GPUs."""
        return self.row.rate

    @property
    def dollars_per_million(self) -> float | None:
        """Dollars per million tokens, without failures."""
        if self.dollars_per_hour is None or not self.rate:
            return None
        return self.dollars_per_hour / HOUR / self.rate * 1e6

    @property
    def left(self) -> float:
        """Share of the fullest GPU's memory that is left."""
        return self.measured.left if self.measured else 0.0

    @property
    def limited_by(self) -> str:
        """The largest part of a step with its share: ``products 48 %``."""
        if self.measured is None or not self.measured.parts:
            return ""
        part, share = max(self.measured.parts.items(), key=lambda item: item[1])
        return f"{part} {100 * share:.0f} %"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answer: choices in the order of the question, the chosen one of each value, and why."""

    choices: tuple[Choice, ...]
    best: tuple[Choice, ...]
    """One for each value of the varied option for which any machine is enough."""
    verdict: tuple[str, ...]
    """A sentence for each value; then the best of all batches, the widest error, and memory that is not used."""
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Question:
    """Machines, the varied option, and prices."""

    gpus: tuple[str, ...]
    """GPU models, or known systems such as ``aws-p6-b200``."""
    counts: tuple[int, ...] = (8,)
    vary: str = ""
    """Option of the script without dashes; "": none."""
    values: tuple[Value, ...] = ()
    job: Job = field(default_factory=Job)
    prices: Sequence[RentalPrice] = ()
    dollars: Mapping[str, float] = field(default_factory=dict)
    """Dollars per GPU and hour by the name of a GPU, "" for all others; they replace `prices`."""


def clusters(gpus: Iterable[str], counts: Iterable[int]) -> list[str]:
    """The machines of each model with each number of GPUs: ``1x8xH100``, ``aws-p6-b200:2``.

    Hosts have 8 GPUs, or as many as the model's own ones (4 of GB200). Raises PhantoraError for a number that whole
    hosts do not have.
    """
    found = []
    systems = system_names()
    for count in counts:
        for name in gpus:
            if name in systems:
                per_host = load_cluster(name).gpus_per_host
                if count % per_host:
                    raise PhantoraError(f"{name} has hosts of {per_host} GPUs: {count} are no whole hosts")
                found.append(f"{name}:{count // per_host}")
                continue
            per_host = 4 if load_gpu(name).nvlink_domain else PER_HOST
            if count > per_host and count % per_host:
                raise PhantoraError(f"hosts of {name} have {per_host} GPUs: {count} are no whole hosts")
            found.append(f"{-(-count // per_host)}x{min(count, per_host)}x{name}")
    return found


def parse_values(text: str) -> tuple[str, tuple[Value, ...]]:
    """``seq=8k,16k`` or ``seq=8k:256k`` (each the double of the one before). ``k`` and ``m`` count in 1,024. Raises
    PhantoraError."""
    name, equals, listed = text.partition("=")
    name = name.strip().lstrip("-")
    if not equals or not name or not listed.strip():
        raise PhantoraError(f"--vary {text}: write NAME=VALUES, as seq=8k:64k or batch=1,2,4")
    first, colon, last = listed.partition(":")
    if not colon:
        return name, tuple(_value(part) for part in listed.split(","))
    low, high = _value(first), _value(last)
    if not isinstance(low, int) or not isinstance(high, int) or not 0 < low <= high:
        raise PhantoraError(f"--vary {text}: a range has two whole numbers, the smaller one first")
    values = [low]
    while values[-1] * 2 <= high:
        values.append(values[-1] * 2)
    return name, tuple(values)


def _value(text: str) -> Value:
    text = text.strip()
    scale = _BINARY.get(text[-1:].lower(), 1)
    number = text[:-1] if scale > 1 else text
    return int(number) * scale if number.isdigit() else text


def compare(run: RunSpec, folder: Path, question: Question, on_result: OnResult = report_nothing) -> Comparison:
    """Runs the script on all machines and compares them. The runs are kept in `folder`. Raises PhantoraError, also if
    the first run fails for another reason than memory, and ChangesNothing for an option that the script does not
    read."""
    names = clusters(question.gpus, question.counts)
    axes: dict[str, tuple[Value, ...]] = {CLUSTER: tuple(names)}
    arguments: dict[str, Spelling] = {}
    if question.vary:
        axes[question.vary], arguments[question.vary] = question.values, f"--{question.vary}"
    run = unfolded_elsewhere(replace(run, cluster=names[0]))
    space = Space(where="compare", run=run, axes=axes, arguments=arguments)
    objective = Objective("speed", _prices(names, question), question.job.margin)
    request = Request(space=space, folder=folder, objective=objective, again=True, fold=ONE, files=False)
    found = run_sweep(request, on_result).answer
    ran = [row for row in found.rows if row.measured]
    broken = [row for row in found.rows if row.entry.result is not None and row.entry.result.status == "failed"]
    if broken and not ran:
        result = broken[0].entry.result
        assert result is not None
        raise PhantoraError(f"{run.target} did not run on {broken[0].entry.point.cluster}: {result.error}")
    by_key = {(row.entry.point.cluster, repr(row.entry.point.values.get(question.vary))): row for row in found.rows}
    values: tuple[Value | None, ...] = question.values if question.vary else (None,)
    choices = []
    for value in values:
        rows = [row for name in names if (row := by_key.get((name, repr(value)))) is not None]
        for row in rows:
            first = next((one for one in rows if one.measured and (found.unit != "steps" or _as_many(one, row))), None)
            choices.append(_choice(row, value, found.unit, request.objective, question.job, first))
    if unread(choices):
        raise ChangesNothing(f"--{question.vary}", run.target)
    best, verdict = [], []
    for value in values:
        for gpus, machines in comparable([one for one in choices if one.value == value]).items():
            chosen, sentence = decide(machines, question.job)
            best += [chosen] if chosen is not None else []
            named = [f"{question.vary} {value}"] * bool(question.vary)
            named += [f"{gpus} GPU{'s' * (gpus > 1)}"] * bool(gpus)
            verdict.append(f"{', '.join(named)}: {sentence}" if named else sentence)
    if len({one.gpus for one in choices}) > 1 and found.unit == "steps":
        verdict.append(f"{BY_STEPS} So machines with as many GPUs are compared.")
    if sets_batch(f"--{question.vary}") and found.unit != "steps":  # which a larger batch makes fewer
        verdict += overall(choices, question)
    if best:
        verdict += in_float8(best[0], request, question, on_result)
    verdict += [*widest(choices), *noise(choices), *unused(choices, question, run)]
    verdict += unjoined((one.gpus, one.measured) for one in choices)
    return Comparison(choices=tuple(choices), best=tuple(best), verdict=tuple(verdict), folder=folder)


def unread(choices: Sequence[Choice]) -> bool:
    """True if all values give the same memory and step time on each machine. Steps whose data are measured differ from
    run to run, so their options count as read: one for loader workers changes nothing but the time."""
    by_cluster: dict[str, list[tuple[int, float]]] = {}
    for one in choices:
        if one.measured is not None:
            by_cluster.setdefault(one.cluster, []).append((one.measured.memory, one.measured.step_time))
    several = [own for own in by_cluster.values() if len(own) > 1]
    return bool(several) and all(len(set(own)) == 1 for own in several)


def comparable(choices: Sequence[Choice]) -> dict[int, list[Choice]]:
    """The machines that one verdict compares: all, with the key 0. Where only steps are known, those of each number of
    GPUs: N GPUs may do N times the work in a step."""
    groups: dict[int, list[Choice]] = {}
    by_steps = any(one.rate and one.unit == "steps" for one in choices) and len({one.gpus for one in choices}) > 1
    for one in choices:
        groups.setdefault(one.gpus if by_steps else 0, []).append(one)
    return groups


def _as_many(a: Row, b: Row) -> bool:
    return a.entry.point.world == b.entry.point.world


def in_float8(best: Choice, request: Request, question: Question, on_result: OnResult) -> list[str]:
    """A sentence about the best machine with products in FP8, simulated; empty if no option of the script asks for
    them."""
    run, before = request.space.run, best.measured
    words = float8(run, load_cluster(best.cluster))
    if not words or before is None:
        return []
    axes: dict[str, tuple[Value, ...]] = {CLUSTER: (best.cluster,)}
    if best.value is not None:
        axes[question.vary] = (best.value,)
    space = replace(request.space, run=replace(run, arguments=(*run.arguments, *words)), axes=axes)
    what = f"FP8 ({' '.join(words)})"
    try:
        found = run_sweep(replace(request, space=space), on_result).answer
    except PhantoraError as error:
        return [f"{what} was not simulated: {error}"]
    (row,) = found.rows
    if row.measured is None or not row.rate:
        return [f"{what} was not simulated: {row.entry.result.error if row.entry.result else row.status}"]
    after = _choice(row, best.value, found.unit, request.objective, question.job, best.row)
    ratio = before.mean_step / row.measured.mean_step
    bar = error_bar(error_of_ratio(row.measured, before), error_of_ratio(before, row.measured)).replace(" %", "%")
    price = after.dollars_per_million
    cost = f", ${price:.3g} per million {found.unit}" if price is not None else ""
    memory = f"{row.measured.memory / GIB:.0f} of {row.measured.capacity / GIB:.0f} GiB"
    return [f"{what} on {best.cluster}: {ratio:.2f} {bar} times as fast{cost}, {memory}"]


def overall(choices: Sequence[Choice], question: Question) -> list[str]:
    """A sentence about the machines, each with the batch that is best on it; empty if no machine is enough."""
    of_machines: dict[str, list[Choice]] = {}
    for one in choices:
        named = replace(one, cluster=f"{one.cluster} with {question.vary} {one.value}")
        of_machines.setdefault(one.cluster, []).append(named)
    found = (decide(of_machine, question.job)[0] for of_machine in of_machines.values())
    best = [one for one in found if one is not None]
    return [f"overall: {decide(best, question.job)[1]}"] if best else []


def unused(choices: Sequence[Choice], question: Question, run: RunSpec) -> list[str]:
    """A sentence about the machine with the most free memory, if one of several has room for a larger batch and the
    batch does not vary."""
    ran = [(one.left, one.cluster, one.measured) for one in choices if one.measured is not None]
    left, cluster, measured = max(ran, key=lambda one: one[0], default=(0.0, "", None))
    if left <= _UNUSED or measured is None or sets_batch(f"--{question.vary}"):
        return []
    if len({name for _, name, _ in ran}) < 2:
        return []
    if max(measured.parts, key=lambda part: measured.parts[part], default="") == LOADER:
        return [
            f"data: {cluster} waits for batches; more workers and cheaper transforms change the verdict, GPUs do not"
        ]
    vary = larger_batches(run)
    how = f"--vary {vary}" if vary else "--vary NAME=1,2,4, where NAME is the script's option of the batch"
    free = f"{left * measured.capacity / GIB:.0f} of {measured.capacity / GIB:.0f} GiB"
    return [f"unused: {cluster} leaves {free}; a larger batch may change the verdict ({how})"]


def noise(choices: Sequence[Choice]) -> list[str]:
    """A sentence about the noise of steps, if it was sampled."""
    ran = [(one.measured, one.cluster) for one in choices if one.measured is not None]
    skipped = {one.not_sampled: name for one, name in ran if one.not_sampled}
    longer = [f"{one.longer - 1:.1%} on {name}" for one, name in ran if one.longer != 1]
    found = [f"noise: rates and costs are of the mean step, longer than the typical one by {', '.join(longer)}"]
    return [*(found if longer else []), *(f"no samples of {name}: {why}" for why, name in skipped.items())]


def widest(choices: Sequence[Choice]) -> list[str]:
    """A sentence about the widest error bar, if one is wide: what widens it, and the command that narrows it."""
    measured = [(one.measured, one.cluster) for one in choices if one.measured is not None and one.measured.widest]
    wide = [(max(one.error or 0.0, one.error_above or 0.0), one.widest, cluster) for one, cluster in measured]
    bar, what, cluster = max(wide, default=(0.0, "", ""))
    return [f"widest error: {cluster}, up to {bar:.0%} of the step: {narrower(what)}"] if bar > WIDE else []


def _prices(names: Iterable[str], question: Question) -> dict[str, float]:
    """Dollars per GPU and hour by the GPU's name, of the GPUs in `names` that have a price."""
    found = {}
    for name in names:
        gpu = load_cluster(name).gpu.name
        rate = rate_of(gpu, question.prices)
        given = question.dollars.get(gpu, question.dollars.get(""))
        if given is not None or rate is not None:
            found[gpu] = given if given is not None else rate.dollars if rate is not None else 0.0
    return found


def _choice(row: Row, value: Value | None, unit: str, objective: Objective, job: Job, first: Row | None) -> Choice:
    point, measured = row.entry.point, row.measured
    hourly = objective.price(point)
    seconds = None
    if job.tokens and row.rate and unit == "tokens":
        seconds = duration_of(job.tokens / row.rate, point.world, point.gpus_per_host)
    speedup = error = above = None
    if row.rate and measured and first is not None and first.rate and first.measured:
        speedup, error, above = row.rate / first.rate, 0.0, 0.0
        if row is not first:
            error, above = error_of_ratio(measured, first.measured), error_of_ratio(first.measured, measured)
    return Choice(
        cluster=point.cluster,
        gpu=point.gpu,
        gpus=point.world,
        value=value,
        row=row,
        unit=unit,
        dollars_per_hour=hourly,
        time=seconds,
        dollars=hourly * seconds / HOUR if hourly is not None and seconds is not None else None,
        speedup=speedup,
        speedup_error=error,
        speedup_error_above=above,
    )


def duration_of(work: Seconds, gpus: int, per_host: int) -> Seconds:
    """Mean time of `work` with Llama 3's rates of failures, checkpoints of 30 s at the best interval and restarts of
    10 minutes (:func:`phantora.jobs.job.expected_time`)."""
    mtbf = Machines(gpus=gpus, gpus_per_host=per_host).mtbf
    interval = max(60.0, best_interval(CHECKPOINT, RESTART, mtbf))
    return expected_time(work, interval, CHECKPOINT, RESTART, mtbf)


def decide(choices: Sequence[Choice], job: Job) -> tuple[Choice | None, str]:
    """The cheapest machine that is enough, or the fastest without prices, and a sentence that says by how much."""
    fitting = [one for one in choices if one.measured is not None and one.left >= job.margin]
    tight = [one for one in choices if one.measured is not None and one.left < job.margin]
    if not fitting:
        if tight:
            return (
                None,
                f"no machine leaves {job.margin:.0%} of a GPU's memory; {tight[0].cluster} leaves {tight[0].left:.1%}",
            )
        return None, "no machine has enough memory"
    if fitting[0].unit != "tokens" and (job.rate is not None or job.deadline is not None):
        wanted = f"{job.rate:,.0f} tokens/s" if job.rate is not None else "the deadline"
        return None, f"the tokens of a step are unknown, so no machine can be compared with {wanted}"
    enough = [one for one in fitting if _enough(one, job)]
    if not enough:
        fastest = max(fitting, key=lambda one: one.rate or 0.0)
        wanted = f"{job.rate:,.0f} {fastest.unit}/s" if job.rate else "the deadline"
        return (
            None,
            f"no machine meets {wanted}; the fastest, {fastest.cluster}, runs {fastest.rate:,.0f} {fastest.unit}/s",
        )
    priced = [one for one in enough if one.dollars_per_million is not None]
    if len(priced) == len(enough):
        best = min(enough, key=_cost)
        others = [one for one in enough if one is not best]
        text = f"{best.cluster} {_which('cheapest', choices, fitting, enough)}{_by(best, others)}"
    else:
        best = max(enough, key=lambda one: one.rate or 0.0)
        others = [one for one in enough if one is not best]
        text = (
            f"{best.cluster} {_which('fastest', choices, fitting, enough)}{_ahead(best, others)}; "
            f"no price of {_unpriced(enough)} is known (--price)"
        )
    text += _chance(best, others) + _near(best, job)
    for word, better in (("faster", lambda one: (one.rate or 0.0) > (best.rate or 0.0)), ("cheaper", _cheaper(best))):
        if (passed := next(filter(better, tight), None)) is not None:
            return best, f"{text}. {passed.cluster} is {word} and leaves only {passed.left:.1%} of its memory"
    return best, text


def _which(word: str, choices: Sequence[Choice], fitting: Sequence[Choice], enough: Sequence[Choice]) -> str:
    """``is the cheapest``, as far as others are compared."""
    if len(choices) == 1:
        return "is enough"
    if len(enough) == len(fitting):
        return f"is the {word}" if len(fitting) > 1 else "is the only one with enough memory"
    return f"is the {word} that is fast enough" if len(enough) > 1 else "is the only one that is fast enough"


def _cheaper(best: Choice) -> Callable[[Choice], bool]:
    return lambda one: _cost(one) < _cost(best)


def _enough(one: Choice, job: Job) -> bool:
    if job.rate is not None and (one.unit != "tokens" or (one.rate or 0.0) < job.rate):
        return False
    return job.deadline is None or (one.time is not None and one.time <= job.deadline)


def _cost(one: Choice) -> float:
    return one.dollars if one.dollars is not None else one.dollars_per_million or math.inf


def _by(best: Choice, others: Sequence[Choice]) -> str:
    """``: $1.10 per million tokens, 14% below 8xH100; sure: ...``."""
    price = f"${best.dollars_per_million:.3g} per million {best.unit}"
    if not others:
        return f": {price}"
    second = min(others, key=_cost)
    gain = 1 - _cost(best) / _cost(second)
    sure = _sure(best, [(one, _cost(one) / _cost(best)) for one in others], "the cheapest", "more dollars")
    return f": {price}, {gain:.0%} below {second.cluster}; {sure}"


def _ahead(best: Choice, others: Sequence[Choice]) -> str:
    if not others:
        return ""
    second = max(others, key=lambda one: one.rate or 0.0)
    ratios = [(one, (best.rate or 0.0) / (one.rate or math.inf)) for one in others]
    ratio = next(ratio for one, ratio in ratios if one is second)
    return f": {ratio:.2f} times {second.cluster}; {_sure(best, ratios, 'the fastest', 'more time')}"


def error_of_ratio(a: Measured, b: Measured) -> float:
    """By how much a's rate over b's may be lower: a's step is longer and b's shorter, independently of each other."""
    return math.hypot(a.error_above or 0.0, b.error or 0.0)


def _sure(best: Choice, others: Sequence[tuple[Choice, float]], stays: str, worse: str) -> str:
    """``sure: it stays the cheapest even at 7% more per token``: the ratio of each other's cost (or time) to that of
    the best, against its error."""

    def bar(other: Choice) -> float:
        assert best.measured is not None and other.measured is not None
        return error_of_ratio(best.measured, other.measured)

    second, _ = min(others, key=lambda item: item[1])
    rival, ratio = min(others, key=lambda item: item[1] / (1 + bar(item[0])))
    if ratio > 1 + bar(rival):
        return f"sure: it stays {stays} even at {bar(second):.0%} {worse}, the error of the ratio"
    if rival is not second:
        return f"not sure: {rival.cluster} may be {stays}, the error of their ratio is {bar(rival):.0%}"
    return f"not sure: the error of the ratio, {bar(second):.0%} {worse}, may reverse the order"


def _chance(best: Choice, others: Sequence[Choice]) -> str:
    """``; the cheapest in 83% of draws``: of steps that were sampled, with errors of the machines that are independent
    of each other. "" without samples."""
    measured = [one.measured for one in (best, *others) if one.measured is not None]
    if len(measured) < 2 or all(one.longer == 1 for one in measured):
        return ""
    random = np.random.default_rng(0)
    costs = []
    for one in (best, *others):
        assert one.measured is not None
        z = random.standard_normal(DRAWS) / _BAR
        bars = np.where(z < 0, one.measured.error or 0.0, one.measured.error_above or 0.0)
        priced = one.dollars_per_million is not None
        costs.append((_cost(one) if priced else 1 / (one.rate or math.inf)) * np.exp(z * bars))
    share = float((np.argmin(costs, axis=0) == 0).mean())
    return f"; the best in {share:.0%} of draws from the errors"


def _near(best: Choice, job: Job) -> str:
    """``. Its rate may be 190,000 tokens/s``, below what is wanted, or a time beyond the deadline; "" for neither."""
    above = (best.measured.error_above if best.measured else None) or 0.0
    if job.rate is not None and best.rate and best.rate / (1 + above) < job.rate:
        return f". Within its error bar it may miss the {job.rate:,.0f} {best.unit}/s: {best.rate / (1 + above):,.0f}"
    if job.deadline is not None and best.time and best.time * (1 + above) > job.deadline:
        return f". Within its error bar it may miss the deadline: its steps may be {above:.0%} longer"
    return ""


def _unpriced(choices: Sequence[Choice]) -> str:
    return " or ".join(dict.fromkeys(one.gpu for one in choices if one.dollars_per_million is None))
