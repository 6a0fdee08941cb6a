"""Published exchanges of tokens between experts, against the model of ``phantora/sim/collectives/experts.py``.

    python -m validation.published.experts FOLDER        compares
    python -m validation.published.experts FOLDER fit    prints the constants, and their error by left-out row sizes

FOLDER has a folder for each GPU, with NVIDIA's ``comm_sglang_*_wideep_deepep_normal_perf.parquet`` and ``_ll_``
(github.com/ai-dynamo/aiconfigurator, one host). Times of more hosts are in ``experts.json``, with their sources; no
constant of DeepEP is fitted to these.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from phantora.hardware import load_cluster, load_gpu
from phantora.rank.deep_ep.buffer import low_latency_sms
from phantora.sim.collectives import CollectiveModel, Rows
from phantora.sim.collectives.experts import Kernel
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

Floats = npt.NDArray[np.float64]
FOLDERS = {
    "h100_sxm": ("H100-SXM", 8),
    "h200_sxm": ("H200-SXM", 8),
    "b200_sxm": ("B200-SXM", 8),
    "b300_sxm": ("B300-SXM", 8),
    "gb200": ("GB200", 4),
    "gb300": ("GB300", 4),
}
"""GPU of the package and members, by folder."""
PUBLISHED = Path(__file__).with_name("experts.json")
UINT8 = NCCL_DTYPE_NAMES.index("uint8")
START = (25.0, 0.5, 0.05, 0.05, 30e3, 300e3)
LEAST, MOST = (1.0, 1e-3, 1e-4, 1e-4, 1e3, 5e4), (100.0, 50.0, 50.0, 50.0, 2e6, 2e6)


def scaled_bytes(hidden: float) -> float:
    """Bytes of a row in FP8 with a scale of 4 bytes for 128 elements."""
    return hidden * (1 + 4 / 128)


def distinct(experts: int, members: int, top_k: int) -> float:
    """Mean number of members that a token goes to, of random experts."""
    own = experts // members
    return members * (1 - math.comb(experts - own, top_k) / math.comb(experts, top_k))


@dataclass(frozen=True)
class Exchange:
    """One kernel's published times, by row of its table."""

    kind: int
    tokens: Floats
    rows: Floats
    row_bytes: Floats
    sms: Floats
    us: Floats


def read(folder: Path, gpu: str, members: int) -> Iterator[Exchange]:
    """The four kernels of a GPU."""
    for mode in ("normal", "ll"):
        path = next(iter(sorted(folder.glob(f"comm_sglang_*_wideep_deepep_{mode}_perf.parquet"))))
        table = {name: np.array(column) for name, column in pq.read_table(path).to_pydict().items()}
        tokens, hidden = table["num_token"].astype(float), table["hidden_size"].astype(float)
        experts, top_k = table["num_experts"], table["num_topk"]
        if mode == "normal":
            rows = tokens * [distinct(int(e), members, int(k)) for e, k in zip(experts, top_k, strict=True)]
        else:
            rows = tokens * top_k
            blocks = np.array([low_latency_sms(int(each), load_gpu(gpu).sms) for each in experts], float)
        for way, row_bytes in (("dispatch", scaled_bytes(1.0) * hidden), ("combine", 2.0 * hidden)):
            name = ("EXPERT_" if mode == "normal" else "LOW_LATENCY_") + way.upper()
            sms = table[f"{way}_sms"].astype(float) if mode == "normal" else blocks
            us = table[f"{way}_transmit_us" if mode == "normal" else f"{way}_avg_t_us"]
            yield Exchange(int(getattr(Coll, name)), tokens, rows, row_bytes, sms, us)


def fit(exchange: Exchange, members: int) -> None:
    """Prints the constants of a kernel and their error on row sizes that the fit leaves out."""
    from scipy.optimize import least_squares

    def off(logs: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
        names = (f.name for f in fields(Kernel))
        kernel = Kernel(**dict(zip(names, [*np.exp(logs).tolist(), 0.0], strict=False)))
        pick = (exchange.tokens[chosen], exchange.rows[chosen], exchange.row_bytes[chosen], exchange.sms[chosen])
        remote = (members - 1) / members
        found = [sum(kernel.us(t, r, b, int(s), remote)) for t, r, b, s in zip(*pick, strict=True)]
        return np.asarray(np.log(np.array(found) / exchange.us[chosen]))

    def solve(chosen: npt.NDArray[np.bool_]) -> Floats:
        bounds = np.log(LEAST), np.log(MOST)
        solved = least_squares(off, np.log(START), loss="soft_l1", f_scale=0.05, bounds=bounds, args=(chosen,))
        return np.asarray(solved.x)

    whole = solve(np.full(len(exchange.us), True))
    left = np.concatenate(
        [
            np.abs(np.expm1(off(solve(exchange.row_bytes != size), exchange.row_bytes == size)))
            for size in np.unique(exchange.row_bytes)
        ]
    )
    constants = ", ".join(f"{value:.3g}" for value in np.exp(whole))
    print(f"  {Coll.names()[exchange.kind]}: {constants}; left out: {_errors(left)}", flush=True)


def _errors(off: Floats) -> str:
    return f"median {np.median(off):.1%}, nine of ten within {np.quantile(off, 0.9):.1%}, most {off.max():.1%}"


def compare(exchange: Exchange, model: CollectiveModel, members: int) -> None:
    """Prints how far the model is off."""
    ranks = tuple(range(members))
    off = []
    columns = (exchange.tokens, exchange.rows, exchange.row_bytes, exchange.sms, exchange.us)
    for tokens, rows, row_bytes, sms, us in zip(*columns, strict=True):
        of = Rows(int(tokens), int(row_bytes))
        price = model.collective(exchange.kind, ranks, int(rows * row_bytes), UINT8, 0, int(sms), of)
        off.append(abs(price.duration_ns / 1e3 / us - 1))
    print(f"  {Coll.names()[exchange.kind]}: {len(off)} times, {_errors(np.array(off))}", flush=True)


def several_hosts() -> None:
    """Prints the published times of `PUBLISHED` and the model's."""
    print(f"{'published':<50}{'us':>8}{'model':>8}{'off':>7}")
    off = []
    for entry in json.loads(PUBLISHED.read_text())["times"]:
        cluster = load_cluster(entry["cluster"])
        of = Rows(entry["tokens"], int(entry["row_bytes"]))
        price = CollectiveModel(cluster).collective(
            int(getattr(Coll, entry["kind"])),
            tuple(range(entry["members"])),
            int(entry["rows_of_token"] * of.tokens * of.row_bytes),
            UINT8,
            0,
            entry["sms"],
            of,
        )
        us = price.duration_ns / 1e3
        off.append(us / entry["us"] - 1)
        name = f"{entry['kind'].lower()} {entry['members']} GPUs, {entry['what']}"
        print(f"{name:<50}{entry['us']:>8.0f}{us:>8.0f}{off[-1]:>7.0%}")
    print(_errors(np.abs(np.array(off))))


def main() -> None:
    """Compares, or fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=["compare", "fit"], nargs="?", default="compare")
    args = parser.parse_args()
    for folder, (gpu, members) in FOLDERS.items():
        if not (args.folder / folder).is_dir():
            continue
        print(f"{gpu}, {members} GPUs")
        model = CollectiveModel(load_cluster(f"1x{members}x{gpu}"))
        for exchange in read(args.folder / folder, gpu, members):
            if args.what == "fit":
                fit(exchange, members)
            else:
                compare(exchange, model, members)
    several_hosts()


if __name__ == "__main__":
    main()
