"""Description of a run: every option once, as frozen data that goes to JSON and back.

A command line or ``phantora.run(...)`` makes a :class:`RunSpec`; ``phantora.run`` reads it. Ranks, and processes that
become ranks, get its :class:`RankSpec` in the environment variable :data:`VARIABLE`.
"""

from __future__ import annotations

import functools
import json
import os
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from phantora import defaults
from phantora.errors import PhantoraError

VARIABLE = "PHANTORA_RANK"
"""The :class:`RankSpec` of a rank, of what it starts, and of the processes of a command."""
SCRIPT, MODULE, COMMAND = "script", "module", "command"
AUTO, OFF = "auto", "off"
Spec = TypeVar("Spec", bound="_Json")


class _Json:
    """JSON of a data class whose fields are plain values, tuples of them, or such data classes."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def plain_fields(cls) -> list[str]:
        """Names of the fields that are no data classes."""
        types = typing.get_type_hints(cls)
        return [one.name for one in fields(cls) if not is_dataclass(types[one.name])]  # type: ignore[arg-type]

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
        return tuple(value)
    plain = typing.get_args(kind) or (kind,)
    if not isinstance(value, plain) and not (float in plain and type(value) is int):
        raise TypeError(f"{value!r} is not {kind}")
    return value


@dataclass(frozen=True)
class RankSpec(_Json):
    """Settings of every rank of a run: first the user's, then the place of the run, which ``phantora/runs`` and
    ``phantora/launch`` fill in."""

    seed: int = 0
    """Seeds `random` and NumPy of rank r with seed + r, so that runs repeat."""
    data_loading: str = "free"
    """Cost of a DataLoader's batch, as ``phantora.rank.patches.loading`` reads it."""
    disk: str = "1GB/s"
    """Rate of the disk of checkpoints, as ``phantora.rank.patches.disk`` reads it."""
    threads: int = 0
    """OMP_NUM_THREADS of the user; 0: not set."""
    moe_routing: str = "balanced"
    """Tokens per expert, as ``phantora.rank.routing`` reads it."""
    assume: tuple[str, ...] = ()
    """``KEY=VALUE``: what takes the place of unknown values (``phantora.rank.assume``)."""
    modules: bool = False
    """Log which ``nn.Module`` runs."""
    quiet: bool = False
    """Print no notes."""
    check: str = ""
    """``races``: report accesses to memory that nothing orders (``phantora.rank.patches.races``)."""
    devices: int = 1
    """GPUs that a rank sees: its host's, or, of several hosts, those that the job has there."""
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

    axes: str = AUTO
    """``off``, ``auto``, or the axes of the mesh with their sizes: ``pp=4,dp=64,tp=8``."""
    real_ranks: tuple[int, ...] = ()
    """More ranks that are processes."""


@dataclass(frozen=True)
class OutputSpec(_Json):
    """Places of a run's results."""

    path: str = ""
    """Path of the log (``.arrow``) or of a timeline next to it; "": named after the script."""
    force: bool = False
    """Replace an existing log at once."""
    recording: bool = True
    """Keep in the log what ``phantora replay`` needs."""
    flows: bool = False
    """Log every flow of the network, and what its links carry."""
    missing: str = ""
    """A file for the operators whose price is not measured."""


@dataclass(frozen=True)
class LaunchSpec(_Json):
    """torchrun's own options."""

    nnodes: str = AUTO
    nproc_per_node: str = AUTO
    role: str = "default"
    run_id: str = ""
    """"": a new one."""
    master_port: int = 0
    """0: any free port."""
    log_dir: str = ""
    redirects: str = "0"
    tee: str = "0"
    ranks_filter: str = ""
    """Local ranks whose output is shown; "": all."""


@dataclass(frozen=True)
class WhatIfSpec(_Json):
    """Changes to a cluster for one run, as ``phantora.sim.whatif`` reads them."""

    degrade: tuple[str, ...] = ()
    straggler: tuple[str, ...] = ()
    background: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSpec(_Json):
    """One run of a script, a module or a command on a simulated cluster."""

    target: str
    arguments: tuple[str, ...] = ()
    kind: str = SCRIPT
    """:data:`SCRIPT`, :data:`MODULE` (as ``python -m``) or :data:`COMMAND` (``torchrun ...``)."""
    cluster: str = defaults.CLUSTER
    """``HOSTSxGPUSxMODEL`` or the path of a .toml file."""
    gpu_memory: float | None = None
    """GiB of each GPU in place of its own."""
    processes_per_gpu: int = 1
    """Processes that may share a GPU at a time."""
    host: str | None = None
    """A host that ships, a .toml file, or a factor on the time of the default one; None: the cluster's."""
    host_time: str = "modelled"
    """``modelled``, ``measured`` or ``none``."""
    host_scale: float = 1.0
    """Factor on the CPU time of ``measured``."""
    unsupported: str = "error"
    """``error`` or ``warn``: what a call does that is not simulated."""
    hang_timeout: float = 30.0
    """Seconds in which nothing moves before the run counts as hung."""
    live: bool = False
    """Measure operators that no table has on this machine's GPU."""
    null: bool = False
    """Run on the stubs without simulating; writes no log."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once, before the ranks are forked."""
    ranks: RankSpec = field(default_factory=RankSpec)
    fold: FoldSpec = field(default_factory=FoldSpec)
    what_if: WhatIfSpec = field(default_factory=WhatIfSpec)
    launch: LaunchSpec = field(default_factory=LaunchSpec)
    output: OutputSpec = field(default_factory=OutputSpec)
