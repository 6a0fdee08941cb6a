"""Published attention of cuDNN next to the model: python -m validation.published.cudnn_attention FOLDER

FOLDER has the tables of github.com/NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results (MIT).

A step of the backward pass (`attention_backward_step_ns` of GB200 and GB300, and the forward step of heads of 192) is
the median of 4,096 and 16,384 tokens in bfloat16; other lengths are left out of it. FP8's share of a step is a median.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from phantora.cost import OperatorSignature, TensorSpec, model_for
from phantora.cost.tensors import contiguous_strides
from phantora.hardware import load_gpu

DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn"}
GRADIENTS = {"fp8": "float8_e5m2"}
"""Of outputs, where they have another type."""
FITTED = (4096, 16384)
NAME = "aten::_scaled_dot_product_cudnn_attention"


def read(folder: Path) -> pd.DataFrame:
    """All rows of whole sequences by cuDNN; `pass` and `ms` of each."""
    found = []
    for file in sorted(folder.rglob("*.csv")):
        rows = pd.read_csv(file)
        if "time_ms" in rows:
            found.append(rows.assign(way=rows.profile_pass, ms=rows.time_ms))
        else:
            rows = rows.assign(deterministic_bwd=False)
            found += [rows.assign(way=way, ms=rows[f"{way}_time_ms"]) for way in ("fwd", "bwd")]
    rows = pd.concat(found)
    whole = rows.sliding_window_size.isna() & (rows.q_seqlen == rows.kv_seqlen) & np.isfinite(rows.ms)
    return rows[whole & (rows.backend == "cudnn") & rows.success & ~rows.deterministic_bwd.astype(bool)]


def signature(row: pd.Series) -> OperatorSignature:
    """torch's operator of a row."""
    batch, length, causal = int(row.batch_size), int(row.q_seqlen), row.attn_mask == "top_left"

    def of(heads: int, width: int, dtype: str = DTYPES[row.data_type]) -> TensorSpec:
        shape = (batch, heads, length, width)
        return TensorSpec(dtype, shape, contiguous_strides(shape))

    q, k = (of(int(heads), int(row.head_dim_qk)) for heads in (row.num_q_heads, row.num_kv_heads))
    v = of(int(row.num_kv_heads), int(row.head_dim_vo))
    if row.way == "fwd":
        return OperatorSignature(NAME, (q, k, v, None, True, 0.0, causal, False))
    out, sums, seed = of(int(row.num_q_heads), int(row.head_dim_vo)), of(int(row.num_q_heads), 1, "float32"), None
    given = of(int(row.num_q_heads), int(row.head_dim_vo), GRADIENTS.get(row.data_type, out.dtype))
    args = (given, q, k, v, out, sums, seed, seed, None, None, None, length, length, 0.0, causal)
    return OperatorSignature(f"{NAME}_backward", args)


def errors(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Relative errors by GPU, format and pass, of lengths that no step is fitted to."""
    for _, row in rows[~rows.q_seqlen.isin(FITTED)].iterrows():
        name = row.gpu_name.removeprefix("NVIDIA ")
        price = model_for(load_gpu(name)).operator(signature(row), ())
        yield (name, row.data_type, row.way), sum(price.durations) / 1e6 / row.ms - 1.0


def main() -> None:
    """Prints a line for each GPU, format and pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    found: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for key, error in errors(read(parser.parse_args().folder)):
        found[key].append(error)
    print(f"{'GPU':<8}{'format':<10}{'pass':<6}{'rows':>5}{'mean':>8}{'median':>8}{'90 %':>8}   relative errors")
    for (gpu, dtype, way), off in sorted(found.items()):
        sizes = np.abs(off)
        print(
            f"{gpu:<8}{dtype:<10}{way:<6}{len(off):>5}{np.mean(off):>+8.1%}{np.median(sizes):>8.1%}"
            f"{np.quantile(sizes, 0.9):>8.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
