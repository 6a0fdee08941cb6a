"""The search for the largest number that fits; sizes and amounts of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.cli import plan
from phantora.errors import PhantoraError
from phantora.hardware.prices import rate_of, rental_prices
from phantora.spec import RunSpec
from phantora.sweeps import questions
from phantora.sweeps.questions import Offer, Tried, clusters_of, largest_that_fits, unjoined
from phantora.sweeps.result import FAILED, OUT_OF_MEMORY, RAN, Result
from phantora.sweeps.run import Request
from tests.support.sweeps import measured

MIB = 1 << 20


def result(status: str, memory: int, needs: int | None = None, step: int = 1) -> Result:
    found = replace(measured(step), memory=memory)
    return Result("key", {}, status, measured=None if status == FAILED else found, error="no module", needs=needs)


@settings(max_examples=40)
@given(st.integers(1, 60_000), st.integers(20, 3_000), st.integers(1, 80_000), st.booleans())
def test_the_largest_is_found_in_few_runs(fixed: int, each: int, capacity: int, reported: bool) -> None:
    """Memory grows in steps, as an allocator's does; what does not fit may tell what it needs."""
    seen: list[int] = []

    def run(number: int) -> Tried:
        seen.append(number)
        taken = (fixed + each * number) // 64 * 64 * MIB
        fits = taken <= capacity * MIB
        needs = None if fits or not reported else taken
        return Tried("train.py", number, result(RAN if fits else OUT_OF_MEMORY, taken, needs, number))

    tried = list(largest_that_fits(run, capacity * MIB, "--batch", "train.py"))
    best = max((one.value for one in tried if one.fits), default=0)
    true = max((n for n in range(1, 4_100) if (fixed + each * n) // 64 * 64 <= capacity), default=0)
    assert best == true and len(seen) == len(set(seen)) <= 40


def test_few_runs_where_memory_grows_evenly() -> None:
    runs = 0

    def run(number: int) -> Tried:
        nonlocal runs
        runs += 1
        taken = (8_000 + 700 * number) * MIB
        return Tried("train.py", number, result(RAN if taken <= 81_000 * MIB else OUT_OF_MEMORY, taken, taken, number))

    *_, last = largest_that_fits(run, 81_000 * MIB, "--batch", "train.py")
    assert last.value in (104, 105) and runs <= 7


def test_a_search_tells_how_far_it_is() -> None:
    def run(number: int) -> Tried:
        taken = number * 10 << 30
        return Tried("train.py", number, result(RAN if number <= 5 else OUT_OF_MEMORY, taken, None, number))

    told: list[str] = []
    list(largest_that_fits(run, 80 << 30, "--batch", "train.py", told.append))
    assert told[0] == "--batch 2: 1 fits"
    assert told[-1].startswith("--batch 5: 4 fits, 6 does not, at most 2 more runs of ")


def test_a_run_that_fails_ends_the_search() -> None:
    with pytest.raises(PhantoraError, match=r"train\.py --batch 1 failed: "):
        list(
            largest_that_fits(
                lambda number: Tried("train.py --batch 1", number, result(FAILED, 0)), MIB, "--batch", "train.py"
            )
        )


@pytest.mark.parametrize("noisy", [False, True])
def test_an_option_that_the_script_does_not_read_ends_the_search(noisy: bool) -> None:
    """Also where the steps' data are measured, so that equal runs take other times."""

    def run(number: int) -> Tried:
        found = result(RAN, 500 * MIB)
        if noisy:
            step = 2_000_000 + number % 7 * 100_000
            own = replace(measured(step), memory=500 * MIB, mfu=2e4 / step, tokens_per_second=None)
            found = replace(found, measured=replace(own, samples_per_second=64e9 / step))
        return Tried("train.py", number, found)

    with pytest.raises(PhantoraError, match=r"--batchsize changes nothing: does train\.py read it\?") as caught:
        list(largest_that_fits(run, 81_000 * MIB, "--batchsize", "train.py"))
    assert caught.value.exit_status == 2


def test_an_option_that_changes_large_numbers_only_is_searched() -> None:
    """As a batch of small samples, whose activations take less than the libraries' workspaces."""

    def run(number: int) -> Tried:
        taken = max(2_000, number // 2) * MIB
        fits = taken <= 9_000 * MIB
        return Tried("train.py", number, result(RAN if fits else OUT_OF_MEMORY, taken, step=max(5_000, number)))

    assert max(t.value for t in largest_that_fits(run, 9_000 * MIB, "--batch", "train.py") if t.fits) == 18_001


def test_a_question_repeats_what_failed_before(tmp_path: Path) -> None:
    assert questions.one_run(RunSpec("train.py"), tmp_path, "fits").again


def test_clusters_of_one_two_four_gpus() -> None:
    assert clusters_of("H100", 16, 8) == ["1x1xH100", "1x2xH100", "1x4xH100", "1x8xH100", "2x8xH100"]


def test_a_larger_number_that_leaves_less_than_the_margin_is_not_the_largest() -> None:
    def run(number: int) -> Tried:
        taken = number * 10 << 30
        return Tried("train.py", number, result(RAN if number <= 8 else OUT_OF_MEMORY, taken, taken, number), 0.04)

    tried = {one.value: one for one in largest_that_fits(run, round(0.96 * (80 << 30)), "--batch", "train.py")}
    assert tried[7].safe and tried[8].fits and not tried[8].safe


@pytest.mark.parametrize("given", [{}, {"": 9.0}])
def test_costs_of_a_plan_are_of_public_prices_unless_one_is_given(
    given: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Mapping[str, float]] = []

    def tried(request: Request, *_: object) -> list[Offer]:
        used.append(request.objective.prices)
        return []

    monkeypatch.setattr(questions, "offers", tried)
    found = questions.plan(RunSpec("train.py"), tmp_path, questions.Sizes(gpu="H100", prices=given))
    public = rate_of("H100", rental_prices())
    assert public and (found.public, used) == ((None, [given]) if given else (public, [{"": public.dollars}]))


@pytest.mark.parametrize(("unit", "linear"), [("steps", False), ("samples", True)])
def test_steps_are_not_scaled_by_the_number_of_gpus(
    unit: str, linear: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each GPU may have a batch of its own, so that fewer steps per GPU are as much work."""
    tried = [
        cast(
            Offer,
            SimpleNamespace(
                cluster=f"1x{gpus}xH100",
                gpus=gpus,
                rate=rate,
                unit=unit,
                seconds=None,
                dollars=None,
                row=SimpleNamespace(measured=measured(1)),
            ),
        )
        for gpus, rate in ((1, 100.0), (2, 90.0))
    ]
    plan._print(questions.Offers(tried, tried[0]), None, 0.04)
    printed = capsys.readouterr().out
    assert ("45%" in printed) == linear and ("steps are compared" in printed) != linear


@pytest.mark.parametrize(("gpus", "overlap", "said"), [(8, None, True), (8, 0.0, False), (1, None, False)])
def test_ranks_that_no_collective_joins_train_models_of_their_own(gpus: int, overlap: float | None, said: bool) -> None:
    found = unjoined([(1, measured(10, overlap=None)), (gpus, measured(10, overlap=overlap)), (16, None)])
    assert [text.partition(":")[0] for text in found] == ["No collective joins the ranks"] * said
