"""Draws a cluster as SVG: hosts below, their GPUs and NICs in them, the fabric's switches in rows above."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import networkx as nx

from phantora.hardware.topology import NetworkLink, Topology, is_nic

DRAWN_HOSTS = 16
"""Of a larger cluster so many hosts are drawn, with the switches that join them."""
_CELL, _GAP, _ROW = 46, 18, 90
_STYLE = """text{font:10px sans-serif;text-anchor:middle;fill:#222}
.gpu{fill:#d8ecc4}.nic{fill:#f6e0b5}.switch{fill:#cfe0f5}.host{fill:none;stroke:#999;stroke-dasharray:3 3}
rect,circle{stroke:#555}line{stroke:#666;stroke-opacity:.55}"""


@dataclass(frozen=True)
class _Spot:
    x: float
    y: float
    kind: str


def svg(topology: Topology, title: str) -> str:
    """The drawing; lines are as wide as their bandwidth's share of the fastest link."""
    hosts = min(topology.hosts, DRAWN_HOSTS)
    width = len(topology.nic_of)
    spots: dict[str, _Spot] = {}
    layers = list(_fabric_layers(topology, hosts))
    span = width * _CELL + _GAP
    # Rows from the bottom: GPUs, what joins them, NICs, the fabric.
    bottom = 60 + len(layers) * _ROW + 3 * _ROW
    for host in range(hosts):
        left = 20 + host * span
        inner = sorted(
            {end for link in _host_links(topology, host) for end in (link.source, link.target)}, key=_natural
        )
        rows = {"gpu": bottom, "join": bottom - _ROW * 0.8, "cpu": bottom - _ROW * 1.4, "nic": bottom - _ROW * 2}
        for row, level in rows.items():
            names = [name for name in inner if _row(name) == row]
            for index, name in enumerate(names):
                x = left + (index + 0.5) * width * _CELL / len(names)
                spots[name] = _Spot(x, level, row if row in ("gpu", "nic") else "switch")
    across = hosts * span
    for layer, names in enumerate(layers):
        y = bottom - 2 * _ROW - (layer + 1) * _ROW
        for index, name in enumerate(names):
            spots[name] = _Spot(20 + (index + 0.5) * across / len(names), y, "switch")
    links = [link for link in topology.links if link.source in spots and link.target in spots]
    body = [*_lines(links, spots), *_boxes(hosts, span, width, bottom), *_nodes(spots)]
    note = f" (the first {hosts} of {topology.hosts} hosts)" if hosts < topology.hosts else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across + 40:.0f} {bottom + 40}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<text x="{across / 2 + 20:.0f}" y="20" style="font-size:14px">{escape(title + note)}</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _host_links(topology: Topology, host: int) -> Iterator[NetworkLink]:
    prefix = f"h{host}."
    return (link for link in topology.links if link.source.startswith(prefix) and link.target.startswith(prefix))


def _row(name: str) -> str:
    local = name.partition(".")[2]
    return "join" if local.startswith(("nvswitch", "pcie")) else "cpu" if local.startswith("cpu") else local[:3]


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


def _fabric_layers(topology: Topology, hosts: int) -> Iterator[list[str]]:
    """Switches by their distance from the drawn hosts' NICs, those that lead nowhere else left out."""
    fabric = nx.Graph()
    for link in topology.links:
        ends = (link.source, link.target)
        if all(is_nic(end) or "." not in end or not end.startswith("h") for end in ends):
            fabric.add_edge(*ends)
    drawn = [name for name in fabric if is_nic(name) and int(name[1:].partition(".")[0]) < hosts]
    other = [name for name in fabric if is_nic(name) and name not in set(drawn)]
    fabric.remove_nodes_from(other)
    lengths = nx.multi_source_dijkstra_path_length(fabric, drawn) if drawn else {}
    farthest = int(max(lengths.values(), default=0))
    for far in range(1, farthest + 1):
        yield sorted((name for name, length in lengths.items() if length == far), key=_natural)


def _lines(links: list[NetworkLink], spots: dict[str, _Spot]) -> Iterator[str]:
    fastest = max((link.bandwidth for link in links), default=1.0)
    pairs = {tuple(sorted((link.source, link.target))): link for link in links}
    for (one, other), link in sorted(pairs.items()):
        a, b = spots[one], spots[other]
        stroke = 0.6 + 3.4 * link.bandwidth / fastest
        yield (
            f'<line x1="{a.x:.1f}" y1="{a.y:.1f}" x2="{b.x:.1f}" y2="{b.y:.1f}" stroke-width="{stroke:.2f}">'
            f"<title>{escape(one)} - {escape(other)}: {link.bandwidth / 1e9:.1f} GB/s</title></line>"
        )


def _boxes(hosts: int, span: float, width: int, bottom: float) -> Iterator[str]:
    for host in range(hosts):
        left, top = 20 + host * span - 4, bottom - 2 * _ROW - 24
        yield (
            f'<rect class="host" x="{left:.0f}" y="{top:.0f}" width="{width * _CELL + 8}" '
            f'height="{2 * _ROW + 46}" rx="6"/><text x="{left + 14:.0f}" y="{bottom + 34:.0f}">h{host}</text>'
        )


def _nodes(spots: dict[str, _Spot]) -> Iterator[str]:
    for name, spot in spots.items():
        local = name.partition(".")[2] if name.startswith("h") and "." in name else name
        half = max(16.0, 3.2 * len(local))
        yield (
            f'<rect class="{spot.kind}" x="{spot.x - half:.1f}" y="{spot.y - 9:.1f}" width="{2 * half:.1f}" '
            f'height="18" rx="4"><title>{escape(name)}</title></rect>'
            f'<text x="{spot.x:.1f}" y="{spot.y + 3.5:.1f}">{escape(local)}</text>'
        )
