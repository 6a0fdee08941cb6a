"""Kriging: the expectation of a Gaussian process at a place, given training points whose values are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]


def matern(x: Floats) -> Floats:
    """The correlation of two places `x` ranges apart: Matern's of order 3/2 (once differentiable)."""
    return (1.0 + x) * np.exp(-x)


def solve(between: Floats, right: Floats, noise: float) -> Floats:
    """Solves the covariances between training points, with `noise` added to their own (in place), for `right`.

    Covariances with a place give the weight of each training point; values give the factors of covariances."""
    between[np.diag_indices(len(right))] += noise
    found: Floats = np.linalg.solve(between, right)
    return found
