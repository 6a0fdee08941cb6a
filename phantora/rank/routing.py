"""Number of tokens of each expert of a mixture-of-experts model.

A router decides from values, and large tensors have none here (docs/values.md). So its decision is
an input of the simulation: a share of the tokens for each expert and layer.

It runs in a rank. The terminal's process calls :func:`parse_routing` alone, to check the option.
"""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from phantora.errors import PhantoraError, cause_of
from phantora.spec import RankSpec

OPTION = "--moe-routing"
BALANCED, FRAMEWORK, ZIPF = RankSpec.moe_routing, "framework", "zipf:"
ALL_LAYERS = "*"
_MOST_SHARE = 1e100

Shares = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Routing:
    """One ``--moe-routing``. `exponent` is Zipf's; `layers` holds the shares of a file, by layer or ``*``."""

    spec: str
    exponent: float = 0.0
    layers: dict[str, list[float]] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """False: the framework routes by what it computes, which is by zeros."""
        return self.spec != FRAMEWORK

    @property
    def uneven(self) -> bool:
        """Do experts get different numbers of tokens?"""
        return bool(self.layers or self.exponent)

    def shares(self, layer: int, experts: int) -> Shares:
        """Each expert's share of the (token, choice) pairs of `layer` (from 0); the sum is 1.

        Zipf: the expert of rank r gets a share proportional to 1 / r ** exponent; which expert has
        which rank is drawn per layer, the same in every run and on every rank.
        """
        if not self.layers:
            weights = np.arange(1, experts + 1) ** -self.exponent
            drawn = random.Random(layer)  # random() repeats across versions of Python, shuffle() need not
            order = np.argsort([drawn.random() for _ in range(experts)])
            shares = np.empty(experts)
            shares[order] = weights
        else:
            given = self.layers.get(str(layer), self.layers.get(ALL_LAYERS))
            if given is None:
                raise PhantoraError(
                    f'{self.spec} has no shares for layer {layer}; add "{layer}" or "{ALL_LAYERS}" for all others'
                )
            if len(given) != experts:
                raise PhantoraError(
                    f"{self.spec} gives layer {layer} {len(given)} shares, the model has {experts} experts"
                )
            shares = np.array(given)
        return np.asarray(shares / shares.sum())

    def counts(self, layer: int, experts: int, tokens: int, top_k: int) -> Counts:
        """The pairs that go to each expert: int64[experts], of sum tokens * top_k.

        No expert gets more than `tokens`, since a token's choices differ; what a share exceeds that by
        goes to the others in proportion.
        """
        if top_k > experts:
            raise PhantoraError(f"{top_k} of {experts} experts cannot be chosen")
        return _round(_bounded(self.shares(layer, experts), tokens * top_k, tokens), tokens * top_k)


def _bounded(shares: Shares, total: int, most: int) -> Shares:
    """`total` in proportion to `shares`, none above `most`; total <= most * len(shares)."""
    result = np.zeros(len(shares))
    free = np.ones(len(shares), bool)
    while True:
        rest = total - result[~free].sum()
        weights = np.where(free, shares, 0.0)
        if rest > 0 and weights.sum() == 0:  # those with a share are full
            weights = free.astype(float)
        result[free] = (rest * weights / (weights.sum() or 1.0))[free]
        over = free & (result > most)
        if not over.any():
            return result
        result[over] = most
        free &= ~over


def _round(ideal: Shares, total: int) -> Counts:
    """Integers that differ from `ideal` by less than 1 and add up to `total` (largest remainder)."""
    ideal = np.where(np.abs(ideal - np.rint(ideal)) < 1e-6, np.rint(ideal), ideal)
    counts = np.floor(ideal).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - ideal, kind="stable")[:missing]] += 1
    return counts


@cache
def parse_routing(spec: str) -> Routing:
    """``balanced``, ``framework``, ``zipf:S`` or the path of a JSON file."""
    if spec in (BALANCED, FRAMEWORK):
        return Routing(spec)
    if spec.startswith(ZIPF):
        try:
            exponent = float(spec.removeprefix(ZIPF))
        except ValueError:
            exponent = math.nan
        if not 0 <= exponent <= 10:
            raise PhantoraError(f"{OPTION} {spec}: the exponent is a number from 0 (balanced) to 10, such as zipf:1.2")
        return Routing(spec, exponent)
    return Routing(os.path.abspath(spec), layers=_read(spec))


def _read(path: str) -> dict[str, list[float]]:
    """``{"0": [0.5, 0.3, ...], "*": [...]}``: shares by layer; only their proportions count."""
    try:
        with open(path, encoding="utf-8") as file:
            layers = json.load(file)
    except OSError as error:
        raise PhantoraError(
            f"{OPTION} {path}: {cause_of(error)}; give {BALANCED}, {ZIPF}S, {FRAMEWORK} or a JSON file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PhantoraError(f"{OPTION} {path} is not JSON: {error}") from error
    if not isinstance(layers, dict) or not layers:
        raise PhantoraError(f'{OPTION} {path} must hold an object such as {{"0": [0.7, 0.3], "*": [1, 1]}}')
    for layer, shares in layers.items():
        if layer != ALL_LAYERS and not layer.isdecimal():
            raise PhantoraError(f"{OPTION} {path}: {layer!r} is neither a layer's number nor {ALL_LAYERS!r}")
        fine = isinstance(shares, list) and all(
            isinstance(share, (int, float)) and 0 <= share <= _MOST_SHARE for share in shares
        )
        if not fine or sum(shares) <= 0:
            raise PhantoraError(
                f"{OPTION} {path}: layer {layer} needs a list of shares, none negative or above {_MOST_SHARE:g}, "
                "not all zero"
            )
    return layers
