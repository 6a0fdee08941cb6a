"""What activations in place take when they are repeated on the same numbers, on fresh ones, and beside their copies. JSON lines.

    python benchmarks/device/in_place.py OUT.jsonl
"""

from __future__ import annotations

import json
import sys

import torch
import torch.nn.functional as F

SIZES = (1 << 20, 1 << 24, 57_802_752, 154_140_672)
FUNCTIONS = {
    "silu_": lambda x: F.silu(x, inplace=True), "silu": F.silu, "relu_": F.relu_, "hardswish_": lambda x: F.hardswish(x, inplace=True),
    "gelu": F.gelu, "sigmoid_": torch.sigmoid_, "tanh_": torch.tanh_, "add_": lambda x: x.add_(x), "clamp_": lambda x: x.clamp_(0, 6),
}  # fmt: skip


def main() -> None:
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        for elements in SIZES:
            numbers = torch.randn(elements, device="cuda", dtype=torch.bfloat16)
            for name, call in FUNCTIONS.items():
                took: dict[str, list[float]] = {"repeated": [], "fresh": []}
                for kind, times in took.items():
                    x = numbers.clone()
                    for _ in range(12):
                        if kind == "fresh":
                            x.copy_(numbers)
                        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                        torch.cuda._sleep(200_000)
                        begin.record()
                        call(x)
                        end.record()
                        end.synchronize()
                        times.append(round(begin.elapsed_time(end) * 1e3, 2))
                print(json.dumps({"name": name, "elements": elements} | took), file=file)


if __name__ == "__main__":
    main()
