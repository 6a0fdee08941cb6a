"""Published times of single kernels next to the model, by GPU: python -m validation.published.kernels [--worst N]

``validation/published/kernels.json`` contains products and causal attention in bfloat16 of five GPUs, all measured in
one way,
and the best products of searches, with their sources. None of them was measured by us, and none is in a table. H100,
for which the package has tables, shows what the way of measuring and other builds of the kernels make; the other
GPUs, whose times are scaled from Hopper's, what the scaling misses in addition. Attention of B200 and GB200 was
measured with kernels that torch does not have. ``scaled_errors`` of a GPU's data file are its 90th percentiles here.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from phantora.cost import GpuCostModel, OperatorSignature, TensorSpec, model_for
from phantora.cost.tensors import contiguous_strides
from phantora.hardware import Gpu, load_gpu

DATA = Path(__file__).with_name("kernels.json")
SHORT_SEQUENCE = 2048  # below, what else the published attention does (a paged cache) counts: H100 shows it


@dataclass(frozen=True)
class Point:
    gpu: str
    group: str
    text: str
    published_us: float
    predicted_us: float
    error: float
    """Error bar of the price."""

    @property
    def ratio(self) -> float:
        return self.predicted_us / self.published_us


def tensor(dtype: str, *shape: int, stride: tuple[int, ...] = ()) -> TensorSpec:
    return TensorSpec(dtype, shape, stride or contiguous_strides(shape))


def product(dtype: str, m: int, n: int, k: int) -> OperatorSignature:
    """As a linear layer has it."""
    x, weight = tensor(dtype, m, k), tensor(dtype, k, n, stride=(1, k))
    if dtype == "bfloat16":
        return OperatorSignature("aten::mm", (x, weight))
    one = tensor("float32", 1)
    return OperatorSignature("aten::_scaled_mm", (x, weight, one, one, None, None, "bfloat16", True))


def attention(gpu: Gpu, dtype: str, batch: int, seq: int, heads: int, kv_heads: int, size: int) -> OperatorSignature:
    q, kv = tensor(dtype, batch, heads, seq, size), tensor(dtype, batch, kv_heads, seq, size)
    if gpu.compute_capability >= (9, 0):  # cuDNN's is written for it, as the published kernels are
        return OperatorSignature("aten::_scaled_dot_product_cudnn_attention", (q, kv, kv, None, True, 0.0, True, False))
    return OperatorSignature("aten::_scaled_dot_product_flash_attention", (q, kv, kv, 0.0, True, False))


def points() -> Iterator[Point]:
    models: dict[str, GpuCostModel] = {}
    for block in json.loads(DATA.read_text()):
        gpu, dtype = block["gpu"], "float8_e4m3fn" if block["dtype"] == "float8" else block["dtype"]
        model = models.setdefault(gpu, model_for(load_gpu(gpu)))
        make = product if block["op"] == "mm" else partial(attention, load_gpu(gpu))
        for *shape, us in block["rows"]:
            price = model.operator(make(dtype, *shape), ())
            group = f"{block['op']} {block['dtype']}"
            if "best shape" in block["source"]:
                group = f"best {group}"
            elif block["op"] == "attention" and shape[1] < SHORT_SEQUENCE:
                group += f", sequences below {SHORT_SEQUENCE}"
            yield Point(gpu, group, "x".join(map(str, shape)), us, sum(price.durations) / 1e3, price.error or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also the N worst of each group")
    args = parser.parse_args()
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points():
        groups[point.gpu, point.group].append(point)
    table = Table("GPU", "kernels", "number", "predicted / published", "80 % within", "mean", "90 % within", box=None)
    table.add_column("inside error bar")
    for (gpu, group), found in groups.items():
        ratios = sorted(point.ratio for point in found)
        inside = sum(abs(math.log(point.ratio)) <= math.log1p(point.error) for point in found)
        low, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.1, 0.9))
        errors = sorted(math.expm1(abs(math.log(ratio))) for ratio in ratios)
        mean, worse = statistics.mean(abs(ratio - 1) for ratio in ratios), errors[round(0.9 * (len(errors) - 1))]
        shares = (f"{mean:.0%}", f"{worse:.0%}", f"{inside / len(found):.0%}")
        middle = f"{statistics.median(ratios):.2f}"
        table.add_row(gpu, group, str(len(found)), middle, f"{low:.2f} to {high:.2f}", *shares)
        for point in sorted(found, key=lambda p: -abs(math.log(p.ratio)))[: args.worst]:
            times = (f"{point.published_us:.1f} us", f"{point.predicted_us:.1f} us", f"{point.error:.0%}")
            table.add_row("", point.text, "", f"{point.ratio:.2f}", *times)
    console = Console(width=130)
    console.print(table)
    for operator, share in common_shares(found for group in groups.values() for found in group).items():
        console.print(f"{operator}: {share:.2f} of the variance is common to a GPU (of those without a table)")


def common_shares(points: Iterable[Point]) -> dict[str, float]:
    """By operator: share of the GPUs' means in the squared logarithms of predicted over published times. Without H100,
    and without short sequences, whose published attention does other work as well."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for point in points:
        operator, _, rest = point.group.partition(" ")
        if point.gpu != "H100" and operator != "best" and "below" not in rest:
            ratios[operator, point.gpu].append(math.log(point.ratio))
    shares = {}
    for operator in dict.fromkeys(operator for operator, _ in ratios):
        of_gpus = [found for (name, _), found in ratios.items() if name == operator]
        common = sum(len(found) * statistics.mean(found) ** 2 for found in of_gpus)
        shares[operator] = common / sum(ratio**2 for found in of_gpus for ratio in found)
    return shares


if __name__ == "__main__":
    main()
