"""Operators that one GPU's table of kernel times has and another's lacks, in random order, for `phantora profile`.

    python benchmarks/device/lacking.py H100 H200 lacking.jsonl [--without convolution,sort] [--seed N]
    phantora profile lacking.jsonl --out lacking_h200.parquet --budget 300      # on the GPU
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from phantora.cost.families import base_name, class_of
from phantora.cost.measured import DATA
from phantora.cost.table import Entry, read_table, signature_key
from phantora.cost.wanted import Wanted, write_wanted
from phantora.hardware import load_gpu


def entries(gpu: str) -> dict[tuple[str, str], Entry]:
    table = read_table(DATA / f"{load_gpu(gpu).name.lower()}.parquet")
    return {(signature_key(entry.parsed), entry.compute): entry for entry in table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("has")
    parser.add_argument("lacks")
    parser.add_argument("out", type=Path)
    parser.add_argument("--without", default="", help="classes, with commas between them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    there, here = entries(options.has), entries(options.lacks)
    unwanted = set(options.without.split(","))
    found = [
        Wanted(entry.signature, entry.compute, cls=cls)
        for key, entry in there.items()
        if key not in here and (cls := class_of(base_name(entry.parsed.name))) not in unwanted
    ]
    random.Random(options.seed).shuffle(found)
    write_wanted(options.out, found, gpu=options.lacks)
    print(f"{len(found)} operators")


if __name__ == "__main__":
    main()
