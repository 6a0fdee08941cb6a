"""Tables of published products, and their errors: python -m validation.published.nvidia_products AICONFIGURATOR

AICONFIGURATOR is a folder of measurements from github.com/ai-dynamo/aiconfigurator (Apache-2.0), one folder per GPU
with files KIND_FRAMEWORK_VERSION_FILE. It prints the errors of products that are left out. Only with ``--write`` the
tables go to ``phantora/cost/data/published``.

How the times were taken (collector/trtllm/collect_gemm.py there): replays of a CUDA graph of linear layers, whose
weights rotate over as many copies as exceed L2, and whose input stays. So weights come from memory and the input from
L2. In FP8 and FP4 a layer quantises its input first. Corrections:

- FP8: less the published times of its two quantising operators (compute_scale, scale_matrix) of the same input.
- FP8 in blocks on Blackwell (MXFP8) and NVFP4: less the published scale_matrix, by the bytes that each writes.
- No product is faster than its peak, or than a fifth of the time that was measured.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from phantora.cost.machine import Machine
from phantora.cost.published import FORMATS, KEY, SCHEMA, STEPS, Grid
from phantora.cost.table_files import DATA
from phantora.hardware import load_gpu
from validation.published.nvidia_attention import attention_factors
from validation.published.nvidia_files import FOLDERS, only

SOURCE = "github.com/ai-dynamo/aiconfigurator at 095f58a51 (2026-08-21), Apache-2.0, {file}"
NAMES = {"bfloat16": "bfloat16", "fp8": "float8", "fp8_block": "mxfp8", "nvfp4": "nvfp4"}
MICROSCALED = (10, 0)  # GPUs from there on, but for those of workstations, run FP8 in blocks as MXFP8
WORKSTATION = (12, 0)
WRITTEN = {"mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16}  # bytes of an element, with its scale
READ = 2.0  # bytes of an element before
LEAST_SHARE = 0.2
HELD_OUT, TESTED, SEED = 0.1, 1500, 0


class Products:
    """Published products of one GPU and format: extents (m, n, k), and ns after the correction and before."""

    def __init__(self, extents: np.ndarray, ns: np.ndarray, raw: np.ndarray) -> None:
        self.extents, self.ns, self.raw = extents, ns, raw


def quantising(folder: Path, kind: str) -> dict[tuple[int, int], float]:
    """ns of a quantising operator by rows and columns of its input; empty where it was not measured."""
    files = sorted(folder.glob(f"quantize_trtllm_*_{kind}_perf.parquet"))
    if not files:
        return {}
    columns = pq.read_table(files[-1], columns=["m", "k", "latency"]).to_pydict()
    return {(m, k): 1e6 * ms for m, k, ms in zip(columns["m"], columns["k"], columns["latency"], strict=True)}


def products(folder: Path, gpu_name: str) -> dict[str, Products]:
    """Products by format."""
    gpu = load_gpu(gpu_name)
    machine = Machine(gpu)
    rows = pq.read_table(
        only(folder, "gemm_trtllm_*"), columns=["gemm_dtype", "kernel_source", "m", "n", "k", "latency"]
    ).to_pandas()
    scale, compute = (quantising(folder, kind) for kind in ("scale_matrix", "computescale"))
    found = {}
    for theirs, name in NAMES.items():
        part = rows[rows.gemm_dtype == theirs].groupby(["m", "n", "k"], as_index=False).latency.min()
        microscaled = MICROSCALED <= gpu.compute_capability < WORKSTATION
        if part.empty or (name == "mxfp8" and not microscaled):
            continue
        extents = part[["m", "n", "k"]].to_numpy(np.int32)
        raw = part.latency.to_numpy() * 1e6
        inputs = [(int(m), int(k)) for m, _, k in extents]
        extra = np.zeros(len(raw))
        if name == "float8":
            extra = np.array([scale[i] + compute[i] for i in inputs])
        elif name in WRITTEN:
            extra = np.array([scale[i] for i in inputs]) * (READ + WRITTEN[name]) / (READ + 1.0)
        m, n, k = extents.astype(float).T
        least = np.maximum(2.0 * m * n * k / machine.peak(FORMATS[name].dtype), LEAST_SHARE * raw)
        found[name] = Products(extents, np.maximum(raw - extra, least), raw)
    return found


def left_out(gpu_name: str, name: str, p: Products) -> dict[str, np.ndarray]:
    """Relative errors of products left out: a tenth of them at random, and all rows of a twentieth of weights."""
    rng = np.random.default_rng(SEED)
    machine = Machine(load_gpu(gpu_name))
    weights, which = np.unique(p.extents[:, 1:], axis=0, return_inverse=True)
    kinds = {
        "rows": rng.random(len(p.ns)) < HELD_OUT,
        "weights": (rng.random(len(weights)) < HELD_OUT / 2)[which.reshape(-1)],
    }
    errors = {}
    for kind, out in kinds.items():
        grid = Grid(machine, FORMATS[name], p.extents[~out], p.ns[~out])
        tested = rng.permutation(np.flatnonzero(out))[:TESTED]
        predicted = np.array([grid.read(*map(int, p.extents[i]))[0] for i in tested])
        errors[kind] = np.abs(predicted / p.ns[tested] - 1.0)
    return errors


@dataclass(frozen=True)
class Head:
    """Facts of a file in addition to its rows: their source, errors by format, factors of attention by head."""

    about: dict[str, str]
    errors: dict[str, float]
    attention: dict[str, dict[str, float]]


def write(path: Path, head: Head, found: dict[str, Products]) -> None:
    """Rows in an order in which neighbours are similar."""
    parts = []
    for name, p in found.items():
        order = np.lexsort((p.extents[:, 0], p.extents[:, 2], p.extents[:, 1]))
        m, n, k = p.extents[order].T
        time = np.round(np.log2(p.ns[order]) * STEPS).astype(np.int16)
        parts.append(pa.table([pa.array([name] * len(m)).dictionary_encode(), m, n, k, time], names=SCHEMA.names))
    table = pa.concat_tables([part.cast(SCHEMA) for part in parts]).unify_dictionaries()
    table = table.replace_schema_metadata({KEY: orjson.dumps(asdict(head))})
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=["format", "m", "n", "k"],
        column_encoding={"time": "BYTE_STREAM_SPLIT"},
    )


def main() -> None:
    """Prints a line for each GPU and format; writes files only with ``--write``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", choices=FOLDERS, help="only this one's")
    parser.add_argument("--write", action="store_true", help="replace the tables that Phantora reads")
    args = parser.parse_args()
    print(f"{'GPU':<14}{'format':<10}{'products':>9}  left out: rows (median, 90 %)  weights (median, 90 %)")
    for folder, gpu_name in FOLDERS.items():
        if args.gpu not in (None, folder):
            continue
        found, errors = products(args.folder / folder, gpu_name), {}
        for name, p in found.items():
            tests = left_out(gpu_name, name, p)
            figures = [(np.median(e), np.quantile(e, 0.9)) for e in tests.values()]
            errors[name] = round(float(max(p90 for _, p90 in figures)), 3)
            shown = "".join(f"{median:>14.1%}{p90:>8.1%}    " for median, p90 in figures)
            print(f"{gpu_name:<14}{name:<10}{len(p.ns):>9}  {shown}", flush=True)
        if not args.write:
            continue
        gpu = load_gpu(gpu_name)
        file = only(args.folder / folder, "gemm_trtllm_*")
        about = {"gpu": gpu.product, "source": SOURCE.format(file=f"{folder}/{file.name}")}
        path = DATA / "published" / f"{gpu.name.lower()}.parquet"
        write(path, Head(about, errors, attention_factors(args.folder / folder, gpu)), found)


if __name__ == "__main__":
    main()
