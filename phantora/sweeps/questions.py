"""Questions that a few runs of one script answer: does it fit, with which largest number, how many GPUs are enough.

Each run is a point of a sweep, so its folder's journal keeps it: the same question goes on where it was stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster
from phantora.hardware.prices import Rate, rate_of, rental_prices
from phantora.json_data import Bytes
from phantora.spec import RunSpec, unfolded_elsewhere
from phantora.sweeps.answer import Row
from phantora.sweeps.expressions import Value
from phantora.sweeps.fold import ENDS
from phantora.sweeps.objective import Objective
from phantora.sweeps.remedies import Remedied, remedied
from phantora.sweeps.result import FAILED, OUT_OF_MEMORY, RAN, Measured, Result
from phantora.sweeps.run import Request, plan_of, run_sweep
from phantora.sweeps.runner import Entry
from phantora.sweeps.space import CLUSTER, Space, Spelling
from phantora.trace.analysis.fit import MARGIN, Fit
from phantora.trace.analysis.units import size
from phantora.units import GIB

NO_LOADER = "has no DataLoader of torch, so its batches are its own: give its option of the length the largest value"
MOST = 1 << 20  # of a number that is looked for
_LARGE = 4096  # of such a number
BY_STEPS = (
    "The samples of a step are unknown, so steps are compared. Where each GPU has a batch of its own, N GPUs do N "
    "times the work in a step."
)
OnResult = Callable[[Entry, int, int], None]


def report_nothing(entry: Entry, done: int, of: int) -> None:
    """Progress that nobody reads."""


@dataclass(frozen=True)
class Tried:
    """One run."""

    run: str
    """The script, with the option that is looked for."""
    value: int
    result: Result
    margin: float = 0.0
    """Share of the GPU that a safe run leaves."""

    @property
    def fits(self) -> bool:
        """It ran to its end. Raises PhantoraError where it failed for another reason than memory."""
        if self.result.status not in (RAN, OUT_OF_MEMORY):
            raise PhantoraError(f"{self.run} failed: {self.result.error}")
        return self.result.status == RAN

    @property
    def safe(self) -> bool:
        """It fits, leaves the margin, and does not grow."""
        measured = self.result.measured
        return self.fits and measured is not None and measured.left >= self.margin and not measured.grows

    @property
    def bytes(self) -> int | None:
        """Bytes of the fullest GPU; if it does not fit, the bytes that it needs, if a run on larger GPUs showed
        them."""
        measured = self.result.measured
        return self.result.needs if not self.fits else measured.memory if measured else None

    def says(self, capacity: int, advised: bool = True) -> list[str]:
        """The verdict, and, if `advised`, what would help."""
        measured = self.result.measured
        remedy = measured.remedy if advised and measured and (measured.grows or not self.fits) else ""
        fit = Fit(fits=self.fits, taken=self.bytes or 0, capacity=capacity, remedy=remedy, margin=self.margin)
        says = [text for text in (fit.sentence(), fit.advice) if text]
        if measured is not None and measured.grows:
            end = f"Out of memory in iteration {measured.full:,}" if self.fits else "Memory does not last"
            ran = [f"In the iterations that ran: {fit.sentence()}"] if self.fits else []  # more of them need more
            says = [text for text in (f"{end}: it grows by {measured.grows}.", *ran, fit.advice) if text]
        elif measured is not None and measured.may_grow and self.fits:
            full = f"would be out of memory in iteration {measured.full:,}"
            says.append(f"Note: in this short run memory grows by {measured.may_grow}; if that lasts, it {full}.")
        return says


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Answer of ``phantora fits``."""

    fits: bool
    """It runs to its end and does not grow."""
    memory: Bytes | None
    """Memory of the fullest GPU. Where the run does not fit: the memory that it needs, if known."""
    capacity: Bytes
    says: list[str]
    largest: int | None = None
    """The largest value that fits, or 0; None without ``--largest``."""
    tried: dict[int, Bytes | None] | None = None
    """The memory by value."""
    full: int | None = None
    """Iteration in which a run whose memory grows uses up the GPU."""
    worst_batch: str = ""
    """The batches of ``--worst-batch``."""
    remedies: list[Remedied] = field(default_factory=list)
    """Changes that make the run fit, the fastest first, then those that do not."""
    peak_allocated: Bytes | None = None
    """Highest bytes of the allocator; None where the run does not fit, and with ``--largest``."""


def fits(
    run: RunSpec,
    folder: Path,
    largest: str | None = None,
    on_result: OnResult = report_nothing,
    *,
    margin: float = MARGIN,
    remedies: bool = True,
    on_part: Callable[[str], None] = lambda text: None,
) -> Fits:
    """Whether a run fits its GPUs; with `largest`, an option of its script, the largest number of it that fits and
    leaves the `margin`. `remedies`: simulate what would help a run that does not fit; `on_part` is told of them. The
    runs are kept in `folder`.
    Raises PhantoraError for a run that fails for another reason than memory."""
    if largest and any(word.partition("=")[0] == largest for word in run.arguments):
        raise PhantoraError(f"--largest {largest}: leave {largest} out of the script's arguments, it is searched")
    request = one_run(run, folder, "fits", largest)
    if largest is None:
        row = run_point(request, {}, on_result)
        result, capacity = row.entry.result, row.entry.point.capacity
        if result is None:
            raise PhantoraError(f"{run.target} was not run: {row.entry.skipped}")
        return _fit_of(run, request, Tried(run.target, 1, result, margin), (on_result, on_part) if remedies else None)
    capacity = plan_of(request).points[0].capacity

    def run_with(number: int) -> Tried:
        result = run_point(request, {largest: number}, on_result).entry.result
        assert result is not None
        return Tried(f"{run.target} {largest} {number}", number, result, margin)

    search = largest_that_fits(run_with, round(capacity * (1 - margin)), largest, run.target, on_part)
    known = {one.value: one for one in search}
    best = max((one.value for one in known.values() if one.safe), default=0)
    shown = known[best or 1]
    line = f"Largest {largest} that fits: {best}." if best else f"Not even {largest} 1 fits."
    says = [line, *shown.says(capacity)]
    if best and (more := known.get(best + 1)) is not None and more.bytes:
        left = f", which leaves less than {margin:.0%} (--margin)" if more.fits else ""
        says.append(f"{largest} {best + 1} needs {more.bytes / GIB:.1f} GiB{left}.")
    says += _other_memory(run)
    memory = {one.value: one.bytes for one in known.values()}
    return Fits(fits=bool(best), memory=shown.bytes, capacity=capacity, says=says, largest=best, tried=memory)


def _other_memory(run: RunSpec) -> list[str]:
    """A sentence about a memory that the GPU does not have."""
    own = load_cluster(run.cluster).gpu.memory_bytes
    given = run.gpu_memory
    return [f"--gpu-memory {given:g} GiB is assumed; the GPU has {size(own)}."] if given is not None else []


def _fit_of(run: RunSpec, request: Request, one: Tried, told: tuple[OnResult, Callable[[str], None]] | None) -> Fits:
    """The answer for one run, with remedies if `told` is given: what is called with points and with what begins."""
    measured, capacity = one.result.measured, plan_of(request).points[0].capacity
    helped, unknown = list[Remedied](), ""
    if told is not None and not one.safe and not (measured and measured.grows):
        helped, unknown = remedied(run, request, one.result, *told)
    says = one.says(capacity, advised=not any(change.fits for change in helped))
    worst = measured.worst_batch if measured else ""
    if run.ranks.worst_batch:
        says.append(f"Worst batch: {worst}." if worst else f"--worst-batch: {run.target} {NO_LOADER}.")
    says += [text.says(capacity) for text in helped]
    says += [*([unknown] if unknown else []), *_other_memory(run)]
    return Fits(
        fits=one.fits and not (measured and measured.grows),
        memory=one.bytes,
        capacity=capacity,
        says=says,
        full=measured.full if measured else None,
        worst_batch=worst,
        remedies=helped,
        peak_allocated=measured.peak_allocated if one.fits and measured else None,
    )


def as_in_reality(found: Fits, snapshot: str, peak: int) -> Fits:
    """The answer for a run of which a real job held `peak` bytes at its peak, by its memory snapshot: the excess over
    the simulated peak counts as well."""
    if found.peak_allocated is None or found.memory is None:
        return found
    excess = max(0, peak - found.peak_allocated)
    memory = found.memory + excess
    fit = Fit(fits=memory <= found.capacity, taken=memory, capacity=found.capacity)
    held = f"{snapshot}: {size(peak)} allocated at the peak, {size(found.peak_allocated)} in the simulated run"
    more = f"With {size(excess)} more: {fit.sentence()}" if excess else "It holds no more than the simulated run."
    return replace(found, fits=fit.fits, memory=memory, says=[*found.says, f"{held}.", more])


def unjoined(runs: Iterable[tuple[int, Measured | None]]) -> list[str]:
    """A sentence if no collective runs in the steps of several GPUs. `runs`: numbers of GPUs, and what they gave."""
    of_several = [measured for gpus, measured in runs if gpus > 1 and measured is not None]
    if not of_several or any(measured.overlap is not None for measured in of_several):
        return []
    return ["No collective joins the ranks: each GPU trains a model of its own."]


def run_point(request: Request, values: Mapping[str, Value], on_result: OnResult) -> Row:
    """Runs the point of the request's space with these values of its axes."""
    space = request.space.with_axes({name: (value,) for name, value in values.items()})
    answer = run_sweep(replace(request, space=space), on_result).answer
    if not answer.rows:
        raise PhantoraError(f"{space.where}: no point is legal with {dict(values)}")
    return answer.rows[0]


class ChangesNothing(PhantoraError):
    """An option of the script whose values are asked for has no effect."""

    exit_status = 2

    def __init__(self, option: str, script: str) -> None:
        super().__init__(f"{option} changes nothing: does {script} read it?")


def _same(a: Result, b: Result) -> bool:
    """Equal in memory and work: the same run. Steps whose data or threads were measured differ in time from run to
    run, so their flops and samples count."""
    x, y = a.measured, b.measured
    if x is None or y is None or x.memory != y.memory:
        return False
    pairs = list(zip(_work_of(x), _work_of(y), strict=True))
    work = any(one or other for one, other in pairs) and all(math.isclose(*pair, rel_tol=1e-3) for pair in pairs)
    return x.step_time == y.step_time or work


def _work_of(measured: Measured) -> list[float]:
    """Flops (of the peak), tokens and samples of a step; 0 where they are unknown."""
    rates = (measured.mfu, measured.tokens_per_second, measured.samples_per_second)
    return [(rate or 0.0) * measured.step_time for rate in rates]


def _expected(option: str, number: int, low: int, high: int, seconds: float) -> str:
    """``--batch 49: 16 fits, 83 does not, at most 8 more runs of 25 s``."""
    known = [*([f"{low} fits"] if low else []), *([f"{high} does not"] if high else [])]
    if high:  # every second run halves what is left
        most = 2 * math.ceil(math.log2(high - low))
        known.append(f"at most {most} more run{'s' * (most > 1)} of {seconds:.0f} s")
    return f"{option} {number}: {', '.join(known)}"


def largest_that_fits(
    run: Callable[[int], Tried],
    capacity: int,
    option: str,
    script: str,
    on_part: Callable[[str], None] = lambda text: None,
) -> Iterator[Tried]:
    """Runs until the largest number that fits is known: the largest of those that did.

    Memory grows nearly in a straight line with it, so the next number is where the line through two runs meets
    `capacity`; every second one halves what is left. A number that fits, and the next one, that does not, end it.
    Small numbers may take what larger workspaces take. Raises ChangesNothing where a large one is equal, too: `script`
    has no use for `option`."""
    before: Tried | None = None
    low, high = 0, 0  # the largest that fits, the smallest that does not; 0: none yet
    tried: dict[int, int] = {}
    number, runs = 1, 0
    began = time.monotonic()
    while number <= MOST:
        if runs:
            on_part(_expected(option, number, low, high, (time.monotonic() - began) / runs))
        found = run(number)
        equal = before is not None and before.safe and found.safe and _same(before.result, found.result)
        if equal and number >= _LARGE:
            raise ChangesNothing(option, script)
        before = found
        yield found
        if found.bytes:
            tried[number] = found.bytes
        low, high = (number, high) if found.safe else (low, number)
        if high == low + 1 or high == 1:
            return
        if equal and not high:
            number = _LARGE
        else:
            number = (low + high) // 2 if high and runs % 2 else _next(tried, low, high, capacity)
        runs += 1


def _next(tried: Mapping[int, int], low: int, high: int, capacity: int) -> int:
    """Within ]low, high[; beyond low where no number failed yet."""
    prediction = 2 * low
    if len(tried) >= 2:
        (a, x), (b, y) = sorted(tried.items(), key=lambda item: abs(item[1] - capacity))[:2]
        slope = (y - x) / (b - a)
        prediction = int(a + (capacity - x) / slope) if slope > 0 else prediction
        prediction += prediction == low and not high
    if not high:
        return min(max(low + 1 + low // 4, prediction), 8 * low, MOST if low < MOST else MOST + 1)
    return min(max(low + 1, prediction), high - 1)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Throughput of a cluster. Seconds, dollars."""

    cluster: str
    gpus: int
    row: Row
    unit: str = "tokens"
    """Unit of `rate`: tokens, samples or steps."""
    seconds: float | None = None
    """For the work that was asked for."""
    dollars: float | None = None

    @property
    def rate(self) -> float | None:
        """Tokens (or samples, steps) per second; None where it does not fit."""
        return self.row.rate


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Clusters of 1, 2, 4, ... GPUs, and the job that is asked about."""

    gpu: str = "H100"
    most: int = 8
    """GPUs of the largest."""
    per_host: int = 8
    rate: float | None = None
    """Least tokens per second."""
    tokens: float | None = None
    """Tokens of the whole job."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Dollars for an hour of a GPU, by its name; "" for all others. Empty: the median of public on-demand prices."""
    margin: float = MARGIN
    """Share of the fullest GPU's memory that a cluster leaves that is enough."""


@dataclass(frozen=True)
class Offers:
    """The clusters that were tried, the smallest first."""

    tried: list[Offer]
    enough: Offer | None
    """The smallest on which the script is fast enough and leaves the margin."""
    passed_over: list[Offer] = field(default_factory=list)
    """Smaller ones that are fast enough and leave less."""
    public: Rate | None = None
    """Public prices of a GPU's hour, where the costs are of their median."""


def plan(run: RunSpec, folder: Path, sizes: Sizes, on_result: OnResult = report_nothing) -> Offers:
    """The fewest GPUs that are enough for a run, and the time and cost of its tokens. The runs are kept in `folder`.
    Raises PhantoraError."""
    clusters = clusters_of(sizes.gpu, sizes.most, sizes.per_host)
    request = one_run(replace(run, cluster=clusters[0]), folder, "plan")
    public = None if sizes.prices else rate_of(sizes.gpu, rental_prices())
    prices = sizes.prices or ({"": public.dollars} if public else {})
    request = replace(request, objective=Objective("speed", prices, sizes.margin))
    tried = list(offers(request, clusters, sizes.tokens, sizes.rate, on_result))
    fast = [one for one in tried if one.rate and one.rate >= (sizes.rate or 0.0)]
    enough = next((one for one in fast if one.row.room), None)
    passed_over = [one for one in fast if not one.row.room and (not enough or one.gpus < enough.gpus)]
    return Offers(tried, enough, passed_over, public)


def offers(
    request: Request, clusters: Iterable[str], work: float | None, least: float | None, on_result: OnResult
) -> Iterator[Offer]:
    """Runs the script on one cluster after the other, the smallest first, until one gets through `least` a second.
    `work`: tokens wanted in all. Raises PhantoraError for either where the tokens of a step are unknown, and for a run
    that fails for another reason than memory: it would on more GPUs, too."""
    for cluster in clusters:
        row = run_point(request, {"cluster": cluster}, on_result)
        point = row.entry.point
        if row.status == FAILED and row.entry.result is not None:
            raise PhantoraError(f"the script fails, so no size is known to be enough: {row.entry.result.error}")
        seconds = work / row.rate if work and row.rate else None
        price = request.objective.price(point)
        dollars = price * seconds / 3600 if price is not None and seconds is not None else None
        unit = request.objective.work(point, row.measured)[1] if row.measured else "tokens"
        if unit != "tokens" and (work or least):
            raise PhantoraError(
                f"{cluster}: the tokens of a step are unknown (the rate counts {unit}), so that --rate and "
                "--tokens cannot be answered; run it without them"
            )
        yield Offer(cluster=cluster, gpus=point.world, row=row, unit=unit, seconds=seconds, dollars=dollars)
        if least is not None and row.rate is not None and row.room and row.rate >= least:
            return


def clusters_of(gpu: str, most: int, per_host: int) -> list[str]:
    """Clusters of 1, 2, 4, ... GPUs up to `most`, at most `per_host` in a host: ``1x4xH100``."""
    found, count = [], 1
    while count <= most:
        hosts = -(-count // per_host)
        found.append(f"{hosts}x{min(count, per_host)}x{gpu}")
        count *= 2
    return found


def one_run(run: RunSpec, folder: Path, where: str, largest: str | None = None) -> Request:
    """A sweep of one run, with the option `largest` of its script as the axis, if any."""
    axes: dict[str, tuple[Value, ...]] = {CLUSTER: (run.cluster,)}
    arguments: dict[str, Spelling] = {}
    if largest:
        axes[largest], arguments[largest] = (1,), largest
    space = Space(where=where, run=unfolded_elsewhere(run), axes=axes, arguments=arguments)
    return Request(space=space, folder=folder, again=True, fold=ENDS, files=False)  # what failed may be fixed since
