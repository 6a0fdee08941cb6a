"""Pieces of parameters in the parts of a buffer that ranks share."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from phantora.rank.fold.pieces import pieces


def test_a_parameter_across_a_border_is_a_piece_of_both() -> None:
    parameters = [(100, 140), (140, 150), (150, 160), (160, 200), (500, 600)]  # the last lies elsewhere
    assert pieces((100, 200), parameters, [3, 7]) == ({3: 2, 7: 2}, {3: 50, 7: 50})
    counted = {0: 1, 8: 2, 16: 2, 24: 1}, {0: 40, 8: 50, 16: 50, 24: 40}
    assert pieces((100, 200), parameters, [0, 8, 16, 24]) == counted


def test_padding_is_nobodys_piece() -> None:
    assert pieces((0, 100), [(0, 10)], [0, 1]) == ({0: 1}, {0: 10})


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 9))
def test_pieces_are_what_each_byte_says(sizes: list[int], ranks: int) -> None:
    borders = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    spans = list(pairwise(borders))
    total = -(-borders[-1] // ranks) * ranks  # padded
    part = total // ranks
    owned = [
        {number for number, (a, b) in enumerate(spans) if any(byte // part == rank for byte in range(a, b))}
        for rank in range(ranks)
    ]
    found, touched = pieces((0, total), spans, range(ranks))
    assert [found[rank] for rank in range(ranks)] == [len(own) for own in owned]
    assert [touched[rank] for rank in range(ranks)] == [sum(sizes[number] for number in own) for own in owned]
