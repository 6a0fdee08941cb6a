"""Host time of each operator's first and second call in a process: CUDA loads a module at its first kernel.

python -m validation.probes.first_launches

Prints a JSON line per operator; times are in microseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F


def operators() -> dict[str, Callable[[], object]]:
    """Each operator by name, on small tensors that exist already."""
    device = "cuda"
    x = torch.ones(4096, device=device)
    half = torch.empty(4096, device=device, dtype=torch.bfloat16)
    index = torch.empty(4096, device=device, dtype=torch.int64)
    square = torch.empty(64, 64, device=device)
    heads = torch.empty(1, 4, 128, 64, device=device, dtype=torch.bfloat16)
    image = torch.empty(2, 8, 16, 16, device=device)
    scale = torch.empty(64, device=device)
    large = torch.empty(1 << 20, device=device, dtype=torch.int64)
    states = [[torch.empty(4096, device=device)] for _ in range(4)]
    steps = [torch.empty((), device=device)]
    flash = torch.ops.aten._flash_attention_forward
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return {
        "fill_bf16": lambda: half.fill_(1.0),
        "fill_i64": lambda: index.fill_(1),
        "add_f32": lambda: x + x,
        "add_bf16": lambda: half + half,
        "mul_f32": lambda: x * x,
        "mul_scalar": lambda: x * 2.0,
        "div_f32": lambda: x / x,
        "sin": lambda: x.sin(),
        "cos": lambda: x.cos(),
        "exp": lambda: x.exp(),
        "rsqrt": lambda: x.rsqrt(),
        "silu_bf16": lambda: F.silu(half),
        "silu_f32": lambda: F.silu(x),
        "gelu": lambda: F.gelu(x),
        "relu": lambda: F.relu(x),
        "neg": lambda: -x,
        "where": lambda: torch.where(index > 0, x, x),
        "copy": lambda: half.copy_(x),
        "sum": lambda: x.sum(),
        "mean": lambda: x.mean(),
        "max": lambda: x.max(),
        "argmax": lambda: square.argmax(1),
        "norm": lambda: x.norm(),
        "softmax": lambda: square.softmax(-1),
        "nll": lambda: F.nll_loss(square, index[:64] * 0),
        "layer_norm": lambda: F.layer_norm(square, (64,), scale, scale),
        "cat": lambda: torch.cat([x, x]),
        "index_select": lambda: square.index_select(0, index[:8] * 0),
        "gather": lambda: square.gather(1, index[:64, None] * 0),
        "sort": lambda: x.sort(),
        "sort_large": lambda: large.sort(),
        "topk": lambda: x.topk(4),
        "cumsum": lambda: x.cumsum(0),
        "unique": lambda: index.unique(),
        "rand": lambda: torch.rand(64, device=device),
        "randn": lambda: torch.randn(64, device=device),
        "dropout": lambda: F.dropout(x),
        "tril": lambda: square.tril(),
        "foreach_add": lambda: torch._foreach_add_([x, x], 1.0),
        "foreach_norm": lambda: torch._foreach_norm([x, x]),
        "foreach_zero": lambda: torch._foreach_zero_([x, x]),
        "fused_adamw": lambda: torch._fused_adamw_(  # type: ignore[call-overload]
            *states, [], steps, lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
        ),
        "flash": lambda: flash(*[heads.transpose(1, 2)] * 3, None, None, 128, 128, 0.0, True, False),
        "efficient": lambda: efficient(heads, heads, heads, None, False),
        "max_pool": lambda: F.max_pool2d(image, 2),
        "interpolate": lambda: F.interpolate(image, scale_factor=2.0),
        "group_norm": lambda: F.group_norm(image, 2),
        "mm_f32": lambda: square @ square,
        "mm_bf16": lambda: heads[0, 0] @ heads[0, 0].t(),
    }


def seconds(call: Callable[[], object]) -> float:
    """Host time of one call; the GPU has nothing to do when it begins."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    """Prints the table."""
    for name, call in operators().items():
        first, second = seconds(call), seconds(call)
        print(json.dumps({"op": name, "first_us": first * 1e6, "second_us": second * 1e6}), flush=True)


if __name__ == "__main__":
    main()
