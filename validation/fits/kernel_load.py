"""Fits what loading a module costs the host: a constant and a rate per byte of its machine code.

python -m validation.fits.kernel_load

A row is one operator's first call on a host 2.79 times as slow as ``emerald-rapids-fast``, in two processes. The second
one found torch's library in the page cache. Its times are fitted by least absolute errors.
"""

from __future__ import annotations

import numpy as np

from validation.data import rows

FACTOR = 2.79
"""Factor of the host, as `phantora profile host` found next to the measurement."""


def main() -> None:
    """Prints KERNEL_LOAD and KERNEL_LOAD_GIB of any host, KERNEL_FIRST of the reference host (ns), the fit's errors."""
    table = rows("2026-11-27-h100/first_launches.jsonl")
    loads = [row for row in table if row["modules"] and row["first_us"][1] > 500]
    design = np.array([[row["modules"], row["code_bytes"]] for row in loads], np.float64)
    measured = np.array([row["first_us"][1] for row in loads])
    weights = 1 / measured
    for _ in range(50):
        fitted, *_ = np.linalg.lstsq(design * weights[:, None], measured * weights, rcond=None)
        weights = 1 / np.maximum(np.abs(design @ fitted - measured), 500)
    errors = np.abs(design @ fitted / measured - 1)
    known = [row for row in table if not row["modules"] and row["first_us"][1] < 500]
    further = [row["first_us"][1] - row["second_us"] for row in known]
    print(f"KERNEL_LOAD = {fitted[0] * 1e3:.0f}")
    print(f"KERNEL_LOAD_GIB = {fitted[1] * 1e3 * 2**30:.0f}")
    print(f"KERNEL_FIRST = {np.median(further) * 1e3 / FACTOR:.0f}")
    print(f"{len(loads)} modules: median error {np.median(errors):.0%}, 90th percentile {np.quantile(errors, 0.9):.0%}")


if __name__ == "__main__":
    main()
