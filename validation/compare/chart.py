"""Draws the real runs of the ledger against their simulation: python -m validation.compare.chart docs/accuracy.svg

A point is a run: its real step on the horizontal axis, the simulated one on the vertical axis, both logarithmic in ms.
Runs with steady steps are filled; the others are rings.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from validation.compare.runs import real_runs, sessions, simulated_steps, steady

SIDE, LEFT, TOP = 360, 76, 16
LOW, HIGH = 1.0, 2000.0  # ms


def place(ms: float) -> float:
    """Pixels along an axis."""
    return SIDE * math.log(ms / LOW) / math.log(HIGH / LOW)


def point(real: float, simulated: float, filled: bool) -> str:
    """A circle at a real and a simulated step in ms."""
    x, y = LEFT + place(real), TOP + SIDE - place(simulated)
    fill = 'fill="#2563eb" fill-opacity="0.55"' if filled else 'fill="none" stroke="#9ca3af"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" {fill}/>'


def axes() -> list[str]:
    """The frame, ticks, the line of equal steps and a band of 10 % around it."""
    bottom = TOP + SIDE
    band = place(LOW * 1.1)
    drawn = [
        f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#9ca3af"/>',
        f'<line x1="{LEFT}" y1="{bottom}" x2="{LEFT + SIDE}" y2="{TOP}" stroke="#9ca3af"/>',
        f'<polygon points="{LEFT},{bottom - band:.1f} {LEFT + SIDE - band:.1f},{TOP} {LEFT + SIDE},{TOP} '
        f'{LEFT + SIDE},{TOP + band:.1f} {LEFT + band:.1f},{bottom} {LEFT},{bottom}" '
        'fill="#2563eb" fill-opacity="0.08"/>',
    ]
    for ms in (1, 10, 100, 1000):
        at = place(ms)
        drawn.append(f'<text x="{LEFT + at:.1f}" y="{bottom + 18}" text-anchor="middle">{ms} ms</text>')
        drawn.append(f'<text x="{LEFT - 6}" y="{bottom - at + 4:.1f}" text-anchor="end">{ms} ms</text>')
    drawn.append(f'<text x="{LEFT + SIDE / 2}" y="{bottom + 36}" text-anchor="middle">real step</text>')
    middle = TOP + SIDE / 2
    drawn.append(f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">simulated step</text>')
    return drawn


def main() -> None:
    """Writes the picture and prints how many runs it shows."""
    drawn, counts = axes(), {True: 0, False: 0}
    for entry in sessions():
        ours = simulated_steps(entry)
        for run in real_runs(entry):
            if run["run_id"] in ours:
                filled = steady(run)
                counts[filled] += 1
                drawn.append(point(run["median_iter_s"] * 1e3, ours[run["run_id"]] * 1e3, filled))
    key = TOP + 20
    drawn.append(f'<circle cx="{LEFT + 14}" cy="{key - 4}" r="3" fill="#2563eb"/>')
    drawn.append(f'<text x="{LEFT + 24}" y="{key}">steady steps ({counts[True]} runs)</text>')
    drawn.append(f'<circle cx="{LEFT + 14}" cy="{key + 14}" r="3" fill="none" stroke="#9ca3af"/>')
    drawn.append(f'<text x="{LEFT + 24}" y="{key + 18}">host-bound, unsteady steps ({counts[False]} runs)</text>')
    size = f'width="{LEFT + SIDE + 16}" height="{TOP + SIDE + 46}"'
    style = "<style>text{font:12px sans-serif;fill:#6b7280}</style>"
    text = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}' + "\n".join(drawn) + "</svg>\n"
    Path(sys.argv[1]).write_text(text)
    print(f"{counts[True]} steady and {counts[False]} other runs")


if __name__ == "__main__":
    main()
