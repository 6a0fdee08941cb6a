"""Ranges of differences over which convolutions resemble each other; validation/fits/convolutions.py printed them."""

from __future__ import annotations

from dataclasses import dataclass

COORDINATES = (
    "positions",
    "batch",
    "channels",
    "filters",
    "groups",
    "taps",
    "stride",
    "dilated",
    "last",
    "half",
    "float32",
    "float16",
    "volume",
    "sequence",
    "plain",
    "odd channels",
    "odd filters",
    "one by one",
    "ns",
    "grouped",
    "depthwise",
    "native depthwise",
    "one tap",
    "odd width",
)


@dataclass(frozen=True)
class Fitted:
    """Fit of the two fields of a direction's passes: 1 / range along each of `COORDINATES`, variances, and the variance
    that no coordinate explains."""

    near: tuple[float, ...]
    far: tuple[float, ...]
    variances: tuple[float, float]
    noise: float


# fmt: off
FITTED: dict[str, Fitted] = {
    "fprop": Fitted(
        (
            0.219, 0.184, 0.117, 0.371, 0.344, 0.772, 0.438, 0.0994, 0.316, 0.319, 0.0472, 2.07, 1.92, 0.123, 0.39,
            2.11, 1, 2.38, 0.112, 0.697, 0.244, 0.0709, 0.121, 1.24,
        ),
        (
            0.0968, 0.0323, 0.174, 0.108, 0.189, 0.578, 0.113, 0.118, 0.0768, 0.0963, 0.0114, 0.157, 0.735, 0.026,
            0.464, 0.139, 0.184, 0.198, 0.281, 0.0605, 0.0408, 0.0149, 0.0216, 0.138,
        ),
        (0.483, 0.603),
        0.0637,
    ),
    "dgrad": Fitted(
        (
            0.218, 0.0767, 0.258, 0.345, 0.351, 0.739, 0.72, 1.19, 0.389, 0.551, 0.0774, 0.463, 0.94, 0.528, 0.356,
            0.258, 0.644, 1.69, 0.202, 0.362, 0.215, 1.78, 1.29, 0.958,
        ),
        (
            0.112, 0.0227, 0.102, 0.0826, 0.269, 0.115, 0.328, 1.1, 0.0807, 0.0914, 0.0179, 0.0811, 0.485, 0.176,
            0.125, 0.0584, 0.0734, 0.133, 0.202, 0.0907, 0.0211, 0.28, 0.588, 0.513,
        ),
        (0.512, 0.906),
        0.0913,
    ),
    "wgrad": Fitted(
        (
            0.222, 0.199, 0.261, 0.288, 0.569, 0.268, 0.442, 1.44, 1.12, 0.935, 0.144, 0.842, 3.13, 1.02, 0.693,
            0.791, 0.31, 0.959, 0.173, 0.0994, 1.39, 4.52, 0.611, 3.88,
        ),
        (
            0.186, 0.0478, 0.0985, 0.0952, 0.117, 0.0758, 0.19, 0.0173, 0.25, 0.0921, 0.0367, 0.388, 1.48, 0.0762,
            0.0934, 0.0836, 0.0692, 0.202, 0.126, 0.0285, 0.529, 1.53, 0.094, 0.566,
        ),
        (0.565, 0.661),
        0.0881,
    ),
}
# fmt: on
