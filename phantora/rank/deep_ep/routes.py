"""Experts for the tokens of a rank.

The program's indices have no values in a simulation, so ``--moe-routing`` gives the tokens of each expert, and the
choices of a token are drawn at random, equally in every run. Every rank routes the same numbers. With
``--moe-routing framework`` the program's own indices count.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantora.errors import PhantoraError
from phantora.rank.routing import parse_routing
from phantora.rank.shims.values import read
from phantora.spec import rank_spec

layer = 0
"""Layer of the next call; the shims of frameworks that know it set it."""


class Routes:
    """`chosen`: bool[tokens, experts]; the experts of a member follow each other."""

    def __init__(self, chosen: NDArray[np.bool_], members: int, me: int) -> None:
        self.chosen, self.members, self.me = chosen, members, me
        self.tokens, experts = chosen.shape
        self.local = experts // members

    @cached_property
    def of_members(self) -> NDArray[np.bool_]:
        """bool[tokens, members]: does a token go to a member?"""
        return np.asarray(self.chosen.reshape(self.tokens, self.members, self.local).any(axis=2))

    @cached_property
    def sent(self) -> int:
        """Rows of all tokens, to all members."""
        return int(self.of_members.sum())

    @cached_property
    def most(self) -> int:
        """Rows of the member that sends or receives most."""
        return max(self.sent, int(self.of_members.sum(axis=0).max(initial=0)) * self.members)

    @cached_property
    def mine(self) -> NDArray[np.bool_]:
        """bool[rows, local experts]: the experts here of each row that comes from one member."""
        here = self.chosen[:, self.me * self.local : (self.me + 1) * self.local]
        return here[here.any(axis=1)]

    @property
    def received(self) -> int:
        """Rows from all members."""
        return len(self.mine) * self.members

    @property
    def counts(self) -> list[int]:
        """Rows of each expert here."""
        return [int(count) * self.members for count in self.mine.sum(axis=0)]

    def indices(self, top_k: int) -> NDArray[np.int64]:
        """int64[received, top_k]: the experts here of each row, -1 for choices of others."""
        one = np.full((len(self.mine), top_k), -1, np.int64)
        for expert in range(self.local):
            rows = np.flatnonzero(self.mine[:, expert])
            one[rows, np.argmax(one[rows] < 0, axis=1)] = expert
        return np.tile(one, (self.members, 1))


def of_indices(indices: Any, experts: int, members: int, me: int) -> Routes:
    """The routes of `indices`, int64[tokens, top_k] on the GPU."""
    routing = parse_routing(rank_spec().moe_routing)
    tokens, top_k = indices.shape
    if not routing.simulated:
        given = read(indices).reshape(tokens, top_k)
        chosen = np.zeros((tokens, experts), bool)
        kept = given >= 0
        chosen[np.nonzero(kept)[0], given[kept]] = True
        return Routes(chosen, members, me)
    counts = routing.counts(layer, experts, tokens, top_k)
    return Routes(drawn(tuple(counts.tolist()), tokens), members, me)


def of_map(routing_map: Any, members: int, me: int) -> Routes:
    """The routes of `routing_map`, bool[tokens, experts] on the GPU, to which a framework's shim gave values."""
    chosen = read(routing_map).reshape(tuple(routing_map.shape)).astype(bool)
    if not parse_routing(rank_spec().moe_routing).simulated:
        return Routes(chosen, members, me)
    if not chosen.any():
        raise PhantoraError("HybridEP: the routing map has no values in a simulation; pass topk_idx instead")
    return Routes(drawn(tuple(chosen.sum(axis=0).tolist()), len(chosen)), members, me)


@lru_cache(maxsize=8)
def drawn(counts: tuple[int, ...], tokens: int) -> NDArray[np.bool_]:
    """bool[tokens, experts] with `counts` chosen in the columns, equally many in each row, drawn at random.

    No count exceeds `tokens`, and `tokens` divides their sum. The experts, in random order, fill one choice of all
    tokens after the other; an expert that ends in the next choice takes tokens that do not have it yet.
    """
    random = np.random.default_rng(len(counts))
    order = random.permutation(len(counts))
    experts = np.repeat(order, np.array(counts)[order])
    chosen = np.zeros((tokens, len(counts)), bool)
    for choice in experts.reshape(-1, tokens):
        takers = random.permutation(tokens)
        has = chosen[takers, choice[0]]
        takers = np.concatenate((takers[~has], takers[has]))
        chosen[takers, choice] = True
    return chosen
