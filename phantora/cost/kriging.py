"""Kriging: the expectation of a random field at a place, given members whose values are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]


def matern(x: Floats) -> Floats:
    """The correlation of two places `x` ranges apart: Matern's of order 3/2, of fields that are once differentiable."""
    return (1.0 + x) * np.exp(-x)


def solve(between: Floats, right: Floats, noise: float) -> Floats:
    """From covariances between members (changed: their own gets `noise` added) and those with the place, the weight of
    each member; from their values, what their covariances with a place are to be multiplied by."""
    between[np.diag_indices(len(right))] += noise
    found: Floats = np.linalg.solve(between, right)
    return found
