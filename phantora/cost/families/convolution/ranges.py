"""Over which differences convolutions resemble each other: benchmarks/fit_convolutions.py printed the numbers."""

from __future__ import annotations

from dataclasses import dataclass

COORDINATES = (
    "positions", "batch", "channels", "filters", "groups", "taps", "stride", "dilated", "last", "half", "float32",
    "float16", "volume", "sequence", "plain", "odd channels", "odd filters", "one by one", "ns", "grouped", "depthwise",
    "native depthwise", "one tap", "odd width",
)  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """Of the two fields of a direction's passes: what one over the range is along each of `COORDINATES`; variances.
    Then the variance of what no coordinate tells, and the mean."""

    near: tuple[float, ...]
    far: tuple[float, ...]
    variances: tuple[float, float]
    noise: float
    mean: float


# fmt: off
FITTED: dict[str, Fitted] = {
    "fprop": Fitted(
        (
            0.137, 0.105, 0.247, 0.474, 0.276, 0.734, 0.197, 1.63, 2.7, 0.509, 0.0456, 0.0658, 3.08, 0.362, 3.26,
            1.32, 0.136, 0.601, 0.0925, 0.525, 0.0166, 0.0471, 0.542, 0.0704,
        ),
        (
            0.147, 0.00704, 0.289, 0.0111, 0.292, 0.0735, 0.117, 0.0197, 0.0331, 0.105, 0.103, 0.252, 0.793,
            0.00978, 0.225, 0.95, 0.185, 1.16, 0.0583, 0.204, 0.00834, 0.00925, 0.0571, 0.015,
        ),
        (0.611, 1.68),
        0.00853, -0.842,
    ),
    "dgrad": Fitted(
        (
            0.049, 0.0896, 0.337, 0.245, 0.11, 0.762, 0.673, 1.98, 0.464, 0.675, 1.87, 0.0305, 0.0781, 0.719, 0.692,
            0.457, 1.85, 0.26, 0.173, 0.227, 0.0468, 0.0302, 0.945, 3.69,
        ),
        (
            0.0162, 0.13, 0.0657, 0.0165, 0.0395, 0.214, 0.0247, 0.574, 0.125, 0.0997, 0.15, 0.0228, 0.0156, 0.0364,
            0.0932, 0.753, 1.81, 0.0415, 0.0627, 0.638, 0.0154, 0.0129, 0.229, 3.09,
        ),
        (0.627, 3.65),
        0.0265, 2.08,
    ),
    "wgrad": Fitted(
        (
            0.0729, 0.121, 0.437, 0.0756, 0.125, 0.415, 0.0198, 2.45, 1.88, 0.342, 1.71, 0.909, 1, 0.414, 1.09,
            0.229, 0.0814, 2.73, 0.183, 1.08, 0.161, 0.0302, 0.0782, 2.76,
        ),
        (
            0.178, 0.271, 0.17, 0.025, 0.129, 0.0174, 0.00678, 2.86, 0.765, 0.348, 0.861, 3.97, 0.0445, 0.0327,
            0.547, 0.667, 0.399, 0.109, 0.0367, 0.0365, 0.0486, 0.0129, 0.0116, 0.144,
        ),
        (0.758, 1),
        0.0085, 1.19,
    ),
}
# fmt: on
