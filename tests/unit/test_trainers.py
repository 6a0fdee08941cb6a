"""The table of trainers that ran (``python -m tests.upstream.trainers``)."""

from __future__ import annotations

from dataclasses import replace

from tests.upstream.trainers.__main__ import PAGE, Row, table, written
from tests.upstream.trainers.registry import TRAINERS

HEAD = "# Trainers\n\n| trainer | version | torch | GPUs | result | what was set |\n" + "|" + " --- |" * 6 + "\n"


def test_a_row_is_renewed_and_the_rest_of_the_page_stays() -> None:
    row = Row("unsloth", "1", "2.11.0", "1x1xH100", "ran", "LoRA")
    first = Row("TRL SFT", "1", "2.11.0", "1x2xH100", "failed: no data", "DDP")
    page = written(HEAD + "\nAfter it.\n", {"unsloth": row})
    page = written(page, {**table(page), "TRL SFT": first})  # in the order of the trainers
    assert page == f"{HEAD}{first.line()}\n{row.line()}\n\nAfter it.\n"
    newer = replace(row, version="2")
    assert table(written(page, {**table(page), "unsloth": newer})) == {"TRL SFT": first, "unsloth": newer}


def test_the_page_has_known_trainers_once() -> None:
    page = PAGE.read_text()
    assert written(page, table(page)) == page
    assert table(page).keys() <= {trainer.name for trainer in TRAINERS}
