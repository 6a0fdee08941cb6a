"""Kernels that others measured: published times of a GPU for which the package has no table of its own.

A grid holds products by the logarithms of their rows, columns and inner extents. The module
``validation/published/nvidia_products.py`` writes it and states what it corrects. The ratio of its times to a smooth
function of work and traffic changes slowly with the extents, so it is interpolated between the nearest of them.
Batches and groups are read as one product of all rows.

Attention's forward pass is a sum of parts whose factors were fitted to published times
(``validation/published/nvidia_attention.py``), without what else the published operators do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from phantora.cost import kriging
from phantora.cost.families import gemm
from phantora.cost.families.attention import Attention
from phantora.cost.family import Prediction
from phantora.cost.kriging import Floats
from phantora.cost.machine import Machine, format_of
from phantora.cost.parquet import read_columns
from phantora.cost.tensors import HALVES
from phantora.errors import PhantoraError
from phantora.hardware.types import Gpu

KEY = b"phantora.published_products"
STEPS = 128  # of a logarithm to base 2, in which times are stored: 0.3 % at most are lost
NEAREST = 32  # members that count
SCALE = 3.0  # octaves over which ratios resemble each other
NOISE = 0.1  # of a member, relative to how far ratios spread
SOFTENING = 0.05  # octaves
SMOOTH_START_NS, REACHED, STREAMED = 2000.0, 0.7, 0.8  # the smooth function: start, shares of peak, bandwidth
OVERLAP = 3.0  # of work and traffic in it
LEAST_QUERIES = 16  # of published attention
SCHEMA = pa.schema(
    [
        ("format", pa.dictionary(pa.int8(), pa.utf8())),
        ("m", pa.int32()),
        ("n", pa.int32()),
        ("k", pa.int32()),
        ("time", pa.int16()),
    ]
)


def smooth_ns(machine: Machine, dtype: str, item: float, m: Floats, n: Floats, k: Floats) -> Floats:
    """A start, then work and traffic that overlap; `item`: bytes of an element of the operands."""
    work = 2.0 * m * n * k / (machine.peak(dtype) * REACHED)
    moved = (m * k + k * n) * item + 2.0 * m * n
    traffic = moved / (machine.gpu.hbm_bandwidth / 1e9 * STREAMED)
    found: Floats = SMOOTH_START_NS + (work**OVERLAP + traffic**OVERLAP) ** (1.0 / OVERLAP)
    return found


@dataclass(frozen=True)
class Format:
    """A format of products: the dtype at whose peak they run, and bytes of an element."""

    dtype: str
    item: float


FORMATS = {
    "bfloat16": Format("bfloat16", 2.0),
    "float8": Format("float8", 1.0),
    "mxfp8": Format("float8", 1.0),
    "nvfp4": Format("float4", 0.5),
}


class Grid:
    """The published times of one format."""

    def __init__(self, machine: Machine, format: Format, extents: npt.NDArray[np.int32], ns: Floats) -> None:
        self._machine, self._format = machine, format
        self._at: Floats = np.log2(extents.astype(float))
        self._ratio: Floats = np.log(ns / self._smooth(extents.astype(float)))

    def _smooth(self, extents: Floats) -> Floats:
        m, n, k = extents.T
        return smooth_ns(self._machine, self._format.dtype, self._format.item, m, n, k)

    def read(self, m: int, n: int, k: int) -> tuple[float, float]:
        """ns of a product, and the octaves to the nearest that was measured."""
        extents = np.array([[m, n, k]], float)
        away = np.sqrt(((self._at - np.log2(extents)) ** 2).sum(axis=1))
        count = min(NEAREST, len(away))
        nearest = np.argpartition(away, count - 1)[:count]
        places, ratio, near = self._at[nearest], self._ratio[nearest], away[nearest]
        first = int(near.argmin())
        if near[first] == 0.0:
            return float(self._smooth(extents)[0] * np.exp(ratio[first])), 0.0
        weight = (near + SOFTENING) ** -2.0
        mean = float(weight @ ratio / weight.sum())
        between = kriging.matern(np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2)) / SCALE)
        solved = kriging.solve(between, ratio - mean, NOISE**2)
        log_ratio = mean + float(kriging.matern(near / SCALE) @ solved)
        return float(self._smooth(extents)[0] * np.exp(log_ratio)), float(near[first])


@dataclass(frozen=True, kw_only=True)
class AttentionFit:
    """ns of parts of a causal forward pass, of heads of one size."""

    start: float
    token_head: float
    """Time of a token in one head of queries."""
    beyond: float
    """Time of a byte by which operands exceed L2."""
    head: float
    """Time of one head of one sequence."""
    row: float
    """Time of a token of the sequence: the longest row of blocks."""
    square: float
    """Time of the square of the sequence, in one head."""
    error: float
    """Relative: nine of ten published kernels that were left out of the fit lie within."""

    def ns(self, a: Attention, l2_bytes: int) -> float:
        """The whole pass. Without a mask there are twice as many scores."""
        squares = a.square * (1.0 if a.causal else 2.0)
        beyond = max(0.0, a.moved - l2_bytes)
        sequences = a.batch * a.heads
        return (
            self.start
            + self.token_head * sequences * a.queries
            + self.beyond * beyond
            + self.head * sequences
            + self.row * a.queries
            + self.square * squares
        )


class Published:
    """The published products and attention of one GPU; attention by head."""

    def __init__(
        self,
        gpu: Gpu,
        about: dict[str, str],
        errors: dict[str, float],
        rows: pa.Table,
        attention: dict[int, AttentionFit],
    ) -> None:
        self.about = about
        self._machine = Machine(gpu)
        self._errors = errors
        self._rows = rows
        self._attention = attention

    @property
    def text(self) -> str:
        """Measured kernels and their software, for the log."""
        return f"{self.about['gpu']}, published: {self.about['source']}"

    @cached_property
    def _grids(self) -> dict[str, Grid]:
        names = np.array(self._rows["format"].to_pylist())
        extents = np.stack([np.asarray(self._rows[name]) for name in "mnk"], axis=1)
        ns = np.exp2(np.asarray(self._rows["time"]) / STEPS)
        return {
            name: Grid(self._machine, FORMATS[name], extents[names == name], ns[names == name])
            for name in dict.fromkeys(names.tolist())
        }

    def read(self, p: gemm.Product) -> Prediction | None:
        """ns of the product, however it is batched; None where arithmetic or extents have nothing comparable.

        A format of tensor cores without a grid takes the share of its model that bfloat16 takes of its own.
        """
        if min(p.m, p.n, p.k, p.batch) < 1 or p.dtype in self._machine.gpu.power.without_tensor_cores:
            return None
        name = self._grid_of(p)
        dtype = p.dtype if name != "bfloat16" or p.dtype == "float16" else "bfloat16"
        whole = replace(p, m=p.m * p.batch, batch=1, dtype=dtype, alignment=gemm.ALIGNED, sms=0)
        if dtype == "bfloat16":
            whole = replace(whole, in_bytes=2, out_bytes=2)
        ns, distance = self._grids[name].read(whole.m, whole.n, whole.k)
        if whole != p:
            ns *= gemm.product_ns(self._machine, p) / gemm.product_ns(self._machine, whole)
        return Prediction(ns, distance, self._errors[name] * (1.0 + max(0.0, distance - 1.0)))

    def attention(self, a: Attention) -> Prediction | None:
        """ns of a forward pass over whole sequences in 16 bits; None for another."""
        native = self._machine.gpu.attention_kind in ("", a.kind)
        plain = not (a.backward or a.dropout or a.bias) and a.queries == a.keys and a.head == a.value_head
        if not (self._attention and native and plain and a.dtype in HALVES) or a.queries < LEAST_QUERIES:
            return None
        heads = sorted(self._attention)
        found = [self._attention[head].ns(a, self._machine.gpu.l2_bytes) for head in heads]
        ns = float(np.interp(a.head, heads, found)) * max(1.0, a.head / heads[-1])
        ns = max(ns, self._machine.memory_ns(a.moved))
        nearest = min(heads, key=lambda head: abs(head - a.head))
        octaves = abs(np.log2(a.head / nearest))
        return Prediction(ns, float(octaves), self._attention[nearest].error * (1.0 + float(octaves)))

    def _grid_of(self, p: gemm.Product) -> str:
        arithmetic = format_of(p.dtype)
        if arithmetic == "float4" and "nvfp4" in self._grids:
            return "nvfp4"
        if arithmetic in ("float4", "float8"):
            wanted = "mxfp8" if p.shared_by else "float8"
            return next((name for name in (wanted, "float8") if name in self._grids), "bfloat16")
        return "bfloat16"


def load(folder: Path, gpu: Gpu) -> Published | None:
    """The published products of `gpu` among the files in `folder`; None if there are none.

    Raises PhantoraError for a file that is none of published products.
    """
    path = folder / f"{gpu.name.lower()}.parquet"
    if not path.exists():
        return None
    try:
        head = orjson.loads((pq.read_schema(path).metadata or {})[KEY])
        rows = read_columns(path, SCHEMA.names).select(SCHEMA.names).cast(SCHEMA)
        about = {str(key): str(value) for key, value in head["about"].items()}
        errors = {str(key): float(value) for key, value in head["errors"].items()}
        attention = {int(head): AttentionFit(**parts) for head, parts in head.get("attention", {}).items()}
    except (OSError, KeyError, AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        raise PhantoraError(f"{path} holds no published products: {error}; install the package anew") from error
    return Published(gpu, about, errors, rows, attention)
