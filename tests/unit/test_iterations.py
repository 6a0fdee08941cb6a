"""Marks of iterations."""

from __future__ import annotations

import pytest

from phantora.trace.analysis.iterations import Mark, repeated_annotations
from phantora.wire.names import COMPILING, CUDNN_PLAN

pytestmark = pytest.mark.unit


def test_annotations_of_libraries_mark_no_iterations() -> None:
    names = ("train", COMPILING, CUDNN_PLAN)
    marks = [
        Mark(10 * turn + place, 10 * turn + place, name, 0) for turn in range(4) for place, name in enumerate(names)
    ]
    assert repeated_annotations({0: marks}) == ["train"]
