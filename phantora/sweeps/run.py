"""A sweep from its request to its answer."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, cause_of, known_names
from phantora.sweeps.answer import Answer, answer
from phantora.sweeps.files import write_files
from phantora.sweeps.fold import ENDS, MODES, ONE, is_first_only
from phantora.sweeps.journal import Journal
from phantora.sweeps.objective import Objective
from phantora.sweeps.plan import Plan, make_plan
from phantora.sweeps.pool import Engine, Pool
from phantora.sweeps.result import RAN
from phantora.sweeps.runner import Entry, Listed, Runner
from phantora.sweeps.screening import finalists
from phantora.sweeps.search import Search
from phantora.sweeps.space import CLUSTER, Space, Spelling
from phantora.sweeps.task import Shared, Task

SETUP_DONE = "setup.done"
CONFIRMED = 4  # points at most are run again with more processes
MOST_AXES = 8  # that are shown although they do not vary


@dataclass(frozen=True, kw_only=True)
class Request:
    """A sweep that is asked for."""

    space: Space
    folder: Path
    objective: Objective = field(default_factory=Objective)
    screen: str | None = None
    """A smaller cluster, on which all layouts are run first."""
    finalists: int = 4
    """Number of the best there that then run on the full cluster."""
    search: int = 0
    """Number of points that Optuna chooses; 0: all points run."""
    seed: int = 0
    jobs: int = 0
    """Runs at a time; 0: as many as fit."""
    ray: str | None = None
    everything: bool = False
    again: bool = False
    needs: bool = True
    top: int = 0
    files: bool = True
    """Write the page, the tables and the script of the best; False where another answer is made of the points."""
    fold: str = ONE
    """Fold of a point with a known mesh: one of ``phantora.sweeps.fold.MODES``."""

    @property
    def located(self) -> Space:
        """The space with its places filled in: ``{sweep}``, this folder, and ``{samples}``."""
        return located(self.space, self.folder)


@dataclass
class Outcome:
    """Result of a sweep, and of its search, if it was one."""

    answer: Answer
    search: Search | None


def plan_of(request: Request) -> Plan:
    """Raises PhantoraError."""
    return make_plan(request.located)


def run_sweep(
    request: Request,
    on_result: Callable[[Entry, int, int], None] = lambda entry, done, of: None,
    on_part: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Runs what the journal in the folder does not know yet; writes the answer's files. `on_result` is called for each
    point with how many are done and of how many, `on_part` with what begins behind the last point. Raises
    PhantoraError; KeyboardInterrupt for SIGINT, SIGTERM and SIGHUP: then nothing runs any more, and the same request
    goes on."""
    space = request.located
    if request.fold not in MODES:
        raise PhantoraError(f"--fold {request.fold!r}: unknown mode; {known_names(request.fold, MODES)}")
    if not (space.target or space.run.target):
        raise PhantoraError(f"{space.where}: name the script behind --, or as target = [...]")
    if request.search and request.screen:
        raise PhantoraError("--search and --screen: one of them")
    plan = None if request.search else make_plan(space)
    screen = make_plan(space.with_axes({CLUSTER: (request.screen,)})) if request.screen else None
    search = (
        Search(space=space, objective=request.objective, trials=request.search, seed=request.seed)
        if request.search
        else None
    )
    journal = Journal(request.folder)
    try:
        with _interrupted_by_signals():
            set_up(space, request.folder)
            engine = _engine(request)
            try:
                work = Work(
                    request=request, space=space, engine=engine, journal=journal, on_result=on_result, on_part=on_part
                )
                if plan is None:
                    assert search is not None
                    search.learn(journal.results.values(), work.shared)
                    entries, axes = work.of(search, request.search, request.top), list(space.axes)
                else:
                    entries, axes = _planned(work, plan, screen), plan.axes
                entries = confirmed(work, entries)
            finally:
                engine.close()
            shown = axes if len(axes) <= MOST_AXES else _varying(entries, axes)
            found = answer(entries, request.objective, shown, request.folder)
            _export(found, request.top, on_part)
            if request.files:
                on_part(f"writing the page and tables of {len(entries)} points")
                write_files(found)
            return Outcome(found, search)
    finally:
        journal.close()


@dataclass(kw_only=True)
class Work:
    """Runs points, and counts."""

    request: Request
    space: Space
    engine: Engine
    journal: Journal
    on_result: Callable[[Entry, int, int], None]
    on_part: Callable[[str], None]
    done: int = 0
    expected: int = 0
    fold: str = ""
    """Another way to fold than the request's."""

    @property
    def shared(self) -> Shared:
        """Settings that all points share."""
        request, space = self.request, self.space
        fold = self.fold or request.fold
        return Shared(request.folder, space.here, space.steps, request.needs, fold)

    def of(self, source: Listed | Search, count: int, top: int) -> list[Entry]:
        """Runs `count` points of `source`; keeps the logs of the best `top`."""
        self.expected += count
        request = self.request
        return Runner(
            shared=self.shared,
            source=source,
            engine=self.engine,
            journal=self.journal,
            objective=request.objective,
            everything=request.everything,
            again=request.again,
            top=top,
            on_result=self._notify,
        ).run()

    def _notify(self, entry: Entry) -> None:
        self.done += 1
        self.on_result(entry, self.done, self.expected)


def _planned(work: Work, plan: Plan, screen: Plan | None) -> list[Entry]:
    """The points of `plan`; with `screen` only those whole that are worth it."""
    objective = work.request.objective
    if screen is None:
        return work.of(Listed(plan.points, objective), len(plan.points), work.request.top)
    screened = work.of(Listed(screen.points, objective), len(screen.points), 0)
    points, seen = finalists(plan, screened, objective, work.request.finalists)
    entries = work.of(Listed(points, objective), len(points), work.request.top)
    rest = (point for point in plan.points if point.number in seen)
    return [*entries, *(Entry(Task.of(point, work.shared), skipped=seen[point.number]) for point in rest)]


def confirmed(work: Work, entries: list[Entry]) -> list[Entry]:
    """Runs the best points again, if one process represents each stage: with the ends and a representative of each
    axis, which tests that the ranks are equal, and with steps until they are steady. These numbers count. It ends when
    no other point's fastest step was faster."""
    request, objective = work.request, work.request.objective
    for _ in range(CONFIRMED if request.fold == ONE else 0):
        ran = [entry for entry in entries if entry.result is not None and entry.result.status == RAN]
        best = max(ran, key=lambda entry: (_has_room(entry, objective), _at_most(entry, objective)), default=None)
        if best is None or best.result is None or not is_first_only(best.result.fold):
            break
        work.on_part(f"running the best again, with representatives of all ranks: {best.point.label()}")
        found = replace(work, fold=ENDS, done=work.done, expected=work.expected)
        checked = found.of(Listed([best.point], objective), 1, request.top)
        work.done, work.expected = found.done, found.expected
        entries = [checked[0] if entry is best else entry for entry in entries]
    return entries


def _has_room(entry: Entry, objective: Objective) -> bool:
    result = entry.result
    return result is not None and result.measured is not None and objective.has_room(result.measured)


def _at_most(entry: Entry, objective: Objective) -> float:
    """The value of a point; of one that is not confirmed, that of its fastest step."""
    result = entry.result
    assert result is not None and result.measured is not None
    rate, _ = objective.work(entry.point, result.measured)
    if is_first_only(result.fold):
        rate *= result.measured.step_time / result.measured.lowest
    return objective.value(entry.point, rate, result.measured.watts)


def _varying(entries: list[Entry], axes: list[str]) -> list[str]:
    return [name for name in axes if len({repr(entry.point.values.get(name)) for entry in entries}) > 1] or axes[:1]


def _engine(request: Request) -> Engine:
    if request.ray is None:
        return Pool(request.jobs)
    from phantora.sweeps.on_ray import RayEngine

    return RayEngine(request.ray)


def set_up(space: Space, folder: Path) -> None:
    """Makes the files that a preset needs before its first run, once per folder. Raises PhantoraError, also where a
    package is missing that the script imports."""
    missing = [name for name in space.requires if not _installed(name)]
    if missing:
        raise PhantoraError(
            f"{space.where} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f"pip install {' '.join(_PACKAGES.get(name, name) for name in missing)}, or '.[frameworks]' for all"
        )
    done = folder / SETUP_DONE
    if not space.setup or done.exists():
        return
    ended = subprocess.run([sys.executable, *space.setup], capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        why = lines[-1] if lines else f"status {ended.returncode}"
        raise PhantoraError(f"{space.where}: its setup {space.setup[0]} failed: {why}")
    try:
        done.touch()
    except OSError as error:
        raise PhantoraError(f"{done}: cannot be written: {cause_of(error)}; free space and start again") from error


_PACKAGES = {"megatron.core": "megatron-core"}


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _export(found: Answer, top: int, on_part: Callable[[str], None]) -> None:
    """Timelines of the best."""
    from phantora.trace.export.registry import export

    for row in found.rows[:top]:
        if row.measured and row.entry.task.log.exists():
            on_part(f"writing the timeline of number {row.rank}")
            export(row.entry.task.log, str(found.folder / f"best-{row.rank}.perfetto"))


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a sweep as Ctrl-C does."""

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        old = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread (a notebook's): signals are its business
        yield
        return
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


# ---------------------------------------------------------------------- places


def located(space: Space, folder: Path) -> Space:
    """`space` with the absolute paths of ``{sweep}`` (`folder`) and ``{samples}`` in its words."""
    places = {"{sweep}": str(folder.resolve()), "{samples}": str(samples())}

    def fill(word: str) -> str:
        for place, path in places.items():
            word = word.replace(place, path)
        return word

    def words(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(fill, given))

    def spelling(one: Spelling) -> Spelling:
        if isinstance(one, dict):
            return {value: words(each) for value, each in one.items()}
        return words(one) if isinstance(one, tuple) else fill(one)

    def spellings(table: Mapping[str, Spelling]) -> dict[str, Spelling]:
        return {name: spelling(one) for name, one in table.items()}

    changed: dict[str, Any] = {key: words(getattr(space, key)) for key in ("target", "here", "setup")}
    changed |= {key: spellings(getattr(space, key)) for key in ("arguments", "environment", "options")}
    return replace(space, **changed)


def samples() -> Path:
    """Folder of the samples: in the wheel, or in the checkout."""
    spec = importlib.util.find_spec("phantora._samples")
    found = list(spec.submodule_search_locations or ()) if spec else []
    for folder in (*map(Path, found), Path(__file__).parents[2] / "samples"):
        if (folder / "llama.py").is_file():
            return folder.resolve()
    return Path("samples").resolve()
