"""A point's runs: the commands, one after the other, and what they gave.

:func:`evaluate` is a generator of commands, which does not care who runs them: the pool of this machine or a worker
of Ray.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from phantora.errors import PhantoraError, Reason, cause_of
from phantora.options import target_words, words
from phantora.result import RunResult, first_line
from phantora.run_process import MODULE, Files
from phantora.spec import AUTO, COMMAND, OFF, TRACE, OutputSpec, RunSpec
from phantora.sweeps.fold import Folding, folding, is_first_only, next_mode
from phantora.sweeps.plan import Point
from phantora.sweeps.result import FAILED, OUT_OF_MEMORY, RAN, Measured, Result
from phantora.sweeps.space import CLUSTER, Steps
from phantora.trace.analysis.memory_fit import without_split
from phantora.units import GIB
from phantora.version import version

LOG, RUN = "run.arrow", "output"
STEADY_SPREAD = 0.01  # of the median step; below it, or half of the error bar, more steps tell nothing new
NEEDS_FACTOR = 16  # that many times the memory has a GPU on which a run that does not fit is measured
_LONGEST = 300  # characters of an error


@dataclass(frozen=True)
class Shared:
    """Settings that all points of a sweep share."""

    folder: Path
    here: tuple[str, ...] = ()
    """Arguments of the script that a real run has no use for."""
    steps: Steps | None = None
    needs: bool = True
    """Run what does not fit once more, on GPUs with memory enough."""
    fold: str = OFF
    """Fold of a point with a known mesh."""


@dataclass(frozen=True)
class Command:
    """A process to be run: ``python -m`` with a module and its arguments. Its output goes to `output`; it takes the
    environment of this process and `environment`."""

    module: tuple[str, tuple[str, ...]]
    environment: dict[str, str]
    output: Path
    errors_too: bool = True
    """`output` takes standard error as well."""

    @property
    def words(self) -> tuple[str, ...]:
        """The command line."""
        name, arguments = self.module
        return (sys.executable, "-m", name, *arguments)


@dataclass(frozen=True)
class Task:
    """A point that is to be run."""

    point: Point
    shared: Shared
    key: str
    doubtful: bool = False
    """It may not fit: it is run first where there is room."""

    @classmethod
    def of(cls, point: Point, shared: Shared) -> Task:
        """The task of a point; its key depends on all that can change the result: version, cluster, options, script."""
        named = (point.cluster, *words(point.spec), *point.arguments)
        files = sorted({name for name in named if name.endswith((".py", ".toml", ".json"))})
        identity = [
            version(),
            point.spec.to_json(),
            sorted(point.environment.items()),
            shared.here,
            point.arguments,
            [_digest(name) for name in files],
            (shared.steps.argument, shared.steps.first, shared.steps.most) if shared.steps else None,
            _folding(point, shared).axes,
        ]
        return cls(point, shared, hashlib.sha256(orjson.dumps(identity)).hexdigest()[:20])

    @property
    def folder(self) -> Path:
        """Folder of the point's files."""
        return self.shared.folder / "points" / self.key

    @property
    def log(self) -> Path:
        """Path of the point's log."""
        return self.folder / LOG

    @property
    def folding(self) -> Folding:
        """Fold of the point."""
        return _folding(self.point, self.shared)

    @property
    def alone(self) -> bool:
        """True if one process stands for each stage. The best of such points is run again, with more."""
        return is_first_only(self.folding.described)

    def spec(self, steps: int | None, log: str, *, force: bool = False, recording: bool = True) -> RunSpec:
        """The run with `steps` steps (None: as many as the script makes) and its log at `log`. A run of which one
        process stands for each stage is neither recorded nor simulated again for slower hosts, a tenth of its
        time, unless its steps are sampled."""
        shared, point, axes = self.shared, self.point, self.folding.axes
        spec = point.spec
        samples = spec.output.samples if recording else 0
        if not axes:
            axes = OFF if shared.fold == OFF and not is_folded_by_user(point) else spec.fold.axes
        return replace(
            spec,
            arguments=(*spec.arguments, *shared.here, *self._steps(steps), *point.arguments),
            fold=replace(spec.fold, axes=axes),
            output=OutputSpec(
                log, force=force, recording=recording and (samples > 0 or not self.alone), samples=samples
            ),
        )

    def _steps(self, steps: int | None) -> tuple[str, ...]:
        if self.shared.steps is None or steps is None:
            return ()
        flag = self.shared.steps.argument
        return (f"{flag}{steps}",) if flag.endswith("=") else (flag, str(steps))

    def real_words(self) -> tuple[str, ...]:
        """Command of the training on a real cluster."""
        point = self.point
        many = ("--nnodes", str(point.hosts), "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500")
        return (
            *(f"{name}={value}" for name, value in point.environment.items()),
            "torchrun",
            *(many if point.hosts > 1 else ("--standalone",)),
            "--nproc-per-node",
            str(point.gpus_per_host),
            *target_words(point.spec),
            *point.arguments,
        )


def _folding(point: Point, shared: Shared) -> Folding:
    own = is_folded_by_user(point) or point.spec.kind == COMMAND
    return folding(point.fold, OFF if own else shared.fold, point.world)


def is_folded_by_user(point: Point) -> bool:
    """True if the user names the fold."""
    return point.spec.fold.axes != AUTO


def _digest(name: str) -> str:
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return ""


class _Refused(Exception):
    """The point cannot be folded as asked."""


def evaluate(task: Task) -> Generator[Command, int, Result]:
    """Yields commands, is sent their exit statuses, returns what is known in the end. A fold that is refused is tried
    with more processes. Raises PhantoraError for an error that does not depend on the point: a full disk."""
    begin = time.monotonic()
    refused = ""
    while True:
        try:
            result = yield from _evaluate(task)
        except _Refused as error:
            refused = refused or str(error)[:_LONGEST]
            task = replace(task, shared=replace(task.shared, fold=next_mode(task.shared.fold, task.folding)))
            continue
        found, seconds = task.folding, round(time.monotonic() - begin, 3)
        return replace(result, seconds=seconds, processes=found.processes, fold=found.described, refused=refused)


def _run(task: Task, spec: RunSpec, name: str = RUN) -> Generator[Command, int, RunResult]:
    """One run."""
    try:
        files = Files.of(task.folder, name, spec)
    except PhantoraError as error:
        if error.reason == Reason.DISK_FULL:
            raise
        return RunResult.refused(error)
    status = yield Command((MODULE, files.arguments), task.point.environment, task.folder / f"{name}.txt")
    return files.read(status)


def _evaluate(task: Task) -> Generator[Command, int, Result]:
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PhantoraError(f"{task.folder}: cannot be made: {cause_of(error)}") from error
    plan = task.shared.steps
    steps = plan.first if plan else None
    roomy = (yield from _roomy(task)) if task.doubtful and task.shared.needs else None
    if roomy is not None and roomy.peak_allocated > task.point.capacity:
        return _too_large(task, steps, roomy)
    while True:
        ran = yield from _run(task, task.spec(steps, str(task.log), force=True))
        measured = (yield from _measured(task)) if ran.log else None
        enough = task.alone or _steady(measured)
        if ran.status or plan is None or steps is None or steps >= plan.most or enough:
            break
        steps = min(2 * steps, plan.most)

    if ran.status == 0 and measured is not None and measured.fits:
        return _result(task, steps, RAN, measured)
    message = first_line(ran.message)[:_LONGEST]
    if (measured is not None and not measured.fits) or ran.reason == Reason.OUT_OF_MEMORY:
        roomy = roomy or ((yield from _roomy(task)) if task.shared.needs else None)
        if roomy is not None:
            return _too_large(task, steps, roomy, measured)
        return _result(task, steps, OUT_OF_MEMORY, measured, message)
    if ran.reason == Reason.CANNOT_FOLD and task.folding.axes:
        raise _Refused(message)
    if ran.reason == Reason.DISK_FULL or shutil.disk_usage(task.folder).free < (1 << 20):
        raise PhantoraError(
            f"{task.folder}: {os.strerror(errno.ENOSPC)}; free space and start the same sweep again: it goes on where "
            "it was",
            Reason.DISK_FULL,
        )
    return _result(task, steps, FAILED, None, message or "its log has no steps")


def _result(
    task: Task, steps: int | None, kind: str, measured: Measured | None, error: str = "", needs: int | None = None
) -> Result:
    command = ("phantora", TRACE, *words(task.spec(steps, "run.arrow"), always=(CLUSTER,)))
    return Result(
        task.key, task.point.values, kind, measured=measured, error=error, needs=needs, steps=steps, command=command
    )


def _too_large(task: Task, steps: int | None, roomy: Measured, failed: Measured | None = None) -> Result:
    """The result of a point that does not fit, with the numbers of its run on GPUs with room, and the remedy for where
    it `failed` without."""
    measured = replace(roomy, fits=False, capacity=task.point.capacity)
    if failed is not None:
        measured = replace(
            measured, remedy=roomy.remedy or without_split(failed.remedy), checkpointed=failed.checkpointed
        )
    return _result(task, steps, OUT_OF_MEMORY, measured, needs=roomy.memory)


def _steady(measured: Measured | None) -> bool:
    """Enough steps are equal."""
    if measured is None or measured.steps < 2:
        return False
    identical = max(STEADY_SPREAD, (measured.error or 0.0) / 2)
    return measured.highest - measured.lowest <= identical * measured.step_time


def _measured(task: Task) -> Generator[Command, int, Measured | None]:
    """The numbers of its log, if it has one with rows."""
    output = task.folder / "measured.json"
    if (yield Command(("phantora.sweeps.measure", (str(task.log),)), {}, output, errors_too=False)):
        return None
    try:
        return Measured(**orjson.loads(output.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    finally:
        output.unlink(missing_ok=True)


def _roomy(task: Task) -> Generator[Command, int, Measured | None]:
    """The numbers of the run on GPUs with memory enough: of two steps, after which the optimizer has its state. What it
    allocates there at its peak it would on any GPU; what else it keeps may be less where memory is short."""
    steps = min(2, task.shared.steps.first) if task.shared.steps else None
    spec = task.spec(steps, str(task.log), force=True, recording=False)
    ran = yield from _run(task, replace(spec, gpu_memory=NEEDS_FACTOR * task.point.capacity / GIB), "room")
    measured = (yield from _measured(task)) if ran.log else None
    return None if ran.status else measured
