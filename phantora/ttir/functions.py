"""Instructions that functions of one element take on a GPU: counted in compiled kernels.

`python -m validation.fits.function_counts` compiles a kernel for each with Triton's own ptxas and counts its SASS
for sm_90
(Triton 3.6), less that of the kernel without the function. Both sides of a branch count, since lanes of a warp take
either. Rare sides of sin, cos and tan (reduction of large angles) are left out by hand. exp has 9.2; 14 is what
Inductor's softmax and losses take (the fitted half of validation/probes/triton_kernels.py).
"""

from __future__ import annotations

from typing import NamedTuple

MUFU_SLOTS = 8.0  # 16 of them and 128 lanes in an SM (CUDA C++ Programming Guide, throughput of instructions)


class Instructions(NamedTuple):
    """Instructions for one element: all, and those of the special function units (MUFU)."""

    total: float
    mufu: float = 0.0

    @property
    def slots(self) -> float:
        """Issue slots: special function units take an eighth of the lanes at a time, next to other instructions."""
        return max(self.total, MUFU_SLOTS * self.mufu)


UNLISTED = Instructions(25.0, 1.0)
"""About the median of those below that take more than one."""

_COUNTED = {
    "tanh": (22.4, 2.0),
    "erf": (28.4, 1.0),
    "erfc": (47.4, 3.0),
    "exp": (14.0, 1.0),
    "exp2": (1.0, 1.0),
    "exp10": (9.2, 1.0),
    "expm1": (25.4, 1.0),
    "log": (25.5,),
    "log1p": (29.6,),
    "log2": (27.5,),
    "log10": (26.5,),
    "asin": (17.2, 1.0),
    "acos": (16.1, 1.0),
    "atan": (54.1, 2.5),
    "sinh": (33.4, 2.0),
    "cosh": (19.1, 2.0),
    "asinh": (66.2, 4.5),
    "acosh": (67.4, 1.0),
    "atanh": (41.6, 1.0),
    "rsqrt": (1.0, 1.0),
    "sqrt": (1.0, 1.0),
    "cbrt": (12.2, 3.0),
    "rcbrt": (14.4, 3.0),
    "ceil": (1.0,),
    "floor": (1.0,),
    "trunc": (1.0,),
    "rint": (1.0,),
    "nearbyint": (1.0,),
    "round": (3.1,),
    "fabs": (1.0,),
    "copysign": (1.0,),
    "fma": (1.1,),
    "ldexp": (7.4,),
    "hypot": (16.0, 1.0),
    "normcdf": (62.9, 3.0),
    "erfinv": (47.0, 3.5),
    "sinpi": (24.4,),
    "cospi": (26.4,),
    "pow": (88.2, 2.0),
    "atan2": (68.0, 2.8),
    "fmod": (61.2,),
    "lgamma": (211.4, 2.0),
    "fast_exp": (2.0, 1.0),
    "fast_log": (2.0, 1.0),
    "fast_sin": (2.0, 1.0),
    "fast_cos": (2.0, 1.0),
    "nextafter": (24.4,),
    "sin": (30.0,),
    "cos": (30.0,),
    "tan": (35.0, 1.0),
}
LIBDEVICE = {name: Instructions(*counted) for name, counted in _COUNTED.items()}
"""Instructions by the name behind ``__nv_``, without the ``f`` of single precision."""


def of_symbol(symbol: str) -> Instructions:
    """Instructions of a function of libdevice, by its symbol (``__nv_tanhf``)."""
    name = symbol.removeprefix("__nv_")
    return LIBDEVICE.get(name) or LIBDEVICE.get(name.removesuffix("f"), UNLISTED)
