"""Draws a cluster as SVG: one host, since all have the same parts, and the fabric's switches in rows above."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

import networkx as nx

from phantora.hardware.topology import NetworkLink, Topology, is_nic

_CELL, _ROW, _LEFT, _NOTES = 62, 84, 24, 190
_MOST_PARTS, _MOST_SWITCHES = 8, 16  # of a kind of a host, of a row of the fabric
_STYLE = """text{font:11px sans-serif;text-anchor:middle;fill:#222}.note{text-anchor:start;fill:#555}
.gpu{fill:#d8ecc4}.nic{fill:#f6e0b5}.switch{fill:#cfe0f5}.host{fill:none;stroke:#999;stroke-dasharray:3 3}
svg{background:#fff}rect{stroke:#555}line{stroke:#666;stroke-opacity:.55}"""
_ROWS = ("nvswitch", "gpu", "pcie", "cpu", "nic")  # of a host, from the bottom


@dataclass(frozen=True)
class _Spot:
    x: float
    y: float
    kind: str
    half: float
    """Half of its width."""


def svg(topology: Topology, title: str) -> str:
    """The drawing, of at most 8 GPUs of the host. Lines are as wide as their bandwidth's share of the fastest link;
    bandwidths stand on the right."""
    layers = list(_fabric_layers(topology))
    across = max(_MOST_PARTS, *(len(names) for names in layers)) * _CELL
    bottom = 90 + (len(layers) + len(_ROWS) - 1) * _ROW
    inner = sorted({end for link in _host_links(topology) for end in (link.source, link.target)}, key=_natural)
    rows = [[name for name in inner if _kind(name) == kind][:_MOST_PARTS] for kind in _ROWS]
    buses = set(rows[_ROWS.index("pcie")])
    joined = {end for link in _host_links(topology) if link.source in buses for end in (link.source, link.target)}
    rows[_ROWS.index("cpu")] = [name for name in rows[_ROWS.index("cpu")] if name in joined]
    spots: dict[str, _Spot] = {}
    for level, names in enumerate([*rows, *layers]):
        for index, name in enumerate(names):
            half = across / 2 / len(names) - 4 if _kind(name) == "nvswitch" else max(20.0, 3.4 * len(_label(name)))
            x = _LEFT + (index + 0.5) * across / len(names)
            spots[name] = _Spot(x, bottom - level * _ROW, _kind(name), half)
    links = [link for link in topology.links if link.source in spots and link.target in spots]
    top = bottom - (len(_ROWS) - 1) * _ROW - 34
    gpus = len(topology.nic_of)
    box = f"{topology.hosts} x {gpus} GPUs" + (f", the first {_MOST_PARTS} drawn" if gpus > _MOST_PARTS else "")
    body = [
        f'<rect class="host" x="{_LEFT - 8}" y="{top}" width="{across + 16}" height="{bottom - top + 24}" rx="6"/>',
        f'<text class="note" x="{_LEFT}" y="{top + 16}">{box}</text>',
        *_lines(links, spots),
        *_notes(links, spots, _LEFT + across + 18),
        *_nodes(spots),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + across + _NOTES} {bottom + 40}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<text x="{_LEFT + across / 2}" y="24" style="font-size:15px">{escape(title)}</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _host_links(topology: Topology) -> Iterator[NetworkLink]:
    return (link for link in topology.links if link.source.startswith("h0.") and link.target.startswith("h0."))


def _label(name: str) -> str:
    """Without its host."""
    return name.removeprefix("h0.")


def _kind(name: str) -> str:
    return _label(name).rstrip("0123456789.") if name.startswith("h0.") else "switch"


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts gpu10 behind gpu9."""
    parts: list[tuple[int, str]] = []
    text, digits = "", ""
    for letter in name + "\0":
        if letter.isdigit():
            digits += letter
            continue
        if digits:
            parts.append((int(digits), text))
            text, digits = "", ""
        text += letter
    return [*parts, (0, text)]


def _fabric_layers(topology: Topology) -> Iterator[list[str]]:
    """Switches by their distance from the drawn host's NICs; those that other hosts alone reach are left out."""
    fabric = nx.Graph()
    for link in topology.links:
        ends = (link.source, link.target)
        if all(is_nic(end) or "." not in end or not end.startswith("h") for end in ends):
            fabric.add_edge(*ends)
    drawn = [name for name in fabric if is_nic(name) and name.startswith("h0.")]
    fabric.remove_nodes_from([name for name in fabric if is_nic(name) and not name.startswith("h0.")])
    lengths = nx.multi_source_dijkstra_path_length(fabric, drawn) if drawn else {}
    for far in range(1, int(max(lengths.values(), default=0)) + 1):
        yield sorted((name for name, length in lengths.items() if length == far), key=_natural)[:_MOST_SWITCHES]


def _lines(links: list[NetworkLink], spots: dict[str, _Spot]) -> Iterator[str]:
    fastest = max((link.bandwidth for link in links), default=1.0)
    pairs = {tuple(sorted((link.source, link.target))): link for link in links}
    for (one, other), link in sorted(pairs.items()):
        a, b = spots[one], spots[other]
        if "nvswitch" in (a.kind, b.kind):  # as wide as a row: lines are upright
            a, b = (replace(s, x=o.x) if s.kind == "nvswitch" else s for s, o in ((a, b), (b, a)))
        stroke = 0.6 + 3.4 * link.bandwidth / fastest
        yield (
            f'<line x1="{a.x:.1f}" y1="{a.y:.1f}" x2="{b.x:.1f}" y2="{b.y:.1f}" stroke-width="{stroke:.2f}">'
            f"<title>{escape(one)} - {escape(other)}: {link.bandwidth / 1e9:.1f} GB/s</title></line>"
        )


def _notes(links: list[NetworkLink], spots: dict[str, _Spot], x: float) -> Iterator[str]:
    """Rates of the links between two rows, next to the gap that they cross."""
    seen: dict[tuple[float, str], None] = {}
    for link in links:
        one, other = sorted((spots[link.source], spots[link.target]), key=lambda spot: spot.y)
        if one.y != other.y:
            seen.setdefault((one.y + _ROW / 2, f"{other.kind} - {one.kind}: {link.bandwidth / 1e9:.1f} GB/s"))
    lines: dict[float, int] = {}
    for y, words in seen:
        lines[y] = lines.get(y, -1) + 1
        yield f'<text class="note" x="{x:.0f}" y="{y + 14 * lines[y]:.0f}">{escape(words)}</text>'


def _nodes(spots: dict[str, _Spot]) -> Iterator[str]:
    for name, spot in spots.items():
        kind = spot.kind if spot.kind in ("gpu", "nic") else "switch"
        yield (
            f'<rect class="{kind}" x="{spot.x - spot.half:.1f}" y="{spot.y - 10:.1f}" width="{2 * spot.half:.1f}" '
            f'height="20" rx="4"><title>{escape(name)}</title></rect>'
            f'<text x="{spot.x:.1f}" y="{spot.y + 4:.1f}">{escape(_label(name))}</text>'
        )
