"""The event log's columns, its metadata, and the tables that turn the engine's ids into text.

One Arrow IPC file per run. Rows are ordered by `end`; record batches hold :data:`BATCH_ROWS` rows
(the last may be shorter). The schema's metadata (key ``phantora``) is JSON of :class:`RunMetadata`,
equal for equal runs. What differs between equal runs (wall time, CPU time) is the *trailer*: JSON in
the custom metadata of a last batch without rows, since Arrow wants the footer's own metadata
before the first row is written.
"""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any

import pyarrow as pa

from phantora.wire import layout
from phantora.wire.places import Places

LOG_FORMAT = 3
READABLE = (2, 3)
BATCH_ROWS = 65_536
METADATA_KEY = b"phantora"
TRAILER_KEY = b"phantora.trailer"

IMPORTED_KINDS = ("call", "python")
"""Rows of hosts that only logs of real runs have: calls of CUDA, functions of Python."""
ENGINE_KINDS = tuple(name.lower() for name in layout.RowKind.names())
KINDS = (*ENGINE_KINDS, *IMPORTED_KINDS)
KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
COMMUNICATION_KINDS = ("collective", "sendrecv")
COPY_KINDS = ("memcpy", "memset")
OPTIMIZER_STEP = "Optimizer.step#"  # how names of the annotations of torch's optimizers begin
REAL = "real"
"""Host mode and provenance of logs of real runs, which ``phantora import`` makes."""
OOM = "oom"  # name of the memory row of an allocation that failed
RETRY = "retry"  # name of that of an allocation for which the allocator freed its cache
DEVICE_KINDS = ("kernel", *COPY_KINDS, *COMMUNICATION_KINDS)  # rows that occupy a GPU

_TEXT = pa.dictionary(pa.int32(), pa.utf8())
FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("kind", pa.dictionary(pa.int8(), pa.utf8())),
    ("rank", pa.int32()),
    ("stream", pa.int32()),
    ("name", _TEXT),
    ("start", pa.int64()),
    ("end", pa.int64()),
    ("launch", pa.int64()),
    ("ready", pa.int64()),
    ("id", pa.int64()),
    ("link", pa.int64()),
    ("op", _TEXT),
    ("shape", _TEXT),
    ("cls", _TEXT),
    ("provenance", _TEXT),
    ("algorithm", _TEXT),
    ("comm", pa.int32()),
    ("seq", pa.int64()),
    ("bytes", pa.int64()),
    ("flops", pa.float64()),
    ("value", pa.int64()),
    ("last_rank", pa.int32()),
    ("last_id", pa.int64()),
    ("error", pa.float32()),
)
COLUMNS = tuple(name for name, _ in FIELDS)
ADDED = {"error": 3}  # columns by the format that brought them; they stand last
TEXT_COLUMNS = tuple(name for name, kind in FIELDS if pa.types.is_dictionary(kind))

# Names of copies as Kineto (and thus HolisticTraceAnalysis) spells them, by member of wire.layout.Copy.
COPY_NAMES = {
    "H2D_PINNED": "Memcpy HtoD (Pinned -> Device)",
    "H2D_PAGEABLE": "Memcpy HtoD (Pageable -> Device)",
    "D2H_PINNED": "Memcpy DtoH (Device -> Pinned)",
    "D2H_PAGEABLE": "Memcpy DtoH (Device -> Pageable)",
    "D2D": "Memcpy DtoD (Device -> Device)",
    "P2P": "Memcpy PtoP (Device -> Device)",
    "H2H": "Memcpy HtoH (Pinned -> Pinned)",
}


@dataclass(kw_only=True)
class RunMetadata:
    """Facts about a run. Equal runs have equal metadata."""

    phantora: str = ""
    """Version of Phantora."""
    command: list[str] = field(default_factory=list)
    cluster: str = ""
    """As the user named it: ``2x8xH100``."""
    gpu: str = ""
    """Short name of the GPU: ``H100``."""
    world_size: int = 1
    ranks_per_host: int = 1
    peak_flops: dict[str, float] = field(default_factory=dict)
    """Dense FLOP/s of one GPU by data type (``bfloat16``)."""
    mfu_dtype: str = "bfloat16"
    """Type whose peak the MFU refers to."""
    memory_bytes: int = 0
    """Memory of one GPU."""
    torch: str = ""
    host_mode: str = "modelled"
    launch_latency_ns: int = 0
    """Time from a launch on the host to its earliest start on an idle GPU."""
    kernel_gap_ns: int = 0
    """Between two kernels back to back on a stream."""
    crowded_gap_ns: int = 0
    """Time between two kernels back to back on a stream while two or more other streams of the GPU have work."""
    cost_tables: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything else worth keeping, JSON types only."""
    format: int = LOG_FORMAT

    def to_json(self) -> str:
        """The metadata as JSON, the same text for the same run."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> RunMetadata:
        """The metadata in a JSON text; unknown names are left out. Raises ValueError for a value of another type."""
        blank = asdict(cls())
        found = {key: value for key, value in json.loads(text).items() if key in blank}
        for key, value in found.items():
            if not isinstance(value, type(blank[key])):
                raise ValueError(f"{key} cannot be {value!r}")
        return cls(**found)

    @property
    def places(self) -> Places:
        """The GPU of each rank."""
        per_host, sharing = max(1, self.ranks_per_host), self.extra.get("sharing", {})
        return Places(per_host, int(sharing.get("gpus_per_host", per_host)), bool(sharing.get("mps")))

    def gpu_of(self, rank: int) -> str:
        """Name of a rank's GPU, where the cluster has several kinds; else ""."""
        return str(self._kind_of(rank).get("gpu", ""))

    def memory_of(self, rank: int) -> int:
        """Bytes of a rank's GPU."""
        return int(self._kind_of(rank).get("memory_bytes", self.memory_bytes))

    def _kind_of(self, rank: int) -> dict[str, Any]:
        host = rank // max(1, self.ranks_per_host)
        for kind in self.extra.get("kinds", ()):
            if host < kind["hosts"]:
                return dict(kind)
            host -= kind["hosts"]
        return {}

    def where(self, rank: int) -> str:
        """The host of `rank`, and its GPU where other ranks have it too: ``host 0, GPU 1 shared``."""
        host = " ".join(filter(None, (f"host {rank // max(1, self.ranks_per_host)}", self.gpu_of(rank))))
        return f"{host}, GPU {self.places.gpu_of(rank)} shared" if self.places.shared else host

    @property
    def real(self) -> bool:
        """True for the log of a real run."""
        return self.host_mode == REAL

    @property
    def of_real(self) -> bool:
        """True for the log of a real run and for replays of it: its work began and ended anywhere."""
        return self.real or "imported" in self.extra

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of which the log has rows: of real runs those whose traces there are."""
        found = self.extra.get("imported", {}).get("ranks") or range(self.world_size)
        return tuple(int(rank) for rank in found)

    @property
    def missing(self) -> dict[str, str]:
        """Data that the traces of a real run do not contain -> the option of the profiler that adds it."""
        found = self.extra.get("imported", {}).get("missing", {})
        return dict(found) if isinstance(found, dict) else {}

    def peak(self) -> float | None:
        """FLOP/s that the MFU is measured against, or None if unknown."""
        return self.peak_flops.get(self.mfu_dtype)


@dataclass(frozen=True)
class PriceRow:
    """Facts of a price for every kernel of an operator. `flops` and `bytes` are totals of the
    operator; the log gives them to the kernel whose index is `main_part`."""

    cls: str
    provenance: str
    flops: float = 0.0
    _: KW_ONLY
    bytes: float = 0.0
    main_part: int = 0
    algorithm: str = ""
    error: float | None = None
    """Relative error bar of the durations: the true ones lie within it 9 times in 10; None when unknown."""


@dataclass
class Tables:
    """Texts behind the ids in ``wire.layout.Row``. The lists only grow; the simulator owns them."""

    names: list[str] = field(default_factory=list)
    signatures: list[tuple[str, str]] = field(default_factory=list)
    """Operator name and short text of its arguments: ``("aten::mm", "bf16[64,64], bf16[64,64]")``."""
    prices: list[PriceRow] = field(default_factory=list)


def arrow_schema(metadata: RunMetadata) -> pa.Schema:
    """Columns of the log, with the run's metadata."""
    return pa.schema(list(FIELDS), metadata={METADATA_KEY: metadata.to_json().encode()})
