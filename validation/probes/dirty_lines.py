"""Time of operators by the content of L2 when they begin: their own operands, or other data, written or only read.

    python -m validation.probes.dirty_lines OUT.jsonl [--budget SECONDS]

Lines of L2 that were written must go to memory before others take their place. So an operator that reads from memory
also waits for what was written before it. Each operator runs after each of these, a line for each:

warm        itself
read        256 MiB were read and nothing was written
quarter     192 MiB were read and 64 MiB written
half        128 MiB were read and 128 MiB written
full        256 MiB were written
full+N      256 MiB were written, then N MiB were read

Prints JSON lines: operator, its bytes (read, written), and for each state the median of the sums of its kernels, ns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

MIB = 1 << 20
REPEATS = 9
AFTER = (8, 16, 32, 64)
Call = Callable[[], object]


class Flush:
    """Brings other data into L2."""

    def __init__(self) -> None:
        self.parts = [torch.zeros(64 * MIB // 4, device="cuda") for _ in range(4)]
        self.whole = torch.zeros(256 * MIB // 4, device="cuda")
        self.halves = torch.zeros(2, 128 * MIB // 4, device="cuda")
        self.sums = {n: torch.zeros(n * MIB // 4, device="cuda") for n in AFTER}
        self.result = torch.zeros((), device="cuda")

    def states(self) -> dict[str, Call]:
        """Actions before the operator, by name."""
        a, b, c, d = self.parts
        made: dict[str, Call] = {
            "read": lambda: torch.sum(self.whole, dim=(0,), out=self.result),
            "quarter": lambda: torch.addcmul(a, b, c, out=d),
            "half": lambda: self.halves[0].copy_(self.halves[1]),
            "full": lambda: self.whole.fill_(0.0),
        }
        for n, buffer in self.sums.items():
            made[f"full+{n}"] = partial(lambda buffer: (
                self.whole.fill_(0.0), torch.sum(buffer, dim=(0,), out=self.result)
            ), buffer)
        return made


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def operators() -> Iterator[tuple[str, int, int, Call]]:
    """Name, bytes read and written, and the call."""
    for n in (1, 16, 64, 512, 4096):
        for inner, m in ((1024, 1024), (4096, 1024), (2048, 5632), (4096, 4096), (4096, 11264), (8192, 8192), (8192, 28672)):
            x, w, out = bf16(n, inner), bf16(m, inner), bf16(n, m)
            yield f"mm {n}x{inner}x{m}", 2 * (n * inner + inner * m), 2 * n * m, partial(lambda x, w, out: torch.mm(x, w.t(), out=out), x, w, out)
    for mib in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        count = mib * MIB // 2
        a, b, out = bf16(count), bf16(count), bf16(count)
        yield f"add {mib}", 2 * mib * MIB, mib * MIB, partial(lambda a, b, out: torch.add(a, b, out=out), a, b, out)
        yield f"silu {mib}", mib * MIB, mib * MIB, partial(lambda a, out: torch.ops.aten.silu.out(a, out=out), a, out)
        rows, scale = a.view(-1, 2048), bf16(2048)
        yield f"layer_norm {mib}", mib * MIB, mib * MIB, partial(lambda r, s: F.layer_norm(r, (2048,), s, s), rows, scale)
        yield f"softmax {mib}", mib * MIB, mib * MIB, partial(lambda r: torch.softmax(r, -1), rows)
        yield f"sum {mib}", mib * MIB, 0, partial(lambda r: torch.sum(r, -1), rows)
        yield f"fill {mib}", 0, mib * MIB, partial(lambda out: out.fill_(1.0), out)
        yield f"copy {mib}", mib * MIB, mib * MIB, partial(lambda a, out: out.copy_(a), a, out)
        column = a.view(2048, -1).t()
        yield f"transpose {mib}", mib * MIB, mib * MIB, partial(lambda c: c.contiguous(), column)
    for batch, heads, seq in ((1, 16, 512), (2, 16, 1024), (4, 16, 2048), (8, 32, 2048)):
        q, k, v = (bf16(batch, heads, seq, 128) for _ in range(3))
        size = 2 * q.numel()
        yield f"attention {batch}x{heads}x{seq}", 3 * size, size, partial(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
    for batch, heads, seq in ((1, 32, 1024), (1, 32, 4096), (4, 32, 2048), (16, 32, 2048)):
        q, k, v = bf16(batch, heads, 1, 128), bf16(batch, heads, seq, 128), bf16(batch, heads, seq, 128)
        yield f"attention of one {batch}x{heads}x{seq}", 4 * k.numel(), 2 * q.numel(), partial(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v)
    for batch, channels, side in ((8, 64, 56), (32, 64, 56), (32, 256, 14), (128, 256, 14)):
        x = bf16(batch, channels, side, side).to(memory_format=torch.channels_last)
        w = bf16(channels, channels, 3, 3).to(memory_format=torch.channels_last)
        yield f"convolution {batch}x{channels}x{side}", 2 * (x.numel() + w.numel()), 2 * x.numel(), partial(lambda x, w: F.conv2d(x, w, padding=1), x, w)


def measured(call: Call, states: dict[str, Call]) -> dict[str, int]:
    """The median time of the call's kernels by state, ns."""
    call()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        for repeat in range(REPEATS):
            for name, before in states.items():
                before()
                with record_function(f"dirty {name} {repeat}"):
                    call()
                if name == "half":  # right after itself
                    with record_function(f"dirty warm {repeat}"):
                        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    marks = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"]) for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("dirty ")
    )
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]}
    starts = [mark[0] for mark in marks]
    sums: dict[str, float] = defaultdict(float)
    for e in events:
        if e.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset") or (at := launched.get(e["args"].get("correlation"))) is None:
            continue
        slot = bisect_right(starts, at) - 1
        if slot >= 0 and at <= marks[slot][1]:
            sums[marks[slot][2]] += e["dur"] * 1e3
    times: dict[str, list[float]] = defaultdict(list)
    for name, ns in sums.items():
        times[name.split(" ")[1]].append(ns)
    return {name: round(statistics.median(values)) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=200.0)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    began = time.perf_counter()
    burn = bf16(4096, 4096)
    while time.perf_counter() - began < 1.0:
        torch.mm(burn, burn)
        torch.cuda.synchronize()
    states = Flush().states()
    with args.out.open("w") as out:
        print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "l2": torch.cuda.get_device_properties(0).L2_cache_size}), file=out)
        for name, read, written, call in operators():
            if time.perf_counter() - began > args.budget:
                print(json.dumps({"skipped": name}), file=out)
                continue
            print(json.dumps({"operator": name, "read": read, "written": written, "ns": measured(call, states)}), file=out, flush=True)


if __name__ == "__main__":
    main()
