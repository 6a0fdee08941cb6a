"""Memory of a GPU that tensors can have, on a real or a simulated one. Prints JSON lines.

    python -m validation.probes.capacity

Takes blocks until there is no room: of 1 GiB, then smaller ones. A line per stage (a context alone, a kernel, cuBLAS,
cuDNN used before): bytes that torch reserved at the end, what was free, what was taken in addition to torch's before and
afterwards, and the error's text.
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F

BLOCKS = tuple(1 << power for power in (30, 28, 26, 24, 22, 21))


def fill() -> dict[str, object]:
    """Takes what can be had, in large blocks first, and gives it back."""
    torch.cuda.empty_cache()
    kept, text = [], ""
    for size in BLOCKS:
        try:
            while True:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            text = text or str(error)
    free, total = torch.cuda.mem_get_info()
    found = {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated(), "blocks": len(kept)}
    kept.clear()
    torch.cuda.empty_cache()
    return found | {"free": free, "total": total, "error": text}


def taken() -> int:
    """Bytes of the GPU that torch's allocator does not hold."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def kernel() -> None:
    torch.ones(1024, device="cuda").add_(1)


def products() -> None:
    x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    F.linear(x, x, x[0])
    x @ x


def convolution() -> None:
    image, weight = torch.randn(8, 64, 56, 56, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    F.conv2d(image, weight, padding=1)


def main() -> None:
    for what, use in (("context", lambda: None), ("kernel", kernel), ("cuBLAS", products), ("cuDNN", convolution)):
        use()
        torch.cuda.synchronize()
        next_to = taken()
        row = {"name": "capacity", "what": what, "gpu": torch.cuda.get_device_name(), "beside": next_to, **fill()}
        print(json.dumps(row | {"beside_afterwards": taken()}), flush=True)


if __name__ == "__main__":
    main()
