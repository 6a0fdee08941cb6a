"""Times cuDNN's recurrent layers on a real GPU. One JSON line per layer: GPU and host microseconds, forward and backward.

    python -m validation.probes.recurrent > recurrent.jsonl
    python -m validation.probes.recurrent small >> recurrent_small.jsonl    # small layers in both directions alone

The GPU sleeps while the host issues a call, so that no launch is waited for; at most 48 steps of a layer fit its queue.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn as nn

SLEEP_CYCLES = 60_000_000  # 30 ms, longer than the host takes for any of the calls
REPEATS = 7
CELLS: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
Config = tuple[str, str, int, int, int, int, int, bool]  # cell, dtype, inputs, hidden, batch, steps, layers, both ways


def configs() -> Iterator[Config]:
    for dtype in ("float32", "float16"):
        for hidden, batch in itertools.product((128, 256, 512, 650, 1024, 1536, 2048), (16, 32, 64, 128, 256)):
            yield "lstm", dtype, hidden, hidden, batch, 24, 2, False
        for hidden in (256, 650, 1024):
            for steps in (8, 48):
                yield "lstm", dtype, hidden, hidden, 64, steps, 2, False
            for layers in (1, 3, 4):
                yield "lstm", dtype, hidden, hidden, 64, 24, layers, False
            yield "lstm", dtype, hidden, hidden, 64, 24, 1, True
            yield "lstm", dtype, hidden, hidden, 64, 24, 2, True
            yield "lstm", dtype, 128, hidden, 64, 24, 1, False
            for cell, batch in itertools.product(("gru", "rnn"), (16, 64, 256)):
                yield cell, dtype, hidden, hidden, batch, 24, 2, False


def small() -> Iterator[Config]:
    for cell, hidden, batch, steps in itertools.product(("gru", "lstm"), (64, 128, 256), (1, 8, 32), (16, 40)):
        for layers, both in ((1, False), (2, True)):
            yield cell, "float32", hidden, hidden, batch, steps, layers, both


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Microseconds of `call` on the GPU and on the host."""
    gpu, host = [], []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP_CYCLES)
        start.record()
        began = time.perf_counter()
        call()
        host.append((time.perf_counter() - began) * 1e6)
        end.record()
        end.synchronize()
        gpu.append(start.elapsed_time(end) * 1e3)
    return statistics.median(gpu), statistics.median(host)


def main() -> None:
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    for config in small() if sys.argv[1:] == ["small"] else configs():
        cell, dtype, inputs, hidden, batch, steps, layers, both = config
        kind = getattr(torch, dtype)
        layer = CELLS[cell](inputs, hidden, layers, batch_first=False, bidirectional=both).to("cuda", kind)
        x = torch.randn(steps, batch, inputs, device="cuda", dtype=kind, requires_grad=True)
        wanted = [x, *layer.parameters()]
        out = layer(x)[0]
        weight = torch.randn_like(out)
        torch.autograd.grad(out, wanted, weight)
        forward = timed(partial(layer, x))
        back = timed(partial(torch.autograd.grad, layer(x)[0], wanted, weight, retain_graph=True))
        names = ("cell", "dtype", "inputs", "hidden", "batch", "steps", "layers", "bidirectional")
        print(json.dumps({
            "gpu": torch.cuda.get_device_name(), **dict(zip(names, config, strict=True)), "forward_us": round(forward[0], 2),
            "backward_us": round(back[0], 2), "forward_host_us": round(forward[1], 1), "backward_host_us": round(back[1], 1),
        }), flush=True)


if __name__ == "__main__":
    main()
