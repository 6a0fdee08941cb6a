"""Output of ranks, in the terminal's process: to the console with a prefix, to files, or both."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from phantora.errors import PhantoraError, Reason, cause_of
from phantora.launch.plan import STDERR, STDOUT, Plan, parse_streams, rank_log_dir
from phantora.launch.printed_mfu import PrintedMfu
from phantora.launch.repeats import Repeats

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|[\r\n])")  # progress bars end their lines with a carriage return
_READ_BYTES = 1 << 16
_END_BYTES = 8192
_UNCAUGHT = re.compile(rb"what\(\): +([^\r\n]+)")
_MOST_OF_MESSAGE = 300


class TerminalGone(PhantoraError):
    """A write may notice it before SIGHUP comes."""

    exit_status = 128 + signal.SIGHUP

    def __init__(self) -> None:
        super().__init__("interrupted by SIGHUP", Reason.INTERRUPTED)


class Console:
    """The terminal or pipe the user sees, with an optional status line below the output. Any thread may write."""

    def __init__(self, out: BinaryIO, err: BinaryIO, status: bool) -> None:
        self._streams = {STDOUT: out, STDERR: err}
        self._terminals = {stream for stream, sink in self._streams.items() if sink.isatty()}
        self._err = err
        self._status = status
        self._shown = False
        self._at_line_start = True
        self._next_draw = 0.0
        self._lock = threading.RLock()

    def write(self, stream: int, data: bytes) -> None:
        """Writes bytes of a rank to standard output (1) or error (2)."""
        with self._lock:
            self.clear()
            sink = self._streams[stream]
            try:
                sink.write(data)
                sink.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                if error.errno == errno.EIO and stream in self._terminals:
                    raise TerminalGone from error
                name = "output" if stream == STDOUT else "error"
                raise PhantoraError(
                    f"cannot write standard {name}, where the ranks' output goes: {cause_of(error)}; make room, or "
                    "send it elsewhere"
                ) from error
            self._at_line_start = data.endswith((b"\n", b"\r"))

    def message(self, text: str) -> None:
        """Writes a line of our own to standard error, on a line for itself; nobody may be there to read it."""
        with self._lock, suppress(OSError):
            self.clear()
            self._err.write(("" if self._at_line_start else "\n").encode() + text.encode() + b"\n")
            self._err.flush()
            self._at_line_start = True

    def draw(self, status: Callable[[int], str | None]) -> None:
        """Shows as the status line what `status` gives for a width, at most five times a second; where there is no
        terminal, as a line of its own, when it says something."""
        now = time.monotonic()
        if now < self._next_draw:
            return
        self._next_draw = now + 0.2
        if not self._status:
            text = status(80)
            if text is not None:
                self.message(text)
        elif self._at_line_start:
            try:
                text = status(os.get_terminal_size(self._err.fileno()).columns)
                with self._lock:
                    self._err.write(b"\r\x1b[2K" + (text or "").encode() + b"\r")
                    self._err.flush()
                    self._shown = True
            except OSError:  # the terminal has gone
                self._status = self._shown = False

    def clear(self) -> None:
        """Removes the progress line, if one is shown."""
        with self._lock:
            if self._shown:
                self._shown = False
                with suppress(OSError):
                    self._err.write(b"\r\x1b[2K")
                    self._err.flush()


@dataclass(kw_only=True)
class Stream:
    """The reading end of one pipe from a rank."""

    fd: int
    number: int
    prefix: bytes
    to_console: bool
    leaves_out: Callable[[bytes], bool]
    """True for a line that the console does not show."""
    file: BinaryIO | None
    path: Path | None
    mfu: PrintedMfu
    tail: bytes = b""
    end: bytes = b""
    """The last that came, at most :data:`_END_BYTES`."""
    after_return: bool = False
    """The last output ended with a carriage return, so a line feed that follows belongs to it."""

    def pump(self, console: Console) -> bool:
        """Moves what is there; False at the end of the stream."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self.end = (self.end + data)[-_END_BYTES:]
            self._log(data, console)
            self.mfu.read(self.fd, data)
            if self.to_console:
                self._show(data, console)
            return True
        if self.tail:
            self._show(b"\n", console)
        return False

    @property
    def last_words(self) -> str:
        """The message of an uncaught C++ exception (a time limit of NCCL's watchdog), else the last line with text."""
        uncaught = _UNCAUGHT.findall(self.end)
        if uncaught:
            return str(uncaught[-1].decode(errors="replace")[:_MOST_OF_MESSAGE])
        lines = [line.strip() for line in self.end.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def _show(self, data: bytes, console: Console) -> None:
        if not self.prefix:
            console.write(self.number, data)
            return
        if self.after_return and data.startswith(b"\n"):
            console.write(self.number, b"\n")
            data = data[1:]
        self.after_return = False
        text = self.tail + data
        lines = _LINE.findall(text)
        self.tail = text[sum(map(len, lines)) :]
        if lines:
            # torch.distributed prefixes tracebacks and warnings itself, in the same way.
            self.after_return = text.endswith(b"\r")
            lines = [line for line in lines if not self.leaves_out(line)]
            shown = (line if line.startswith(self.prefix.rstrip()) else self.prefix + line for line in lines)
            console.write(self.number, b"".join(shown))

    def _log(self, data: bytes, console: Console) -> None:
        if self.file is None:
            return
        try:
            self.file.write(data)
        except OSError as error:
            console.message(
                f"phantora: cannot write {self.path}: {cause_of(error)}; what was written so far can be read, "
                "the rest of the rank's output is not logged"
            )
            self.file.close()
            self.file = None

    def close(self) -> None:
        """Closes the pipe and the log file."""
        os.close(self.fd)
        if self.file is not None:
            self.file.close()


def _nothing(_: bytes) -> bool:
    return False


def of_command(number: int, mfu: PrintedMfu) -> tuple[Stream, int]:
    """A stream of a command, which goes to the console as it is, and the descriptor to give to the command."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    stream = Stream(
        fd=read, number=number, prefix=b"", to_console=True, leaves_out=_nothing, file=None, path=None, mfu=mfu
    )
    return stream, write


class Outputs:
    """Decides where each rank's two streams go, and opens files and pipes for them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Logs that nobody routes are wanted on the console as well.
        options = plan.spec.launch
        tee = options.tee if plan.log_dir is None or (options.tee, options.redirects) != ("0", "0") else "3"
        self._tee = parse_streams("--tee", tee, plan.ranks_per_host)
        self._redirect = parse_streams("--redirects", options.redirects, plan.ranks_per_host)
        self.repeats = Repeats()
        self.mfu = PrintedMfu()

    def check(self) -> None:
        """Raises, before anything runs, if the log directory cannot be written."""
        if self._plan.log_dir is None:
            return
        try:
            rank_log_dir(self._plan, 0).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PhantoraError(
                f"cannot write to --log-dir {self._plan.log_dir}: {cause_of(error)}; choose another directory"
            ) from error

    def log_path(self, rank: int, number: int) -> Path | None:
        """The file that keeps stdout (`number` 1) or stderr (2) of a rank; None if it is not kept."""
        local = rank % self._plan.ranks_per_host
        if self._plan.log_dir is None or not (self._tee.get(local, 0) | self._redirect.get(local, 0)) & number:
            return None
        return rank_log_dir(self._plan, rank) / ("stdout.log" if number == STDOUT else "stderr.log")

    def open(self, rank: int) -> tuple[list[Stream], list[int]]:
        """The streams to read, and the descriptors to give to the rank as stdout and stderr."""
        local = rank % self._plan.ranks_per_host
        shown = self._plan.ranks_filter is None or local in self._plan.ranks_filter
        prefix = f"[rank{rank}]: ".encode() if self._plan.world_size > 1 else b""
        streams, ends = [], []
        for number in (STDOUT, STDERR):
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read, False)
            path = self.log_path(rank, number)
            file = None
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = open(path, "wb", buffering=0)  # noqa: SIM115 (unbuffered: readable while the rank runs)
            redirected = path is not None and bool(self._redirect.get(local, 0) & number)
            leaves_out = partial(self.repeats.leaves_out, rank) if number == STDERR else _nothing
            streams.append(
                Stream(
                    fd=read,
                    number=number,
                    prefix=prefix,
                    to_console=shown and not redirected,
                    leaves_out=leaves_out,
                    file=file,
                    path=path,
                    mfu=self.mfu,
                )
            )
            ends.append(write)
        return streams, ends
