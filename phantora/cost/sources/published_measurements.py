"""Prices from kernels that others measured and published: products and forward attention."""

from __future__ import annotations

from dataclasses import replace

from phantora.cost.family import Prediction
from phantora.cost.published import Published
from phantora.cost.query import Query
from phantora.cost.types import Price, scale_to

PRODUCT_ERROR = 0.10
"""Relative, of a product of a published size: 90th percentile of their difference from our measurements on H100 and
H200 (validation/published/nvidia_products.py)."""
BETWEEN_SOURCES = {"L40S": 0.26, "B200-SXM": 0.18, "GB200": 0.24, "B300-SXM": 0.24, "GB300": 0.24, "RTX-PRO-6000": 0.26}
"""Relative, by GPU: 80th percentile of the difference between two publications of products in bfloat16
(validation.published.kernels). B300, GB300 and RTX PRO 6000 have one publication, and the error of a similar GPU."""


class PublishedMeasurements:
    """The published products and attention of the GPU."""

    def __init__(self, published: Published, gpu: str) -> None:
        self._published = published
        self._between = BETWEEN_SOURCES.get(gpu, 0.0)

    def price(self, query: Query) -> Price | None:
        """The published time, or one between published times; None for other operators."""
        if not query.comparable:
            return None
        if query.base.cls == "attention":
            found = self._published.attention(query.attention) if query.attention is not None else None
            return _price(query, found, exact=False)
        if len(query.products) != 1:
            return None
        (product,) = query.products
        found = self._published.read(product)
        price = _price(query, found, exact=found is not None and not found.distance and product.batch == 1)
        return price and replace(price, error=max(price.error or 0.0, self._between))


def _price(query: Query, found: Prediction | None, exact: bool) -> Price | None:
    if found is None:
        return None
    return replace(
        query.base,
        durations=scale_to(query.base.durations, found.ns),
        provenance="measured" if exact else "interpolated",
        error=PRODUCT_ERROR if exact else found.error,
    )
