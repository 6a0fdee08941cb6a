"""Why is it slow, why did it hang, why is it out of memory: the answer to files of a job, in at most five lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from phantora.dumps import expected_calls, hang, out_of_memory, unmatched_blocks
from phantora.dumps.flight_recorder import is_dump, read_dumps
from phantora.dumps.memory_snapshot import Snapshot, read_snapshot
from phantora.errors import PhantoraError, Reason
from phantora.trace.analysis import why as of_log
from phantora.trace.analysis.analyze import analyze
from phantora.trace.export import memory_viz
from phantora.trace.export.selection import Selection
from phantora.trace.other_files import is_pickle
from phantora.trace.reader import Log, open_log

HANG, MEMORY, SPEED, FAILURE = "hang", "memory", "speed", "failure"


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    question: str
    """``hang``, ``memory`` or ``speed``; ``failure`` of a run that failed otherwise."""
    lines: tuple[tuple[str, str], ...]
    """A word in capitals and its text each."""

    def __str__(self) -> str:
        return "\n".join(f"{word:<9} {text}" for word, text in self.lines)


def why(paths: Sequence[str], opened: Callable[[str], Log] = open_log) -> Answer:
    """The answer to `paths`: dumps of NCCL's flight recorder, one or two memory snapshots, or a log.

    Raises PhantoraError for other files, and for files of different kinds.
    """
    kinds = {path: _question(path) for path in paths}
    if len(set(kinds.values())) != 1:
        found = ", ".join(f"{path} ({kind})" for path, kind in kinds.items())
        raise PhantoraError(f"these files answer different questions: {found}; give those of one kind")
    question = kinds[paths[0]]
    if question == HANG:
        return Answer(HANG, tuple(hang.answer(read_dumps(paths))))
    if question == MEMORY:
        if len(paths) > 2:
            raise PhantoraError("give one memory snapshot, or two to compare")
        return Answer(MEMORY, tuple(out_of_memory.lines([read_snapshot(path) for path in paths])))
    if len(paths) > 1:
        raise PhantoraError(f"give one log; phantora diff {' '.join(paths)} names the cause of a difference")
    log = opened(paths[0])
    return Answer(_of_run(log), tuple(of_log.answer(analyze(log))))


def differs(paths: Sequence[str]) -> Answer:
    """What differs between files of a real job and a simulated run of the same script: dumps of NCCL's flight recorder
    and a log, or a memory snapshot and a log or another snapshot. Raises PhantoraError for other files.
    """
    real = [path for path in paths if _question(path) != SPEED]
    logs = [path for path in paths if _question(path) == SPEED]
    questions = {_question(path) for path in real}
    if questions == {HANG} and len(logs) == 1:
        return Answer(HANG, tuple(expected_calls.answer(read_dumps(real), open_log(logs[0]))))
    if questions == {MEMORY} and len(paths) == 2:
        first, second = (read_snapshot(path) if path in real else snapshot_of(path) for path in paths)
        return Answer(MEMORY, tuple(unmatched_blocks.answer(first, second)))
    raise PhantoraError(
        "give the flight recorder dumps of a job and one log of a simulated run, or a memory snapshot and a log or "
        "another snapshot"
    )


def snapshot_of(path: str) -> Snapshot:
    """The memory of a simulated run's log, of its rank with the highest peak."""
    with TemporaryDirectory() as folder:
        written = str(Path(folder) / "simulated.pickle")
        memory_viz.write(open_log(path), written, Selection(kinds=frozenset({"memory"})))
        return replace(read_snapshot(written), path=path)


def of_a_dump(paths: Sequence[str]) -> bool:
    """True if any of the files is a dump or a snapshot."""
    return any(_question(path) != SPEED for path in paths)


def _of_run(log: Log) -> str:
    """The question that a log answers, by how its run ended."""
    if not log.failure:
        return SPEED
    return {Reason.HANG: HANG, Reason.OUT_OF_MEMORY: MEMORY}.get(log.reason, FAILURE)


def _question(path: str) -> str:
    if is_dump(path):
        return HANG
    return MEMORY if is_pickle(path) else SPEED
