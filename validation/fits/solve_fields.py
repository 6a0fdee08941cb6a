"""Solves the fields that convolutions of the shipped tables are predicted from; writes phantora/cost/data/fields.npz.

    python -m validation.fits.solve_fields

Needed after a change of the tables, of the tiers in phantora/cost/families/convolution/field.py or of what is read off
a field. Without the file each machine solves what it needs once, about a second for each field.
"""

from __future__ import annotations

from collections.abc import Callable

from phantora.cost import solutions
from phantora.cost.families import base_name, family_of
from phantora.cost.kriging import Floats
from phantora.cost.machine import Machine
from phantora.cost.table_files import DATA, tables_for
from phantora.hardware import load_gpu

GPUS = ("H100", "H200")


def main() -> None:
    solved: dict[str, Floats] = {}

    def collect(name: str, solve: Callable[[], Floats]) -> Floats:
        known = solutions.shipped().get(name)
        found = solve() if known is None else known
        if len(found) >= solutions.WORTH_KEEPING:
            solved[name] = found
        return found

    solutions.find = collect
    for product in GPUS:
        gpu = load_gpu(product)
        table = tables_for(gpu, [DATA])[0][0]
        for name in sorted({base_name(key.partition("(")[0]) for key in table.keys()}):  # noqa: SIM118
            predictor = family_of(name).predictor
            if predictor is None:
                continue
            for field in predictor(Machine(gpu), table, name, None).fields():
                field.solve()
            print(f"{product} {name}: {len(solved)} solutions so far", flush=True)
    solutions.write_shipped(solved)
    print(f"{solutions.SHIPPED}: {sum(map(len, solved.values()))} numbers")


if __name__ == "__main__":
    main()
