"""Plans of convolutions that cuDNN offers, and the memory that each asks for, on a real GPU.

    python -m validation.probes.convolution_plans --out FILE.parquet [--wanted OPERATORS.jsonl ...] [--seconds N] [--seed N]

Nothing runs: the plans of the heuristics and of the fallback list are built, as `torch.backends.cudnn.benchmark` does, and
asked for their workspace. A row is a convolution (names and extents of `phantora.cost.workspaces`) and one of its engines:
its number, its numerical notes, the least and the most bytes of its plans, and how many there are. Convolutions are drawn at
random; `--wanted` adds those of files of `phantora trace --missing`.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from math import prod
from pathlib import Path
from typing import Any

from phantora.cost.wanted import read_wanted
from phantora.cost.workspaces import Convolution
from phantora.profile.workspaces import calls_of
from validation import data

DTYPES = {"tf32": 0, "f32": 0, "bf16": 9, "f16": 2}  # cudnnDataType_t
BYTES = {"tf32": 4, "f32": 4, "bf16": 2, "f16": 2}
DATA_TYPE, INT64, FLOAT, MODE, HEURISTIC, NOTE, DESCRIPTOR, HANDLE = 1, 3, 4, 7, 8, 11, 15, 0
TENSOR, CONVOLUTION, ENGINE, CONFIGURATION, HEURISTICS, PLAN, GRAPH = 17, 1, 2, 3, 4, 5, 15
OPERATIONS = {"fwd": (10, 700), "wgrad": (11, 712), "dgrad": (12, 706)}  # descriptor, first of its attributes
INSTANT, FALLBACK = 0, 2
MOST_PLANS = 256
DIMS = ((1, 1), (2, 8), (3, 1))  # how often images of so many dimensions are drawn
MOST_ELEMENTS = 1 << 28


class Refused(Exception):
    """cuDNN answered with an error."""


class Cudnn:
    """The graph interface of the cuDNN that torch uses."""

    def __init__(self) -> None:
        import torch

        torch.zeros(1, device="cuda")
        torch.backends.cudnn.version()
        self.lib = ctypes.CDLL("libcudnn.so.9")  # which torch has loaded
        self.handle = ctypes.c_void_p()
        self.check(self.lib.cudnnCreate(ctypes.byref(self.handle)))

    def check(self, status: int) -> None:
        if status:
            raise Refused(status)

    def create(self, kind: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.check(self.lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)))
        return made

    def finish(self, descriptor: ctypes.c_void_p) -> ctypes.c_void_p:
        self.check(self.lib.cudnnBackendFinalize(descriptor))
        return descriptor

    def destroy(self, descriptors: Sequence[ctypes.c_void_p]) -> None:
        for descriptor in descriptors:
            self.lib.cudnnBackendDestroyDescriptor(descriptor)

    def set(self, descriptor: ctypes.c_void_p, name: int, kind: int, *values: Any) -> None:
        kinds: dict[int, Any] = {INT64: ctypes.c_int64, FLOAT: ctypes.c_float}
        kinds |= {DESCRIPTOR: ctypes.c_void_p, HANDLE: ctypes.c_void_p}
        array = (kinds.get(kind, ctypes.c_int32) * len(values))(*values)
        self.check(
            self.lib.cudnnBackendSetAttribute(descriptor, name, kind, ctypes.c_int64(len(values)), ctypes.byref(array))
        )

    def get(self, descriptor: ctypes.c_void_p, name: int, kind: int, values: Any) -> int:
        count = ctypes.c_int64(0)
        self.check(
            self.lib.cudnnBackendGetAttribute(
                descriptor, name, kind, ctypes.c_int64(len(values)), ctypes.byref(count), ctypes.byref(values)
            )
        )
        return count.value

    def tensor(self, uid: int, dtype: int, shape: tuple[int, ...], last: bool) -> ctypes.c_void_p:
        strides, step = [0] * len(shape), 1
        for d in [1, *reversed(range(2, len(shape))), 0] if last else reversed(range(len(shape))):
            strides[d], step = step, step * shape[d]
        made = self.create(TENSOR)
        self.set(made, 901, DATA_TYPE, dtype)
        self.set(made, 902, INT64, *shape)
        self.set(made, 903, INT64, *strides)
        self.set(made, 906, INT64, uid)
        self.set(made, 900, INT64, 16)
        return self.finish(made)

    def graph(self, c: Convolution) -> tuple[ctypes.c_void_p, list[ctypes.c_void_p]]:
        """The operation graph, and all descriptors."""
        dtype, last, spatial = DTYPES[c.type], c.layout == "nhwc", len(c.x) - 2
        x, w = (self.tensor(uid, dtype, shape, last) for uid, shape in enumerate((c.x, c.w), start=1))
        y = self.tensor(3, dtype, output(c), last)
        kind = self.create(CONVOLUTION)
        self.set(kind, 100, DATA_TYPE, 0)
        self.set(kind, 101, MODE, 1)
        self.set(kind, 102, INT64, *c.dilation)
        self.set(kind, 103, INT64, *c.stride)
        self.set(kind, 104, INT64, *c.padding)
        self.set(kind, 105, INT64, *c.padding)
        self.set(kind, 106, INT64, spatial)
        self.finish(kind)
        number, first = OPERATIONS[c.form]
        operation = self.create(number)
        self.set(operation, first, FLOAT, 1.0)
        self.set(operation, first + 1, FLOAT, 0.0)
        self.set(operation, first + 2, DESCRIPTOR, kind)
        tensors = {"fwd": (w, x, y), "dgrad": (w, x, y), "wgrad": (w, x, y)}[c.form]
        for i, t in enumerate(tensors):
            self.set(operation, first + 3 + i, DESCRIPTOR, t)
        self.finish(operation)
        graph = self.create(GRAPH)
        self.set(graph, 800, HANDLE, self.handle)
        self.set(graph, 801, DESCRIPTOR, operation)
        return self.finish(graph), [x, w, y, kind, operation, graph]

    def configurations(self, graph: ctypes.c_void_p, mode: int) -> list[ctypes.c_void_p]:
        heuristics = self.create(HEURISTICS)
        self.set(heuristics, 201, DESCRIPTOR, graph)
        self.set(heuristics, 200, HEURISTIC, mode)
        self.finish(heuristics)
        made = [self.create(CONFIGURATION) for _ in range(MOST_PLANS)]
        array = (ctypes.c_void_p * MOST_PLANS)(*made)
        count = self.get(heuristics, 202, DESCRIPTOR, array)
        self.destroy([heuristics, *made[count:]])
        return made[:count]

    def workspace(self, configuration: ctypes.c_void_p) -> int:
        """Bytes of the configuration's plan. Raises Refused where there is none."""
        plan = self.create(PLAN)
        try:
            self.set(plan, 400, HANDLE, self.handle)
            self.set(plan, 401, DESCRIPTOR, configuration)
            self.finish(plan)
            found = (ctypes.c_int64 * 1)()
            self.get(plan, 402, INT64, found)
            return found[0]
        finally:
            self.destroy([plan])

    def engine(self, configuration: ctypes.c_void_p) -> tuple[int, tuple[int, ...]]:
        """Its number and its numerical notes."""
        engine = self.create(ENGINE)
        try:
            array = (ctypes.c_void_p * 1)(engine)
            self.get(configuration, 300, DESCRIPTOR, array)
            number = (ctypes.c_int64 * 1)()
            self.get(engine, 1301, INT64, number)
            notes = (ctypes.c_int32 * 16)()
            count = self.get(engine, 1303, NOTE, notes)
            return number[0], tuple(notes[:count])
        finally:
            self.destroy([engine])

    def plans(self, c: Convolution) -> list[dict[str, Any]]:
        """The engines that can run `c`, in the order of the heuristics."""
        graph, descriptors = self.graph(c)
        found: dict[tuple[int, tuple[int, ...]], dict[str, Any]] = {}
        try:
            for mode in (INSTANT, FALLBACK):
                configurations = self.configurations(graph, mode)
                for place, configuration in enumerate(configurations):
                    try:
                        number, notes = key = self.engine(configuration)
                        size = self.workspace(configuration)
                    except Refused:
                        continue
                    row = found.setdefault(
                        key,
                        {
                            "engine": number,
                            "notes": list(notes),
                            "least": size,
                            "most": size,
                            "plans": 0,
                            "first": place,
                            "mode": mode,
                        },
                    )
                    row["least"], row["most"] = min(row["least"], size), max(row["most"], size)
                    row["plans"] += 1
                self.destroy(configurations)
        finally:
            self.destroy(descriptors)
        return list(found.values())


def output(c: Convolution) -> tuple[int, ...]:
    """Extents of the result."""
    spatial = zip(c.x[2:], c.w[2:], c.stride, c.padding, c.dilation, strict=True)
    return (c.x[0], c.w[0], *((x + 2 * p - d * (w - 1) - 1) // s + 1 for x, w, s, p, d in spatial))


def draw(r: random.Random) -> Convolution:
    """A convolution of a network, of its double backward pass, or of any extents."""
    dims = r.choices([d for d, _ in DIMS], [n for _, n in DIMS])[0]
    kind = r.choice(("layer", "layer", "layer", "any", "depthwise", "double", "double"))
    channels, out = (r.choice((1, 3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)) for _ in range(2))
    if kind == "any":
        channels, out = r.randint(1, 300), r.randint(1, 300)
    taps = r.choice((1, 1, 2, 3, 3, 3, 3, 4, 4, 5, 7, 7, 9, 11, 16))
    stride = r.choice((1, 1, 1, 2, 2, 4)) if taps < 16 else r.choice((1, 8, 16))
    dilation = r.choice((1, 1, 1, 1, 2, 4)) if stride == 1 and taps > 1 else 1
    padding = r.choice((0, dilation * (taps // 2), dilation * (taps // 2), min(1, taps // 2)))
    size = r.choice(
        ((100, 400, 1000, 4000, 16000), (2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 200, 256), (4, 8, 16, 32, 64))[
            dims - 1
        ]
    )
    batch, groups = r.choice((1, 2, 4, 8, 16, 16, 32, 64, 128, 256)), 1
    if kind == "depthwise":
        groups = r.choice((channels, max(1, channels // 16)))
        if channels % groups or out % groups:
            out = channels
    x, w = (batch, channels, *(size,) * dims), (out, channels // groups, *(taps,) * dims)
    if dims == 1:
        x, w = (*x[:2], 1, size), (*w[:2], 1, taps)
    spatial = len(x) - 2

    def expanded(first: int, n: int) -> tuple[int, ...]:
        return (n,) * spatial if dims > 1 else (first, n)

    layout, form = r.choice(("nchw", "nchw", "nhwc")), r.choice(("fwd", "dgrad", "wgrad"))
    c = Convolution(
        form=form,
        type=r.choice(("f32", "f32", "bf16", "f16")),
        layout=layout,
        x=x,
        w=w,
        stride=expanded(1, stride),
        padding=expanded(0, padding),
        dilation=expanded(1, dilation),
    )
    if kind == "double":  # gradients of filters as convolutions: images are channels, results are filters
        y = output(c)
        c = replace(c, x=(channels, batch, *x[2:]), w=(out, batch, *y[2:]), stride=c.dilation, dilation=c.stride)
    return c


def possible(c: Convolution) -> bool:
    sizes = [prod(c.x), prod(c.w), prod(output(c)) if min(output(c)) > 0 else MOST_ELEMENTS]
    return max(sizes) < MOST_ELEMENTS and c.x[1] % c.w[1] == 0 and c.w[0] % (c.x[1] // c.w[1]) == 0


def cases(seed: int) -> Iterator[Convolution]:
    r = random.Random(seed)
    while True:
        c = draw(r)
        if possible(c):
            yield c


def work(seed: int, until: float, first: list[Convolution]) -> list[dict[str, Any]]:
    """Rows of a process."""
    cudnn, rows = Cudnn(), []
    drawn = cases(seed)
    while time.time() < until:
        c = first.pop() if first else next(drawn)
        try:
            plans = cudnn.plans(c)
        except Refused:
            continue
        named = dict(
            zip(("form", "type", "layout", "x", "w", "stride", "padding", "dilation"), astuple(c), strict=True)
        )
        rows += [{**{k: list(v) if isinstance(v, tuple) else v for k, v in named.items()}, **plan} for plan in plans]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wanted", type=Path, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    given = [c for file in options.wanted for c in calls_of(read_wanted(file))]
    given = list(dict.fromkeys(replace(c, type="f32" if c.type == "tf32" else c.type) for c in given))
    random.Random(0).shuffle(given)
    until, n = time.time() + options.seconds, options.processes
    jobs = [(options.seed * 1000 + i, until, given[i::n]) for i in range(n)]
    if n == 1:
        parts = [work(*jobs[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(n) as pool:
            parts = pool.starmap(work, jobs)
    rows = [row for part in parts for row in part]
    data.write(options.out, rows)
    print(
        len(rows),
        "rows of",
        len(
            {
                str([row[k] for k in ("form", "type", "layout", "x", "w", "stride", "padding", "dilation")])
                for row in rows
            }
        ),
        "convolutions",
    )


if __name__ == "__main__":
    main()
