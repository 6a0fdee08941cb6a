"""The report of a run: the data that the terminal, JSON, CSV and the pages are all made from.

Times are integer or mean nanoseconds, sizes bytes, bandwidths bytes/s, shares 0 to 1, unless a field
says otherwise; keys of the JSON end in the unit. ``docs/analysis.md`` says what each number means and
where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import orjson

from phantora.json_data import Bytes, BytesPerSecond, IntNs, MeanBytes, Ns, encode
from phantora.trace.analysis.assumptions import Assumption
from phantora.trace.analysis.faults import Faulty
from phantora.trace.analysis.fit import Fit
from phantora.trace.analysis.garbage import Collections
from phantora.trace.analysis.hosts import OtherHosts
from phantora.trace.analysis.mfu import MfuBasis
from phantora.trace.analysis.phases import Role
from phantora.trace.analysis.races import Race
from phantora.trace.analysis.spread import Spread
from phantora.trace.schema import RunMetadata

REPORT_FORMAT = 3

# Why no compute ran. Together with `Times.compute` the causes make up the whole of a stretch.
CAUSES = {
    "transfer": "communication moves data and nothing computes",
    "late rank": "a collective's kernel waits for its last rank",
    "pipeline bubble": "a send or receive waits for its partner",
    "copy": "memory copies and sets alone",
    "host": "nothing is launched: the host computes, loads data or launches slowly",
    "synchronisation": "the host has not launched it, as it waited for the GPU",
    "dependency": "the next kernel waits for an event of another stream",
    "launch gap": "between two kernels, or from a launch to its kernel",
    "end": "nothing more to run in this stretch",
}


@dataclass(kw_only=True)
class Times:
    """Time of a stretch by use; means over ranks if it stands for several.

    Terms are HolisticTraceAnalysis': *compute* is the time in which at least one kernel that is not
    communication runs; *communication* that of NCCL kernels, their wait for peers included;
    *overlapped* the time of both; *exposed* communication without compute; *copy* copies next to
    neither; *idle* nothing at all. compute + exposed + copy + idle == time.
    """

    DERIVED: ClassVar = ("overlap",)

    time: Ns = 0
    compute: Ns = 0
    communication: Ns = 0
    overlapped: Ns = 0
    exposed: Ns = 0
    copy: Ns = 0
    idle: Ns = 0
    waiting: Ns = 0
    """Part of the NCCL kernels' time that passed before the last peer had arrived; sum over kernels."""
    stalls: dict[str, Ns] = field(default_factory=dict)
    """Time without compute by cause (:data:`CAUSES`); its sum is time - compute."""
    flops: float = 0
    recomputed_flops: float = 0
    """Part of `flops` that activation checkpointing computes again."""
    mfu: float | None = None
    """Model FLOPs utilization, without recomputed flops."""
    hfu: float | None = None
    """Hardware FLOPs utilization, with recomputed flops."""
    peak_allocated: Bytes = 0
    """Bytes the framework had allocated at most; the largest rank's."""
    peak_reserved: Bytes = 0

    @property
    def host(self) -> float:
        """ns without compute before the host has launched the next kernel, synchronisations included."""
        return self.stalls.get("host", 0.0) + self.stalls.get("synchronisation", 0.0)

    @property
    def overlap(self) -> float | None:
        """Share of communication that compute hides."""
        return self.overlapped / self.communication if self.communication else None


@dataclass(kw_only=True)
class StepTimes:
    """One step, of one rank or over ranks."""

    number: int
    name: str
    start: IntNs
    end: IntNs
    times: Times
    note: str = ""
    """Why the step does not stand for the others (start-up, evaluation, checkpoint, more work, less work, waits); empty
    for a steady one."""


@dataclass
class RankReport:
    """Activity of one rank's GPU. Times are ns."""

    rank: int
    gpu: Times
    _: KW_ONLY
    """Times from the rank's first device activity to its last, or the part that the filters leave."""
    steps: list[StepTimes] = field(default_factory=list)
    by_class: dict[str, Ns] = field(default_factory=dict)
    """Sum of device time by class of work in steady steps, waits for peers left out."""
    by_provenance: dict[str, Ns] = field(default_factory=dict)
    slower: Ns = 0.0
    """Time of a step by which its kernels take longer than those of the median rank; ns."""


DECIDING_SHARE = 0.1
WIDE_ERROR = 0.5  # relative error bar of what is bounded rather than modelled


@dataclass(kw_only=True)
class UnmeasuredOperator:
    """An operator, or a kernel of none, whose price is not measured. Sums over the steady steps and all ranks."""

    operator: str
    shape: str
    provenance: str
    error: float | None
    """Relative error bar of its price."""
    time: Ns
    share: float
    """Share of the time of all kernels."""

    @property
    def decides(self) -> bool:
        """True if a step depends on it, or may, with almost nothing known of it."""
        error = WIDE_ERROR if self.error is None else self.error
        return error >= WIDE_ERROR and self.share * max(1.0, error) > DECIDING_SHARE


@dataclass(kw_only=True)
class Exposure:
    """Exposed communication of one kind, and what waited for it. Mean per rank and step."""

    comm: int
    group: str
    collective: str
    """Name of the NCCL kernel."""
    waited_by: str
    """Operator of the first kernel that computes afterwards; empty when there is none."""
    exposed: Ns
    late_rank: Ns
    """Part of it in which the last rank had not arrived."""

    @property
    def transfer(self) -> float:
        """ns in which data moves."""
        return self.exposed - self.late_rank


@dataclass
class Delay:
    """Time without compute by one cause. Mean per rank and step."""

    name: str
    """``late rank 3``, ``host``, ``all_gather``."""
    cause: str
    """Key of :data:`CAUSES`."""
    time: Ns
    _: KW_ONLY
    slower: Ns = 0.0
    """ns by which the kernels of a late rank take longer than those of the median rank. `time` is what the ranks wait
    for it, on average; as a rule a step becomes shorter by more if it is fixed, as waiting collectives slow others."""
    rank: int | None = None
    """The late rank, of the row of one."""
    gain: Ns | None = None
    """ns by which a step is shorter without the factor of ``--straggler`` on a late rank's kernels, simulated; None for
    others."""


@dataclass
class HostWait:
    """Time that the GPU waits for the host while an annotation is open there, or a long operator outside of those. Mean
    per rank and step."""

    name: str
    """``DataLoader``, ``Optimizer.step on the CPU``, ``aten::copy_``, the user's own; empty outside of these."""
    time: Ns


@dataclass
class HostBound:
    """Steps of a real run that are longer than others because the GPU waits for the host."""

    steps: int
    of: int
    """Number of steady steps."""
    share: float
    """Share of the time of all steady steps in which the GPU waits for the host."""


@dataclass
class Loss:
    """Share of the GPU's peak that the kernels of a class do not reach."""

    name: str
    """Class of work."""
    flops: bool
    """True if the kernels of the class have flops; else all of their time is lost."""
    share: float


@dataclass
class HostOperator:
    """An operator in a log without work of a GPU. Sums over the log."""

    name: str
    shape: str
    count: int
    time: Ns | None
    """On the host, operators inside included; None in an execution trace, which has no times."""


@dataclass(kw_only=True)
class Work:
    """Device time of one kind of work. Sums over the ranks and steps reported on."""

    name: str
    cls: str
    count: int
    time: Ns
    """Waits for peers left out."""
    shortest: Ns
    """A call, ns."""
    longest: Ns
    share: float
    """Share of all device time."""
    flops: float
    at_peak: Ns
    """Time of the flops at the GPU's peak in the format of each call's first tensor."""
    bytes: MeanBytes
    provenance: str
    """The provenance of most of its time."""


@dataclass(kw_only=True)
class CollectiveReport:
    """Collectives of one kind and size class on one communicator, per rank and call."""

    comm: int
    group: str
    name: str
    algorithm: str
    ranks: int
    count: int
    """Calls of one rank, summed over ranks."""
    bytes: MeanBytes
    """Mean bytes of a call, in the rank's own view (docs/collectives.md)."""
    wait: Ns
    """Mean time from the kernel's start to the last rank's arrival."""
    transfer: Ns
    algorithm_bandwidth: BytesPerSecond | None
    """bytes / transfer."""
    bus_bandwidth: BytesPerSecond | None
    """The algorithm's, times the factor that nccl-tests use for this collective."""
    skew: Ns
    """Mean time between the first and the last rank's arrival."""
    skew_max: Ns
    last: int
    """The rank that most often arrives last."""
    last_share: float


@dataclass
class Straggler:
    """Time that others waited in collectives for this rank: each call's wait is charged to its last arrival."""

    rank: int
    caused: Ns
    """Sum over calls of the longest wait of a peer, per step."""
    waited: Ns
    """Mean per step that this rank itself waited for others."""
    last: int
    """Calls in which it came last by more than a microsecond."""


@dataclass(kw_only=True)
class StreamReport:
    """A stream's gaps between two rows, by HolisticTraceAnalysis' definition. Sums over all that is reported on."""

    rank: int
    stream: int
    name: str
    """``stream 7 (NCCL dp_shard)``."""
    busy: IntNs
    host_wait: IntNs
    """The next row was launched after the one before had ended."""
    kernel_wait: IntNs
    """Other gaps below 30 us."""
    other: IntNs
    """The stream waited for another, as a rule."""


@dataclass(kw_only=True)
class LinkReport:
    """A directed link of the network, from link rows. Means per steady step."""

    name: str
    bandwidth: BytesPerSecond
    """Bandwidth of the link; the highest, if it changed."""
    bytes: MeanBytes
    busy: Ns
    """Time in which it carried anything."""
    utilisation: float
    """Bytes over what the link could have carried in a step."""
    peak: float
    """Highest share of its bandwidth in use at any time."""


@dataclass(kw_only=True)
class MemoryBlock:
    """Equal blocks at the peak: what made them, and what they hold."""

    category: str
    operator: str
    """Operator that ran at the allocation; empty outside of operators."""
    shape: str
    bytes: Bytes
    count: int
    site: str = ""
    """FILE:LINE of the innermost Python code outside torch; ``autograd`` below nodes written in C++; empty for small
    blocks and in logs that do not tell."""
    module: str = ""
    """The nn.Module whose forward or backward pass ran (`phantora trace --modules`)."""


@dataclass
class FailedAllocation:
    """The first allocation of a rank that failed."""

    time: IntNs
    bytes: Bytes
    """Asked for; 0 in logs that do not tell."""
    site: str


@dataclass(kw_only=True)
class MemoryReport:
    """A rank's memory: the framework's own account of it."""

    rank: int
    peak_time: IntNs
    peak_step: int | None
    peak_allocated: Bytes
    peak_reserved: Bytes
    capacity: Bytes
    by_category: dict[str, Bytes]
    """Bytes alive at the peak: parameters, gradients, optimizer, activations, checkpoints, communication, workspaces,
    other; and, reserved by the allocator without being allocated then, fragmentation."""
    timeline: list[tuple[IntNs, Bytes, Bytes]]
    """(time, allocated, reserved): the highest of each of at most 500 stretches of time."""
    timeline_by_category: dict[str, list[Bytes]]
    """Bytes of each category at the highest level of each of these stretches."""
    largest: list[MemoryBlock]
    """Largest blocks at the peak."""
    out_of_memory: bool
    """An allocation failed."""
    failed: FailedAllocation | None
    lowest_peak: Bytes
    """The peak is between this and `highest_peak` (``watchdog_uncertainty.py``)."""
    highest_peak: Bytes
    retries: int
    """Number of times that the allocator freed its cache to meet an allocation (``num_alloc_retries`` of torch)."""
    by_module: dict[str, Bytes]
    """Bytes alive at the peak by the nn.Module that allocated them; empty without `phantora trace --modules`."""
    kept_by: str
    """What keeps most of the bytes of "kept": ``leak.py:27 (outs)``; "" where nothing is kept."""
    passes: str = ""
    """Where memory ran out: ``checkpoints`` if torch.utils.checkpoint is in use, ``activations without gradients``,
    ``activations of an evaluation``, ``activations of passes without a backward``; else ""."""
    expected: Bytes = 0
    """Where memory ran out: gradients and state that the optimizers were still to make."""


_FAR = 100  # times the iterations that were seen


@dataclass(kw_only=True)
class Growth:
    """Memory that a rank has allocated more of after each iteration, or after each few."""

    rank: int
    bytes: Bytes
    """In `every` iterations."""
    every: int
    """Iterations."""
    place: str
    """What keeps it: ``leak.py:27 (outs)``, then `GRAPH` if a graph is; where it is allocated, if that is unknown:
    ``train.py:9``; or ""."""
    kept: bool
    """`place` is what keeps it."""
    full: int
    """Iteration in which the GPU's memory is used up, from 1; of a run that ended so its last."""
    larger: bool
    """Each iteration replaces what is kept by larger blocks, as in a cache of keys and values."""
    seen: int
    """Iterations of the run."""

    @property
    def far(self) -> bool:
        """The GPU is full only after iterations for which the run does not show that memory goes on growing."""
        return self.full > _FAR * self.seen


@dataclass
class Recompiled:
    """A function that torch.compile compiled more than once."""

    function: str
    """``step at train.py:6``."""
    count: int
    """Compilations after the first."""
    time: Ns
    """Time of the host for them, their backward passes included."""
    reasons: list[str]
    """Guards that failed, in their order: ``tensor 'x' size mismatch at index 0. expected 8, actual 16``."""


@dataclass(kw_only=True)
class PathSegment:
    """A stretch of the critical path. Segments of a path follow each other without gap."""

    start: IntNs
    end: IntNs
    rank: int
    stream: int
    """-1 on the host."""
    cls: str
    name: str


@dataclass(kw_only=True)
class CriticalPath:
    """The critical path: a walk from the end of a step back through the recorded dependencies.

    It leads from the end of the rank that ends last to the beginning of the step; `length` is the sum
    of its segments and equals `time`.
    """

    step: int
    time: IntNs
    length: IntNs
    start_rank: int
    end_rank: int
    by_class: dict[str, IntNs]
    by_rank: dict[int, IntNs]
    by_collective: dict[str, IntNs]
    by_host: dict[str, IntNs]
    """Host time on the path by the operator or annotation that ran."""
    gain: dict[str, IntNs] | None
    """Time by which the step would be shorter if the class took no time: the longest path is computed anew, with all
    other durations and recorded dependencies. Computed for the step of median length and for a step asked for alone,
    None for others."""
    segments: list[PathSegment]


@dataclass
class Throughput:
    """Rates of the job, if the log shows them (``throughput.py``); 0 if not."""

    tokens_per_step: float
    tokens_per_second: float
    samples_per_step: float
    samples_per_second: float
    tokens_of_rank: float
    """Tokens of a step of the rank that sees most."""
    _: KW_ONLY
    read: bool = False
    """No step has a backward pass. The tokens are those that the embedding reads, which a generation without a cache of
    keys and values has again for each new one."""


@dataclass
class Energy:
    """Energy of the job's GPUs in steady steps, by the power model (``energy.py``)."""

    watts: float
    """Power of one GPU, on average."""
    joules_per_step: float
    """Energy of all GPUs."""
    joules_per_token: float | None
    """None where the log shows no tokens."""


@dataclass
class Cost:
    """Cost of the job at the price of a GPU's hour."""

    dollars_per_gpu_hour: float
    dollars_per_step: float
    dollars_per_million_tokens: float | None
    """None where the log shows no tokens."""


UNEQUAL = 1.3
"""Times the shortest steady step that the longest takes: from here on steps are said to differ."""


@dataclass(kw_only=True)
class Headline:
    """The numbers that people read first. Of the steady steps; times in ns."""

    step_time: Ns
    """Time of a settled step, as ``steady.time``: the mean over the steady steps and the ranks; if the run ends before
    its GPUs' power limiters settle, that of the settled steps by the power model (``settling.py``)."""
    waits: HostBound | None
    """None in logs of simulated runs, and where no steps stand out."""
    lowest: Ns
    highest: Ns
    steps: int
    """Number of steady steps; 0 if all have start-up: a single one, or of two the second, if it is host-bound."""
    mean: Ns
    """Mean of all steps but those of start-up, compilation, tuning and settling: with evaluations, checkpoints and the
    rollouts between updates."""
    settled: bool
    """The run lasts until the power limiters have settled; else `step_time` is predicted, and `lowest` and `highest`
    are those of its last step."""
    short: Ns
    """ns of steps by which the run is too short to settle, where nothing predicts the settled step; else 0."""
    error: float | None
    """Relative error bar of the step time, and of what follows from it: the true one lies between 1 - `error` and 1 +
    `error_above` times it in 9 cases of 10."""
    error_above: float | None
    """Larger where a slower host would be the limit."""
    widest: str
    """What widens the error bar most: ``host``, ``fold``, ``data``, ``cpu``, or a class of work and its provenance,
    ``gemm, scaled``."""
    uneven: Ns | None
    """ns by which the step may be longer since ranks that are no processes have other parts of an optimizer; None where
    none have. The error bar holds it."""
    hosts: OtherHosts | None
    """The step time on other hosts."""
    spread: Spread | None
    """Samples of the step; None without `--samples`."""
    mfu: float | None
    """MFU of the whole job: the median of the steps' flops over the step time and the GPUs' peak, without those that
    activation checkpointing computes again."""
    hfu: float | None
    """HFU of the whole job, with recomputed flops."""
    throughput: Throughput | None
    energy: Energy | None
    """None in logs without power rows."""
    without_data: Ns | None
    """The step as it is simulated, where `step_time` has the CPU time of its data too, which no row of the log has
    (``data.py``); else None."""
    apart: dict[str, list[int]]
    """Steps that do not stand for the others, by what they contain."""
    cost: Cost | None = None
    """None without a price."""


@dataclass
class PeakRange:
    """The peak of a rank's allocated memory, and its range by the timing of NCCL's watchdog
    (``watchdog_uncertainty.py``)."""

    rank: int
    allocated: Bytes
    lowest: Bytes
    highest: Bytes


@dataclass
class SharedGpu:
    """A GPU with several processes at a time."""

    gpu: int
    """Counted over all hosts."""
    ranks: list[int]
    mps: bool
    """Their kernels run concurrently; else the processes take turns."""


def shared_gpus(metadata: RunMetadata) -> list[SharedGpu]:
    """The GPUs that several processes share."""
    places = metadata.places
    if not places.shared:
        return []
    gpus = metadata.world_size // places.ranks_per_host * places.gpus_per_host
    found = (SharedGpu(gpu, list(places.ranks_of(gpu)), places.mps) for gpu in range(gpus))
    return [one for one in found if len(one.ranks) > 1]


@dataclass(kw_only=True)
class Report:
    """The results of a log, for texts, pages and JSON. Times are ns, memory is bytes."""

    path: str
    complete: bool
    """False if the run failed, was interrupted, or was killed before it closed its log."""
    failure: str = ""
    """Why the run failed, with what to do: the last line that it printed. Empty if it did not."""
    metadata: dict[str, Any]
    trailer: dict[str, Any]
    rows: int
    step_source: str
    """The source of the steps: ``optimizer``, ``profiler``, ``dataloader``, ``annotation NAME``, ``backward``,
    ``pattern``, ``run`` or ``time``."""
    may_be_layers: bool = False
    """The steps are found by repetition, without a backward pass and a wait of the host."""
    headline: Headline
    ranks: list[RankReport]
    steps: list[StepTimes]
    """Steps over all ranks: times are means, memory is the largest rank's."""
    steady: Times
    """Mean over the steady steps: those without a note."""
    by_class: dict[str, float]
    """Shares of device time in steady steps, summing to 1."""
    by_provenance: dict[str, float]
    exposure: list[Exposure] = field(default_factory=list)
    """Exposed communication, largest first; its sum is ``steady.exposed``."""
    host_waits: list[HostWait] = field(default_factory=list)
    """Host-bound time by annotation, longest first; their sum is ``steady.host``."""
    delays: list[Delay] = field(default_factory=list)
    """Time without compute by cause, largest first; its sum is ``steady.time - steady.compute``."""
    losses: list[Loss] = field(default_factory=list)
    """What kernels lose of the GPU's peak, largest first: with `delays` over the step's time and the MFU they make up
    1. Empty where the MFU is unknown."""
    mfu: MfuBasis | None = None
    """What the MFU counts; None where it is unknown."""
    unmeasured: list[UnmeasuredOperator] = field(default_factory=list)
    """The costliest operators that are not measured."""
    assumptions: list[Assumption] = field(default_factory=list)
    """Values that the program read and that are unknown, with what was taken for them."""
    races: list[Race] = field(default_factory=list)
    """Races of a run with ``--check races``."""
    host_time: Ns = 0.0
    """ns that the host works for a steady step, waits left out; of the slowest rank."""
    phases: list[Role] = field(default_factory=list)
    """Time of each role in the phases of a reinforcement-learning loop after its first step; empty for other runs."""
    shared_gpus: list[SharedGpu] = field(default_factory=list)
    """GPUs that several processes share, and with them their memory; empty where every rank has its own."""
    recompiles: list[Recompiled] = field(default_factory=list)
    """Functions that torch.compile compiled again, of the rank that did it longest; the longest first."""
    faults: list[Faulty] = field(default_factory=list)
    """Faults of the run (``--fault``)."""
    garbage: Collections | None = None
    """Full collections of Python's garbage within steps; None without any."""
    growth: Growth | None = None
    """Growth of the rank whose memory grows most from iteration to iteration; None if none does."""
    host_operators: list[HostOperator] = field(default_factory=list)
    """Operators of the host, longest or most frequent first: of a log without work of a GPU all, else those that run on
    tensors of the CPU for 100 us or more, by line (``CPU operators at train.py:6``)."""
    without_gpu: bool = False
    """The log has no work of a GPU, and no step: its times of steps and GPUs are 0."""
    peak: PeakRange | None = None
    """Peak of the rank whose peak may be highest; None without memory rows."""
    details: Details | None = None
    """None in the short form that ends a run."""
    format: int = REPORT_FORMAT


@dataclass(kw_only=True)
class Details:
    """Additions of `phantora analyze` to the times."""

    findings: list[str]
    """The delays of the steps as text, largest first."""
    kernels: list[Work]
    operators: list[Work]
    classes: list[Work]
    modules: list[Work]
    """Work by innermost annotation that was open at the launch; torch by itself records no module."""
    collectives: list[CollectiveReport]
    stragglers: list[Straggler]
    streams: list[StreamReport]
    links: list[LinkReport]
    """The most used first; empty when the log has no link rows (`phantora trace --flows` writes them)."""
    memory: list[MemoryReport]
    fit: Fit | None
    """None when the log has no memory rows."""
    critical_paths: list[CriticalPath]
    graphs: bool
    """The log has launches of CUDA graphs."""


def to_json(report: Report, more: Mapping[str, Any] | None = None) -> str:
    """`report` as JSON, with the derived `overlap` next to the times it comes from, and `more` data classes."""
    data = encode(report) | {name: encode(value) for name, value in (more or {}).items()}
    return orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
