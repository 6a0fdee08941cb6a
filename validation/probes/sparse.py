"""Times operators on sparse tensors on a real GPU. One JSON line per case: sizes, elements stored, microseconds.

    python -m validation.probes.sparse > "$OUT/sparse.jsonl"

Products of CSR and COO matrices with dense ones, sampled products, sums of duplicates, SparseAdam's step on an embedding.
The GPU sleeps while the host issues a call, so that no launch is waited for; what an operator waits for itself is part of
its time. Under a minute. For the constants of phantora/cost/sparse.py.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

SLEEP_CYCLES = 20_000_000  # 10 ms
REPEATS = 7
Case = tuple[str, dict[str, Any], Callable[[], object]]


def matrix(rows: int, columns: int, stored: int, dtype: torch.dtype) -> torch.Tensor:
    """A random matrix as COO, its duplicates added up."""
    places = torch.stack([torch.randint(extent, (stored,), device="cuda") for extent in (rows, columns)])
    values = torch.randn(stored, device="cuda", dtype=dtype)
    return torch.sparse_coo_tensor(places, values, (rows, columns)).coalesce()


def cases() -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16):
        for rows, degree, width in ((1 << 14, 16, 64), (1 << 17, 8, 128), (1 << 20, 8, 64), (1 << 17, 64, 256)):
            coo = matrix(rows, rows, rows * degree, dtype)
            csr, dense = coo.to_sparse_csr(), torch.randn(rows, width, device="cuda", dtype=dtype)
            about = {"rows": rows, "width": width, "stored": coo._nnz(), "dtype": str(dtype).removeprefix("torch.")}
            yield "mm csr", about, partial(lambda csr, dense: csr @ dense, csr, dense)
            yield "mm coo", about, partial(lambda coo, dense: torch.sparse.mm(coo, dense), coo, dense)
            if dtype == torch.float32:
                other = dense.t().contiguous()
                yield "sampled csr", about, partial(lambda s, a, b: torch.sparse.sampled_addmm(s, a, b), csr, dense, other)
    for words, width, tokens in ((1 << 20, 128, 1 << 13), (1 << 22, 64, 1 << 16), (1 << 17, 512, 1 << 15)):
        places = torch.randint(words, (1, tokens), device="cuda")
        values = torch.randn(tokens, width, device="cuda")
        about = {"rows": words, "width": width, "stored": tokens, "dtype": "float32"}
        gradient = torch.sparse_coo_tensor(places, values, (words, width))
        yield "coalesce", about, partial(lambda g: g.clone().coalesce(), gradient)
        table = torch.nn.Parameter(torch.randn(words, width, device="cuda"))
        optimizer = torch.optim.SparseAdam([table])
        table.grad = gradient.coalesce()
        yield "SparseAdam step", about, optimizer.step


def timed(call: Callable[[], object]) -> float:
    """Median microseconds on the GPU."""
    call()
    torch.cuda.synchronize()
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return statistics.median(found)


def main() -> None:
    for name, about, call in cases():
        row: dict[str, Any] = {"case": name, **about, "gpu": torch.cuda.get_device_name()}
        try:
            row["us"] = round(timed(call), 2)
        except RuntimeError as error:  # a dtype that cuSPARSE does not have
            row["error"] = str(error).splitlines()[0]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
