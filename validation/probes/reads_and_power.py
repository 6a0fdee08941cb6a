"""Host time of waits for one number and of its parts, and kernels under the power limit.

    python -m validation.probes.reads_and_power OUT

Plain torch on one GPU, 55 s. Lines of OUT: `part` has the us of a call, median and least of rounds; `power` has one
kernel over and over for 3 s after a pause: ms of single calls in their order. The flops of attention count its mask.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUNDS, CALLS, SUSTAINED_S, PAUSE_S, KEPT = 25, 300, 3.0, 1.2, 40
HEADS, WIDTH = 16, 128
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
Call = Callable[[], Any]


def parts() -> dict[str, Call]:
    """The calls of ``if p[i] == 0`` and their like."""
    numbers, matrix = torch.arange(1, 65537, device="cuda"), torch.randn(64, 64, device="cuda")
    half, one = matrix.bfloat16(), numbers[0]
    flag = one == 0
    return {
        "view": lambda: matrix.view(-1),
        "add": lambda: matrix + matrix,
        "add_": lambda: matrix.add_(matrix),
        "to float": lambda: half.float(),
        "p[i]": lambda: numbers[17],
        "one == 0": lambda: one == 0,
        "bool(flag)": lambda: bool(flag),
        "one.item()": lambda: one.item(),
        "one.tolist()": lambda: one.tolist(),
        "one.cpu()": lambda: one.cpu(),
        "p[:8].tolist()": lambda: numbers[:8].tolist(),
        "x.sum().item()": lambda: matrix.sum().item(),
        "bool(p[i] == 0)": lambda: bool(numbers[17] == 0),
    }


def timed(call: Call) -> float:
    """us of a call in a loop."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    elapsed = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * elapsed / CALLS


def attention(backend: str, batch: int, tokens: int) -> dict[str, tuple[Call, float]]:
    """Both causal passes with their flops."""
    given = [
        torch.randn(batch, HEADS, tokens, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    fixed = [each.detach() for each in given]

    def forward(operands: list[torch.Tensor]) -> torch.Tensor:
        with sdpa_kernel([BACKENDS[backend]]):
            query, key, value = operands
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    out, flops = forward(given), 2.0 * batch * HEADS * tokens**2 * WIDTH
    gradient = torch.randn_like(out)
    return {
        f"{backend} forward {batch}x{tokens}": (lambda: forward(fixed), flops),
        f"{backend} backward {batch}x{tokens}": (
            lambda: torch.autograd.grad(out, given, gradient, retain_graph=True),
            2.5 * flops,
        ),
    }


def sustained(call: Call) -> list[float]:
    """ms of single calls."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    time.sleep(PAUSE_S)
    took, begin = [], time.monotonic()
    while time.monotonic() - begin < SUSTAINED_S:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        took.append(first.elapsed_time(last))
    return took


def lines() -> Iterator[dict[str, Any]]:
    """What OUT gets."""
    yield {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    rounds = [{name: timed(call) for name, call in parts().items()} for _ in range(ROUNDS)]
    for name in rounds[0]:
        took = [each[name] for each in rounds]
        yield {"kind": "part", "name": name, "us": round(statistics.median(took), 3), "least": round(min(took), 3)}
    for backend, batch, tokens in (("cudnn", 1, 65536), ("cudnn", 4, 16384), ("flash2", 1, 65536)):
        for name, (call, flops) in attention(backend, batch, tokens).items():
            took = sustained(call)
            last = statistics.median(took[-len(took) // 5 :])
            yield {
                "kind": "power",
                "name": name,
                "last_ms": round(last, 3),
                "last_tflops": round(flops / last / 1e9, 1),
                "series_ms": [round(ms, 3) for ms in took[:: max(1, len(took) // KEPT)]],
            }


def main() -> None:
    """Writes the lines to the file that the command names."""
    with open(sys.argv[1], "w") as out:
        for line in lines():
            print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
