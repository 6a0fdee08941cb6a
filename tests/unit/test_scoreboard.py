"""The scoreboard: what fails it, what it keeps, and rows whose data are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation.scoreboard import __main__ as command
from validation.scoreboard import rows as table
from validation.scoreboard import simulate
from validation.scoreboard.groups import GROUPS
from validation.scoreboard.rows import ABSENT, RIGHT, WRONG, Case, Row, absent, at_least, at_most, within


def test_a_row_is_right_within_its_bound_or_inside_the_printed_range() -> None:
    assert within("zoo", "a: step", -0.05, 0.05).verdict == RIGHT
    assert within("zoo", "a: step", 0.06, 0.05).verdict == WRONG
    assert within("zoo", "a: step", 0.06, 0.05, inside=True).verdict == RIGHT
    assert at_most("cost", "a", 3.0, 3.0).verdict == RIGHT and at_least("cost", "a", 19, 20).verdict == WRONG


def test_only_a_row_that_was_right_and_is_wrong_is_a_regression() -> None:
    before = {row.key: row for row in (Row("t", "was right", RIGHT), Row("t", "was wrong", WRONG))}
    now = [Row("t", "was right", WRONG), Row("t", "was wrong", WRONG), Row("t", "new", WRONG)]
    assert [row.name for row in table.regressions(now, before)] == ["was right"]
    assert not table.regressions([absent("t", "was right", "no data")], before)
    step = Row("t", "program: step", RIGHT, 1.0)
    failed = Row("t", "program", WRONG, note="it broke")
    assert table.regressions([failed], {step.key: step}) == [failed]
    assert table.merged([step], {failed.key: failed}) == [step]


def test_what_was_not_computed_keeps_its_row() -> None:
    before = {row.key: row for row in (Row("t", "other", RIGHT, 1.0), Row("t", "gone", RIGHT, 2.0))}
    merged = table.merged([absent("t", "gone", "no data"), Row("t", "new", RIGHT, 3.0)], before)
    assert [(row.name, row.figure) for row in merged] == [("gone", 2.0), ("new", 3.0), ("other", 1.0)]
    page = table.page([Row("t", "other", WRONG, 1.5, "%")], before)
    assert "| other | 1.5 % | 1 |" in page and "0 of 1 right" in page


def test_a_case_that_fails_is_a_wrong_row(tmp_path: Path) -> None:
    def fails(_: Path) -> list[Row]:
        raise RuntimeError("first line\nthe cause")

    assert command.run(Case("t", "one", fails)) == [Row("t", "one", WRONG, note="the cause")]


def test_rows_are_written_as_they_come_and_those_of_other_machines_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases that did not end in time keep the row of the last commit."""
    one, two = Row("a", "one", RIGHT, 2.0, "%"), Row("a", "two", WRONG, note="it broke")

    def late(_: Path) -> list[Row]:
        simulate.end_after(0)
        raise TimeoutError

    cases = [Case("a", "one", lambda _: [one]), Case("a", "late", late)]
    monkeypatch.setattr(command, "GROUPS", {"a": lambda _: cases})
    monkeypatch.setattr(table, "committed", lambda: {("a", "two"): Row("a", "two", RIGHT, 1.0)})
    first, both = tmp_path / "first", tmp_path / "both"
    assert command.main(["--only", "a", "--jobs", "1", "--limit", "60", "--out", str(first)]) == 0
    assert (first / "rows.jsonl").read_text() == table.lines([one])
    (tmp_path / "other.jsonl").write_text(table.lines([two]))
    assert command.main(["--take", str(first / "rows.jsonl"), str(tmp_path / "other.jsonl"), "--out", str(both)]) == 1
    assert "| two |  | 1 | " in (both / "scoreboard.md").read_text()
    simulate.end_after(None)


def test_data_that_are_not_here_are_named_and_do_not_fail(tmp_path: Path) -> None:
    for group in ("runs", "zoo", "public", "reports", "speed"):
        for cases in (None, tmp_path):
            found = [row for case in GROUPS[group](cases) for row in case.rows(tmp_path)]
            assert found and {row.verdict for row in found} == {ABSENT}
            assert all("--cases has no" in row.note for row in found)


def test_a_peak_inside_of_the_printed_range_is_held() -> None:
    line = "PEAK      13.8 to 14.6 GiB allocated: NCCL's watchdog releases buffers 0 to 100 ms after their use"
    ran = simulate.Ran(0, f"FITS      yes\n{line}\n", 0.0, Path("none.arrow"))
    assert ran.holds(14.454 * 2**30) and not ran.holds(14.8 * 2**30) and not ran.holds(13.6 * 2**30)
    assert not simulate.Ran(0, "FITS      yes\n", 0.0, Path("none.arrow")).holds(14.0 * 2**30)
