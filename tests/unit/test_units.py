"""Quantities as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora.cli.analyze import parse_stretch
from phantora.errors import PhantoraError
from phantora.units import COUNT, GIB, RATE, SHARE, SIZE, TIME, Grammar

pytestmark = pytest.mark.unit

RIGHT = [
    (TIME, "12ms", 12e6),
    (TIME, "500ns", 500),
    (TIME, "1.5 h", 5400e9),
    (TIME, "30m", 1800e9),
    (TIME, "2min", 120e9),
    (TIME, "1e-3s", 1e6),
    (TIME, ".5us", 500),
    (SIZE, "70GiB", 70 * GIB),
    (SIZE, "70GB", 70e9),
    (SIZE, "64B", 64),
    (RATE, "2GB/s", 2e9),
    (RATE, "500KB/s", 5e5),
    (RATE, "80Gb/s", 10e9),
    (RATE, "80Gbps", 10e9),
    (RATE, "80Gbit/s", 10e9),
    (SHARE, "5%", 0.05),
    (SHARE, "0.05", 0.05),
    (COUNT, "200k", 2e5),
    (COUNT, "1.5T", 1.5e12),
    (COUNT, "2B", 2e9),
    (COUNT, "128", 128),
]
WRONG = [
    (TIME, "12"),
    (TIME, "-3s"),
    (TIME, "h"),
    (TIME, "1 parsec"),
    (TIME, "1e999s"),
    (SIZE, "70Gb"),
    (RATE, "2GB"),
    (SHARE, "5 %%"),
    (COUNT, "many"),
    (COUNT, "nan"),
]


@pytest.mark.parametrize(("grammar", "text", "value"), RIGHT)
def test_a_quantity_is_a_number_and_its_unit(grammar: Grammar, text: str, value: float) -> None:
    assert grammar.read(text) == pytest.approx(value, rel=1e-12)
    assert grammar.of("--x", f" {text} ") == grammar.read(text)


@pytest.mark.parametrize(("grammar", "text"), WRONG)
def test_any_other_text_is_refused(grammar: Grammar, text: str) -> None:
    assert grammar.read(text) is None
    with pytest.raises(PhantoraError, match=f"--x .*: give {grammar.example}"):
        grammar.of("--x", text)


@given(st.text(max_size=12))
def test_no_text_breaks_a_grammar(text: str) -> None:
    assert all((grammar.read(text) or 0.0) >= 0 for grammar in (TIME, SIZE, RATE, SHARE, COUNT))


@pytest.mark.parametrize(
    ("text", "expected"), [("950ms-1.2s", (950e6, 1.2e9)), ("0-5ms", (0, 5e6)), ("10 - 20", (10, 20)), ("1us-2", None)]
)
def test_a_stretch_of_time_has_one_unit_or_two(text: str, expected: tuple[float, float] | None) -> None:
    if expected is None:
        with pytest.raises(PhantoraError, match="no stretch of time"):
            parse_stretch(text)
    else:
        assert parse_stretch(text) == expected
