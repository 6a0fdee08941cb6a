"""Which node runs which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phantora.errors import PhantoraError


@dataclass(frozen=True, kw_only=True)
class Share:
    """The ranks of one node."""

    node: int
    """Place in the list of nodes."""
    ranks: tuple[int, ...]


def share_out(hosts: int, ranks_per_host: int, rooms: Sequence[int]) -> list[Share]:
    """Gives each node simulated hosts in a row, about as many ranks as its share of `rooms` (ranks that a node has
    memory for). The ranks of a host stay on one node: they share its files and memory.

    Raises PhantoraError if the nodes have no room for all.
    """
    room = [most // ranks_per_host for most in rooms]
    if sum(room) < hosts:
        raise PhantoraError(
            f"the nodes have memory for {sum(room):,} hosts of {ranks_per_host} ranks, and {hosts:,} are simulated: "
            "add nodes to the cluster, or fold the run on this machine (--fold, docs/scale.md)"
        )
    given = [0] * len(room)
    for _ in range(hosts):  # each to the node that has most room for one of its hosts
        given[max(range(len(room)), key=lambda node: (room[node] / (given[node] + 1), -node))] += 1
    shares, first = [], 0
    for node, count in enumerate(given):
        if count:
            ranks = tuple(range(first * ranks_per_host, (first + count) * ranks_per_host))
            shares.append(Share(node=node, ranks=ranks))
            first += count
    return shares
