"""``phantora compare``: machines, values, costs and verdicts, without a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phantora.cli.plan import days, dollars
from phantora.errors import PhantoraError
from phantora.spec import AUTO, OFF, FoldSpec, LaunchSpec, RunSpec, unfolded_elsewhere
from phantora.sweeps.answer import answer
from phantora.sweeps.compare import (
    Choice,
    Job,
    Question,
    clusters,
    comparable,
    compare,
    decide,
    duration_of,
    noise,
    overall,
    parse_values,
    unread,
    unused,
    widest,
)
from phantora.sweeps.compare_page import write_compare_page
from phantora.sweeps.objective import Objective
from phantora.sweeps.questions import one_run
from phantora.sweeps.render import bar_of
from phantora.sweeps.run import Request
from tests.support.sweeps import choice, measured, small_comparison


def test_machines_have_whole_hosts() -> None:
    assert clusters(["H100", "GB200"], [2, 16]) == ["1x2xH100", "1x2xGB200", "2x8xH100", "4x4xGB200"]
    assert clusters(["aws-p5"], [16]) == ["aws-p5:2"]
    with pytest.raises(PhantoraError, match="hosts of H100 have 8 GPUs: 12 are no whole hosts"):
        clusters(["H100"], [12])
    with pytest.raises(PhantoraError, match="aws-p5 has hosts of 8 GPUs: 4 are no whole hosts"):
        clusters(["aws-p5"], [4])


def test_values_of_an_option() -> None:
    assert parse_values("seq=8k:64k") == ("seq", (8192, 16384, 32768, 65536))
    assert parse_values("--batch=1, 2,x") == ("batch", (1, 2, "x"))
    for wrong in ("seq", "seq=", "seq=8k:4k", "seq=a:b"):
        with pytest.raises(PhantoraError, match="--vary"):
            parse_values(wrong)


H100 = choice("1x8xH100", 100, 3.0)
B200 = choice("1x8xB200", 40, 5.0)
RAN = H100.row.entry.result
assert RAN is not None


def test_the_cheapest_machine_per_token() -> None:
    best, text = decide([H100, B200], Job())
    assert best is B200 and B200.dollars_per_million == pytest.approx(40 / 3600 / 200_000 * 1e6)
    assert text == (
        "1x8xB200 is the cheapest: $0.0556 per million tokens, 33% below 1x8xH100; "
        "sure: it stays the cheapest even at 7% more dollars, the error of the ratio"
    )


def test_a_small_difference_is_not_sure() -> None:
    best, text = decide([H100, choice("1x8xH200", 98, 3.0)], Job())
    assert (
        best is not None
        and best.cluster == "1x8xH200"
        and text.endswith("2% below 1x8xH100; not sure: the error of the ratio, 7% more dollars, may reverse the order")
    )


def longer(one: Choice, share: float) -> Choice:
    """The choice with a mean step that is longer than the typical one by `share`."""
    result = one.row.entry.result
    assert result is not None and result.measured is not None
    found = replace(result, measured=replace(result.measured, longer=1 + share))
    row = answer([replace(one.row.entry, result=found)], Objective(), [], Path("x")).rows[0]
    return replace(one, row=row)


def test_sampled_steps_make_a_machine_slower_and_say_how_sure_the_verdict_is() -> None:
    slower = longer(B200, 0.6)
    assert slower.rate == pytest.approx((B200.rate or 0) / 1.6)
    best, text = decide([H100, slower], Job())
    assert (
        best is not None and best.cluster == "1x8xH100" and text.endswith("; the best in 93% of draws from the errors")
    )
    assert noise([H100, slower]) == [
        "noise: rates and costs are of the mean step, longer than the typical one by 60.0% on 1x8xB200"
    ]
    assert noise([H100, B200]) == []


def test_slower_hosts_of_the_best_make_it_less_sure() -> None:
    found = measured(40, error=0.05, error_above=0.9, widest="host")
    result = replace(B200.row.entry.result, measured=found) if B200.row.entry.result else None
    wide = replace(B200, row=replace(B200.row, entry=replace(B200.row.entry, result=result)))
    assert decide([H100, wide], Job())[1].endswith(
        "not sure: the error of the ratio, 90% more dollars, may reverse the order"
    )
    assert "; sure: it stays the cheapest even at 7%" in decide([H100, B200], Job())[1]


def test_the_third_machine_may_be_the_cheapest_too() -> None:
    """It is 60 % dearer than the best, of which its step may be 70 % shorter; the second's is known within 7 %."""
    found = choice("1x8xGB200", 64, 5.0)
    result = found.row.entry.result
    assert result is not None
    less = replace(result, measured=measured(64, error=0.7))
    third = replace(found, row=replace(found.row, entry=replace(found.row.entry, result=less)))
    assert decide([H100, B200, third], Job())[1].endswith(
        "not sure: 1x8xGB200 may be the cheapest, the error of their ratio is 70%"
    )


def test_what_a_machine_barely_meets_is_not_sure() -> None:
    found = measured(40, error=0.05, error_above=0.25)
    assert B200.row.entry.result is not None
    entry = replace(B200.row.entry, result=replace(B200.row.entry.result, measured=found))
    wide = replace(B200, row=replace(B200.row, entry=entry))
    assert decide([wide], Job(rate=190_000))[1].endswith(
        "Within its error bar it may miss the 190,000 tokens/s: 160,000"
    )
    assert "may miss" not in decide([wide], Job(rate=150_000))[1]


def test_where_only_steps_are_known_equal_numbers_of_gpus_are_compared() -> None:
    small, large = choice("1x2xH100", 100, 2.0), choice("1x8xH100", 100, 2.0)
    assert list(comparable([small, large])) == [0]
    by_steps = [replace(one, unit="steps") for one in (small, large)]
    assert {gpus: len(found) for gpus, found in comparable(by_steps).items()} == {2: 1, 8: 1}
    assert decide(by_steps, Job(rate=1e6)) == (
        None,
        "the tokens of a step are unknown, so no machine can be compared with 1,000,000 tokens/s",
    )


def test_the_sides_of_an_error_bar_are_both_shown() -> None:
    assert bar_of(measured(100)) == "5%" and bar_of(measured(100, error_above=0.4)) == "-5% +40%"


def test_a_machine_must_meet_rate_and_deadline() -> None:
    assert decide([H100, B200], Job(rate=150_000))[0] is B200
    best, text = decide([H100, B200], Job(rate=1e6))
    assert best is None and text == "no machine meets 1,000,000 tokens/s; the fastest, 1x8xB200, runs 200,000 tokens/s"
    slow, fast = choice("1x8xH100", 100, 1.0, days=40), choice("1x8xB200", 40, 5.0, days=16)
    best, text = decide([slow, fast], Job(deadline=30 * 86400))  # the cheaper one is too slow
    assert best is fast and text.startswith("1x8xB200 is the only one that is fast enough: $")


def test_a_machine_without_room_is_passed_over() -> None:
    tight = choice("1x8xB200", 40, 1.0, memory=79)
    best, text = decide([H100, tight], Job())
    assert best is H100 and text.endswith(". 1x8xB200 is faster and leaves only 1.2% of its memory")
    assert decide([tight], Job()) == (None, "no machine leaves 4% of a GPU's memory; 1x8xB200 leaves 1.2%")


def test_without_prices_the_fastest() -> None:
    best, text = decide([H100, choice("1x8xGB300", 50, None)], Job())
    assert best is not None and best.cluster == "1x8xGB300"
    assert text == (
        "1x8xGB300 is the fastest: 2.00 times 1x8xH100; "
        "sure: it stays the fastest even at 7% more time, the error of the ratio; "
        "no price of GB300 is known (--price)"
    )


def test_memory_that_is_not_used_asks_for_a_larger_batch() -> None:
    empty, question = choice("1x8xB200", 40, 5.0, memory=30), Question(gpus=("H100", "B200"))
    run = RunSpec("train.py", ("--batch", "2"))
    assert unused([H100, empty], question, run) == [
        "unused: 1x8xB200 leaves 50 of 80 GiB; a larger batch may change the verdict (--vary batch=2,4,8)"
    ]
    assert unused([H100, empty], question, RunSpec("train.py"))[0].endswith("is the script's option of the batch)")
    assert unused([H100, B200], question, run) == unused([empty], question, run) == []
    assert unused([H100, empty], replace(question, vary="batch"), run) == []


def test_the_best_batch_of_each_machine() -> None:
    found = [
        replace(one, value=value)
        for value, price in ((1, 3.0), (2, 1.0))
        for one in (choice("1x8xH100", 100, price), B200)
    ]
    (text,) = overall(found, Question(gpus=("H100", "B200"), vary="batch", values=(1, 2)))
    assert text == (
        "overall: 1x8xH100 with batch 2 is the cheapest: $0.0278 per million tokens, 50% below 1x8xB200 with batch 1; "
        "sure: it stays the cheapest even at 7% more dollars, the error of the ratio"
    )


@pytest.mark.parametrize(("step_ms", "found"), [(100, True), (99, False)])
def test_an_option_whose_values_give_the_same_run_is_unread(step_ms: float, found: bool) -> None:
    """More loader workers change nothing but the time."""
    few, many = replace(choice("1x8xH100", 100, 3.0), value=1), replace(choice("1x8xH100", step_ms, 3.0), value=2)
    assert unread([few, many, replace(B200, value=1)]) == found
    assert not unread([few, replace(B200, value=1)]), "one value"


def test_a_page_of_another_comparison_is_replaced(tmp_path: Path) -> None:
    found, question = small_comparison(tmp_path)
    other = replace(found, verdict=("another",))
    written = [write_compare_page(one, question)[1] for one in (found, found, other)]
    assert written == [False, False, True]


def test_what_does_not_run_is_no_choice() -> None:
    nothing = replace(H100, row=replace(H100.row, entry=replace(H100.row.entry, result=None)))
    assert decide([nothing], Job()) == (None, "no machine has enough memory")


def test_failures_make_large_jobs_longer() -> None:
    week = 7 * 86400.0
    assert week < duration_of(week, 8, 8) < duration_of(week, 16384, 8) < 2 * week


def test_a_wide_error_says_what_narrows_it() -> None:
    found = measured(100, error=0.1, error_above=0.38, widest="host")
    assert RAN is not None
    wide = replace(H100, row=replace(H100.row, entry=replace(H100.row.entry, result=replace(RAN, measured=found))))
    assert widest([B200, wide]) == [
        "widest error: 1x8xH100, up to 38% of the step: the host's time; narrower with phantora profile host, "
        "then --host FILE"
    ]
    assert widest([H100, B200]) == []


def test_the_limiting_part() -> None:
    found = measured(100, parts={"products": 0.4, "attention": 0.35, "host": 0.25})
    result = replace(H100.row.entry.result, measured=found) if H100.row.entry.result else None
    one = replace(H100, row=replace(H100.row, entry=replace(H100.row.entry, result=result)))
    assert one.limited_by == "products 40 %" and H100.limited_by == ""


def test_ranks_on_other_nodes_are_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Request] = []

    def note(request: Request, *_: object) -> None:
        asked.append(request)
        raise PhantoraError("enough")

    monkeypatch.setattr("phantora.sweeps.compare.run_sweep", note)
    for launch, axes in ((LaunchSpec(), AUTO), (LaunchSpec(ray="auto"), OFF)):
        run = RunSpec("train.py", launch=launch)
        with pytest.raises(PhantoraError, match="enough"):
            compare(run, tmp_path, Question(gpus=("H100",), counts=(16,)))
        assert [one.space.run.fold.axes for one in (asked.pop(), one_run(run, tmp_path, "plan"))] == [axes, axes]


def test_a_fold_that_is_named_stays_to_be_refused() -> None:
    run = RunSpec("train.py", launch=LaunchSpec(ray="auto"), fold=FoldSpec("dp=16"))
    assert unfolded_elsewhere(run) == run


def test_small_jobs_have_minutes_and_cents() -> None:
    assert [days(seconds) for seconds in (12.0, 1230.0, 18_360.0, 1_062_720.0)] == [
        "12 s",
        "20 min",
        "5.1 h",
        "12.3 days",
    ]
    assert [dollars(amount) for amount in (0.1234, 12.34, 1234.5)] == ["$0.123", "$12.3", "$1,234"]
