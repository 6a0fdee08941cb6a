"""Inputs' gradients and transposed convolutions in float32 without TF32, by Fourier transforms of tiles, as cuDNN does.

The image is cut into tiles of 32 x 32 that overlap by the filter less one. For one tile after the other three kernels
run: the transforms of that tile of all images, a product of complex matrices for each frequency, and the transforms
back. The transforms of the filters come first. The constants are of 45 such gradients on an H200, with 1 to 100 tiles:
the sum of their kernels is 9 % off on average.

cuDNN's heuristic does not choose by speed. A Gaussian process reads its choice off 263 gradients of an H200. Its ranges
are among those with the largest likelihood of these, each left out with all of the same sizes: 90 % are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, hypot, log, log2, prod

import numpy as np

from phantora.cost.families.convolution.passes import INPUT, Pass, run_passes
from phantora.cost.gaussian_process import GaussianProcess, Tier
from phantora.cost.machine import Machine
from phantora.cost.table import Entry
from phantora.cost.training_points import TrainingPoints

SIDE = 32
FREQUENCIES = SIDE * (SIDE // 2 + 1)  # of a tile of reals
COMPLEX = 8  # bytes
START_NS, PRODUCTS_START_NS = 3900.0, 4600.0  # of each transform, and of a product
# ns of an image's tile, of a GPU with the memory bandwidth of an H200: of the filters, of images and of results
# (whole images, and tiles that are cut out of larger ones).
FILTER_NS, IMAGE_NS, RESULT_NS, CUT_NS = 1.97, 1.77, 2.32, 3.38
BANDWIDTH = 4.8e12  # bytes a second of the H200
PEAK_SHARE, RAMP = 0.84, 8.7  # of products of complex matrices, by the inner dimension that takes half of it
WIDE_ROWS, WIDE_COLUMNS = 32, 64  # images and channels above which tiles of products have 64 rows or columns
MEMORY_SHARE = 0.69  # 3.3 TB/s, where one image meets many filters
KEPT_REACH = 2.0  # times what L2 serves to all SMs: bytes of planes that stay in it from tile to tile
DEVIATION = 0.12  # of the logarithm, of the 45 measured gradients

# Of the choice. Coordinates are logarithms: of the time over that of other kernels at a constant speed, and of
# channels, filters, taps and tiles.
TIER, NOISE, MEAN = Tier(1.0, (2.0, 1.0, 2.0, 1.0, 6.0)), 0.05, 0.25
OTHER_SHARE = 0.5  # of the peak, dgrad_engine with 256 filters or more


def may_tile(work: Pass) -> bool:
    """True if cuDNN may take Fourier transforms of tiles for `work`."""
    plain = work.which == INPUT and work.arithmetic == "float32" and work.dimensions == 2 and work.groups == 1
    return plain and work.stride == work.dilation == 1 and work.taps > 1 and max(work.filter) < SIDE


def is_tiled(names: Iterable[str]) -> bool:
    """True if kernels of these names are such transforms."""
    return any("fft2d" in name for name in names)


def tiled_ns(machine: Machine, work: Pass) -> float:
    """ns of the transforms of filters and tiles, and of the products between them."""
    tiles = _tiles(work)
    slower = BANDWIDTH / machine.gpu.hbm_bandwidth
    planes = work.batch * work.filters, work.channels * work.filters, work.batch * work.channels
    there = START_NS + slower * IMAGE_NS * planes[0]
    back = START_NS + slower * (RESULT_NS if tiles == 1 else CUT_NS) * planes[2]
    filters = START_NS + slower * FILTER_NS * planes[1]
    return filters + tiles * (there + _products_ns(machine, work, sum(planes), tiles) + back)


def _tiles(work: Pass) -> int:
    """Tiles of an image: one if it fits into a tile whole."""
    if all(extent + taps - 1 <= SIDE for extent, taps in zip(work.image, work.filter, strict=True)):
        return 1
    return prod(ceil(extent / (SIDE - taps + 1)) for extent, taps in zip(work.image, work.filter, strict=True))


def _products_ns(machine: Machine, work: Pass, planes: int, tiles: int) -> float:
    size = FREQUENCIES * COMPLEX * planes
    moved = size / (machine.gpu.hbm_bandwidth / 1e9 * MEMORY_SHARE)
    if work.batch == 1:
        return moved
    rows = 64 if work.batch > WIDE_ROWS else 32
    columns = 64 if work.batch > WIDE_COLUMNS and work.channels > WIDE_COLUMNS else 32
    resident = min(1.0, max(0.0, 2.0 - size / (KEPT_REACH * machine.reach)))
    moved *= 1.0 - resident * (tiles - 1) / tiles  # of all but the first tile
    padded = ceil(work.batch / rows) * rows * ceil(work.channels / columns) * columns
    speed = machine.peak("float32") * PEAK_SHARE * work.filters / (work.filters + RAMP)
    return PRODUCTS_START_NS + hypot(8.0 * FREQUENCIES * padded * work.filters / speed, moved)


def coordinates(machine: Machine, work: Pass) -> list[float]:
    """Coordinates of a pass in the field of cuDNN's choices."""
    flops = 2.0 * work.batch * work.outside * work.channels * work.filters * work.taps
    other = START_NS + flops / (machine.peak("float32") * OTHER_SHARE)
    sizes = work.channels, work.filters, work.taps, _tiles(work)
    return [log(tiled_ns(machine, work) / other), *(log2(size) for size in sizes)]


def choices(machine: Machine, entries: Iterable[Entry]) -> TrainingPoints | None:
    """Passes of `entries` that may be tiled, with 1 where they are; None if there are none."""
    found = [
        (coordinates(machine, work), float(is_tiled(kernel.name for kernel in ran)))
        for entry in entries
        for work, ran in run_passes(entry)
        if may_tile(work)
    ]
    return TrainingPoints(np.array([at for at, _ in found]), np.array([tiled for _, tiled in found])) if found else None


class Choice:
    """cuDNN's choice, from measured ones."""

    def __init__(self, machine: Machine, points: TrainingPoints) -> None:
        self._machine = machine
        kinds = [("",)] * len(points.ratio)
        self._process = GaussianProcess((TIER,), NOISE, points.at.tolist(), kinds, (points.ratio - MEAN).tolist())

    def tiled(self, work: Pass) -> float:
        """Probability that `work` is tiled."""
        expected = MEAN + self._process.expectation(coordinates(self._machine, work), ("",))
        return min(1.0, max(0.0, expected))
