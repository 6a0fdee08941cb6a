"""Weights of the Gaussian processes of convolutions in the shipped tables, for phantora/cost/data/gp_weights.npz.

    python -m validation.fits.gp_weights

Needed after a change of the tables, of the tiers in phantora/cost/families/convolution/prediction.py, or of the
quantities that the processes predict. Without the file each machine solves each process once, in about a second.
"""

from __future__ import annotations

from collections.abc import Callable

from phantora.cost import gp_cache
from phantora.cost.families import base_name, family_of
from phantora.cost.kriging import Floats
from phantora.cost.machine import Machine
from phantora.cost.table_files import DATA, tables_for
from phantora.hardware import load_gpu

GPUS = ("H100", "H200")


def main() -> None:
    solved: dict[str, Floats] = {}

    def collect(name: str, solve: Callable[[], Floats]) -> Floats:
        known = gp_cache.shipped().get(name)
        found = solve() if known is None else known
        if len(found) >= gp_cache.WORTH_KEEPING:
            solved[name] = found
        return found

    gp_cache.find = collect
    for product in GPUS:
        gpu = load_gpu(product)
        table = tables_for(gpu, [DATA])[0][0]
        for name in sorted({base_name(key.partition("(")[0]) for key in table.keys()}):  # noqa: SIM118
            predictor = family_of(name).predictor
            if predictor is None:
                continue
            for process in predictor(Machine(gpu), table, name, None).processes():
                process.solve()
            print(f"{product} {name}: {len(solved)} processes so far", flush=True)
    gp_cache.write_shipped(solved)
    print(f"{gp_cache.SHIPPED}: {sum(map(len, solved.values()))} numbers")


if __name__ == "__main__":
    main()
