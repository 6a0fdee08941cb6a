"""Sweeps without a run: the grammar, spaces, plans, presets, the journal, what is skipped, the answer, the search."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from phantora.errors import PhantoraError, Reason
from phantora.result import RunReport, RunResult
from phantora.spec import ALWAYS, OFF, FoldSpec, RunSpec
from phantora.sweeps.answer import answer
from phantora.sweeps.expressions import Expression
from phantora.sweeps.files import write_files
from phantora.sweeps.fold import ENDS, MODES, ONE, folding
from phantora.sweeps.journal import Journal, read
from phantora.sweeps.objective import Objective, parse_prices
from phantora.sweeps.plan import LeftOut, Point, judge, make_plan
from phantora.sweeps.presets import load_preset, preset_names, preset_path
from phantora.sweeps.render import render
from phantora.sweeps.result import FAILED, OUT_OF_MEMORY, RAN, Result
from phantora.sweeps.run import Request, Work, confirmed, located, set_up
from phantora.sweeps.runner import Entry, Listed, Runner
from phantora.sweeps.search import Search
from phantora.sweeps.space import Space, space_of
from phantora.sweeps.task import Command, Shared, Task, evaluate
from tests.support.sweeps import GIB, measured

pytestmark = pytest.mark.unit


# ---------------------------------------------------------------------- grammar


def test_a_rule_has_the_value_that_python_gives_it() -> None:
    names: dict[str, Any] = {"tp": 4, "pp": 2, "gpus": 8, "ac": "full", "sp": True}
    for text in (
        "tp * pp == gpus",
        "gpus % tp == 0 and not sp",
        "1 < pp <= tp != 3",
        "ac in ('full', 'none')",
        "ac not in ['full']",
        "max(tp, pp, 9) - ceil(gpus / 3) // 2",
        "'a' if sp else 'b'",
        "-tp + abs(-2.5)",
        "(tp or pp) and ac == 'none'",
    ):
        python = eval(text, {"ceil": __import__("math").ceil}, names)  # the reference, on texts of this test
        value = Expression(text).value(names)
        assert value == (bool(python) if isinstance(value, bool) else python), text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tp *",
        "tp ** 2",
        "tp.real",
        "tp[0]",
        "open('x')",
        "__import__('os')",
        "(lambda: 1)()",
        "[x for x in tp]",
        "f'{tp}'",
        "tp if tp",
        "min(*tp)",
        "min()",
        "min(tp, key=tp)",
        "tp << 2",
        "~tp",
        "1j",
        "b'x'",
        "None",
        "...",
        "{1: 2}",
        "tp := 2",
        "tp is 1",
        "1 " * 2000,
        "(" * 300 + "1" + ")" * 300,
        "9" * 40,
    ],
)
def test_what_the_grammar_does_not_have_is_refused_before_anything_is_computed(text: str) -> None:
    with pytest.raises(PhantoraError):
        Expression(text)


@pytest.mark.parametrize(
    "text",
    ["tp / 0", "tp % 0", "nobody", "'a' + 1", "tp in 4", "'a' < 'b'", "(1, 2)", "1e308 * 1e308 // 1", "min('a', 2)"],
)
def test_a_rule_without_a_value_says_so(text: str) -> None:
    with pytest.raises(PhantoraError):
        Expression(text).value({"tp": 4})


def test_numbers_stay_short() -> None:
    text = "*".join(["999999999"] * 9)
    with pytest.raises(PhantoraError, match="digits"):
        Expression(text).value({})


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="tp 019.*/%+-()<>=!,'\"andornotifelse[]{}:_@\\\n", max_size=40) | st.text(max_size=20))
def test_any_text_has_a_value_or_is_refused(text: str) -> None:
    with suppress(PhantoraError):
        Expression(text).value({"tp": 4, "p": 2})


# ---------------------------------------------------------------------- spaces and plans


def space(**changes: Any) -> Space:
    table: dict[str, Any] = {
        "target": ["train.py"],
        "cluster": "2x8xH100",
        "matrix": {"tp": [1, 2, 4, 16], "sp": [False, True], "ac": ["none", "full"]},
        "let": {"dp": "world // tp"},
        "rules": ["tp <= gpus_per_host", "not sp or tp > 1"],
        "arguments": {"tp": "--tp", "dp": "--dp=", "sp": "--sp", "ac": {"none": [], "full": ["--ac", "full"]}},
        "options": {"tp": ["--fold", "dp={dp},tp={tp}"]},
        "environment": {"tp": "TP_SIZE"},
        "tokens": "dp * 4096",
    }
    return space_of({**table, **changes}, "s.toml")


def test_a_plan_holds_what_the_rules_allow_and_why_the_rest_is_left_out() -> None:
    plan = make_plan(space())
    assert len(plan.points) == 2 + 4 + 4  # tp 1 without sp, tp 2 and 4 with and without, each with and without ac
    assert {left.reason for left in plan.left_out} == {
        "not tp <= gpus_per_host (with gpus_per_host 8)",
        "not not sp or tp > 1",
    }
    assert len(plan.points) + len(plan.left_out) == 16
    last = plan.points[-1]
    assert last.arguments == ("--tp", "4", "--dp=4", "--sp", "--ac", "full")
    assert last.spec.fold.axes == "dp=4,tp=4"
    assert last.environment == {"TP_SIZE": "4"} and last.tokens == 4 * 4096 and last.world == 16
    assert plan.axes == ["tp", "sp", "ac"]


def test_listed_points_are_combined_with_the_matrix() -> None:
    plan = make_plan(space(list=[{"tp": 1, "sp": False}, {"tp": 8, "sp": True}]))
    assert [point.label() for point in plan.points] == [
        "tp=1 sp=false ac=none cluster=2x8xH100",
        "tp=1 sp=false ac=full cluster=2x8xH100",
        "tp=8 sp=true ac=none cluster=2x8xH100",
        "tp=8 sp=true ac=full cluster=2x8xH100",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": ["tp > 4", "tp < 2"]}, "the rules leave no point: tp"),
        ({"cluster": []}, "cluster has no values"),
        ({"matrix": {"tp": []}}, "tp has no values"),
        ({"matrix": {"tp": [1, 1]}}, "twice"),
        ({"rules": ["tpp > 4"]}, "nothing gives 'tpp'"),
        ({"let": {"dp": "world // tp", "tp": "3"}}, "the name is taken"),
        ({"arguments": {"cp": "--cp"}}, "no axis and no"),
        ({"arguments": {"tp": ["--tp={ttp}"]}}, "'ttp'"),
        ({"matrix": {"tp": [1], "sp": [True], "ac": ["none"], "moon": [1, 2]}}, "moon changes nothing"),
        ({"rule": ["tp > 1"]}, "unknown key 'rule'"),
        ({"matrix": {"tp": [1], "sp": [True, False], "ac": ["some"]}}, "ac = some: unknown value"),
        ({"steps": {"argument": "--steps", "first": 9, "most": 3}}, "first <= most"),
        ({"steps": {"flag": "--steps"}}, "steps"),
        ({"cluster": "2x8xZ80"}, "Z80"),
        ({"matrix": {"tp": list(range(1, 100)), "sp": list(range(99)), "ac": list(range(99))}}, "too many"),
        ({"bounds": {"flops": "1e15", "format": "'decimal'"}}, "decimal"),
    ],
)
def test_a_space_that_cannot_be_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PhantoraError, match=words):
        make_plan(space(**changes))


def test_megatron_splits_tensors_in_an_nvlink_domain_and_products_by_what_the_gpu_has() -> None:
    space = load_preset(preset_path("megatron"), "llama3-8b", True)
    first = {name: values[0] for name, values in space.axes.items()}

    def layout(cluster: str, tp: int, products: str) -> Point | LeftOut:
        return judge(space, {**first, "cluster": cluster, "tp": tp, "products": products}, 0)

    across_hosts = layout("gb200-nvl72:2", 8, "nvfp4")
    assert isinstance(across_hosts, Point) and across_hosts.arguments[-2:] == ("--te", "--nvfp4")
    narrow, wide = layout("1x8xH100", 8, "nvfp4"), layout("2x8xH100", 16, "bf16")
    assert isinstance(narrow, LeftOut) and "capability 9" in narrow.reason
    assert isinstance(wide, LeftOut) and "nvlink_gpus 8" in wide.reason


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_legal_layouts_of_each_of_its_models(name: str, tmp_path: Path) -> None:
    for model in __import__("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(preset_path(name).read_text())[
        "models"
    ]:
        found = load_preset(preset_path(name), model)
        cluster = "1x2xH100" if name in ("tp", "pp") or model in ("toy", "debug", "small") else "8x8xH100"
        plan = make_plan(located(found.with_axes({"cluster": [cluster]}), tmp_path))
        assert plan.points and all(point.tokens and point.least_time > 0 for point in plan.points)
        for word in (*plan.space.target, *plan.space.setup, *(w for point in plan.points for w in point.arguments)):
            assert "{" not in word
            assert Path(word).exists() or not word.startswith(str(Path(__file__).parents[2] / "samples"))


def test_a_preset_names_packages_that_are_missing(tmp_path: Path) -> None:
    found = replace(load_preset(preset_path("torchtitan"), "llama3-8b"), requires=("json", "no_such_module.inner"))
    with pytest.raises(PhantoraError, match=r"preset torchtitan needs no_such_module\.inner, which is not installed"):
        set_up(found, tmp_path)


def test_layouts_of_70b_know_what_selective_checkpointing_keeps() -> None:
    """Of the layouts of 70B on 64 H100 those with a large micro-batch need 173 to 324 GiB, in runs with room."""
    found = load_preset(preset_path("torchtitan"), "llama3-70b").with_axes({"cluster": ["8x8xH100"]})
    points = make_plan(found).points
    large = [p for p in points if p.values["ac"] == "selective" and p.values["rounds"] == 1]
    assert large and not any(p.fits for p in large)
    assert all(p.least_memory < 324 * GIB for p in large)
    assert any(p.fits and p.values["ac"] == "full" for p in points)


def test_tensor_parallelism_of_torchtitan_stays_in_an_nvlink_domain() -> None:
    found = load_preset(preset_path("torchtitan"), "llama3-70b").with_axes({"cluster": ["4x4xGB200", "8x8xH100"]})
    points = make_plan(found.with_axes({"tp": [4, 8, 16]})).points
    assert {(p.cluster, p.values["tp"]) for p in points} >= {("4x4xGB200", 8), ("8x8xH100", 8)}
    assert ("8x8xH100", 16) not in {(p.cluster, p.values["tp"]) for p in points}


def test_the_preset_of_torchtitan_knows_what_its_degrees_must_be() -> None:
    found = load_preset(preset_path("torchtitan"), "llama3-8b", wide=True)
    chosen: dict[str, Any] = {
        "cluster": ["8x8xH100"],
        "compile": [False],
        "float8": [False],
        "schedule": ["1F1B"],
        "ac": ["full"],
    }
    plan = make_plan(found.with_axes({**chosen, "tp": [1, 3, 8, 16]}))
    for point in plan.points:
        words = dict(zip(point.arguments[::2], point.arguments[1::2], strict=True))
        degrees = [int(value) for flag, value in words.items() if flag.endswith("_degree")]
        product = 1
        for degree in degrees:
            product *= degree
        assert product == 64 and len(degrees) == 5
        assert int(words["--training.global_batch_size"]) == 128
    assert {point.values["tp"] for point in plan.points} == {1, 8}
    assert {left.reason for left in plan.left_out if left.values["tp"] == 3} == {
        "not world % (tp * pp * cp) == 0 (with world 64)"
    }


# ---------------------------------------------------------------------- results, journal


def result(key: str, **changes: Any) -> Result:
    return replace(Result(key, {"tp": 1}, RAN, measured=measured(100), command=("phantora", "trace")), **changes)


values = st.dictionaries(st.text(max_size=5), st.booleans() | st.integers(-5, 5) | st.text(max_size=5), max_size=3)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), values, st.text(max_size=20)), max_size=6),
    st.integers(0, 60),
)
def test_a_journal_gives_back_what_was_added_whatever_was_cut_off(
    tmp_path_factory: pytest.TempPathFactory, added: list[tuple[str, dict[str, Any], str]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    results = [result(key, values=given, error=error) for key, given, error in added]
    journal = Journal(folder)
    for one in results:
        journal.add(one)
    journal.close()
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[: len(whole) - cut])
    again = Journal(folder)
    kept = whole[: len(whole) - cut].count(b"\n") - 1
    assert list(again.results.values()) == list({one.key: one for one in results[: max(kept, 0)]}.values())
    again.add(result("new"))
    again.close()
    assert [one.key for one in read(again.path)[0]][-1] == "new"


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(PhantoraError, match="another sweep"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


@pytest.mark.parametrize("text", ["hello\n", '{"phantora sweep":99}\n', '{"phantora sweep":1}\nnonsense\n', "hello"])
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(PhantoraError, match="no journal"):
        Journal(tmp_path)
    assert (tmp_path / "journal.jsonl").read_text() == text


def test_a_full_disk_ends_a_sweep_with_a_journal_that_can_be_read(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the write fails half-way in the same place."""
    program = f"""
import resource, signal
from pathlib import Path
from phantora.errors import PhantoraError, Reason
from phantora.result import RunReport, RunResult
from phantora.spec import FoldSpec, RunSpec
from phantora.sweeps.journal import Journal
from phantora.sweeps.result import Result
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path({str(tmp_path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for number in range(100):
    journal.add(Result(str(number), {{}}, "ran"))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "PhantoraError" in ended.stderr and "start the same sweep again" in ended.stderr
    results, whole = read(tmp_path / "journal.jsonl")
    assert [one.key for one in results] == [str(n) for n in range(len(results))] and results
    assert whole < 1000 == (tmp_path / "journal.jsonl").stat().st_size
    Journal(tmp_path).close()
    assert (tmp_path / "journal.jsonl").stat().st_size == whole


# ---------------------------------------------------------------------- the runner, without runs


class Answers:
    """An engine whose results are given."""

    def __init__(self, results: Callable[[Task], Result], room: int = 1) -> None:
        self.results, self.room = results, room
        self.waiting: list[Task] = []
        self.ran: list[str] = []

    def has_room(self, task: Task) -> bool:
        return len(self.waiting) < self.room

    def begin(self, task: Task) -> None:
        self.waiting.append(task)

    def finished(self) -> list[tuple[Task, Result]]:
        if not self.waiting:
            return []
        task = self.waiting.pop(0)
        self.ran.append(task.point.label(["tp", "sp", "ac"]))
        return [(task, self.results(task))]

    def close(self) -> None:
        self.waiting.clear()


def by_point(task: Task) -> Result:
    """tp 1 is the fastest, tp 4 does not fit, ac fails with tp 2."""
    point = task.point
    tp = int(point.values["tp"])
    if tp == 4:
        return Result(
            task.key, point.values, OUT_OF_MEMORY, measured=measured(1, fits=False), error="no room", needs=93 * GIB
        )
    if tp == 2 and point.values["ac"] == "full":
        return Result(task.key, point.values, FAILED, measured=None, error="ValueError: no")
    return Result(
        task.key,
        point.values,
        RAN,
        measured=measured(100.0 * tp, memory=60 // tp),
        seconds=10,
        command=("phantora", "trace"),
    )


def run(folder: Path, engine: Answers, found: Space, **options: Any) -> list[Entry]:
    objective = options.pop("objective", Objective())
    points = make_plan(found).points
    journal = Journal(folder)
    try:
        shared = Shared(folder)
        return Runner(
            shared=shared,
            source=Listed(points, objective),
            engine=engine,
            journal=journal,
            objective=objective,
            **options,
        ).run()
    finally:
        journal.close()


def test_a_sweep_goes_on_without_repeating(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def half(task: Task) -> Result:
        if len(engine.ran) == 5:
            raise Stopped
        return by_point(task)

    engine = Answers(half, room=2)
    with pytest.raises(Stopped):
        run(tmp_path, engine, space())
    rest = Answers(by_point, room=2)
    entries = run(tmp_path, rest, space())
    whole = Answers(by_point)
    assert [entry.result for entry in entries] == [entry.result for entry in run(tmp_path / "b", whole, space())]
    assert sorted([*engine.ran[:4], *rest.ran]) == sorted(whole.ran) and len(whole.ran) == 10
    assert run(tmp_path, again := Answers(by_point), space(), again=True) and again.ran == [
        "tp=2 sp=false ac=full",
        "tp=2 sp=true ac=full",
    ]


def test_the_same_failure_of_the_first_points_ends_a_sweep(tmp_path: Path) -> None:
    def fails(task: Task) -> Result:
        return Result(task.key, task.point.values, FAILED, measured=None, error="rank 0: No module named 'datasets'")

    engine = Answers(fails)
    with pytest.raises(PhantoraError, match=r"no point ran: the first 2 failed by the same error: .* 'datasets'"):
        run(tmp_path, engine, space())
    assert len(engine.ran) == 2


def test_what_cannot_win_is_not_run_and_said(tmp_path: Path) -> None:
    bounds = {"memory": "90e9 / tp", "flops": "1e15 * tp", "format": "'bfloat16'"}
    found = space(bounds=bounds, matrix={"tp": [1, 2, 4], "sp": [True, False], "ac": ["none"]}, tokens="4096")
    engine = Answers(
        lambda task: Result(task.key, task.point.values, RAN, measured=measured(0.12 * task.point.least_time / 1e5))
    )
    entries = run(tmp_path, engine, found)
    skipped = {entry.point.label(["tp", "sp"]): entry.skipped for entry in entries if entry.skipped}
    assert "needs at least 83.82 GiB of" in skipped["tp=1 sp=false"]
    assert engine.ran == ["tp=2 sp=true ac=none", "tp=2 sp=false ac=none"]
    assert {label for label, why in skipped.items() if "a step takes at least" in why} == {
        "tp=4 sp=true",
        "tp=4 sp=false",
    }
    assert len(run(tmp_path, Answers(engine.results), found, everything=True)) == 5


def spec_of(command: Command) -> RunSpec:
    """Spec of the run that a command starts."""
    return RunSpec.from_json(Path(command.module[1][0]).read_text())


def ended(command: Command, reason: Reason = Reason.OK, message: str = "", *, log: bool = True) -> int:
    """Writes the result of a run that ended so; its exit status."""
    status = int(reason != Reason.OK)
    path = Path("run.arrow") if log else None
    Path(command.module[1][1]).write_text(RunResult(status, reason, message, path, RunReport(status, 1)).to_json())
    return status


def test_a_run_gets_more_steps_until_they_are_alike(tmp_path: Path) -> None:
    table = {"steps": {"argument": "--steps", "first": 3, "most": 10}}
    found = space(**table)
    point = make_plan(found).points[0]
    task = Task.of(point, Shared(tmp_path, steps=found.steps))
    stages = evaluate(task)
    spreads = {"3": (50.0, 1), "6": (90.0, 5), "10": (100.0, 9)}
    asked = []
    command = next(stages)
    with pytest.raises(StopIteration) as end:
        while True:
            arguments = spec_of(command).arguments
            steps = arguments[arguments.index("--steps") + 1]
            asked.append(steps)
            command = stages.send(ended(command))
            lowest, count = spreads[steps]
            command.output.write_bytes(orjson.dumps(measured(100, lowest=lowest * 1e6, steps=count)))
            command = stages.send(0)
    assert asked == ["3", "6", "10"]
    assert end.value.value.status == RAN and end.value.value.steps == 10


@pytest.mark.parametrize("reason", [Reason.SCRIPT_FAILED, Reason.OUT_OF_MEMORY])
def test_what_does_not_fit_has_the_same_numbers_whichever_run_is_first(tmp_path: Path, reason: Reason) -> None:
    """The run where there is room comes first where it is doubtful that there is enough."""
    found = space()
    results, runs = [], []
    for doubtful in (False, True):
        task = Task.of(make_plan(found).points[0], Shared(tmp_path, steps=found.steps))
        stages = evaluate(replace(task, doubtful=doubtful))
        command, asked = next(stages), []
        with pytest.raises(StopIteration) as end:
            while True:
                roomy = spec_of(command).gpu_memory is not None
                asked.append(roomy)
                command = stages.send(ended(command, Reason.OK if roomy else reason))
                reported = measured(100, memory=93 if roomy else 79, fits=roomy)
                command.output.write_bytes(orjson.dumps(reported))
                command = stages.send(0)
        results.append(replace(end.value.value, seconds=0.0))
        runs.append(asked)
    assert runs == [[False, True], [True]]
    assert results[0] == results[1]
    assert (results[0].status, results[0].needs) == (OUT_OF_MEMORY, 93 * GIB)


# ---------------------------------------------------------------------- folding


def meshed(**changes: Any) -> Space:
    return space(fold="pp=2,dp={dp},tp={tp}", let={"dp": "world // tp // 2"}, options={}, **changes)


def test_a_point_folds_along_the_axes_that_its_file_names(tmp_path: Path) -> None:
    points = {int(point.values["tp"]): point for point in make_plan(meshed()).points}
    shared = Shared(tmp_path)
    for mode, axes, processes in ((ONE, "pp=2,dp=4:first,tp=2:first", 2), (ENDS, "pp=2,dp=4,tp=2", 10), (OFF, "", 16)):
        task = Task.of(points[2], replace(shared, fold=mode))
        assert (task.folding.axes, task.folding.processes) == (axes, processes)
        assert task.spec(3, "a.arrow").fold.axes == (axes or OFF)
    assert folding("dp=8~,ep=2,tp=4*", ONE, 64).axes == "dp=8:first,ep=2,tp=4*"
    assert (
        not folding("dp=8", ONE, 8).axes and folding("", ONE, 64).axes == ALWAYS and not folding("pp=16", ONE, 16).axes
    )
    given = replace(points[2], spec=replace(points[2].spec, fold=FoldSpec("dp=8,tp=2*")))
    assert Task.of(given, replace(shared, fold=ONE)).spec(3, "a.arrow").fold.axes == "dp=8,tp=2*"  # the user's
    keys = {Task.of(points[2], replace(shared, fold=mode)).key for mode in MODES}
    assert len(keys) == 3
    with pytest.raises(PhantoraError, match="'ddp'"):
        space(fold="dp={ddp}")


def test_a_fold_that_is_refused_is_tried_with_more_processes(tmp_path: Path) -> None:
    found = meshed()
    task = Task.of(make_plan(found).points[0], Shared(tmp_path, fold=ONE))
    stages = evaluate(task)
    folds = []
    command = next(stages)
    with pytest.raises(StopIteration) as end:
        while True:
            folds.append(spec_of(command).fold.axes)
            if folds[-1] != OFF:
                command = stages.send(ended(command, Reason.CANNOT_FOLD, "cannot fold all_gather of 8 int8", log=False))
                continue
            command = stages.send(ended(command))
            command.output.write_bytes(orjson.dumps(measured(100)))
            command = stages.send(0)
    result = end.value.value
    assert folds == ["pp=2,dp=8:first,tp=1:first", "pp=2,dp=8,tp=1", OFF]
    assert result.status == RAN and result.key == task.key
    assert (result.processes, result.fold) == (16, "") and result.refused.startswith("cannot fold all_gather")


def test_the_best_is_confirmed_with_more_processes(tmp_path: Path) -> None:
    """tp 2 seems to be the best, and is not; tp 1 is neither confirmed nor faster than what then is best."""

    def by_fold(task: Task) -> Result:
        tp, lone = int(task.point.values["tp"]), task.shared.fold == ONE
        step = {1: 120, 2: 100 if lone else 115, 4: 110}[tp]
        return Result(task.key, task.point.values, RAN, measured=measured(step), fold="dp=8:first" if lone else "dp")

    found = meshed(matrix={"tp": [1, 2, 4], "sp": [False], "ac": ["none"]}, tokens="4096")
    engine, journal = Answers(by_fold), Journal(tmp_path)
    said: list[str] = []
    try:
        work = Work(
            request=Request(space=found, folder=tmp_path),
            space=found,
            engine=engine,
            journal=journal,
            on_result=lambda entry, done, of: None,
            on_part=said.append,
        )
        entries = confirmed(work, work.of(Listed(make_plan(found).points, Objective()), 3, 0))
    finally:
        journal.close()
    assert [label.split()[0] for label in engine.ran[3:]] == ["tp=2", "tp=4"] and len(engine.ran) == 5
    assert [text.partition(": tp=")[2][0] for text in said] == ["2", "4"]
    best = answer(entries, Objective(), ["tp"], tmp_path).best
    assert best and best.entry.point.values["tp"] == 4 and best.entry.result and best.entry.result.fold == "dp"
    assert len(entries) == 3


# ---------------------------------------------------------------------- the answer


def test_slower_for_sure_is_slower_than_both_error_bars(tmp_path: Path) -> None:
    steps = {1: measured(100, error=0.05, error_above=0.5), 2: measured(110, error=0.05), 4: measured(170, error=0.05)}
    found = space(matrix={"tp": [1, 2, 4], "sp": [False], "ac": ["none"]}, tokens="4096")
    engine = Answers(
        lambda task: Result(task.key, task.point.values, RAN, measured=steps[int(task.point.values["tp"])])
    )
    rows = answer(run(tmp_path, engine, found), Objective(), ["tp"], tmp_path).rows
    assert [row.surely for row in rows] == [False, False, True]  # 110 ms might be faster than 150
    assert [round(row.behind, 3) for row in rows] == [0, 0.1, 0.7] and not any(row.tie for row in rows)


def test_the_answer_ranks_names_ties_and_the_front(tmp_path: Path) -> None:
    entries = run(
        tmp_path, Answers(by_point), space(tokens="4096"), objective=(objective := Objective("speed", {"": 2.0}))
    )
    found = answer(entries, objective, ["tp", "sp", "ac"], tmp_path)
    ran = [row for row in found.rows if row.measured]
    assert [row.entry.point.values["tp"] for row in ran] == [1, 1, 2, 2]
    assert [row.tie for row in ran] == [False, True, False, False]  # equal; twice as slow
    assert [row.pareto for row in ran] == [True, True, True, True]  # tp 2 takes half of the memory
    assert found.unit == "tokens" and ran[0].rate == 4096 / 0.1
    assert ran[0].cost == pytest.approx(2.0 * 16 / 3600 / 40960 * 1e6)
    assert [row.status for row in found.rows[4:]] == [OUT_OF_MEMORY] * 4 + [FAILED] * 2
    console = Console(width=100, record=True, file=StringIO())
    render(found, console)
    text = console.export_text()
    assert "does not fit: needs 93.00 GiB of 80.00 GiB" in text and "failed: ValueError: no" in text
    assert "Ties (=): 1 and 2" in text and "\nTP_SIZE=1 torchrun --nnodes 2" in text
    assert max(len(line) for line in text.splitlines() if "torchrun" not in line) <= 100
    write_files(found)
    assert pq.read_table(tmp_path / "sweep.parquet").num_rows == 10
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) == 11
    assert orjson.loads((tmp_path / "sweep.json").read_bytes())[0]["rank"] == 1
    script = (tmp_path / "best.sh").read_text()
    assert "torchrun" in script and f"# {found.title}\n" in script and f"\n{found.title}.\n" in text
    label = "tp=1 sp=false ac=none"
    assert found.title == f"The best of 4 layouts by speed: {label} (and 1 within its error bar)"
    subprocess.run(["sh", "-n", str(tmp_path / "best.sh")], check=True)
    assert "needs 93.00 GiB" in (tmp_path / "sweep.html").read_text()


def test_cost_ranks_by_what_work_costs(tmp_path: Path) -> None:
    found = space(cluster=["1x1xH100", "1x2xH100"], matrix={"tp": [1], "sp": [False], "ac": ["none"]}, tokens="4096")
    engine = Answers(
        lambda task: Result(task.key, task.point.values, RAN, measured=measured(100 / task.point.world**0.5))
    )
    prices = parse_prices("H100=2.5")
    entries = run(tmp_path, engine, found)
    for by, first in (("speed", "1x2xH100"), ("cost", "1x1xH100"), ("per-gpu", "1x1xH100"), ("step", "1x2xH100")):
        ranked = answer(entries, Objective(by, prices), ["cluster"], tmp_path)
        assert ranked.best is not None and ranked.best.entry.point.cluster == first, by
        assert ranked.title.startswith("The best of 2 clusters by ") and f": {first}" in ranked.title
    for wrong in ("free", "H100=", "Z80=2", "-1", "0", "inf", "nan"):
        with pytest.raises(PhantoraError):
            parse_prices(wrong)
    with pytest.raises(PhantoraError):
        Objective("cost")


# ---------------------------------------------------------------------- search


def test_a_search_finds_the_best_and_goes_on_from_its_journal(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    found = space(
        matrix={"a": list(range(12)), "b": list(range(12)), "flag": [False, True]},
        rules=["a + b != 3"],
        let={},
        options={},
        arguments={"a": "-a", "b": "-b", "flag": "--flag"},
        environment={},
        tokens="1000",
    )

    def quality(task: Task) -> Result:
        v: dict[str, Any] = task.point.values
        return Result(
            task.key, v, RAN, measured=measured(100 + 10 * (v["a"] - 7) ** 2 + 5 * (v["b"] - 4) ** 2), seconds=36
        )

    def look(folder: Path, trials: int, engine: Answers) -> Search:
        objective = Objective()
        shared = Shared(folder)
        search = Search(space=found, objective=objective, trials=trials)
        journal = Journal(folder)
        try:
            search.learn(journal.results.values(), shared)
            Runner(shared=shared, source=search, engine=engine, journal=journal, objective=objective).run()
        finally:
            journal.close()
        return search

    engine = Answers(quality)
    search = look(tmp_path, 60, engine)
    assert len(engine.ran) == len(read(tmp_path / "journal.jsonl")[0]) == 60
    times = [one.measured.step_time for one in read(tmp_path / "journal.jsonl")[0] if one.measured]
    assert min(times) <= 115e6 and min(times[30:]) < sorted(times[:15])[7]
    assert search.gain_per_hour() and "gain over the first" in search.summary()[-1]
    more = Answers(quality)
    assert look(tmp_path, 70, more).asked == 70 and len(more.ran) == 10
    keys = [one.key for one in read(tmp_path / "journal.jsonl")[0]]
    assert len(keys) == len(set(keys)) == 70
