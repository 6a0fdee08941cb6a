"""Fits the analytic model of cuDNN's attention on Hopper: python -m validation.fits.cudnn_attention

A pass is a start, blocks of 128 queries (forward) or keys (backward) with a cost of their own, their steps over 64 of
the other side, and an exposed part of the longest block where a causal mask makes blocks unequal. Prints the constants
of `h200-sxm.toml` and of `phantora/cost/families/attention.py`, and by lengths how far they are off. Needs SciPy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.optimize import least_squares

from phantora.cost.families import attention, base_name
from phantora.cost.parse import read_signature
from phantora.cost.table_files import DATA

Floats = npt.NDArray[Any]
SMS = 132
LEAST_TOKENS, LEAST_NS = 512, 30_000
START = np.log([100.0, 2.0, 500.0, 5.0, 0.5, 5000.0])
NAMES = ("step", "step per element", "block", "block per element", "exposed", "start")


def measured() -> Iterator[tuple[attention.Attention, float]]:
    """Operators in 16 bits and ns of all their kernels, out of L2 where they were measured so."""
    for path in (DATA / "h100-sxm.parquet", DATA / "h200-sxm.parquet"):
        found: dict[str, float] = defaultdict(float)
        for rows in pq.ParquetFile(path).iter_batches(20000, columns=["signature", "cold", "warm"]):
            words = rows.column(0).dictionary
            wanted = np.array(pc.match_substring(words, "cudnn_attention").to_pylist())
            places = np.array(rows.column(0).indices)
            for row in np.flatnonzero(wanted[places]):
                cold, warm = (rows.column(i)[int(row)].as_py() for i in (1, 2))
                found[words[int(places[row])].as_py()] += warm or cold
        for text, ns in found.items():
            signature = read_signature(text)
            a = attention.from_signature(signature, base_name(signature.name))
            if a is not None and min(a.queries, a.keys) >= LEAST_TOKENS and ns > LEAST_NS and a.queries == a.keys:
                yield a, ns


class Work(NamedTuple):
    """Columns of operators: elements of a head, causal or not, the longest block's steps, blocks and steps of an SM."""

    head: Floats
    causal: Floats
    longest: Floats
    waves: Floats
    steps: Floats


def work_of(kept: list[attention.Attention]) -> Work:
    """What each operator does."""
    head, causal = np.array([a.head for a in kept]), np.array([a.causal for a in kept])
    longest, blocks = (np.array([ceil(a.keys / n) for a in kept], float) for n in (attention.STEP, attention.BLOCK))
    waves = blocks * [a.batch * a.heads for a in kept] / SMS
    whole = np.ceil(waves)
    steps = np.where(causal, longest * waves * (blocks + 1) / (2 * blocks), whole * longest)
    return Work(head, causal, longest, np.where(causal, waves, whole), steps)


def model(x: Floats, work: Work) -> Floats:
    """ns of each operator; `x` has the logarithms of the constants."""
    step, per, block, per_block, exposed, start = np.exp(x)
    each, own = step + per * work.head, block + per_block * work.head
    busy = work.steps * each + work.waves * own + np.where(work.causal, exposed * work.longest * each, 0)
    return np.asarray(start + np.maximum(busy, work.longest * each + own))


def main() -> None:
    """Prints both passes."""
    rows = list(measured())
    for backward in (False, True):
        kept = [(a, ns) for a, ns in rows if a.backward is backward]
        work, ns = work_of([a for a, _ in kept]), np.array([ns for _, ns in kept])
        fit = least_squares(
            lambda x, w, t: np.log(model(x, w) / t), START, "2-point", loss="soft_l1", f_scale=0.1, args=(work, ns)
        ).x
        off = np.log(model(fit, work) / ns)
        print(
            f"{'backward' if backward else 'forward'}: {len(kept)} operators, median {np.median(np.abs(off)):.1%} off"
        )
        print("  " + ", ".join(f"{name} {value:.5g}" for name, value in zip(NAMES, np.exp(fit), strict=True)))
        tokens = np.array([a.queries for a, _ in kept])
        for size in (64, 128):
            for least in (512, 1024, 2048, 4096, 8192):
                some = (work.head == size) & (tokens >= least) & (tokens < 2 * least if least < 8192 else tokens > 0)
                if some.any():
                    print(f"  heads of {size}, from {least} tokens: {np.exp(np.median(off[some])):.2f} of {some.sum()}")


if __name__ == "__main__":
    main()
