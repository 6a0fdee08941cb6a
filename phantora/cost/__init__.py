"""Durations of operators and kernels, and their sources.

Process: terminal and simulator.
"""

from pathlib import Path

from phantora.cost import published
from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.model import GpuCostModel
from phantora.cost.parse import kernel_launch, parse_library, parse_signature
from phantora.cost.sources.live_measurement import Live
from phantora.cost.table_files import DATA, same_architecture, tables_for
from phantora.cost.types import CostModel, KernelLaunch, OperatorSignature, Price, TensorSpec
from phantora.hardware.types import Gpu


def model_for(gpu: Gpu, cache: Path | None = None, live: Live | None = None) -> GpuCostModel:
    """The cost model of `gpu`: the tables that ship with the package, after those in the folder `cache`,
    and published products of GPUs that have none.

    `live` measures operators that no table of this GPU knows.
    """
    folders = [cache, DATA] if cache is not None else [DATA]
    own, foreign = tables_for(gpu, folders)
    products = published.load(DATA / "published", gpu)
    return GpuCostModel(gpu, own, foreign, live, lambda: same_architecture(gpu, folders), products)


__all__ = [
    "AnalyticModel",
    "CostModel",
    "GpuCostModel",
    "KernelLaunch",
    "OperatorSignature",
    "Price",
    "TensorSpec",
    "kernel_launch",
    "model_for",
    "parse_library",
    "parse_signature",
]
