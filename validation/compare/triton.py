"""Prices of Triton kernels against measured times.

    python -m validation.compare.triton [FOLDER] [--list] [--fit] [--by-tensors] [--by-grid]

FOLDER contains what ``validation/probes/triton_kernels.py`` wrote: launches with their times. Each launch is
followed as a simulated rank follows it, and priced. Cases are split by a checksum of their names: constants are fitted
to one half
(``--fit`` prints them), and the other half judges. A kernel's time is the mean of its time with cold and with warm L2.
Of max-autotune's candidates (section `tune`), the choice by our prices is compared with the choice by measured times.
"""

from __future__ import annotations

import argparse
import base64
import json
import lzma
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from math import exp, log, prod
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

FOLDER = data.MEASUREMENTS / "2026-11-22-h100"


FIXED = ("error", "block_ns", "tensor", "tensor_wide", "vector", "memory")
"""Constants that are not fitted: shares of limits, which a fit would use to hide other faults."""
SEEN = ("apart",)
"""Sections with which terms of the formula were made."""
TUNED_WEIGHT = 0.4
"""Of max-autotune's candidates, which are many of a kind and timed by events."""


@dataclass(frozen=True)
class Point:
    """A kernel with its measured time."""

    section: str
    case: str
    name: str
    work: Work
    ns: float

    @property
    def held_out(self) -> bool:
        return self.section not in SEEN and zlib.crc32(self.case.encode()) % 2 == 1


def read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The lines of all cases, and the texts that they name."""
    rows = [row for file in sorted(folder.glob("triton.jsonl*")) for row in data.rows(file)[1:]]
    texts: dict[str, str] = {}
    for ir in sorted(folder.glob("triton_ir*.xz")):
        texts |= json.loads(lzma.decompress(ir.read_bytes()))
    return rows, texts


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
        Launch((x, y, z), given, launch["warps"], launch["stages"], launch["shared"], launch["regs"], launch["spills"]),
    )


def points_of(rows: Iterable[dict[str, Any]], texts: dict[str, str]) -> list[Point]:
    """Every Triton kernel that was timed; equal launches in a case count once, with the median of their times."""
    known: dict[str, dict[str, Function]] = {}
    found: list[Point] = []
    for row in rows:
        if "ms" in row and row.get("kernels_a_call") == 1 and not row["aten"]:
            work = work_in(row["launch"], texts, known)
            found.append(Point("tune", f"{row['case']} {row['choice']}", row["launch"]["name"], work, tried_ns(row)))
        identical: dict[str, list[tuple[dict[str, Any], float]]] = defaultdict(list)
        for kernel in row.get("kernels", ()):
            if (launch := kernel.get("launch")) and "cold" in kernel:
                shapes = [{**a, "p": 0, "data": ""} if isinstance(a, dict) else a for a in launch["args"]]
                key = json.dumps([launch["ir"], launch["grid"], shapes])
                identical[key].append((launch, (kernel["cold"] + kernel["warm"]) / 2))
        for several in identical.values():
            launch = several[0][0]
            try:
                work = work_in(launch, texts, known)
            except Unreadable as error:
                print(f"not followed: {row['case']}, {launch['name']}: {error}")
                continue
            found.append(Point(row["section"], row["case"], launch["name"], work, median(ns for _, ns in several)))
    return found


def errors(machine: Machine, points: Iterable[Point], constants: Constants) -> list[float]:
    return [abs(estimate(machine, p.work, constants).ns / p.ns - 1.0) for p in points]


def report(machine: Machine, points: list[Point], constants: Constants) -> None:
    """Errors of the half that constants were fitted to, of the other, and by section."""
    groups: dict[str, list[Point]] = {"fitted": [], "held out": []}
    for p in points:
        groups["held out" if p.held_out else "fitted"].append(p)
        groups.setdefault(f"{p.section} (held out)" if p.held_out else f"{p.section} (fitted)", []).append(p)
    for name, members in groups.items():
        found = sorted(errors(machine, members, constants))
        if not found:
            continue
        ratios = [estimate(machine, p.work, constants).ns / p.ns for p in members]
        worst = max(ratios + [1 / r for r in ratios])
        print(
            f"{name:22s} {len(found):4d} kernels: median {100 * median(found):.1f}%, 90th percentile "
            f"{100 * found[int(0.9 * (len(found) - 1) + 0.5)]:.1f}%, worst factor {worst:.2f}"
        )


def fit(machine: Machine, points: list[Point]) -> Constants:
    """Constants that describe `points` best: one after the other by factors that shrink."""
    names = [f.name for f in fields(Constants) if f.name not in FIXED]

    def loss(c: Constants) -> float:
        off = [
            (abs(log(estimate(machine, p.work, c).ns / p.ns)), TUNED_WEIGHT if p.section == "tune" else 1.0)
            for p in points
        ]
        far = sum(log(getattr(c, name) / getattr(CONSTANTS, name)) ** 2 for name in names)
        return sum(weight * (o + 0.5 * o * o) for o, weight in off) + 0.1 * far

    best = CONSTANTS
    value = loss(best)
    for step in (0.7, 0.35, 0.2, 0.35, 0.1, 0.05):
        for _ in range(8):
            before = value
            for name in names:
                for factor in (exp(step), exp(-step)):
                    tried = replace(best, **{name: getattr(best, name) * factor})
                    if (found := loss(tried)) < value:
                        best, value = tried, found
            if value > before * 0.9995:
                break
    print({k: round(v, 4) for k, v in asdict(best).items()})
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


def by_tensors(machine: Machine, rows: list[dict[str, Any]], texts: dict[str, str]) -> None:
    """What kernels take, in times that their tensors need to pass memory once: all that is known of one that is not
    followed."""
    found: dict[bool, dict[str, list[float]]] = {False: defaultdict(list), True: defaultdict(list)}
    for row in (row for row in rows if row["section"] not in SEEN):
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


def by_grid(machine: Machine, rows: list[dict[str, Any]], texts: dict[str, str]) -> None:
    """What a wave of blocks takes: all that is known of a kernel without its arguments. Kernels without products."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in (row for row in rows if row["section"] not in SEEN):
        for kernel in row.get("kernels", ()):
            if (launch := kernel.get("launch")) and "cold" in kernel and "tt.dot" not in texts[launch["ir"]]:
                threads = 32 * launch["warps"] * launch["ctas"]
                waves = waves_of(machine, KernelLaunch("", tuple(launch["grid"]), (threads, 1, 1)))
                ns = (kernel["cold"] + kernel["warm"]) / 2 - machine.fit.floor_ns
                found[json.dumps([launch["ir"], launch["grid"]])].append(max(0.0, ns) / waves)
    times = [median(each) for each in found.values()]
    few, middle, most = np.quantile(times, (0.1, 0.5, 0.9))
    print(f"by grid: {len(times)} kernels, a wave takes {middle:.0f} ns in the median; eight in ten "
          f"{few:.0f} to {most:.0f} ns, {middle / few:.1f} times less and {most / middle:.0f} times more")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--by-tensors", action="store_true", help="how kernels compare with their tensors, and stop")
    parser.add_argument("--by-grid", action="store_true", help="what a wave of blocks takes, and stop")
    parser.add_argument("--predict", type=Path, help="write the prices of recorded launches, and stop")
    options = parser.parse_args()
    gpu = load_gpu(options.gpu)
    machine = Machine(gpu)
    rows, texts = read(options.folder)
    if options.predict:
        predict(machine, rows, texts, options.predict)
        return
    if options.by_tensors:
        by_tensors(machine, rows, texts)
        return
    if options.by_grid:
        by_grid(machine, rows, texts)
        return
    points = points_of(rows, texts)
    constants = fit(machine, [p for p in points if not p.held_out]) if options.fit else CONSTANTS
    if options.list:
        for p in points:
            ns = estimate(machine, p.work, constants).ns
            half = "held" if p.held_out else "fit "
            print(f"{half} {p.case[:50]:50s} {p.name[:36]:36s} {p.ns / 1e3:9.1f} {ns / 1e3:9.1f} {ns / p.ns:6.2f}")
    report(machine, points, constants)
    choices(machine, model_for(gpu), rows, texts, constants)


if __name__ == "__main__":
    main()
