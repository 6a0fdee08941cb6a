"""Indices in and out of the ranges of torch's CUDA kernels, each in a process of its own, which the assertion ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F


def on_gpu(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def grid() -> torch.Tensor:
    return torch.arange(20.0, device="cuda").view(5, 4)


def classes(targets: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    return F.cross_entropy(grid(), targets, ignore_index=ignored)


def pixels(target: int) -> torch.Tensor:
    return F.cross_entropy(torch.zeros(2, 3, 4, 4, device="cuda"), torch.full((2, 4, 4), target, device="cuda"))


def column(*values: int) -> torch.Tensor:
    return on_gpu(*values).view(-1, 1)


def large(first: int) -> torch.Tensor:
    return torch.zeros(3000, 2, device="cuda")[torch.arange(first, first + 3000, device="cuda")]


LEGAL: dict[str, Callable[[], object]] = {
    "index": lambda: grid()[on_gpu(-5, 4)],
    "index of a column": lambda: grid()[:, on_gpu(-4, 3)],
    "mask and index": lambda: grid()[on_gpu(1, 0, 1, 0, 1).bool(), on_gpu(0, 1, -4)],
    "index_put_": lambda: grid().index_put_((on_gpu(-5), on_gpu(3)), torch.ones(1, device="cuda")),
    "index_select": lambda: grid().index_select(1, on_gpu(0, 3)),
    "gather": lambda: grid().gather(1, column(0, 3)),
    "scatter_": lambda: grid().scatter_(0, column(4, 0), 1.0),
    "take": lambda: grid().take(on_gpu(-20, 19)),
    "index_fill_": lambda: grid().index_fill_(0, on_gpu(-5), 1.0),
    "index_add_": lambda: grid().index_add_(0, on_gpu(4), grid()[:1]),
    "embedding": lambda: F.embedding(on_gpu(0, 4), grid(), padding_idx=0),
    "cross_entropy": lambda: classes(on_gpu(0, 3, -100, 1, 2)),
    "cross_entropy, another number ignored": lambda: classes(on_gpu(0, 3, 255, 1, 2), 255),
    "cross_entropy of pixels": lambda: pixels(2),
    "one_hot": lambda: F.one_hot(on_gpu(0, 4), 5),
    "a large index": lambda: large(0),
}
ILLEGAL: dict[str, Callable[[], object]] = {
    "aten::index: index -6 is outside -5 to 4": lambda: grid()[on_gpu(-6)],
    "aten::index: index 4 is outside -4 to 3": lambda: grid()[:, on_gpu(4)],
    "aten::index: index -5 is outside -4 to 3": lambda: grid()[on_gpu(1, 0, 1, 0, 1).bool(), on_gpu(0, 1, -5)],
    "aten::_index_put_impl_: index 5 is outside -5 to 4": lambda: grid().__setitem__(on_gpu(5), 0.0),
    "aten::index_select: index -1 is outside 0 to 3": lambda: grid().index_select(1, on_gpu(-1)),
    "aten::gather: index -1 is outside 0 to 3": lambda: grid().gather(1, column(0, -1)),
    "aten::scatter_: index 5 is outside 0 to 4": lambda: grid().scatter_(0, column(5, 0), 1.0),
    "aten::scatter_add: index -1 is outside 0 to 4": lambda: grid().scatter_add(0, column(-1), grid()),
    "aten::take: index 20 is outside -20 to 19": lambda: grid().take(on_gpu(20)),
    "aten::index_fill_: index 5 is outside -5 to 4": lambda: grid().index_fill_(0, on_gpu(5), 1.0),
    "aten::index_copy_: index -1 is outside 0 to 4": lambda: grid().index_copy_(0, on_gpu(-1), grid()[:1]),
    "aten::index_add_: index -1 is outside 0 to 4": lambda: grid().index_add_(0, on_gpu(-1), grid()[:1]),
    "aten::index_select: index 5 is outside 0 to 4": lambda: F.embedding(on_gpu(0, 5), grid()),
    "aten::nll_loss_forward: index -1 is outside 0 to 3": lambda: classes(on_gpu(0, 3, -1, 1, 2)),
    "aten::nll_loss_forward: index -100 is outside 0 to 3": lambda: classes(on_gpu(0, 3, -100, 1, 2), 255),
    "aten::nll_loss2d_forward: index 3 is outside 0 to 2": lambda: pixels(3),
    "aten::scatter_: index 6 is outside 0 to 5": lambda: F.one_hot(on_gpu(0, 6), 6),
    "aten::index: index 3000 is outside -3000 to 2999": lambda: large(1),
}


def outcome(case: Callable[[], object]) -> str:
    case()
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        return str(error).splitlines()[0]
    return "legal"


def main() -> None:
    for name, case in (LEGAL | ILLEGAL).items():
        if not (child := os.fork()):
            print(f"{name} -> {outcome(case)}", flush=True)
            sys.stderr.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
