"""Shares of a stream's speed that Transformer Engine's kernels reach, from measured ones; half of the cases held out.

    python -m validation.fits.transformer_engine [te_operators.jsonl] [--gpu H100]

Kernels of every other pair of cases (forward, and forward with backward) give each kind of
`phantora/cost/families/transformer_engine.py` its share (the median); the rest are priced with it. A kernel takes the
mean of cold and warm L2, as in a step.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from statistics import median

from phantora.cost.families import transformer_engine as family
from phantora.cost.machine import Machine
from phantora.cost.parse import parse_signature
from phantora.hardware import load_gpu
from validation.data import rows

DATA = "2026-11-22-h100/transformer_engine.parquet"


def kernels(path: str, machine: Machine) -> list[tuple[int, str, float, float, float]]:
    """Place of the case, kind, ns at a stream's full speed without the floor, ns measured without it, share now."""
    found = []
    measured = [row for row in rows(path) if not row["fused"]]
    for place, row in enumerate(measured):
        calls: dict[str, list[dict[str, float | str]]] = defaultdict(list)
        for kernel in row["kernels"]:
            if kernel.get("call"):
                calls[kernel["call"]].append(kernel)
        for text, own in calls.items():
            signature = parse_signature(text)
            done = family.passed(signature, signature.name)
            names = [str(kernel["name"]) for kernel in own]
            for kernel in own:
                kind = next((k for k in family.KINDS if k.pattern.search(str(kernel["name"]))), None)
                if kind is None:
                    continue
                share = 1.0 / names.count(str(kernel["name"])) if family.SEVERAL.search(signature.name) else 1.0
                moved = kind.moved(done.of(share))
                ns = (float(kernel["cold"]) + float(kernel["warm"])) / 2
                floor = machine.fit.floor_ns
                if moved and ns > floor:
                    whole = machine.memory_ns(moved) - floor
                    found.append((place, kind.pattern.pattern, whole, ns - floor, kind.share))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=str, nargs="?", default=DATA)
    parser.add_argument("--gpu", default="H100")
    args = parser.parse_args()
    machine = Machine(load_gpu(args.gpu))
    found = kernels(args.measured, machine)
    print(f"{'kind':48s} {'now':>5s} {'fitted':>6s} {'n':>4s} {'held out':>8s} {'error':>7s} {'with now':>8s}")
    for kind in family.KINDS:
        rows = [row for row in found if row[1] == kind.pattern.pattern]
        fitted = [whole / ns for place, _, whole, ns, _ in rows if place // 2 % 2 == 0]
        held = [(whole, ns) for place, _, whole, ns, _ in rows if place // 2 % 2]
        if not fitted:
            continue
        share = median(fitted)
        errors = sorted(abs(whole / share / ns - 1) for whole, ns in held)
        before = sorted(abs(whole / kind.share / ns - 1) for whole, ns in held)
        shown = [f"{100 * median(e):6.1f}%" if e else "" for e in (errors, before)]
        counts = f"{len(fitted):4d} {len(held):8d} {shown[0]:>7s} {shown[1]:>8s}"
        print(f"{kind.pattern.pattern[:48]:48s} {kind.share:5.2f} {share:6.3f} {counts}")


if __name__ == "__main__":
    main()
