"""Device memory that cuDNN's plans of convolutions ask for: a Parquet file per GPU, a row per convolution.

They lie in a folder ``workspaces`` next to the tables of kernel times and are found, like these, by the GPU they were
measured on. What they were measured with (GPU, driver, torch, CUDA, cuDNN) stands in their metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from phantora.cost.parquet import read_columns
from phantora.cost.table import SUFFIX
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu
from phantora.hardware.types import Gpu

FORMAT = 1
FOLDER = "workspaces"
# In the order of wire.layout's ConvForm, ConvType and ConvLayout.
FORMS = ("fwd", "dgrad", "wgrad")
TYPES = ("tf32", "f32", "bf16", "f16")
LAYOUTS = ("nchw", "nhwc")
_KEY = b"phantora.workspaces"
_WORD = pa.dictionary(pa.int8(), pa.utf8())
_EXTENTS = pa.list_(pa.int32())
_SCHEMA = pa.schema(
    [
        ("form", _WORD),
        ("type", _WORD),
        ("layout", _WORD),
        ("x", _EXTENTS),
        ("w", _EXTENTS),
        ("stride", _EXTENTS),
        ("padding", _EXTENTS),
        ("dilation", _EXTENTS),
        ("usual", pa.int64()),
        ("largest", pa.int64()),
    ]
)
_WORDS = {"form": FORMS, "type": TYPES, "layout": LAYOUTS}
_FLOATS = {"bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True, order=True, kw_only=True)
class Convolution:
    """Parameters that decide a plan's workspace."""

    form: str
    """``fwd``, ``dgrad`` (gradient of the input) or ``wgrad`` (of the filters)."""
    type: str
    """``tf32``, ``f32``, ``bf16`` or ``f16``."""
    layout: str
    """``nchw``, or ``nhwc``: channels last."""
    x: tuple[int, ...]
    """Extents of the input: batch, channels, then the sizes."""
    w: tuple[int, ...]
    """Extents of the filters: number, channels of each, then the taps."""
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclass
class Bytes:
    """Bytes that plans of a convolution ask for; None where not measured."""

    usual: int | None = None
    """The plan that cuDNN's heuristics put first."""
    largest: int | None = None
    """The plan that asks for most of those that ``torch.backends.cudnn.benchmark`` tries."""


@dataclass(frozen=True)
class Workspaces:
    """A table, and what it was measured with."""

    about: Mapping[str, str]
    table: pa.Table
    path: str = ""

    @property
    def described(self) -> str:
        """For the log's metadata."""
        a = self.about
        return f"{Path(self.path).name}: {a.get('gpu')}, torch {a.get('torch')}, cuDNN {a.get('cudnn')}"

    def rows(self) -> dict[Convolution, Bytes]:
        """Bytes of workspace by convolution."""
        found = {}
        for row in self.table.to_pylist():
            taken = Bytes(row.pop("usual"), row.pop("largest"))
            extents = {name: tuple(row[name]) for name in ("x", "w", "stride", "padding", "dilation")}
            found[Convolution(form=row["form"], type=row["type"], layout=row["layout"], **extents)] = taken
        return found

    def columns(self) -> Iterator[dict[str, npt.NDArray[np.int64]]]:
        """The table as arrays, those of tensors with as many dimensions together.

        Words are indices in FORMS, TYPES and LAYOUTS, extents have a column per dimension, bytes are -1 where they were
        not measured.
        """
        dims = pc.list_value_length(self.table["x"])
        for count in pc.unique(dims).to_pylist():
            part = self.table.filter(pc.equal(dims, count))
            arrays = {name: _indices(part[name], words) for name, words in _WORDS.items()}
            for name in ("x", "w", "stride", "padding", "dilation"):
                flat = part[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
                arrays[name] = flat.astype(np.int64).reshape(len(part), -1)
            for name in ("usual", "largest"):
                arrays[name] = part[name].fill_null(-1).to_numpy()
            yield arrays


def _indices(column: pa.ChunkedArray, words: Sequence[str]) -> npt.NDArray[np.int64]:
    indices: npt.NDArray[np.int64] = pc.index_in(column.cast(pa.utf8()), pa.array(words)).to_numpy().astype(np.int64)
    return indices


def convolution_of(signature: OperatorSignature, compute: str) -> Convolution | None:
    """The convolution that a call of cuDNN's forward operator, or of the backward one for one gradient, comes to.

    `compute` is ``tf32`` or ``f32`` and counts in single precision. None for other operators and data types.
    """
    args: Sequence[Any] = signature.args
    if signature.name == "aten::cudnn_convolution":
        form, x, w, padding, stride, dilation = "fwd", *args[:5]
    elif signature.name == "aten::convolution_backward" and not args[7]:  # not transposed
        x, w, stride, padding, dilation = args[1], args[2], *args[4:7]
        form = {(True, False): "dgrad", (False, True): "wgrad"}.get((bool(args[10][0]), bool(args[10][1])), "")
    else:
        return None
    if not isinstance(x, TensorSpec) or not isinstance(w, TensorSpec) or not form:
        return None
    kind = _FLOATS.get(x.dtype) or (compute or "f32" if x.dtype == "float32" else "")
    if kind not in TYPES:
        return None
    last = x.stride[1] == 1 and max(x.shape[1:]) > 1  # as the stub reads a tensor's layout
    return Convolution(
        form=form,
        type=kind,
        layout=LAYOUTS[last],
        x=tuple(x.shape),
        w=tuple(w.shape),
        stride=tuple(map(int, stride)),
        padding=tuple(map(int, padding)),
        dilation=tuple(map(int, dilation)),
    )


def write_workspaces(path: Path, about: Mapping[str, str], rows: Mapping[Convolution, Bytes]) -> None:
    """Writes a table in one move. Raises PhantoraError when the file cannot be written."""
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for convolution, taken in sorted(rows.items(), key=lambda item: item[0]):
        for name, value in {**vars(convolution), **vars(taken)}.items():
            columns[name].append(value)
    table = pa.table(columns, schema=_SCHEMA)
    table = table.replace_schema_metadata({_KEY: orjson.dumps({"format": FORMAT, **about})})
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, part, compression="zstd", compression_level=15)
        part.replace(path)
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {error}; choose another file") from error


def read_workspaces(path: Path) -> Workspaces:
    """The table in `path`. Raises PhantoraError with the file and the reason when it is not one."""
    try:
        return _read(path, path.stat().st_mtime_ns)
    except FileNotFoundError as error:
        raise PhantoraError(f"{path}: no table of workspaces at this path") from error
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise PhantoraError(f"{path}: no table of workspaces, or a broken one ({first}); measure it anew") from error


@lru_cache(maxsize=4)
def _read(path: Path, _stamp: int) -> Workspaces:
    """Kept, since a run is simulated again for other hosts."""
    table = read_columns(path, _SCHEMA.names)
    about = _about(path, table.schema)
    table = table.select(_SCHEMA.names).cast(_SCHEMA)
    _check(table)
    return Workspaces(about, table, str(path))


def _check(table: pa.Table) -> None:
    for name in ("usual", "largest"):
        if (pc.min(table[name]).as_py() or 0) < 0:
            raise ValueError("a negative number of bytes")
    for name, words in _WORDS.items():
        unknown = set(pc.unique(table[name].cast(pa.utf8())).to_pylist()) - set(words)
        if unknown:
            raise ValueError(f"{name} {', '.join(map(str, unknown))}")
    dims, *others = (
        pc.list_value_length(table[name]).to_numpy() for name in ("x", "w", "stride", "padding", "dilation")
    )
    wanted = (dims, dims - 2, dims - 2, dims - 2)
    if not all(np.array_equal(length, right) for length, right in zip(others, wanted, strict=True)):
        raise ValueError("extents that do not belong together")
    if (dims < 3).any():
        raise ValueError("a convolution without extents")


def _about(path: Path, schema: pa.Schema) -> dict[str, str]:
    text = (schema.metadata or {}).get(_KEY)
    if text is None:
        raise PhantoraError(f"{path} is a Parquet file, but no table of workspaces")
    about = orjson.loads(text)
    version = about.pop("format")
    if version != FORMAT:
        raise PhantoraError(f"{path} has version {version} of the format, and {FORMAT} is known; measure it anew")
    return {str(key): str(value) for key, value in about.items()}


def workspaces_for(gpu: Gpu, folders: Sequence[Path]) -> Workspaces | None:
    """The tables of `gpu` in `folders` as one, the rows of earlier folders first, then those of GPUs of the same
    compute capability, most similar memory first; None without any. These take almost the same plans: 94 of 7,365
    convolutions ask for other bytes on an H100 than on an H200 (some were measured on one only).

    Raises PhantoraError for a file that is no table.
    """
    paths = [path for folder in folders for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}"))]
    products = [(path, _about(path, pq.read_schema(path)).get("gpu", "")) for path in paths]
    own = [path for path, product in products if product == gpu.product]
    others = [(path, _gpu(product)) for path, product in products if product != gpu.product]
    near = [
        (abs(other.hbm_bandwidth / gpu.hbm_bandwidth - 1), path)
        for path, other in others
        if other is not None and other.compute_capability == gpu.compute_capability
    ]
    found = [read_workspaces(path) for path in [*own, *(path for _, path in sorted(near))]]
    if not found:
        return None
    return Workspaces(found[0].about, pa.concat_tables([one.table for one in found]), found[0].path)


def _gpu(product: str) -> Gpu | None:
    try:
        return load_gpu(product)
    except PhantoraError:
        return None  # a user's own GPU without a description here: it can be no other's stand-in
