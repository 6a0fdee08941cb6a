"""Published products of many GPUs next to the model: python -m validation.published.matmul_peaks FILE

FILE has a JSON object per line: gpu, dtype, tflops, shape_mnk, source. Some sources have no licence, so the file is not
shipped. Rows without a shape are the best of a search; a square product of 8,192 stands for them. Formats other than
half precision and FP8 are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phantora.cost import model_for
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu
from validation.published.kernels import product

NAMES = {
    "A100 PCIe": "A100-PCIE-80GB",
    "A100 SXM": "A100",
    "B200 SXM": "B200",
    "B300 SXM": "B300",
    "GB10 (DGX Spark)": "GB10",
    "GH200 144GB": "GH200",
    "GH200 SXM 141GB": "GH200",
    "H100 NVL (one)": "H100-NVL",
    "H100 SXM": "H100",
    "H100 SXM 80GB": "H100",
    "H200 SXM": "H200",
    "RTX PRO 6000 Blackwell": "RTX-PRO-6000",
    "RTX PRO 5000 Blackwell": "RTX-PRO-5000",
}
"""Names of the file that are no alias of a data file."""
FORMATS = {"bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn"}
SQUARE = "8192x8192x8192"


@dataclass(frozen=True)
class Peak:
    """One published product."""

    gpu: str
    dtype: str
    shape: str
    published: float
    """TFLOP/s."""
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the predicted time."""
        return self.published / self.predicted - 1


def peaks(path: Path) -> Iterator[Peak]:
    """Rows of the GPUs that have a data file."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        dtype = FORMATS.get(row["dtype"].partition(" ")[0])
        try:
            gpu = load_gpu(NAMES.get(row["gpu"], row["gpu"]))
        except PhantoraError:
            continue
        if dtype is None:
            continue
        shape = row["shape_mnk"] or SQUARE
        m, n, k = map(int, shape.split("x"))
        price = model_for(gpu).operator(product(dtype, m, n, k), ())
        yield Peak(gpu.name, dtype, shape, row["tflops"], 2 * m * n * k / sum(price.durations) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    found = list(peaks(parser.parse_args().file))
    by_gpu: dict[str, list[Peak]] = defaultdict(list)
    for peak in found:
        by_gpu[peak.gpu].append(peak)
    print(f"{'gpu':16} {'format':14} {'product':20} {'published':>9} {'model':>7} {'time':>7}")
    for name in sorted(by_gpu):
        for peak in by_gpu[name]:
            figures = f"{peak.published:9.1f} {peak.predicted:7.1f} {peak.error:+7.1%}"
            print(f"{name:16} {peak.dtype:14} {peak.shape:20} {figures}")
    medians = {name: statistics.median(abs(peak.error) for peak in rows) for name, rows in by_gpu.items()}
    print(f"{len(medians)} GPUs, {len(found)} products: median {statistics.median(abs(p.error) for p in found):.1%}")
    print(f"GPUs within 10 % in the median: {sum(error <= 0.1 for error in medians.values())}")


if __name__ == "__main__":
    main()
