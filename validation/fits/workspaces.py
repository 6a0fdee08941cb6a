"""Memory that plans of cuDNN ask for in addition to tensors: its shipped tables, and the simulator's errors.

    python -m validation.fits.workspaces table h100-sxm FILE.jsonl ...
    python -m validation.fits.workspaces compare MEASURED.jsonl SIMULATED.jsonl

`table` adds to phantora/cost/data/workspaces/h100-sxm.parquet. The files are those of validation/probes/memory.py,
measured on that GPU, or simulated:

    phantora trace --cluster 1x1xH100 -m validation.probes.memory --only workspaces --seconds 600 --out SIMULATED.jsonl

A user's own GPU gets its table by `phantora profile`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from phantora.cost.parse import parse_signature
from phantora.cost.table_files import DATA
from phantora.cost.workspaces import FOLDER, Bytes, Convolution, convolution_of, read_workspaces, write_workspaces


def rows(path: Path, benchmark: bool = False) -> Iterator[dict[str, Any]]:
    """Measured calls with cuDNN's default choices, or with cudnn.benchmark, their signature read."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["name"] != "workspace" or "bytes" not in row or row.get("benchmark", False) != benchmark:
            continue
        call = json.loads(row["signature"])
        if call["op"] == "aten::cudnn_convolution" and call["args"][6:9:2] != [benchmark, row["compute"] == "tf32"]:
            continue  # the operator's own arguments say other than torch's settings
        yield row | {"call": call}


def kind_of(row: dict[str, Any]) -> Convolution | None:
    return convolution_of(parse_signature(row["signature"]), row["compute"])


def table(name: str, files: list[Path]) -> None:
    path = DATA / FOLDER / f"{name}.parquet"
    shipped = read_workspaces(path)
    known = shipped.rows()
    for file in files:
        for benchmark in (False, True):
            for row in rows(file, benchmark):
                convolution = kind_of(row)
                if convolution is None:
                    continue
                taken = known.setdefault(convolution, Bytes())
                if benchmark:
                    taken.largest = row["first"]
                else:
                    taken.usual = row["bytes"]
    write_workspaces(path, shipped.about, known)


def compare(measured: Path, simulated: Path) -> None:
    """Per kind of call: how many agree to 512 bytes (the allocator's step), to 2 % of the call's memory."""
    answers = {(row["signature"], row["compute"]): row["bytes"] for row in rows(simulated)}
    kinds: dict[str, list[tuple[int, int]]] = {}
    for row in rows(measured):
        ours = answers.get((row["signature"], row["compute"]))
        if ours is None:
            continue
        plan = kind_of(row)
        kind = f"{plan.form} {plan.type} {plan.layout}" if plan else row["call"]["op"].removeprefix("aten::")
        kinds.setdefault(kind, []).append((abs(ours - row["bytes"]), row["bytes"] + row["results"]))
    shown = Table("kind", "calls", "equal", "within 2 %", "largest miss (MiB)")
    for kind, pairs in sorted(kinds.items()):
        equal = sum(miss < 512 for miss, _ in pairs) / len(pairs)
        close = sum(miss < max(512, 0.02 * size) for miss, size in pairs) / len(pairs)
        shown.add_row(kind, str(len(pairs)), f"{equal:.0%}", f"{close:.0%}", f"{max(pairs)[0] / 2**20:.1f}")
    Console(width=120).print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("table")
    make.add_argument("name", help="of the table, as h100-sxm")
    make.add_argument("files", type=Path, nargs="+")
    check = commands.add_parser("compare")
    check.add_argument("measured", type=Path)
    check.add_argument("simulated", type=Path)
    options = parser.parse_args()
    if options.command == "table":
        table(options.name, options.files)
    else:
        compare(options.measured, options.simulated)


if __name__ == "__main__":
    main()
