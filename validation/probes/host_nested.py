"""Host time of functions of torch that call several operators, on tiny tensors, in a loop and after other work. JSON lines.

    python -m validation.probes.host_nested --out FILE.jsonl                             # on a GPU
    phantora trace --cluster 1x1xH200 -m validation.probes.host_nested --out FILE.jsonl  # simulated

A row is a function: us of a call without gradients, with them, and of forward and backward: in a loop of 20 (`loop_us`,
`grad_us`, `backward_us`), and of one call after a training step of another network (`trained_us`, `trained_backward_us`). The
GPU is idle before each. `optimizer` rows: a step by number of tensors and kind, alone and after training. A simulated run adds
what a call is charged for (`validation/charges.py`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip

from validation.charges import counts, since
from validation.probes.host_lists import Between, Call, us

CALLS = 20
TENSORS = (10, 60, 200, 800)
Function = Callable[[torch.Tensor], torch.Tensor]
Row = dict[str, object]


def functions() -> dict[str, Function]:
    """Of a tensor of 2 x 16 x 8 x 8."""
    weight, bias = (
        torch.randn(8, 8, device="cuda", requires_grad=True),
        torch.randn(8, device="cuda", requires_grad=True),
    )
    channels = torch.randn(16, device="cuda", requires_grad=True)
    kernel = torch.randn(16, 16, 3, 3, device="cuda", requires_grad=True)
    table = torch.randn(32, 8, device="cuda", requires_grad=True)
    at = torch.randint(0, 8, (2, 16, 8, 8), device="cuda")
    labels = torch.randint(0, 16, (2, 8, 8), device="cuda")
    mask = torch.rand(2, 16, 8, 8, device="cuda") > 0.5
    mean, var = torch.zeros(16, device="cuda"), torch.ones(16, device="cuda")
    grid = torch.rand(2, 8, 8, 2, device="cuda")
    lstm = nn.GRUCell(8, 8).cuda()
    return {
        "add": lambda x: x + x, "mul number": lambda x: x * 2.0, "exp": torch.exp, "linear": lambda x: F.linear(x, weight), "linear bias": lambda x: F.linear(x, weight, bias),
        "matmul": lambda x: x @ x, "matmul vector": lambda x: x @ bias, "einsum": lambda x: torch.einsum("bchw,bchv->bcwv", x, x), "einsum weights": lambda x: torch.einsum("bchw,wv->bcvh", x, weight),
        "layer_norm": lambda x: F.layer_norm(x, (8,), bias, bias), "group_norm": lambda x: F.group_norm(x, 4, channels, channels), "instance_norm": lambda x: F.instance_norm(x),
        "batch_norm": lambda x: F.batch_norm(x, mean, var, channels, channels, True), "rms_norm": lambda x: F.rms_norm(x, (8,), bias), "normalize": lambda x: F.normalize(x, dim=-1),
        "conv2d": lambda x: F.conv2d(x, kernel, channels, padding=1), "conv1d": lambda x: F.conv1d(x[0], kernel[:, :8, 0]), "conv_transpose2d": lambda x: F.conv_transpose2d(x, kernel), "unfold": lambda x: F.unfold(x, 3),
        "embedding": lambda x: F.embedding(at, table), "index": lambda x: x[at[0, 0, 0, :2] % 2], "gather": lambda x: x.gather(-1, at), "scatter_add": lambda x: x.scatter_add(-1, at, x), "where": lambda x: torch.where(mask, x, 0.0),
        "masked_fill": lambda x: x.masked_fill(mask, 0.0), "cross_entropy": lambda x: F.cross_entropy(x, labels), "mse_loss": lambda x: F.mse_loss(x, x.detach()), "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach()),
        "bce logits": lambda x: F.binary_cross_entropy_with_logits(x, mask.float()), "kl_div": lambda x: F.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"), "dropout": lambda x: F.dropout(x, 0.1),
        "softmax": lambda x: x.softmax(-1), "gelu": F.gelu, "silu": F.silu, "mish": F.mish, "softplus": F.softplus, "glu": lambda x: F.glu(x), "cat": lambda x: torch.cat([x, x], 1), "stack": lambda x: torch.stack([x, x, x]),
        "split": lambda x: x.split(4, 1)[1], "chunk and cat": lambda x: torch.cat(x.chunk(4, 1)[::-1], 1), "pad": lambda x: F.pad(x, (1, 1, 1, 1)), "pad reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2), "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), "grid_sample": lambda x: F.grid_sample(x, grid, align_corners=False),
        "max_pool2d": lambda x: F.max_pool2d(x, 2), "avg_pool2d": lambda x: F.avg_pool2d(x, 2), "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1), "mean": lambda x: x.mean((2, 3)), "sum": lambda x: x.sum(), "var": lambda x: x.var(-1),
        "std": lambda x: x.std(-1), "norm": lambda x: x.norm(), "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1), "logsumexp": lambda x: x.logsumexp(-1), "cumsum": lambda x: x.cumsum(-1), "topk": lambda x: x.topk(2)[0], "sort": lambda x: x.sort(-1)[0],
        "max": lambda x: x.max(-1)[0], "roll": lambda x: x.roll((1, 1), (2, 3)), "repeat": lambda x: x.repeat(1, 2, 1, 1), "flip": lambda x: x.flip(-1), "permute contiguous": lambda x: x.permute(0, 2, 3, 1).contiguous(), "reshape": lambda x: x.transpose(1, 2).reshape(2, 8, -1),
        "half": lambda x: x.half(), "clone": lambda x: x.clone(), "pow": lambda x: x.pow(2), "clamp": lambda x: x.clamp(-1, 1), "rsub": lambda x: 1 - x, "div": lambda x: x / (x.detach() + 3), "abs and mean": lambda x: x.abs().mean(), "sin": lambda x: torch.sin(30 * x),
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x), "attention half": lambda x: F.scaled_dot_product_attention(x.half(), x.half(), x.half()), "cosine_similarity": lambda x: F.cosine_similarity(x, x.detach(), -1), "cdist": lambda x: torch.cdist(x, x.detach()),
        "rfft": lambda x: torch.fft.rfft(x).abs(), "gru cell": lambda x: lstm(x.view(-1, 8)), "view": lambda x: x.view(2, -1), "one_hot": lambda x: x * F.one_hot(at[..., 0], 8), "tril": lambda x: x.tril(), "baddbmm": lambda x: torch.baddbmm(x[0], x[0], x[1]), "outer": lambda x: torch.outer(x.view(-1)[:8], bias),
    }  # fmt: skip


def timed(key: str, call: Call, before: Call = lambda: None, rounds: int = 7, calls: int = 1) -> Row:
    """Median us of each of the `calls` of `call` and, in a simulated run, what the last `call` is charged for in all."""
    charges: dict[int, int] = {}

    def counted() -> None:
        nonlocal charges
        began = counts()
        call()
        charges = since(began).get("charges", {})

    return {f"{key}_us": us(counted, before, rounds) / calls, **({f"{key}_charges": charges} if charges else {})}


def loop(call: Callable[[], object]) -> Callable[[], None]:
    def several() -> None:
        for _ in range(CALLS):
            call()

    return several


def calls(between: Between) -> Iterator[dict[str, object]]:
    x = torch.randn(2, 16, 8, 8, device="cuda").requires_grad_()
    for name, function in functions().items():
        one = torch.ones_like(function(x))

        def both(function: Function = function, one: torch.Tensor = one) -> None:
            found = function(x)
            if found.requires_grad:
                found.backward(one)

        def forward(function: Function = function) -> torch.Tensor:
            return function(x)

        for _ in range(3):
            both()
        with torch.no_grad():
            row = timed("loop", loop(forward), calls=CALLS) | timed("trained", forward, between.train)
        row |= timed("grad", loop(forward), calls=CALLS) | timed("backward", loop(both), calls=CALLS)
        yield {"row": "function", "name": name, **row, **timed("trained_backward", both, between.train)}


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD momentum lists": lambda p: torch.optim.SGD(p, 1e-4, momentum=0.9, foreach=True),
    "SGD momentum fused": lambda p: torch.optim.SGD(p, 1e-4, momentum=0.9, fused=True),
    "SGD momentum loop": lambda p: torch.optim.SGD(p, 1e-4, momentum=0.9, foreach=False),
    "Adam lists": lambda p: torch.optim.Adam(p, 1e-4, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, 1e-4, fused=True),
    "Adam loop": lambda p: torch.optim.Adam(p, 1e-4, foreach=False),
    "Adam amsgrad lists": lambda p: torch.optim.Adam(p, 1e-4, amsgrad=True, foreach=True),
    "AdamW capturable lists": lambda p: torch.optim.AdamW(p, 1e-4, capturable=True, foreach=True),
    "RMSprop lists": lambda p: torch.optim.RMSprop(p, 1e-4, foreach=True),
    "RMSprop loop": lambda p: torch.optim.RMSprop(p, 1e-4, foreach=False),
    "Adagrad lists": lambda p: torch.optim.Adagrad(p, 1e-4, foreach=True),
    "NAdam lists": lambda p: torch.optim.NAdam(p, 1e-4, foreach=True),
    "Adamax loop": lambda p: torch.optim.Adamax(p, 1e-4, foreach=False),
}


def optimizers(between: Between) -> Iterator[dict[str, object]]:
    for n in TENSORS:
        params = [nn.Parameter(torch.zeros(256, device="cuda")) for _ in range(n)]

        def grads(params: list[nn.Parameter] = params) -> None:
            for p in params:
                p.grad = torch.ones_like(p)

        def no_grads(params: list[nn.Parameter] = params) -> None:
            for p in params:
                p.grad = None

        grads()
        averages = [torch.zeros_like(p) for p in params]
        weights = [p.detach() for p in params]
        with torch.no_grad():
            lists: dict[str, Callable[[], object]] = {
                "_foreach_zero_": lambda a=averages: torch._foreach_zero_(a),  # type: ignore[misc]
                "_foreach_add_ alpha": lambda a=averages, w=weights: torch._foreach_add_(a, w, alpha=0.1),  # type: ignore[misc]
                "_foreach_lerp_": lambda a=averages, w=weights: torch._foreach_lerp_(a, w, 0.1),  # type: ignore[misc]
                "_foreach_copy_": lambda a=averages, w=weights: torch._foreach_copy_(a, w),  # type: ignore[misc]
                "_foreach_sqrt": lambda a=averages: torch._foreach_sqrt(a),  # type: ignore[misc]
                "_foreach_norm": lambda a=averages: torch._foreach_norm(a),  # type: ignore[misc]
                "loop lerp_": lambda a=averages, w=weights: [x.lerp_(y, 0.1) for x, y in zip(a, w, strict=True)],  # type: ignore[misc]
                "loop mul_ add_": lambda a=averages, w=weights: [
                    x.mul_(0.9).add_(y, alpha=0.1) for x, y in zip(a, w, strict=True)
                ],  # type: ignore[misc]
                "loop zero_": lambda a=averages: [x.zero_() for x in a],  # type: ignore[misc]
                "zeros_like": lambda a=averages: [torch.zeros_like(x) for x in a],  # type: ignore[misc]
                "clip lists": lambda p=params: clip(p, 1.0, foreach=True),  # type: ignore[misc]
                "clip loop": lambda p=params: clip(p, 1.0, foreach=False),  # type: ignore[misc]
            }
            for name, call in lists.items():
                yield (
                    {"row": "lists", "name": name, "tensors": n}
                    | timed("loop", call)
                    | timed("trained", call, between.train)
                )
        for name, make in OPTIMIZERS.items():
            optimizer = make(params)
            optimizer.step()
            row = timed("loop", optimizer.step) | timed("trained", optimizer.step, between.train)
            yield {"row": "optimizer", "name": name, "tensors": n, **row}
        sgd = torch.optim.SGD(params, 1e-4, foreach=True)
        row = timed("loop", lambda sgd=sgd: sgd.zero_grad(set_to_none=False))  # type: ignore[misc]
        yield {"row": "zero", "name": "zero_grad to zeros", "tensors": n, **row}
        yield {"row": "zero", "name": "zero_grad to None", "tensors": n, **timed("loop", sgd.zero_grad, grads)}
        leaves = [p * 1.0 for p in params]
        total = torch.stack([leaf.sum() for leaf in leaves]).sum()
        row = timed("loop", lambda total=total: total.backward(retain_graph=True), no_grads)  # type: ignore[misc]
        row |= timed("again", lambda total=total: total.backward(retain_graph=True))  # type: ignore[misc]
        yield {"row": "leaves", "name": "mul and sum, backward", "tensors": n, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    between = Between()
    with open(options.out, "w", buffering=1) as out:
        for part in (calls, optimizers):
            for row in part(between):
                print(json.dumps(row), file=out)


if __name__ == "__main__":
    main()
