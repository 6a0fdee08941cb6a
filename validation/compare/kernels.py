"""Distance of the cost model from measured kernels.

    python -m validation.compare.kernels [TRACES] [--gpu H200] [--worst N]

Single kernels are those of ``validation/probes/kernel_bench.py`` on H200; TRACES contains ``traces/*.json.gz``
(Chrome traces of torch.profiler with record_shapes, one training step each). Every operator of a trace
that launched kernels is priced from its recorded shapes; equal operators count once, by the median of
their durations. Operators next to a NCCL kernel are listed apart, priced with the GPU's interference factor.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.cost import AnalyticModel, KernelLaunch, OperatorSignature, TensorSpec
from phantora.cost.tensors import contiguous_strides
from phantora.hardware import Gpu, load_gpu
from phantora.sim.kernel_profile import limit_of
from validation.compare.power_limit import Limiter
from validation.data import rows

DTYPES = {
    "c10::BFloat16": "bfloat16",
    "float": "float32",
    "c10::Half": "float16",
    "double": "float64",
    "long int": "int64",
    "int": "int32",
    "bool": "bool",
    "unsigned char": "uint8",
    "signed char": "int8",
    "long unsigned int": "uint64",
}
SHOWN_APART = ("us", "flops", "name", "run_id", "cmd", "gpus_used", "beside", "machine", "GBps")
UNPRICED = ("record_param_comms",)
CALLS, REPLAYS = 6, 6  # of kernel_bench.py's graphs; fewer or more calls in those of kernels that meet no limit
PAUSE_NS = 2e6  # assumed: operands and a graph are made before each; 1 and 5 ms move products by 2 %
PLANS_NS = 50e6  # cuDNN makes plans of attention before it: 44 to 84 ms (validation/probes/new_shapes.py)
GRAPH_GAP_US = 0.5  # between kernels of a CUDA graph, part of what kernel_bench.py measures


@dataclass(frozen=True)
class Point:
    """One measured operator: class, whether NCCL ran next to it, measured and modelled us, what it is."""

    group: str
    next_to: bool
    measured: float
    modelled: float
    count: int
    text: str

    @property
    def error(self) -> float:
        return self.modelled / self.measured - 1.0


def scalar(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        return text or None


def argument(kind: str, shape: Any, stride: Any, text: str) -> Any:
    if kind == "TensorList":
        return tuple(TensorSpec("?", tuple(s), contiguous_strides(tuple(s))) for s in shape)
    if kind in DTYPES and kind not in ("Scalar", "ScalarList"):
        device = "cpu" if kind == "double" and not shape else "cuda"
        return TensorSpec(DTYPES[kind], tuple(shape), tuple(stride), device=device)
    value = scalar(text.replace("True", "true").replace("False", "false") if kind == "ScalarList" else text)
    return tuple(value) if isinstance(value, list) else value


def with_dtype(value: Any, dtype: str) -> Any:
    if isinstance(value, tuple):
        return tuple(with_dtype(v, dtype) for v in value)
    if isinstance(value, TensorSpec) and value.dtype == "?":
        return TensorSpec(dtype, value.shape, value.stride)
    return value


def recast(value: Any, dtype: str) -> Any:
    return tuple(TensorSpec(dtype, t.shape, t.stride) for t in value)


def list_dtype(kernels: list[dict[str, Any]], name: str) -> str:
    """Traces don't say the dtype of tensor lists; the kernel's template arguments do."""
    text = kernels[0]["name"]
    if "OpaqueType<4u>" in text:
        return "float32"
    if "OpaqueType<8u>" in text:
        return "int64"
    return "float32" if ("float" in text and "BFloat16" not in text) else "bfloat16"


def operators(path: Path) -> Iterator[tuple[OperatorSignature, list[dict[str, Any]], float]]:
    """Signature, kernels and the share of their time next to NCCL, of each operator that launched any."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ops = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: float(e["ts"]))
    nccl = sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels if "nccl" in e["name"].lower())
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for kernel in kernels:
        if "nccl" not in kernel["name"].lower() and kernel["args"].get("External id") in ops:
            groups[kernel["args"]["External id"]].append(kernel)
    for key, launched in groups.items():
        event = ops[key]
        if event["name"] in UNPRICED or "Input Dims" not in event["args"]:
            continue
        a = event["args"]
        kinds, shapes, strides = a["Input type"], a["Input Dims"], a["Input Strides"]
        texts = a.get("Concrete Inputs", [""] * len(kinds))
        if any(k == "TensorList" and not s for k, s in zip(kinds, shapes, strict=True)):
            continue  # longer lists are not recorded
        dtype = list_dtype(launched, event["name"])
        args = tuple(with_dtype(argument(*four), dtype) for four in zip(kinds, shapes, strides, texts, strict=True))
        cast = re.search(r"Copy<([\w:]+), ([\w:]+)>", launched[0]["name"])
        if cast and event["name"] == "aten::_foreach_copy_":
            args = tuple(recast(a, DTYPES[t]) for a, t in zip(args[:2], cast.groups(), strict=True)) + args[2:]
        busy = sum(k["dur"] for k in launched)
        next_to = sum(overlap(nccl, k["ts"], k["ts"] + k["dur"]) for k in launched)
        yield OperatorSignature(event["name"], args), launched, next_to / max(busy, 1e-9)


def overlap(spans: list[tuple[float, float]], start: float, end: float) -> float:
    total = 0.0
    i = max(0, bisect_left(spans, (start,)) - 4)
    while i < len(spans) and spans[i][0] < end:
        total += max(0.0, min(end, spans[i][1]) - max(start, spans[i][0]))
        i += 1
    return min(total, end - start)


def trace_points(gpu: Gpu, path: Path) -> list[Point]:
    model = AnalyticModel(gpu)
    measured: dict[Any, list[float]] = defaultdict(list)
    priced: dict[Any, tuple[str, float]] = {}
    for signature, launched, next_to in operators(path):
        if 0.15 < next_to < 0.85:
            continue  # neither alone nor wholly next to NCCL
        launches = tuple(KernelLaunch(k["name"], tuple(k["args"]["grid"]), tuple(k["args"]["block"])) for k in launched)
        key = (signature, tuple(k.name for k in launches), next_to > 0.5)
        measured[key].append(sum(k["dur"] for k in launched))
        if key not in priced:
            price = model.operator(signature, launches)
            factor = gpu.interference.classes[price.cls] if next_to > 0.5 else 1.0
            priced[key] = (price.cls, sum(price.durations) * factor / 1e3)
    return [
        Point(priced[k][0], k[2], statistics.median(us), priced[k][1], len(us), f"{path.stem[:-5]}: {describe(k[0])}")
        for k, us in measured.items()
    ]


def describe(signature: OperatorSignature) -> str:
    def one(value: Any) -> str:
        if isinstance(value, TensorSpec):
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, tuple):
            return "(" + ", ".join(one(v) for v in value[:3]) + (", ..." if len(value) > 3 else "") + ")"
        return str(value)

    return f"{signature.name}({', '.join(one(a) for a in signature.args[:6])})"


def tensor(*shape: int, dtype: str = "bfloat16", transposed: bool = False) -> TensorSpec:
    strides = contiguous_strides(shape)
    return TensorSpec(dtype, shape, (1, shape[0]) if transposed else strides)


def bench_points(gpu: Gpu) -> list[Point]:
    """kernel_bench.py's rows."""
    points: list[Point] = []
    model, limiter = AnalyticModel(gpu), Limiter(limit_of(gpu))

    def add(group: str, row: dict[str, Any], us: float, ops: list[tuple[str, tuple[Any, ...]]]) -> None:
        prices = [model.operator(OperatorSignature(name, args), ()) for name, args in ops]
        limiter.rest(PLANS_NS if group.startswith("attention cudnn") else PAUSE_NS)
        total = limiter.us_in_replays(model.machine, prices, CALLS, REPLAYS) + GRAPH_GAP_US * len(ops)
        text = ", ".join(f"{k}={v}" for k, v in row.items() if not k.endswith(SHOWN_APART))
        points.append(Point(group, False, us, total, 1, f"bench: {text}"))

    for row in rows("2026-11-22-h200x4/kernels.parquet"):
        op = row.get("op", "")
        if op == "gemm_bf16":
            m, k, n = row["m"], row["k"], row["n"]
            shape = {"fwd": (m, k, n), "dgrad": (m, n, k), "wgrad": (n, m, k)}[row["kind"]]
            add("gemm", row, row["us"], [("aten::mm", (tensor(*shape[:2]), tensor(*shape[1:])))])
        elif op == "sdpa_causal":
            q = tensor(row["b"], row["h"], row["s"], row["d"])
            k = tensor(row["b"], row["kv"], row["s"], row["d"])
            kind = "cudnn" if "CUDNN" in row["backend"] else "flash"
            name = f"aten::_scaled_dot_product_{kind}_attention"
            mask = (0.0, True) if kind == "flash" else (None, True, 0.0, True)
            add(f"attention {kind} fwd", row, row["fwd_us"], [(name, (q, k, k, *mask))])
            lse = tensor(row["b"], row["h"], row["s"], dtype="float32")
            gap: tuple[Any, ...] = (None, None, row["s"], row["s"], 0.0, True)
            if kind == "cudnn":
                gap = (None, None, None, *gap)
            add(
                f"attention {kind} bwd",
                row,
                row["fwd_bwd_us"] - row["fwd_us"],
                [(f"{name}_backward", (q, q, k, k, q, lse, *gap))],
            )
        elif op in ("add", "mul_scalar", "silu", "copy_bf16_to_f32", "sum_all", "fill"):
            x = tensor(row["numel"])
            args = {
                "add": (x, x),
                "mul_scalar": (x, 2.0),
                "silu": (x,),
                "sum_all": (x,),
                "fill": (x, 1.0),
                "copy_bf16_to_f32": (tensor(row["numel"], dtype="float32"), x),
            }[op]
            name = {"mul_scalar": "mul", "sum_all": "sum", "fill": "fill_", "copy_bf16_to_f32": "copy_"}.get(op, op)
            add(f"memory {op}", row, row["us"], [(f"aten::{name}", args)])
        elif op == "rms_norm":
            x, w = tensor(row["rows"], row["cols"]), tensor(row["cols"])
            rstd = tensor(row["rows"], 1, dtype="float32")
            add("rms_norm fwd", row, row["fwd_us"], [("aten::_fused_rms_norm", (x, (row["cols"],), w, 1e-5))])
            add(
                "rms_norm bwd",
                row,
                row["fwd_bwd_us"] - row["fwd_us"],
                [("aten::_fused_rms_norm_backward", (x, x, (row["cols"],), rstd, w, (True, True)))],
            )
        elif op == "cross_entropy_f32":
            x, t = tensor(row["rows"], row["vocab"], dtype="float32"), tensor(row["rows"], dtype="int64")
            one = tensor(dtype="float32")
            add(
                "cross_entropy fwd",
                row,
                row["fwd_us"],
                [("aten::_log_softmax", (x, 1, False)), ("aten::nll_loss_forward", (x, t, None, 1, -100))],
            )
            add(
                "cross_entropy bwd",
                row,
                row["fwd_bwd_us"] - row["fwd_us"],
                [
                    ("aten::zero_", (x,)),
                    ("aten::nll_loss_backward", (one, x, t, None, 1, -100, one)),
                    ("aten::_log_softmax_backward_data", (x, x, 1, "float32")),
                ],
            )
        elif op == "adamw_fused":
            dtype = row["dtype"].removeprefix("torch.")
            ps = tuple(tensor(1 << 24, dtype=dtype) for _ in range(8))
            add("adamw", row, row["us"], [("aten::_fused_adamw_", (ps, ps, ps, ps, (), ()))])
    return points


def table(points: list[Point]) -> list[str]:
    """A Markdown table. Median and percentile count distinct operators once, the rest weighs time."""
    rows = [
        "| class | operators | median error | 90th percentile | error by time | modelled / measured |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[str, list[Point]] = defaultdict(list)
    for p in points:
        groups[p.group + (" next to NCCL" if p.next_to else "")].append(p)
    for name, group in sorted(groups.items()):
        rows.append(f"| {name} {summary(group)}")
    alone = [p for p in points if not p.next_to]
    if len(groups) > 1 and alone:
        rows.append(f"| all, alone {summary(alone)}")
    return rows


def summary(group: list[Point]) -> str:
    errors = sorted(abs(p.error) for p in group)
    p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    busy = sum(p.measured * p.count for p in group)
    weighted = sum(abs(p.modelled - p.measured) * p.count for p in group) / busy
    ratio = sum(p.modelled * p.count for p in group) / busy
    return f"| {len(group)} | {statistics.median(errors):.1%} | {p90:.1%} | {weighted:.1%} | {ratio:.3f} |"


def interference_ratios(points: list[Point]) -> list[str]:
    """Measured slowdown of equal operators next to NCCL, by class (time-weighted)."""
    alone = {p.text: p for p in points if not p.next_to}
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for p in points:
        if p.next_to and p.text in alone:
            pairs[p.group].append((p.measured * p.count, alone[p.text].measured * p.count))
    return [
        f"| {name} | {len(found)} | {sum(a for a, _ in found) / sum(b for _, b in found):.2f} |"
        for name, found in sorted(pairs.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="?", help="a folder of traces")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--worst", type=int, default=0, help="list the N operators with the largest error in time")
    options = parser.parse_args()
    gpu = load_gpu(options.gpu)
    bench = bench_points(gpu)
    print("Single kernels\n", *table(bench), sep="\n")
    files = sorted(options.traces.glob("*.json.gz")) if options.traces else []
    traces = [p for f in files for p in trace_points(gpu, f)]
    print("\nOperators in traces of training steps\n", *table(traces), sep="\n")
    print(
        "\nSlower next to NCCL\n",
        "| class | operators | factor |",
        "|---|---|---|",
        *interference_ratios(traces),
        sep="\n",
    )
    for p in sorted((*bench, *traces), key=lambda p: -abs(p.modelled - p.measured) * p.count)[: options.worst]:
        print(
            f"{p.error:+7.1%} {p.measured:9.1f} us x {p.count:4d}  "
            f"{'N ' if p.next_to else '  '}{p.group}: {p.text[:190]}"
        )


if __name__ == "__main__":
    main()
