"""The failure of a rank as data: a line of JSON in a file of the run, whose path is in the rank's :class:`RankSpec`.

A rank writes it; the terminal's process reads it with :func:`read`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from phantora.errors import Reason, reason_of
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches import memory_uses
from phantora.rank.standins.packages import remedy_of
from phantora.rank.user_code import is_users
from phantora.spec import rank_spec

_LONGEST = 500  # characters of a message
_COMPILER = re.compile(
    r"\AError building extension[\s\S]*?^(\S+: (?:fatal )?error: .*|\S*ld: cannot find .*)$", re.MULTILINE
)
_TORCH_OOM = re.compile(r"Tried to allocate ([\d.]+ \w+).*?of which ([\d.]+ \w+) is free")
_NCCL_CAUSE = re.compile(r"^Last error:\s*(\S.*)", re.MULTILINE)
_OF_ZERO = re.compile(r"math domain error|expected a positive input")
_HINTS = {"Duplicate GPU detected": "torch.cuda.set_device(LOCAL_RANK) in each rank"}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The error that ended a rank's script. `rank` is -1 for a process that is no rank."""

    rank: int
    kind: str
    """The exception's class."""
    message: str
    place: str
    """``train.py:6``, the innermost line of the user's own code; "" if there is none."""
    reason: Reason
    refused: str = ""
    """The last call that got an error because it is not simulated: often the cause."""
    allocation: str = ""
    """Where the last failed allocation was asked for: ``train.py:28``, ``backward of train.py:12``; "" if none did."""

    def __str__(self) -> str:
        who = f"rank {self.rank}" if self.rank >= 0 else "the command"
        where = f" at {self.place}" if self.place else ""
        if self.reason is Reason.OUT_OF_MEMORY:
            return self._out_of_memory(who, where)
        message = f": {self.message}" if self.message else ""
        refused = f"; not simulated, with an error: {self.refused}" if self.refused else ""
        return f"{who}{where}: {self.kind}{message}{refused}"

    def _out_of_memory(self, who: str, where: str) -> str:
        asked = _TORCH_OOM.search(self.message)
        text = f"{asked[1]} asked, {asked[2]} free" if asked else self.message
        backward, _, of = self.allocation.partition("backward of ")
        if of and not backward:
            where = f" in the backward of {of}" if of == self.place else f"{where}, in the backward of {of}"
        return f"out of memory on {who}{where}: {text}"


_library: list[ctypes.CDLL] = []
_tracer: list[Path] = []


def install(rank: Rank) -> None:
    """Takes the failed assertions of kernels, and the calls that are not simulated, from the rank runtime."""
    library = rank.runtime
    for function in (library.ph_failed_assertion, library.ph_refused):
        function.argtypes, function.restype = [], ctypes.c_char_p
    _library[:] = [library]
    _tracer[:] = [rank.tracer]


def _with_assertion(message: str) -> str:
    """The call whose kernel failed, of an error that a later call raised."""
    text = _library[0].ph_failed_assertion() if _library and "device-side assert" in message else None
    return f"{message} ({text.decode(errors='replace')})" if text else message


def note(error: BaseException) -> None:
    """Appends the error of this process to the run's file, if it has one."""
    if not rank_spec().failures:
        return
    rank = os.environ.get("RANK", "")
    remedy = remedy_of(error) or _of_zero(error)
    message = (_with_assertion(message_of(error)) + (remedy and f"; {remedy}"))[:_LONGEST]
    failure = Failure(
        rank=int(rank) if rank.isdigit() else -1,
        kind=type(error).__name__,
        message=message,
        place=_place(error),
        reason=reason_of(error),
        refused=_refused_call(),
        allocation=memory_uses.failed_allocation(),
    )
    if failure.reason is Reason.OUT_OF_MEMORY:
        memory_uses.note_uses(error)
    _append(failure)


def _of_zero(error: BaseException) -> str:
    """How a number that is not computed gets another value, of an error by its 0: ``1 / loss.item()``."""
    divides = isinstance(error, ZeroDivisionError)
    if not divides and not (isinstance(error, ValueError) and _OF_ZERO.search(str(error))):
        return ""
    if "torch" not in sys.modules or not _tracer or not ctypes.CDLL(str(_tracer[0])).phantora_real_read():
        return ""
    return f"numbers that are not computed read as 0: --assume loss=1, or iterations=2@{_place(error)}"


def note_here(message: str, reason: Reason) -> None:
    """Appends a reason to end this process, at the innermost line of the user's own code."""
    place = _innermost(traceback.extract_stack())
    _append(Failure(rank=int(os.environ["RANK"]), kind="", message=message, place=place, reason=reason))


def _append(failure: Failure) -> None:
    with suppress(OSError), open(rank_spec().failures, "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(failure)) + "\n")


def message_of(error: BaseException) -> str:
    """One line. Of an error in another process (torch.multiprocessing, RPC) it is that process's last exception."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        why = _refused(error) or (str(error.__context__) if error.__context__ else "")
        return ", ".join(filter(None, (str(error.code), *why.strip().splitlines()[:1])))
    if isinstance(error, AssertionError) and not str(error) and error.__traceback__:
        return traceback.extract_tb(error.__traceback__)[-1].line or ""
    compiler = _COMPILER.search(str(error))
    if compiler is not None:
        return compiler[1]
    cause = _NCCL_CAUSE.search(str(error))
    if cause is not None:
        hint = next((f"; {hint}" for text, hint in _HINTS.items() if text in cause[1]), "")
        return cause[1].strip() + hint
    return _last_line(error).removeprefix(f"{type(error).__name__}: ")  # raised again by a DataLoader


def _last_line(error: BaseException) -> str:
    _, found, raised = str(error).strip().rpartition("Traceback (most recent call last):\n")
    lines = [line for line in raised.splitlines() if any(map(str.isalnum, line))] or [""]  # not torchrun's ======
    return next((line for line in lines if not line[0].isspace()), lines[-1]) if found else lines[0]


def _refused_call() -> str:
    text = _library[0].ph_refused() if _library else None
    return text.decode(errors="replace") if text else ""


def _refused(error: SystemExit) -> str:
    """What argparse has against the arguments that it was given."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is ArgumentParser.error.__code__:
            return str(frame.f_locals["message"])
    return ""


def read(path: Path) -> list[Failure]:
    """All that were noted, in the order of real time."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = []
    for line in lines:
        with suppress(ValueError, TypeError):  # cut off: its process was killed while it wrote
            values = json.loads(line)
            found.append(Failure(**{**values, "reason": Reason(values["reason"])}))
    return found


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return _shown(error.filename, error.lineno)
    return _innermost(traceback.extract_tb(error.__traceback__))


def _innermost(frames: Sequence[traceback.FrameSummary]) -> str:
    own = [frame for frame in frames if is_users(frame.filename)]
    return _shown(own[-1].filename, own[-1].lineno) if own else ""


def _shown(filename: str, line: int | None) -> str:
    """Relative to the current folder where it lies in it."""
    relative = os.path.relpath(filename)
    name = os.path.basename(filename) if relative.startswith(os.pardir) else relative
    return f"{name}:{line}" if line else name


PATCH = Patch("failures", When.BEFORE_TORCH, install)
