"""Description of a run: every option once, as frozen data that goes to JSON and back.

A field made by :func:`option` is an option: its default, help, unit, bounds and heading stand here.
``phantora/options.py`` makes from them the options of the command line, the keywords of ``phantora.run``, the words of
a command and a page. Ranks, and processes that become ranks, get the run's :class:`RankSpec` in the environment
variable :data:`VARIABLE`.
"""

from __future__ import annotations

import functools
import json
import os
import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, Field, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from phantora.errors import PhantoraError

VARIABLE = "PHANTORA_RANK"
"""The :class:`RankSpec` of a rank, of what it starts, and of the processes of a command."""
SCRIPT, MODULE, COMMAND = "script", "module", "command"
AUTO, ALWAYS, OFF, FREE = "auto", "always", "off", "free"
FOUND = (AUTO, ALWAYS)
"""Folds over the process groups of rank 0."""
Spec = TypeVar("Spec", bound="_Json")
Default = TypeVar("Default")


class _Json:
    """JSON of a data class whose fields are plain values, tuples of them, or such data classes."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls: type[Spec], text: str) -> Spec:
        """Reads the text of :meth:`to_json`. Missing fields have their defaults. Raises PhantoraError."""
        try:
            return _read(cls, json.loads(text))
        except (ValueError, TypeError) as error:
            raise PhantoraError(f"this is no {cls.__name__}: {error}") from error


def _read(cls: type[Spec], values: Mapping[str, Any]) -> Spec:
    if not isinstance(values, dict):
        raise TypeError(f"{values!r} is no object")
    known = {one.name for one in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(values.keys() - known):
        raise TypeError(f"unknown fields {', '.join(unknown)}")
    types = typing.get_type_hints(cls)
    return cls(**{name: _value(types[name], value) for name, value in values.items()})


def _value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        return _read(typing.cast("type[_Json]", kind), value)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        of = (typing.get_args(kind) or (None,))[0]
        return tuple(_value(of, one) for one in value) if is_dataclass(of) else tuple(value)
    plain = typing.get_args(kind) or (kind,)
    if not isinstance(value, plain) and not (float in plain and type(value) is int):
        raise TypeError(f"{value!r} is not {kind}")
    return value


# ---------------------------------------------------------------------- options

HEADINGS = (
    "Cluster and script",
    "Output",
    "Source of times",
    "Unknown values and calls",
    "Folding (fewer processes than GPUs)",
    "Faults of the cluster",
    "Checks",
    "Ranks' output and rendezvous, as torchrun",
)
"""Headings of ``phantora trace --help``, in order."""
_CLUSTER, _OUTPUT, _TIMES, _VALUES, _FOLD, _FAULTS, _CHECKS, _LAUNCH = HEADINGS

TRACE, REPLAY, FITS, PLAN = "trace", "replay", "fits", "plan"
COMPARE, SWEEP, CALIBRATE = "compare", "sweep", "calibrate"
RUNS = (TRACE, FITS, PLAN, COMPARE, SWEEP, CALIBRATE)
"""Commands that run a script."""
_ONE_LAYOUT = (TRACE, FITS, PLAN, COMPARE, CALIBRATE)
_OTHER_HARDWARE = (TRACE, FITS, PLAN, COMPARE, SWEEP)
_EVERY_RANK = (TRACE, FITS, PLAN, COMPARE)


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field is an option."""

    help: str
    heading: str
    name: str = ""
    """Name with underscores, the keyword in Python; "": the field's."""
    flags: tuple[str, ...] = ()
    """More spellings than ``--name``: a letter (``-c``), an old name."""
    metavar: str = ""
    """Stands for the value in the help."""
    unit: str = ""
    """Unit of a number."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    """All values of a text, where they are few."""
    unset: str = ""
    """Meaning of a default that names no value: ``any free port``."""
    type: str = ""
    """Type of the keyword in Python, where it is not the field's."""
    commands: tuple[str, ...] = RUNS
    """Commands that have the option."""
    hidden: bool = False


def option(default: Default, help: str, heading: str, **more: Any) -> Default:
    """A field with an :class:`Option`, whose other attributes are `more`."""
    about = Option(help=help, heading=heading, **more)
    return field(default=default, metadata={Option: about})


def option_of(one: Field[Any]) -> Option | None:
    """The option of a field; None for a field that is none."""
    found = one.metadata.get(Option)
    return found if isinstance(found, Option) else None


ASSUMPTIONS = {
    "choice": "spread (default: argmax, topk and sampling take other candidates in turn) or first",
    "mask": "the share of true elements in an unknown mask, 0 to 1 (default 0)",
    "nms": "the share of unknown boxes that torchvision's nms keeps, 0 to 1 (default 0.5)",
    "loss": "the value of losses, or FIRST:LAST:STEPS, which falls by equal factors per optimizer step (default 0)",
    "length": "tokens of a generated sequence: N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA[:MAX]",
    "eos": "the token that ends a sequence (default: the one that the program compares sampled tokens with)",
    "accept": "the share of accepted draft tokens, 0 to 1",
    "iterations": "N or N@FILE:LINE: an unknown flag or number at that line ends its loop at the N-th read (default 1)",
    "overflow": "N: the first N steps of a GradScaler overflow on unknown gradients and are skipped (default 0)",
    "clip": "always (default: unknown gradient norms exceed the clipping limit) or never",
}
"""Keys of ``--assume``, with their values."""
CHECKPOINTING, OFFLOAD, FSDP = REMEDIES = "checkpointing", "offload", "fsdp"
"""Values of ``--remedy``."""
WORST_BATCH, REMEDIED = " (--worst-batch)", " (--remedy "
"""End of an assumption about batches; before the remedy that ends an assumption about the model."""
TABLES, LIVE = "tables", "live"
ASKED, COUNTED = "asked", "counted"

# ---------------------------------------------------------------------- a run and its parts


@dataclass(frozen=True, kw_only=True)
class SlowDisk(_Json):
    """Disks that are slow for a time (``--fault``)."""

    hosts: str
    """A glob of hosts: ``h0``, ``*``."""
    start_ns: int
    end_ns: int
    factor: float
    """Share of their rate that is left."""


@dataclass(frozen=True, kw_only=True)
class RankSpec(_Json):
    """Settings of every rank of a run: first the user's, then the place of the run, which ``phantora/runs`` and
    ``phantora/launch`` fill in."""

    seed: int = option(
        0, "Seed random and NumPy of rank r with SEED + r.", _CLUSTER, metavar="SEED", low=0, commands=_ONE_LAYOUT
    )
    data_loading: str = option(
        AUTO,
        "Cost of a DataLoader's batch: auto (measured if the script waits for it), free, measured (its CPU time here, "
        "scaled to the simulated host), measured:X (X times its CPU time here), or a time such as 12ms.",
        _TIMES,
        metavar="COST",
    )
    script_threads: str = option(
        AUTO,
        "Background threads of the script: auto (those that take much of the time compete for Python's lock, and what "
        "they put into a queue is there no earlier than they could have made it), or free.",
        _TIMES,
        choices=(AUTO, FREE),
    )
    # 1GB/s: four ranks of a cloud VM wrote 2.2 GB with async_save, files synchronised, in 2.3 s.
    disk: str = option(
        "1GB/s",
        "Rate at which checkpoints are written and read: 2GB/s per host, 20GB/s,shared by the cluster, or free.",
        _TIMES,
        metavar="RATE",
    )
    garbage: str = option(
        ASKED,
        "Full garbage collections of Python that take time: asked (gc.collect()), or counted (also those that Python's "
        "counters begin).",
        _TIMES,
        choices=(ASKED, COUNTED),
    )
    moe_routing: str = option(
        "balanced",
        "Tokens per expert of a mixture of experts: balanced, zipf:S, a .json file with shares per layer, or framework "
        "(the framework's own routing, on values of 0).",
        _VALUES,
        metavar="R",
    )
    assume: tuple[str, ...] = option(
        (),
        "Replace unknown values: " + "; ".join(f"{key}={text}" for key, text in ASSUMPTIONS.items()) + ".",
        _VALUES,
        metavar="KEY=VALUE",
    )
    worst_batch: bool = option(
        False,
        "Give every batch of torch's DataLoaders the longest samples of their datasets.",
        _VALUES,
        commands=(TRACE, FITS),
    )
    remedy: str = option(
        "",
        "Change the script's use of memory: checkpoint its repeated layers, keep their activations on the host, or "
        "shard what it replicates by DDP.",
        _VALUES,
        choices=REMEDIES,
    )
    modules: bool = option(
        False,
        "Log time, flops and memory by nn.Module, forward and backward. Costs no virtual time.",
        _OUTPUT,
        commands=(TRACE,),
    )
    check: str = option(
        "",
        "Report accesses to memory that nothing orders: reads of pinned memory before a copy has ended, tensors on "
        "other streams without an event or record_stream.",
        _CHECKS,
        choices=("races",),
        commands=(TRACE,),
    )
    quiet: bool = False
    """Print no notes."""
    threads: int = 0
    """OMP_NUM_THREADS of the user; 0: not set."""
    per_gpu: bool = False
    """The script runs once per GPU: one that starts its ranks itself is to be run once instead."""
    slow_disks: tuple[SlowDisk, ...] = ()
    """Faults of disks."""
    devices: int = 1
    """GPUs that a rank sees: its host's, or, of several hosts, those that the job has there."""
    python_ns: float = 0.0
    """Time of a call of ``phantora.python_probe.python`` on the simulated host, ns."""
    cores: int = 0
    """Logical CPUs that scripts see; 0: those of this machine."""
    host_cores: int = 0
    """Logical CPUs of the simulated host, which may be more than this machine has memory for workers."""
    session: str = ""
    """Path of the run's shared memory."""
    stubs: str = ""
    """Folder of the stub libraries."""
    processes: str = ""
    """The ranks of a folded run that are processes, as ``phantora.fold.ranges`` writes them; "": all are."""
    groups: str = ""
    """A file for the process groups that rank 0 makes before it ends with its first large communication."""
    pieces: str = ""
    """A file for how many pieces of an optimizer each rank has; rank 0 writes it before it ends."""
    failures: str = ""
    """A file to which a rank that fails appends a line (``phantora.rank.failures``)."""
    tasks: str = ""
    """A file for the clocks at which Ray's tasks are submitted and end (``phantora.rank.shims.ray``)."""
    joined: bool = False
    """The process was started by a rank: it sees GPUs, and every GPU belongs to another process."""
    place: int = -1
    """The rank that the process has become by itself: what it starts with the same RANK is not that rank once more."""


@functools.lru_cache(maxsize=2)
def _rank_spec(text: str) -> RankSpec:
    return RankSpec.from_json(text) if text else RankSpec(moe_routing="framework")


def rank_spec() -> RankSpec:
    """The spec of this process; outside of a run the defaults, with a framework's own routing."""
    return _rank_spec(os.environ.get(VARIABLE, ""))


@dataclass(frozen=True)
class FoldSpec(_Json):
    """Selection of the ranks that are processes (docs/scale.md)."""

    axes: str = option(
        AUTO,
        "Run some ranks of a mesh as processes; they represent the others. AXES: the axes of the mesh with their "
        "sizes, largest stride first (pp=4,dp=64,tp=8). A pipeline (pp) runs all its stages. After a size, :all runs "
        "all ranks (tp=8:all), :first runs the first rank, :uneven compares communication only. auto: fold over rank "
        "0's process groups if the ranks do not fit this machine's memory. always: fold a mesh of more than 8 ranks.",
        _FOLD,
        name="fold",
        metavar="auto|always|off|AXES",
        commands=_ONE_LAYOUT,
    )
    _: KW_ONLY
    real_ranks: tuple[int, ...] = option(
        (), "More ranks of a folded run that are processes.", _FOLD, metavar="R,...", commands=_ONE_LAYOUT
    )


@dataclass(frozen=True)
class OutputSpec(_Json):
    """Places of a run's results."""

    path: str = option(
        "",
        "Timeline file; the suffix sets the format: .perfetto, .pftrace, .json, .json.gz or .arrow. The event log has "
        "the same name with the suffix .arrow.",
        _OUTPUT,
        name="output",
        flags=("-o",),
        metavar="PATH",
        unset="SCRIPT.arrow, or SCRIPT-2.arrow and so on if it exists",
        type="str | os.PathLike[str] | None",
        commands=(TRACE, REPLAY),
    )
    _: KW_ONLY
    force: bool = option(
        False,
        "Replace the log that -o names even if the run fails. By default a failed run keeps the log of one that did "
        "not fail, and its own is NAME.partial.arrow.",
        _OUTPUT,
        commands=(TRACE, REPLAY),
    )
    recording: bool = option(
        True, "Include the recording for `phantora replay` in the log.", _OUTPUT, commands=(TRACE, REPLAY)
    )
    flows: bool = option(
        False, "Log all network flows and the traffic of each link.", _OUTPUT, commands=(TRACE, REPLAY)
    )
    samples: int = option(
        0,
        "Simulate N more steps with the noise of hosts, GPUs and links; print their spread.",
        _OUTPUT,
        metavar="N",
        low=0,
        high=100_000,
        unset="none",
        commands=(TRACE, REPLAY, COMPARE),
    )
    missing: str = option(
        "",
        "Write the unmeasured operators to FILE, for `phantora profile`.",
        _OUTPUT,
        metavar="FILE",
        commands=(TRACE,),
    )


@dataclass(frozen=True, kw_only=True)
class LaunchSpec(_Json):
    """torchrun's own options, with the same meaning."""

    nnodes: str = option(
        AUTO,
        "Hosts to use.",
        _CLUSTER,
        metavar="N",
        unset="all of the cluster",
        type="int | str | None",
        commands=(TRACE, CALIBRATE),
    )
    nproc_per_node: str = option(
        AUTO,
        "Ranks per host.",
        _CLUSTER,
        metavar="N",
        unset="its GPUs",
        type="int | str | None",
        commands=(TRACE, CALIBRATE),
    )
    ray: str = option(
        "",
        "Run the ranks on the nodes of a Ray cluster: auto or HOST:PORT.",
        _CLUSTER,
        metavar="ADDRESS",
        unset="this machine",
        commands=_EVERY_RANK,
    )
    working_dir: str = option(
        "",
        "Ship this folder, with the current one in it, to the nodes of --ray.",
        _CLUSTER,
        metavar="DIR",
        unset="none: the nodes share the current folder",
        commands=_EVERY_RANK,
    )
    role: str = option("default", "Role of the ranks.", _LAUNCH, hidden=True, commands=(TRACE,))
    run_id: str = option(
        "",
        "The run's id (TORCHELASTIC_RUN_ID).",
        _LAUNCH,
        name="rdzv_id",
        metavar="ID",
        unset="a new one",
        commands=(TRACE,),
    )
    master_port: int = option(
        0, "Port of the TCPStore.", _LAUNCH, metavar="PORT", low=0, high=65535, unset="any free one", commands=(TRACE,)
    )
    log_dir: str = option(
        "", "Write the ranks' output to DIR/RUN_ID/attempt_0/RANK/.", _LAUNCH, metavar="DIR", commands=(TRACE,)
    )
    redirects: str = option(
        "0",
        "Streams that go to files instead of the console (1 stdout, 2 stderr, 3 both, or RANK:N,...).",
        _LAUNCH,
        flags=("-r",),
        metavar="N",
        commands=(TRACE,),
    )
    tee: str = option("0", "Streams that go to files as well.", _LAUNCH, flags=("-t",), metavar="N", commands=(TRACE,))
    ranks_filter: str = option(
        "",
        "Show the output of these local ranks only.",
        _LAUNCH,
        name="local_ranks_filter",
        metavar="R,...",
        commands=(TRACE,),
    )


@dataclass(frozen=True, kw_only=True)
class WhatIfSpec(_Json):
    """Changes to a cluster for one run, as ``phantora.sim.whatif`` reads them."""

    degrade: tuple[str, ...] = option(
        (),
        "Reduce links of this name (a glob) to FACTOR of their bandwidth.",
        _FAULTS,
        metavar="LINK=FACTOR[@TIME|@optimizerN]",
        commands=(*_OTHER_HARDWARE, REPLAY),
    )
    straggler: tuple[str, ...] = option(
        (),
        "Multiply the kernel times of rank R by FACTOR.",
        _FAULTS,
        metavar="rank=R:FACTOR",
        commands=(*_OTHER_HARDWARE, REPLAY),
    )
    background: tuple[str, ...] = option(
        (),
        "Add foreign traffic from GPU SRC to GPU DST, such as '0->8=10GB/s'.",
        _FAULTS,
        metavar="SRC->DST=RATE",
        commands=(*_OTHER_HARDWARE, REPLAY),
    )
    fault: tuple[str, ...] = option(
        (),
        "For DURATION from TIME on: the GPU of rank R is slow (rank=R:FACTOR), links of this name (a glob) keep FACTOR "
        "of their bandwidth (LINK=FACTOR) or lose packets (LINK=loss:SHARE), disks keep FACTOR of their rate "
        "(disk=FACTOR, or h0.disk=FACTOR of host 0).",
        _FAULTS,
        metavar="TIME,DURATION,WHAT",
        commands=(*_OTHER_HARDWARE, REPLAY),
    )
    power_cap: float | None = option(
        None,
        "Limit the power of each GPU, as `nvidia-smi -pl` does.",
        _FAULTS,
        metavar="WATTS",
        unit="W",
        low=1,
        unset="the GPU's",
        commands=(*_OTHER_HARDWARE, REPLAY),
    )


@dataclass(frozen=True)
class RunSpec(_Json):
    """One run of a script, a module or a command on a simulated cluster."""

    target: str
    arguments: tuple[str, ...] = ()
    kind: str = SCRIPT
    """:data:`SCRIPT`, :data:`MODULE` (as ``python -m``) or :data:`COMMAND` (``torchrun ...``)."""
    _: KW_ONLY
    cluster: str = option(
        "1x1xH100",
        "HOSTSxGPUSxMODEL, for example 2x8xH100, or the path of a .toml file.",
        _CLUSTER,
        flags=("-c",),
        metavar="SPEC",
        commands=(TRACE, FITS),
    )
    processes_per_gpu: int = option(
        1,
        "Let N processes share each GPU at a time: they take turns, or run concurrently under MPS.",
        _CLUSTER,
        metavar="N",
        low=1,
        commands=(TRACE, FITS, CALIBRATE),
    )
    gpu_memory: float | None = option(
        None,
        "Override the GPU memory in GiB, for example to find the need of a run that does not fit.",
        _CLUSTER,
        metavar="GIB",
        unit="GiB",
        low=1,
        unset="the GPU's",
        commands=_OTHER_HARDWARE,
    )
    preload: tuple[str, ...] = option((), "Import MODULE once, before the ranks fork.", _CLUSTER, metavar="MODULE")
    daemon: bool = option(
        True,
        "Fork the ranks from a daemon that has imported torch; the first run starts it, and it ends after 10 idle "
        "minutes.",
        _CLUSTER,
    )
    host: str | None = option(
        None,
        "Host CPU model: a built-in name, a .toml file of `phantora profile host` or `phantora calibrate` (whose "
        "operators and collectives count on the same GPU), or a multiplier of `default` (1.5 = 50 % slower) or of "
        "another built-in host (NAME:1.5).",
        _TIMES,
        flags=("--calibration",),
        metavar="NAME|FILE|FACTOR",
        unset="the host of the cluster's file, else default",
        commands=(*_OTHER_HARDWARE, REPLAY),
    )
    host_time: str = option(
        "modelled",
        "Source of the host time: the host model, this machine's CPU time, or none.",
        _TIMES,
        choices=("modelled", "measured", "none"),
        commands=_OTHER_HARDWARE,
    )
    host_scale: float = option(
        1.0, "Multiply the host time, modelled or measured, by X.", _TIMES, metavar="X", low=0, commands=_OTHER_HARDWARE
    )
    profile: str = option(
        TABLES,
        "Source of kernel times: tables and models, or also this machine's GPU, which measures each unmeasured "
        "operator once.",
        _TIMES,
        choices=(TABLES, LIVE),
    )
    unsupported: str = option(
        "error", "Effect of a call that Phantora does not cover.", _VALUES, choices=("error", "warn")
    )
    hang_timeout: float = option(
        30.0, "Report a hang after SECONDS without progress.", _CHECKS, metavar="SECONDS", unit="s", low=1
    )
    null: bool = option(
        False, "Run on the stubs without simulation or log: the lower bound of benchmarks.", _TIMES, commands=(TRACE,)
    )
    output: OutputSpec = field(default_factory=OutputSpec)
    ranks: RankSpec = field(default_factory=RankSpec)
    fold: FoldSpec = field(default_factory=FoldSpec)
    what_if: WhatIfSpec = field(default_factory=WhatIfSpec)
    launch: LaunchSpec = field(default_factory=LaunchSpec)


def unfolded_elsewhere(spec: RunSpec) -> RunSpec:
    """The run, of which every rank is a process if they run on other nodes. A fold that the user names stays."""
    return replace(spec, fold=FoldSpec(OFF)) if spec.launch.ray and spec.fold.axes in FOUND else spec
