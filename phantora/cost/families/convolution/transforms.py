"""Gradients of few filters on small images in TF32, which cuDNN computes by Fourier transforms.

The limits are those of ``stub/cudnn/workspace.c``. The constants are from kernels of the H200's table. Six of its
gradients are such products with square images, 7 x 7 to 28 x 28 pixels: 10 % off on average.
"""

from __future__ import annotations

from math import isqrt

from phantora.cost.families.convolution.passes import WEIGHT, Pass
from phantora.cost.machine import Machine

IMAGE, TAPS, CHANNELS, FILTERS, BATCH, PRODUCTS = 32, 9, 256, 64, 48, 600e6
START_NS = 10_000.0  # of five kernels
TRANSFORM_BYTES = 0.75  # of complex values a ns, transformed from planes and multiplied
COMPLEX_PRODUCTS = 4.3  # a ns
DEVIATION = 0.3  # of the logarithm; an assumption


def transformed(work: Pass) -> bool:
    """True if cuDNN takes Fourier transforms for `work`."""
    if work.which != WEIGHT or work.arithmetic != "tf32" or work.dimensions != 2 or work.last or work.groups > 1:
        return False
    small = work.inside == work.outside <= IMAGE**2 and work.taps == TAPS and work.stride == work.dilation == 1
    few = work.channels <= CHANNELS and work.filters <= FILTERS and work.batch >= BATCH
    products = work.batch * work.outside * work.channels * work.filters * work.taps
    return small and few and products >= PRODUCTS


def transforms_ns(machine: Machine, work: Pass) -> float:
    """ns of square images' transforms and of the products of these."""
    side = 16
    while side < isqrt(work.inside) + isqrt(work.taps) - 1:
        side *= 2
    values = side * (side // 2 + 1)
    moved = work.batch * (work.channels + work.filters) * values * 8
    products = work.batch * work.channels * work.filters * values
    slower = 132 / machine.gpu.sms
    return START_NS + moved / TRANSFORM_BYTES / 1000.0 + slower * products / COMPLEX_PRODUCTS / 1000.0
