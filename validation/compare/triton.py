"""Prices of Triton kernels against measured times.

    python -m validation.compare.triton [FOLDER...] [--list] [--fit] [--by-tensors] [--by-grid]

A FOLDER contains what ``validation/probes/triton_kernels.py`` wrote on one GPU: launches with their times. Each launch
is followed as a simulated rank follows it, and priced. Cases are split by a checksum of their names (of Mamba's scan
the names of its kernels): constants are fitted to one half, and the other half judges. ``--fit`` prints the constants
of programs that multiply tiles; it needs SciPy. A kernel's time is the mean of its time with cold and with warm L2.
Of max-autotune's candidates (section `tune`), the choice by our prices is compared with the choice by Inductor's own
benchmark, whose times contain waits for the host and are not fitted to.
"""

from __future__ import annotations

import argparse
import base64
import json
import lzma
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log, prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from phantora.cost import model_for, parse_signature
from phantora.cost.kernels import waves_of
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, on_gpu, traffic
from phantora.cost.triton_work import CONSTANTS, Constants, estimate
from phantora.cost.types import KernelLaunch
from phantora.hardware import load_gpu
from phantora.ttir.launch import Argument, Descriptor, Launch, Memory
from phantora.ttir.parse import Function, Unreadable, parse
from phantora.ttir.programs import work_of
from phantora.ttir.work import Work
from validation import data

FOLDERS = tuple(data.MEASUREMENTS / name for name in ("2026-11-22-h100", "2026-11-28-h100", "2026-11-28-h200"))
GPUS = {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200"}

PRODUCTS = (
    "shared",
    "product_alu",
    "product_scanned",
    "product_start_ns",
    "product_step_ns",
    "tensor_wide",
    "spill",
    "dot_ns",
    "dot_group_ns",
    "piped_ns",
    "serial_tensor",
    "mixed",
)
"""Constants of programs that multiply tiles, which are fitted: not shares of limits, which would hide other faults."""
WEIGHTS = {"own": 1.5, "flex": 1.5, "fla": 1.5, "more": 1.5, "mamba": 0.8}
"""Of sections in the fit: of the scan there are many configurations of one kernel."""
LARGE = 0.15
"""Logarithm of a ratio from which on errors count linearly."""
PRIOR = 0.03
"""How firmly constants are drawn to their values."""
SEEN = ("apart",)
"""Sections with which terms of the formula were made."""
GRIDS = ("apart", "tiles", "fed", "mamba", "masked")
"""Sections with many variants of one kernel."""


@dataclass(frozen=True)
class Point:
    """A kernel with its measured time."""

    machine: Machine
    section: str
    case: str
    name: str
    work: Work
    ns: float

    @property
    def held_out(self) -> bool:
        split = self.name if self.section == "mamba" else self.case
        return self.section not in SEEN and zlib.crc32(split.encode()) % 2 == 1


def read(folder: Path) -> tuple[Machine, list[dict[str, Any]], dict[str, str]]:
    """The GPU, the lines of all cases, and the texts that they name."""
    about, *rows = (row for file in sorted(folder.glob("triton.jsonl*")) for row in data.rows(file))
    texts: dict[str, str] = {}
    for ir in sorted(folder.glob("triton_ir*.xz")):
        texts |= json.loads(lzma.decompress(ir.read_bytes()))
    return Machine(load_gpu(GPUS[about["gpu"]])), rows, texts


def tried_ns(row: dict[str, Any]) -> float:
    """Of a candidate: its kernels' time, where that was measured, else what Inductor's benchmark said."""
    return float((row["cold"] + row["warm"]) / 2 if "cold" in row else row["ms"] * 1e6)


def argument(given: Any, texts: dict[str, str]) -> Argument:
    """As a rank describes it."""
    if not isinstance(given, dict):
        return None if given is None else given
    width, count = item_bytes(given["t"]), prod(given["s"])
    span = 1 + sum((n - 1) * step for n, step in zip(given["s"], given["st"], strict=True)) if count else 0
    values = None
    if "data" in given:
        raw = np.frombuffer(base64.b64decode(texts[given["data"]]), np.uint8)

        def values(raw: Any = raw) -> Any:
            return raw

    memory = Memory(given["p"], min(count, span) * width, span * width, values)
    return Descriptor(memory, tuple(given["s"]), tuple(given["st"])) if "block" in given else memory


def work_in(launch: dict[str, Any], texts: dict[str, str], known: dict[str, dict[str, Function]]) -> Work:
    """What a recorded launch does."""
    if launch["ir"] not in known:
        known[launch["ir"]] = parse(texts[launch["ir"]])
    x, y, z = (*launch["grid"], 1, 1)[:3]
    given = tuple(argument(a, texts) for a in launch["args"])
    return work_of(
        known[launch["ir"]],
        Launch(
            (x, y, z),
            given,
            launch["warps"],
            stages=launch["stages"],
            shared=launch["shared"],
            registers=launch["regs"],
            spills=launch["spills"],
        ),
    )


def points_of(machine: Machine, rows: Iterable[dict[str, Any]], texts: dict[str, str]) -> list[Point]:
    """Every Triton kernel that was timed; equal launches in a section count once, with the median of their times."""
    known: dict[str, dict[str, Function]] = {}
    identical: dict[str, list[tuple[dict[str, Any], dict[str, Any], float]]] = defaultdict(list)
    for row in rows:
        for kernel in row.get("kernels", ()):
            if (launch := kernel.get("launch")) and "cold" in kernel:
                shapes = [{**a, "p": 0, "data": ""} if isinstance(a, dict) else a for a in launch["args"]]
                apart = row["section"] if row["section"] == "mamba" else row["case"]
                key = json.dumps([apart, launch["ir"], launch["grid"], launch["warps"], launch["stages"], shapes])
                identical[key].append((row, launch, (kernel["cold"] + kernel["warm"]) / 2))
    found: list[Point] = []
    for several in identical.values():
        row, launch, _ = several[0]
        try:
            work = work_in(launch, texts, known)
        except Unreadable as error:
            print(f"not followed: {row['case']}, {launch['name']}: {error}")
            continue
        time = median(ns for *_, ns in several)
        found.append(Point(machine, row["section"], row["case"], launch["name"], work, time))
    return found


def ratio(p: Point, constants: Constants) -> float:
    """The price in parts of the measured time."""
    return estimate(p.machine, p.work, constants).ns / p.ns


def report(points: list[Point], constants: Constants) -> None:
    """Errors of the half that constants were fitted to, of the other, and by section and products."""
    groups: dict[str, list[float]] = defaultdict(list)
    for p in points:
        half, kind = "held out" if p.held_out else "fitted", "products" if p.work.dots else "no products"
        for name in (half, f"{half}, {kind}", f"{half}, {kind}, {p.section}"):
            groups[name].append(ratio(p, constants))
    for name, ratios in sorted(groups.items(), key=lambda group: (group[0].count(","), group[0])):
        found = sorted(abs(r - 1.0) for r in ratios)
        most, worst = found[int(0.9 * (len(found) - 1) + 0.5)], max(ratios + [1 / r for r in ratios])
        print(
            f"{name:34s} {len(found):4d} kernels: median {100 * median(found):.1f}%, "
            f"90th percentile {100 * most:.1f}%, worst factor {worst:.2f}, median ratio {median(ratios):.2f}"
        )


def fit(points: list[Point]) -> Constants:
    """The constants of `PRODUCTS` that describe those of `points` best that multiply tiles."""
    from scipy.optimize import least_squares

    multiply = [p for p in points if p.work.dots]
    weights = np.array([WEIGHTS.get(p.section, 1.0) for p in multiply])
    start = np.log([getattr(CONSTANTS, name) for name in PRODUCTS])

    def constants(values: Any) -> Constants:
        return replace(CONSTANTS, **dict(zip(PRODUCTS, map(float, np.exp(values)), strict=True)))

    def residuals(values: Any) -> Any:
        c = constants(values)
        off = np.array([log(ratio(p, c)) for p in multiply])
        bent = np.sqrt(2.0 * LARGE**2 * (np.sqrt(1.0 + (off / LARGE) ** 2) - 1.0))
        return np.concatenate([weights * bent, PRIOR * (values - start)])

    best = constants(least_squares(residuals, start, x_scale=0.3, diff_step=0.02, max_nfev=40).x)
    print({name: float(f"{getattr(best, name):.4g}") for name in PRODUCTS})
    return best


def choices(machine: Machine, model: Any, rows: list[dict[str, Any]], texts: dict[str, str], c: Constants) -> None:
    """How often our prices choose what measured times choose, among all candidates of a product."""
    known: dict[str, dict[str, Function]] = {}
    cases: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for row in rows:
        if row["section"] != "tune":
            continue
        if "launch" in row and row.get("kernels_a_call") == 1:
            ns = estimate(machine, work_in(row["launch"], texts, known), c).ns
        elif row["aten"] and (product := product_of(row["case"])) is not None:
            ns = sum(model.operator(parse_signature(json.dumps(product)), ()).durations)
        else:
            continue
        cases[row["case"]].append((row["choice"], tried_ns(row), float(ns)))
    same, costs, among = 0, [], []
    for case, candidates in cases.items():
        real = min(candidates, key=lambda x: x[1])
        ours = min(candidates, key=lambda x: x[2])
        templates = [x for x in candidates if x[0].startswith("triton")]
        among.append(min(templates, key=lambda x: x[2])[1] / min(x[1] for x in templates))
        off = median([abs(x[2] / x[1] - 1) for x in templates]) if templates else 0.0
        same += ours[0] == real[0]
        costs.append(ours[1] / real[1])
        print(
            f"tune {case:24s} {len(candidates):3d} candidates, median error {100 * off:5.1f}%: "
            f"best {real[0]} {real[1] / 1e3:.1f} us, "
            f"ours {ours[0]}, which takes {100 * (ours[1] / real[1] - 1):.1f}% longer"
        )
    if costs:
        texts_of = ", ".join(f"{100 * (a - 1):.0f}%" for a in among)
        print(f"tune: among templates alone, ours takes longer than the best by {texts_of}")
        print(
            f"tune: the same choice {same} times of {len(costs)}; "
            f"ours costs {100 * (median(costs) - 1):.1f}% more (median)"
        )


def predict(machine: Machine, rows: list[dict[str, Any]], texts: dict[str, str], to: Path) -> None:
    """Prices of launches that were recorded under simulation, before anything was measured."""
    known: dict[str, dict[str, Function]] = {}
    lines = {
        json.dumps(
            {
                "case": row["case"],
                "kernel": k["name"],
                "ns": round(estimate(machine, work_in(k["launch"], texts, known)).ns),
            }
        )
        for row in rows
        for k in row.get("kernels", ())
        if "launch" in k
    }
    with to.open("a") as out:
        out.writelines(line + "\n" for line in sorted(lines))


def product_of(case: str) -> dict[str, Any] | None:
    """The ATen operator behind a case of section `tune`."""
    kind, *sizes = case.split()
    m, n, k = (int(s) for s in sizes)
    dtype = "float32" if kind == "mm32" else "bfloat16"

    def tensor(*shape: int) -> dict[str, Any]:
        return {"t": dtype, "s": shape, "st": [prod(shape[i + 1 :]) for i in range(len(shape))]}

    if kind == "bmm":
        return {"op": "aten::bmm", "args": [tensor(m, n, k), tensor(m, k, n)]}
    if kind == "addmm":
        return {"op": "aten::addmm", "args": [tensor(n), tensor(m, k), tensor(k, n), 1, 1]}
    return {"op": "aten::mm", "args": [tensor(m, k), tensor(k, n)]}


Measured = list[tuple[Machine, list[dict[str, Any]], dict[str, str]]]


def by_tensors(measured: Measured) -> None:
    """What kernels take, in times that their tensors need to pass memory once: all that is known of one that is not
    followed."""
    found: dict[bool, dict[str, list[float]]] = {False: defaultdict(list), True: defaultdict(list)}
    for machine, row, texts in ((m, row, t) for m, rows, t in measured for row in rows if row["section"] not in GRIDS):
        for kernel in row.get("kernels", ()):
            if (launch := kernel.get("launch")) and "cold" in kernel:
                args = [{k: a[k] for k in ("t", "s", "st")} if isinstance(a, dict) else a for a in launch["args"]]
                signature = parse_signature(json.dumps({"op": "triton::kernel", "args": args}))
                least = machine.memory_ns(float(sum(traffic(t) for t in on_gpu(signature.args))))
                key = json.dumps([launch["ir"], launch["grid"], args])
                found["tt.dot" in texts[launch["ir"]]][key].append((kernel["cold"] + kernel["warm"]) / 2 / least)
    without, products = ([median(times) for times in found[with_dots].values()] for with_dots in (False, True))
    for name, times in (("without products", without), ("with products", products), ("all", without + products)):
        middle, most = np.quantile(times, (0.5, 0.9))
        print(f"by tensors, {name}: {len(times)} kernels, median {middle:.2f} times, 90th percentile {most:.1f} times")


def by_grid(measured: Measured) -> None:
    """What a wave of blocks takes: all that is known of a kernel without its arguments. Kernels without products."""
    found: dict[str, list[float]] = defaultdict(list)
    for machine, row, texts in ((m, row, t) for m, rows, t in measured for row in rows if row["section"] not in GRIDS):
        for kernel in row.get("kernels", ()):
            if (launch := kernel.get("launch")) and "cold" in kernel and "tt.dot" not in texts[launch["ir"]]:
                threads = 32 * launch["warps"] * launch["ctas"]
                waves = waves_of(machine, KernelLaunch("", tuple(launch["grid"]), (threads, 1, 1)))
                ns = (kernel["cold"] + kernel["warm"]) / 2 - machine.fit.floor_ns
                found[json.dumps([launch["ir"], launch["grid"]])].append(max(0.0, ns) / waves)
    times = [median(each) for each in found.values()]
    few, middle, most = np.quantile(times, (0.1, 0.5, 0.9))
    print(
        f"by grid: {len(times)} kernels, a wave takes {middle:.0f} ns in the median; eight in ten "
        f"{few:.0f} to {most:.0f} ns, {middle / few:.1f} times less and {most / middle:.0f} times more"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="*", default=FOLDERS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--by-tensors", action="store_true", help="how kernels compare with their tensors, and stop")
    parser.add_argument("--by-grid", action="store_true", help="what a wave of blocks takes, and stop")
    parser.add_argument("--predict", type=Path, help="write the prices of recorded launches, and stop")
    options = parser.parse_args()
    measured = [read(folder) for folder in options.folders]
    if options.predict:
        for machine, rows, texts in measured:
            predict(machine, rows, texts, options.predict)
        return
    if options.by_tensors:
        by_tensors(measured)
        return
    if options.by_grid:
        by_grid(measured)
        return
    points = [p for one in measured for p in points_of(*one)]
    constants = fit([p for p in points if not p.held_out]) if options.fit else CONSTANTS
    if options.list:
        for p in points:
            half = "held" if p.held_out else "fit "
            print(
                f"{half} {p.case[:50]:50s} {p.name[:36]:36s} {p.ns / 1e3:9.1f} "
                f"{ratio(p, constants) * p.ns / 1e3:9.1f} {ratio(p, constants):6.2f}"
            )
    report(points, constants)
    for machine, rows, texts in measured:
        choices(machine, model_for(machine.gpu), rows, texts, constants)


if __name__ == "__main__":
    main()
