"""Time of a step of attention where it was published: python -m validation.published.nvidia_attention DIR

DIR is the folder of ``nvidia_products.py``. Forward passes of a causal mask in bfloat16 are a sum, by least squares of
relative errors: a start, parts for tokens, heads of queries and heads of keys (rotary embedding and writing of the
cache, which the published operator does, too), the square of the sequence for every head, its longest row, and
bytes beyond L2. The square's part is ``attention_step_ns`` of the GPU's file; a step is 128 x 64 scores on one SM.

The last columns say how far the whole sum is from the published times of the rows that were left out of it, and how
far the package's price with the other parts added is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from phantora.cost import OperatorSignature, TensorSpec, model_for
from phantora.cost.tensors import contiguous_strides
from phantora.hardware import load_gpu
from phantora.hardware.types import Gpu
from validation.published.nvidia_files import FOLDERS, OURS, only

FLASH = ("a100_sxm", "l40s", "rtx_pro_6000_server")  # where the engine's kernels are FlashAttention-2, torch's own
HEADS = (64, 128, 256)
ROUNDS = 4000  # of the multiplicative updates that keep all parts positive
LEFT_OUT, PRICED, SEED = 0.2, 300, 0
KERNEL_START_NS = 4000.0
CUDNN, FLASH_ATTENTION = (f"aten::_scaled_dot_product_{name}_attention" for name in ("cudnn", "flash"))


def positive_fit(parts: np.ndarray, whole: np.ndarray, known: np.ndarray | float = 0.0) -> np.ndarray:
    """Factors, none negative, with which `parts` and what is `known` add up to `whole`, by least squares of relative
    errors."""
    a = parts / whole[:, None]
    scale: np.ndarray = a.max(axis=0)
    a = a / scale
    x, square = np.full(a.shape[1], 1e-3), a.T @ a
    target = np.maximum(a.T @ (1.0 - known / whole), 1e-30)
    for _ in range(ROUNDS):
        x *= target / np.maximum(square @ x, 1e-30)
    return np.asarray(x / scale)


def rows_of(folder: Path, head: int) -> pd.DataFrame:
    """Forward passes in bfloat16 with a causal mask and no window."""
    name = "attention_vllm_*" if folder.name in FLASH else "attention_trtllm_*"
    rows = pq.read_table(only(folder, name)).to_pandas()
    rows = rows[(rows.attn_dtype == "bfloat16") & (rows.kv_cache_dtype == "bfloat16") & (rows.head_dim == head)]
    rows = rows[(rows.isl > 1) & ~rows.kernel_source.str.contains("flashinfer")]
    return rows[rows.window_size == 0] if "window_size" in rows else rows


def parts_of(gpu: Gpu, rows: pd.DataFrame, head: int) -> np.ndarray:
    """The parts of the sum; those from the fifth on are the attention's."""
    b, s, h, kv = (rows[c].to_numpy(float) for c in ("batch_size", "isl", "num_heads", "num_key_value_heads"))
    beyond = np.maximum(0.0, b * s * (2 * h + 2 * kv) * head * 2 - gpu.l2_bytes)
    return np.stack([np.ones(len(rows)), b * s, b * s * h, b * s * kv, beyond, b * h, s, b * h * s * s], axis=1)


def factors(gpu: Gpu, rows: pd.DataFrame, head: int) -> tuple[np.ndarray, np.ndarray]:
    """The factors of the parts, and the relative errors of a fifth of the rows, which were left out."""
    out = np.random.default_rng(SEED).random(len(rows)) < LEFT_OUT
    parts, ns = parts_of(gpu, rows, head), rows.latency.to_numpy() * 1e6
    found = positive_fit(parts[~out], ns[~out])
    return found, np.abs(parts[out] @ found / ns[out] - 1.0)


def attention_factors(folder: Path, gpu: Gpu) -> dict[str, dict[str, float]]:
    """Fields of ``phantora.cost.published.AttentionFit`` by head: the parts that are attention's own.

    A kernel's start is that of cuDNN's or FlashAttention's on H100. Where the published operator embeds positions, a
    token's part is that of memory alone, which the package adds itself.
    """
    fits = {}
    for head in HEADS:
        rows = rows_of(folder, head)
        if rows.empty:
            continue
        found, errors = factors(gpu, rows, head)
        start, _, token_head, _, beyond, each, row, square = map(float, found)
        fits[str(head)] = {
            "start": min(start, KERNEL_START_NS),
            "token_head": token_head if folder.name in FLASH else 0.0,
            "beyond": beyond,
            "head": each,
            "row": row,
            "square": square,
            "error": round(float(np.quantile(errors, 0.9)), 3),
        }
    return fits


def price(gpu: Gpu, rows: pd.DataFrame, head: int) -> np.ndarray:
    """ns of the package's model."""
    model, found = model_for(gpu), []
    for b, s, h, kv in rows[["batch_size", "isl", "num_heads", "num_key_value_heads"]].itertuples(index=False):
        q, k = (
            TensorSpec("bfloat16", shape, contiguous_strides(shape)) for shape in ((b, h, s, head), (b, kv, s, head))
        )
        if (9, 0) <= gpu.compute_capability < (12, 0):
            signature = OperatorSignature(CUDNN, (q, k, k, None, True, 0.0, True, False))
        else:
            signature = OperatorSignature(FLASH_ATTENTION, (q, k, k, 0.0, True, False))
        found.append(sum(model.operator(signature, ()).durations))
    return np.array(found, float)


def main() -> None:
    """Prints a line for each GPU and head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(f"{'GPU':<14}{'head':>5}{'step ns':>9}{'TFLOP/s':>9}   sum left out (median, 90 %)   price (median, 90 %)")
    rng = np.random.default_rng(SEED)
    for folder, gpu_name in {**OURS, **FOLDERS}.items():
        gpu = load_gpu(gpu_name)
        for head in HEADS:
            rows = rows_of(args.folder / folder, head)
            if rows.empty:
                continue
            parts, ns = parts_of(gpu, rows, head), rows.latency.to_numpy() * 1e6
            found, error = factors(gpu, rows, head)
            step = found[-1] * 128 * 64 * 2 * gpu.sms
            tested = rng.permutation(len(ns))[:PRICED]
            own = price(gpu, rows.iloc[tested], head)
            excluding = parts[tested][:, :4]
            whole = excluding @ positive_fit(excluding, ns[tested], own) + own
            priced = np.abs(whole / ns[tested] - 1.0)
            shown = "".join(f"{np.median(e):>14.1%}{np.quantile(e, 0.9):>8.1%}    " for e in (error, priced))
            print(f"{gpu_name:<14}{head:>5}{step:>9.0f}{2 * head / found[-1] / 1e3:>9.0f}   {shown}", flush=True)


if __name__ == "__main__":
    main()
