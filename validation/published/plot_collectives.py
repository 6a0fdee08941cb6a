"""Draws docs/collectives-accuracy.svg: bus bandwidth over size, measured and simulated.

    python -m validation.published.plot_collectives [-o docs/collectives-accuracy.svg]

Dots are measurements, lines the model. The last row holds
published curves of 8 and 2 x 8 GPUs (validation/published/nccl.json).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phantora.hardware import load_cluster
from phantora.sim.collectives import CollectiveModel
from phantora.sim.collectives.tuner import wire_share
from phantora.wire.layout import Coll
from validation.compare import collectives as accuracy
from validation.published import collectives as published

WIDTH, HEIGHT, GAP, COLUMNS = 300, 180, 50, 3
COLOURS = {2: "#2a7", 4: "#36c", 8: "#36c", 16: "#c52"}
PUBLISHED = ("DGX H100, 1 host of 8", "H200, 8 x 400 GbE (BlueField-3), 2 hosts, NCCL 2.30.4", "AWS p5.48xlarge (H100, EFA 3.2 Tb/s), 2 hosts")  # fmt: skip  # noqa: E501


@dataclass(frozen=True)
class Curve:
    members: int
    dots: list[tuple[int, float]]
    """Bytes, GB/s."""
    line: list[tuple[int, float]]


def measured() -> Iterator[tuple[str, list[Curve]]]:
    model = CollectiveModel(load_cluster("1x4xH200"))
    samples = accuracy.read()
    for op in sorted({sample.op for sample in samples}):
        curves = []
        for members in (2, 4):
            mine = sorted((s for s in samples if (s.op, s.members) == (op, members)), key=lambda s: s.bytes)
            factor = factor_of(op, members)
            dots = [(s.bytes, factor * s.bytes / s.us / 1e3) for s in mine]
            line = [(s.bytes, factor * s.bytes / accuracy.predict(model, s).duration_ns) for s in mine]
            curves.append(Curve(members, dots, line))
        yield f"{op}, 2 and 4 H200", curves


def factor_of(op: str, members: int) -> float:
    return 1.0 if op.startswith("send") else wire_share(getattr(Coll, op.upper()), members)


def from_others() -> Iterator[tuple[str, list[Curve]]]:
    for entry in published.read():
        if entry.system in PUBLISHED:
            model, factor = entry.model(), factor_of(entry.op, entry.members)
            dots = [(size, factor * size / us / 1e3) for size, us in entry.samples]
            line = [(size, factor * size / entry.predict(model, size).duration_ns) for size, _ in entry.samples]
            yield f"{entry.op}: {entry.system}", [Curve(entry.members, dots, line)]


def panel(title: str, curves: list[Curve], left: float, top: float) -> Iterator[str]:
    points = [point for curve in curves for point in (*curve.dots, *curve.line)]
    low, high = (math.log2(bound(size for size, _ in points)) for bound in (min, max))
    peak = max(rate for _, rate in points) * 1.08

    def at(size: int, rate: float) -> tuple[float, float]:
        x = left + WIDTH * (math.log2(size) - low) / max(high - low, 1)
        return x, top + HEIGHT * (1 - rate / peak)

    yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" class="frame"/>'
    yield f'<text x="{left}" y="{top - 6}" class="title">{title}</text>'
    for power in range(math.ceil(low), math.floor(high) + 1, 4):
        x, _ = at(1 << power, 0)
        text = (
            f"{1 << power - 30} GiB"
            if power >= 30
            else f"{1 << power - 20} MiB"
            if power >= 20
            else f"{1 << power - 10} KiB"
        )
        yield f'<text x="{x:.0f}" y="{top + HEIGHT + 13}" class="tick">{text}</text>'
    for share in (0.25, 0.5, 0.75, 1.0):
        rate = peak * share / 1.08
        _, y = at(1 << math.ceil(low), rate)
        yield f'<text x="{left - 4}" y="{y + 3:.0f}" class="side">{rate:.0f}</text>'
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
    for curve in curves:
        colour = COLOURS.get(curve.members, "#555")
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in curve.line))
        yield f'<polyline points="{path}" fill="none" stroke="{colour}"/>'
        for x, y in (at(*point) for point in curve.dots):
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>'


def drawing(panels: Iterable[tuple[str, list[Curve]]]) -> str:
    body: list[str] = []
    count = 0
    for count, (title, curves) in enumerate(panels, 1):
        row, column = divmod(count - 1, COLUMNS)
        body += panel(title, curves, 50 + column * (WIDTH + GAP), 40 + row * (HEIGHT + GAP + 10))
    rows = math.ceil(count / COLUMNS)
    size = f"0 0 {50 + COLUMNS * (WIDTH + GAP)} {40 + rows * (HEIGHT + GAP + 10)}"
    style = (
        "text{font:10px sans-serif;fill:#222}.title{font-weight:bold}.tick{text-anchor:middle}.side{text-anchor:end}"
        ".frame{fill:#fff;stroke:#999}.grid{stroke:#ddd}"
    )
    note = '<text x="50" y="16">Bus bandwidth, GB/s. Dots: measured; lines: simulated. Green 2, blue 4 or 8, red 16 GPUs.</text>'  # noqa: E501
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}">',
            f"<style>{style}</style>",
            note,
            *body,
            "</svg>\n",
        ]
    )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/collectives-accuracy.svg"))
    arguments = parser.parse_args()
    arguments.output.write_text(drawing([*measured(), *from_others()]))


if __name__ == "__main__":
    main()
