"""CPU that a convolution's price takes when its shape is first met: python -m benchmarks.convolution_speed

Shapes are those of the shipped table with another batch, so none was measured. Some prices read what all others of
their precision need, the first among them; so the median tells what one more shape costs. The aim is 2 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import time

from phantora.cost import OperatorSignature, TensorSpec
from phantora.cost.model import GpuCostModel
from phantora.cost.table import read_table
from phantora.cost.table_files import DATA
from phantora.hardware import load_gpu

BATCHED = {"cudnn_convolution": 1, "convolution_backward": 2}
"""Number of an operator's first arguments that have the batch as their first dimension."""


def unmeasured(signature: OperatorSignature, tensors: int, numbers: random.Random) -> OperatorSignature:
    """The same convolution of another batch, an odd one."""
    args = list(signature.args)
    batch = 2 * numbers.randrange(8, 80) + 1
    for place in range(tensors):
        spec = args[place]
        assert isinstance(spec, TensorSpec)
        args[place] = dataclasses.replace(spec, shape=(batch, *spec.shape[1:]))
    return dataclasses.replace(signature, args=tuple(args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--count", type=int, default=200, help="shapes of each operator")
    args = parser.parse_args()
    table = read_table(DATA / f"{args.gpu.lower()}-sxm.parquet")
    model = GpuCostModel(load_gpu(args.gpu), [table])
    numbers = random.Random(0)
    for operator, tensors in BATCHED.items():
        entries = numbers.choices(table.of_operator(operator), k=args.count + 1)
        signatures = {unmeasured(entry.parsed, tensors, numbers) for entry in entries}
        taken, rests = [], set()
        for signature in signatures:
            begin = time.process_time()
            price = model.operator(signature, ())
            taken.append((time.process_time() - begin) * 1e3)
            rests.add(price.provenance)
        tenths = statistics.quantiles(taken, n=10)
        print(
            f"{operator}: {len(taken)} shapes in {sum(taken) / 1e3:.1f} s, median {tenths[4]:.2f} ms, "
            f"90th percentile {tenths[8]:.2f} ms, at most {max(taken):.0f} ms ({', '.join(sorted(rests))})"
        )


if __name__ == "__main__":
    main()
