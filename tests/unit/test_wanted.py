"""Operators as the tracer writes them, and the file that lists those a run used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora.cost import OperatorSignature, TensorSpec, parse_signature
from phantora.cost.parse import write_signature
from phantora.cost.table import signature_key
from phantora.cost.tensors import nbytes, numel
from phantora.cost.wanted import Wanted, read_wanted, write_wanted
from phantora.errors import PhantoraError
from phantora.wire.shared import LONG_LIST

extents = st.lists(st.integers(1, 64), max_size=4).map(tuple)
tensors = st.builds(TensorSpec, st.sampled_from(["bfloat16", "float32", "int64"]), shape := st.shared(extents), shape)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-4, 4096), st.sampled_from([0.0, 0.5, 1e-5, -0.1]))
lists = st.lists(tensors, min_size=1, max_size=9).map(tuple)


@given(st.lists(st.one_of(tensors, scalars, lists), max_size=5).map(tuple), st.booleans())
def test_what_is_written_is_read_again(args: tuple[object, ...], backward: bool) -> None:
    signature = OperatorSignature("aten::f.Tensor", args, backward=backward)
    again = parse_signature(write_signature(signature))
    assert again == signature
    assert signature_key(again) == signature_key(OperatorSignature("aten::f.Tensor", args))


def test_long_lists_keep_their_total() -> None:
    items = tuple(TensorSpec("float32", (n, 8), (8, 1)) for n in range(1, LONG_LIST + 20))
    signature = OperatorSignature("aten::_foreach_div_.ScalarList", (items, (0.3,) * len(items)))
    tensors, numbers = parse_signature(write_signature(signature)).args
    assert len(tensors) == len(numbers) == len(items)
    assert sum(numel(t.shape) for t in tensors) == sum(numel(t.shape) for t in items)
    assert sum(map(nbytes, tensors)) == sum(map(nbytes, items))


def test_keys_leave_out_what_does_not_matter() -> None:
    def key(lr: float, stride: int) -> str:
        return signature_key(OperatorSignature("aten::f", (TensorSpec("float32", (1, 4), (stride, 1)), lr)))

    assert key(1e-4, 4) == key(3e-4, 77)
    assert key(0.0, 4) != key(3e-4, 4)


def test_a_list_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "missing.jsonl"
    signature = '{"op":"aten::mm","args":[]}'
    entries = [
        Wanted(signature=signature, compute="tf32", cls="gemm", provenance="analytic", error=0.1, count=3, ns=1000)
    ]
    write_wanted(path, entries, gpu="H200-SXM")
    assert read_wanted(path) == entries


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no list of operators"),
        ('{"kind":"x"}', "is no list"),
        ("a\x00b", "line 1 is not JSON"),
        ('{"kind":"phantora operators","version":9}', "version 9"),
        ('{"kind":"phantora operators","version":1}\n{"compute":""}', "line 2: an operator without signature"),
    ],
)
def test_foreign_lists_are_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "missing.jsonl"
    path.write_text(text)
    with pytest.raises(PhantoraError, match=reason) as caught:
        read_wanted(path)
    assert str(path) in str(caught.value)
