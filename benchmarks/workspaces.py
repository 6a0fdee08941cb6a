"""What plans of cuDNN ask for beside their tensors: the simulator's table of it, and how well the simulator answers.

    python benchmarks/workspaces.py table --h100 FILE.jsonl ... --h200 FILE.jsonl ...
    python benchmarks/workspaces.py compare MEASURED.jsonl SIMULATED.jsonl

`table` adds to stub/cudnn/cudnn_workspaces.h and cudnn_tried.h. The files are those of benchmarks/device/memory.py,
measured on a GPU, or simulated:

    phantora trace --cluster 1x1xH100 benchmarks/device/memory.py --only workspaces --seconds 600 --out SIMULATED.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

STUB = Path(__file__).parents[1] / "stub" / "cudnn"
USUAL, TRIED = STUB / "cudnn_workspaces.h", STUB / "cudnn_tried.h"
HEADS = {
    USUAL: """// Bytes that plans of cuDNN 9.19 asked for on H100 and H200 under torch 2.11 (the other GPU's where one
// was not measured): benchmarks/device/memory.py. Written by benchmarks/workspaces.py.""",
    TRIED: """// The most that any plan of cuDNN 9.19 asked for while cudnn.benchmark tried them, on H100 and H200
// (the other GPU's where one was not measured): benchmarks/device/memory.py. Written by benchmarks/workspaces.py.""",
}
TYPES = {"bfloat16": "bf16", "float16": "f16"}
Plan = tuple[str, str, str, int, int, int, int, int, int, int]  # as PLAN in cudnn_workspace.h


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


def plan_of(row: dict[str, Any]) -> Plan | None:
    """None: not a convolution of the table's kind (square, without groups and dilation)."""
    args = row["call"]["args"]
    if row["call"]["op"] == "aten::cudnn_convolution":
        form, x, w, padding, stride, dilation, groups = "fwd", *args[:6]
    elif row["call"]["op"] == "aten::convolution_backward":
        x, w, stride, padding, dilation, groups = args[1], args[2], args[4], args[5], args[6], args[9]
        form = "dgrad" if args[10][0] else "wgrad"
    else:
        return None
    square = all(len(set(sizes)) == 1 for sizes in (x["s"][2:], w["s"][2:], stride, padding))
    if not square or len(x["s"]) != 4 or groups != 1 or dilation != [1, 1]:
        return None
    last = x["st"][1] == 1 and x["s"][2] > 1
    kind = TYPES.get(x["t"]) or row["compute"]
    layout = "nhwc" if last else "nchw"
    return (form, kind, layout, x["s"][0], x["s"][1], x["s"][2], w["s"][0], w["s"][2], stride[0], padding[0])


def table(h100: list[Path], h200: list[Path]) -> None:
    for path, benchmark in ((USUAL, False), (TRIED, True)):
        found = written(path)
        for plans, files in zip(found, (h100, h200), strict=True):
            for file in files:
                for row in rows(file, benchmark):
                    if plan := plan_of(row):
                        plans[plan] = row["first" if benchmark else "bytes"]
        with path.open("w") as out:
            print(HEADS[path], file=out)
            for plan in sorted(found[0] | found[1]):
                bytes_of = [one.get(plan, other.get(plan)) for one, other in (found, found[::-1])]
                print(f"PLAN({', '.join(map(str, (*plan, *bytes_of)))})", file=out)


def written(path: Path) -> tuple[dict[Plan, int], dict[Plan, int]]:
    """What the table has already, on H100 and H200."""
    found: tuple[dict[Plan, int], dict[Plan, int]] = {}, {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if not line.startswith("PLAN("):
            continue
        form, kind, layout, *numbers = line[len("PLAN(") : -1].split(", ")
        batch, channels, size, filters, taps, stride, padding, *bytes_of = map(int, numbers)
        plan = (form, kind, layout, batch, channels, size, filters, taps, stride, padding)
        for plans, value in zip(found, bytes_of, strict=True):
            plans[plan] = value
    return found


def compare(measured: Path, simulated: Path) -> None:
    """Per kind of call: how many agree to 512 bytes (the allocator's step), to 2 % of the call's memory."""
    answers = {(row["signature"], row["compute"]): row["bytes"] for row in rows(simulated)}
    kinds: dict[str, list[tuple[int, int]]] = {}
    for row in rows(measured):
        ours = answers.get((row["signature"], row["compute"]))
        if ours is None:
            continue
        plan = plan_of(row)
        kind = " ".join(plan[:3]) if plan else row["call"]["op"].removeprefix("aten::")
        kinds.setdefault(kind, []).append((abs(ours - row["bytes"]), row["bytes"] + row["results"]))
    shown = Table("kind", "calls", "equal", "within 2 %", "largest miss (MiB)")
    for kind, pairs in sorted(kinds.items()):
        equal = sum(miss < 512 for miss, _ in pairs) / len(pairs)
        close = sum(miss < max(512, 0.02 * size) for miss, size in pairs) / len(pairs)
        shown.add_row(kind, str(len(pairs)), f"{equal:.0%}", f"{close:.0%}", f"{max(pairs)[0] / 2**20:.1f}")
    Console(width=120).print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("table")
    make.add_argument("--h100", type=Path, nargs="+", default=[])
    make.add_argument("--h200", type=Path, nargs="+", default=[])
    check = verbs.add_parser("compare")
    check.add_argument("measured", type=Path)
    check.add_argument("simulated", type=Path)
    options = parser.parse_args()
    if options.verb == "table":
        table(options.h100, options.h200)
    else:
        compare(options.measured, options.simulated)


if __name__ == "__main__":
    main()
