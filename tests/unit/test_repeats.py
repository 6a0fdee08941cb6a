"""Warnings of several ranks are shown once."""

from __future__ import annotations

from phantora.launch.repeats import Repeats

TORCH = b"[rank%d]:W1128 18:46:0%d.989000 650%d torch/x.py:212] DTensor synchronizes. Please call manual_seed()\n"
NATIVE = b"[rank%d]:[W1128 18:46:14.09087%d ProcessGroupNCCL.cpp:4094] Warning: An unbatched P2P op\n"


def test_a_warning_of_all_ranks_is_shown_once() -> None:
    repeats = Repeats()
    for line in (TORCH, NATIVE):
        shown = [rank for rank in range(4) if not repeats.leaves_out(rank, line % ((rank,) * line.count(b"%d")))]
        assert shown == [0]
    assert repeats.line() == (
        "phantora: note: ranks 1,2,3 also wrote 2 of the warnings above; --log-dir DIR keeps all output"
    )


def test_what_one_rank_writes_again_or_alone_is_shown() -> None:
    repeats = Repeats()
    assert [repeats.leaves_out(0, b"UserWarning: twice\n") for _ in range(2)] == [False, False]
    assert [repeats.leaves_out(1, b"UserWarning: twice\n") for _ in range(3)] == [True, True, False]
    assert not repeats.leaves_out(1, b"UserWarning: of rank 1 alone\n")
    assert not any(repeats.leaves_out(rank, b"RuntimeError: the same on each rank\n") for rank in range(3))


def test_the_line_of_code_goes_with_its_warning() -> None:
    repeats, warning = Repeats(), b"/x/train.py:3: FutureWarning: old\n"
    assert [repeats.leaves_out(0, line) for line in (warning, b"  loss = f(x)\n")] == [False, False]
    assert [repeats.leaves_out(1, line) for line in (warning, b"  loss = f(x)\n", b"  loss = f(x)\n")] == [
        True, True, False,
    ]  # fmt: skip
