"""Host cost of a call with new sizes: a heuristic, a plan, perhaps a kernel that is loaded. Prints JSON lines.

    python -m validation.probes.new_shapes OUT.jsonl

Variable lengths (batches padded to their longest sequence, images of any size) meet new sizes at every step. Each case
calls one operator with sizes that no call had before, then with the same ones again; the difference is what is new.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LENGTHS = [(37 * i * i + 211 * i) % 1801 + 97 for i in range(64)]
EVEN = [8 * (length // 8 + 1) for length in LENGTHS]
Call = Callable[[], object]


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def products(lengths: list[int], k: int, n: int, dtype: torch.dtype) -> Iterator[Call]:
    w = randn(n, k, dtype=dtype)
    for m in lengths:
        yield partial(torch.mm, randn(m, k, dtype=dtype), w.t())


def gradients(lengths: list[int], k: int, n: int) -> Iterator[Call]:
    """Products whose inner size is new, as a weight's gradient."""
    for m in lengths:
        yield partial(torch.mm, randn(m, n).t(), randn(m, k))


def with_bias(lengths: list[int], k: int, n: int) -> Iterator[Call]:
    w, b = randn(n, k), randn(n)
    for m in lengths:
        yield partial(F.linear, randn(m, k), w, b)


def batched(lengths: list[int]) -> Iterator[Call]:
    for m in lengths:
        yield partial(torch.bmm, randn(16, m, 64), randn(16, 64, m))


def attention(lengths: list[int], backend: str, back: bool) -> Iterator[Call]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for m in lengths:
        q = randn(2, 8, m, 64).requires_grad_(back)

        def call(q: torch.Tensor = q) -> object:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
            return torch.autograd.grad(out, q, out) if back else out

        yield call


def convolutions(
    lengths: list[int], dims: int, dtype: torch.dtype, back: bool, groups: int = 1, last: bool = False
) -> Iterator[Call]:
    sizes = [max(8, length // (1 if dims == 1 else 8)) for length in lengths]
    w = randn(64, 64 // groups, *([3] * dims), dtype=dtype).requires_grad_(back)
    form = torch.channels_last if last else torch.contiguous_format
    if last:
        w = w.detach().contiguous(memory_format=form).requires_grad_(back)
    conv = (F.conv1d, F.conv2d)[dims - 1]
    seen = set()
    for i, size in enumerate(sizes):
        shape = (4, 64, size) if dims == 1 else (4, 64, size, 16 + i)
        if shape in seen:
            continue
        seen.add(shape)
        x = randn(*shape, dtype=dtype).contiguous(memory_format=form).requires_grad_(back)

        def call(x: torch.Tensor = x) -> object:
            out = conv(x, w, padding=1, groups=groups)
            return torch.autograd.grad(out, (x, w), out) if back else out

        yield call


def recurrent(lengths: list[int]) -> Iterator[Call]:
    lstm = torch.nn.LSTM(256, 256, 2, device="cuda")
    for m in lengths[:24]:
        yield partial(lstm, randn(m, 8, 256, dtype=FP32))


def transforms(lengths: list[int]) -> Iterator[Call]:
    for m in lengths:
        yield partial(torch.fft.rfft, randn(8, m, dtype=FP32))


def cases() -> dict[str, Iterator[Call]]:
    """Cases by name; each makes its operands when it is run."""
    return {
        "mm": products(LENGTHS, 1024, 1024, BF16), "mm other width": products(LENGTHS, 1024, 2816, BF16),
        "mm of eights": products(EVEN, 2048, 2048, BF16), "mm once more": products([m + 3 for m in LENGTHS], 1024, 1024, BF16),
        "mm fp32": products(LENGTHS, 1024, 1024, FP32), "mm fp16": products(LENGTHS, 1024, 1024, FP16),
        "mm gradient": gradients(LENGTHS, 1024, 1024), "mm gradient of eights": gradients(EVEN, 1024, 2816),
        "addmm": with_bias(LENGTHS, 1024, 1024), "addmm other": with_bias([m + 5 for m in LENGTHS], 768, 3072),
        "bmm": batched(LENGTHS), "bmm once more": batched([m + 7 for m in LENGTHS]),
        "flash": attention(LENGTHS, "FLASH_ATTENTION", False), "cudnn attention": attention(LENGTHS[:24], "CUDNN_ATTENTION", False),
        "cudnn attention of eights": attention(EVEN[24:48], "CUDNN_ATTENTION", False),
        "cudnn attention, backward": attention([m + 3 for m in LENGTHS[:20]], "CUDNN_ATTENTION", True),
        "efficient": attention(LENGTHS, "EFFICIENT_ATTENTION", False),
        "conv2d": convolutions(LENGTHS, 2, FP32, False), "conv2d bf16 last": convolutions(LENGTHS, 2, BF16, False, last=True),
        "conv2d, backward": convolutions([m + 8 for m in LENGTHS], 2, FP32, True),
        "conv2d bf16, backward": convolutions([m + 8 for m in LENGTHS], 2, BF16, True, last=True),
        "conv2d depthwise": convolutions(LENGTHS, 2, FP32, False, groups=64), "conv2d groups": convolutions(LENGTHS, 2, FP32, False, groups=4),
        "conv1d": convolutions(LENGTHS, 1, FP32, False), "conv1d, backward": convolutions([m + 8 for m in LENGTHS], 1, FP32, True),
        "lstm": recurrent(LENGTHS), "rfft": transforms(LENGTHS),
    }


def timed(call: Call) -> float:
    """Host time of one call, us; what it launched is waited for outside of it."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    out = call()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    del out
    return host * 1e6


def main() -> None:
    path = Path(sys.argv[1])
    warm = randn(512, 512)
    (warm @ warm).sum().item()
    with path.open("a") as file:
        for name, case in cases().items():
            try:
                calls = list(case)
                new, again = [timed(call) for call in calls], [timed(call) for call in calls]
            except RuntimeError as error:
                print(name, str(error)[:150], flush=True)
                continue
            known = statistics.median(again)
            extra = sorted(x - known for x in new[1:])
            line = {
                "case": name, "calls": len(calls), "first_us": new[0], "known_us": known, "new_median_us": statistics.median(extra),
                "new_mean_us": statistics.fmean(extra), "new_p90_us": extra[len(extra) * 9 // 10], "new_us": [round(x) for x in new],
            }
            print(json.dumps({key: value for key, value in line.items() if key != "new_us"}), flush=True)
            file.write(json.dumps(line) + "\n")
            del calls


if __name__ == "__main__":
    main()
