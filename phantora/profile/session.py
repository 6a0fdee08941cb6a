"""Measures a list of operators in a worker process, into a table, so that nothing measured is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from phantora.cost.parse import parse_signature, signature_text
from phantora.cost.table import Entry, Table, TimedKernel, read_table, signature_key, write_table
from phantora.cost.wanted import Wanted
from phantora.errors import PhantoraError, cause_of

CHUNK = 96  # operators measured under one profile
JOURNAL = ".journal"


class WorkerDied(Exception):
    """The worker ended on the operator with index `at` of the chunk (-1: none)."""

    def __init__(self, at: int, status: int) -> None:
        super().__init__(f"the GPU or its driver gave up on it (exit status {status})")
        self.at = at


class Worker:
    """A process without stubs that measures what it is given."""

    def __init__(self) -> None:
        """Raises PhantoraError when this machine has no GPU that torch can use."""
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("PHANTORA_RANK")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "phantora.profile.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        first = self._line()
        if first is None or "fatal" in first:
            self.close()
            reason = first["fatal"] if first else "the measuring process did not start (see above)"
            raise PhantoraError(f"cannot measure: {reason}; run `phantora profile` on a machine with an NVIDIA GPU")
        self.about: dict[str, str] = first

    def measure(self, chunk: Sequence[Wanted]) -> list[dict[str, Any]]:
        """Measurements as JSON objects, one per entry, in order. Raises WorkerDied."""
        assert self._process.stdin is not None
        at = -1
        results: list[dict[str, Any]] = []
        try:
            for entry in chunk:
                self._process.stdin.write(orjson.dumps(asdict(entry)) + b"\n")
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerDied(-1, self._process.wait()) from error
        while len(results) < len(chunk):
            line = self._line()
            if line is None:
                raise WorkerDied(at, self._process.wait())
            if "at" in line:
                at = line["at"]
            elif line:
                results.append(line)
        self._line()  # the chunk's end
        return results

    def _line(self) -> dict[str, Any] | None:
        """The next line, {} for an empty one, None at the end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return None
        return orjson.loads(line) if line.strip() else {}

    def close(self) -> None:
        """Ends the worker; kills it after 10 s."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def kill(self) -> None:
        """Ends the worker at once."""
        self._process.kill()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def measure_all(
    wanted: Iterable[Wanted],
    found: Callable[[dict[str, str], list[dict[str, Any]]], None],
    budget: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Measures `wanted` chunk by chunk; `found` gets what was measured with, and each chunk's results.

    An operator that kills the worker is reported with an error, and the others of its chunk go on in
    a new one. Stops after `budget` seconds. `progress` is called with how many operators are done.
    """
    began = time.monotonic()
    left = list(wanted)
    worker = Worker()
    try:
        while left and (budget is None or time.monotonic() - began < budget):
            chunk, left = left[:CHUNK], left[CHUNK:]
            try:
                results = worker.measure(chunk)
            except WorkerDied as death:
                worker.close()
                culprit = chunk[death.at] if death.at >= 0 else chunk[0]
                results = [
                    {"signature": culprit.signature, "compute": culprit.compute, "kernels": [], "error": str(death)}
                ]
                left = [entry for entry in chunk if entry is not culprit] + left
                worker = Worker()
            found(worker.about, results)
            if progress:
                progress(len(results))
    except BaseException:
        worker.kill()  # what it is measuring would be thrown away
        raise
    finally:
        worker.close()


def entry_of(result: dict[str, Any]) -> Entry:
    """A table's entry from a measurement."""
    kernels = tuple(
        TimedKernel(
            name=k["name"],
            kind=k["kind"],
            grid=tuple(k["grid"]),
            block=tuple(k["block"]),
            cold=k["cold"],
            warm=k["warm"],
            spread=k["spread"],
        )
        for k in result["kernels"]
    )
    return Entry(result["signature"], result["compute"], kernels, result.get("clock_mhz", 0))


def _text(signature: str) -> str:
    """An operator as people read it: ``aten::mm bf16[64,64], bf16[64,64]``."""
    parsed = parse_signature(signature)
    return f"{parsed.name} {signature_text(parsed)}".strip()


class Book:
    """A table that grows: what is measured lies in a journal next to it until the table is written anew."""

    def __init__(self, path: Path) -> None:
        """Reads the table and the journal at `path`, as far as they exist."""
        self.path = path
        self.about: dict[str, str] = {}
        self.entries: dict[str, Entry] = {}
        self.failures: dict[str, str] = {}
        """Why an operator could not be measured, by its key."""
        self.refused: list[tuple[str, str]] = []
        """Operators that could not be measured (name and arguments) with the reason."""
        if path.exists():
            table = read_table(path)
            self.about = table.about
            self.entries = {signature_key(entry.parsed, entry.compute): entry for entry in table}
        self._journal = path.with_name(path.name + JOURNAL)
        if self._journal.exists():
            self._replay()

    def _replay(self) -> None:
        whole = 0
        for line in self._journal.read_bytes().splitlines(keepends=True):
            try:
                record = orjson.loads(line)
                self._accept(record["about"], record["results"])
            except (orjson.JSONDecodeError, KeyError, TypeError):
                break  # the line that was being written when it was killed
            whole += len(line)
        os.truncate(self._journal, whole)

    def _accept(self, about: dict[str, str], results: list[dict[str, Any]]) -> None:
        for key, word in (("gpu", "this GPU is"), ("torch", "this is torch"), ("cuda", "this is CUDA")):
            if self.about and self.about.get(key) != about.get(key):
                raise PhantoraError(
                    f"{self.path} contains times of {self.about.get(key)}, and {word} {about.get(key)}; "
                    "choose another --out"
                )
        self.about = dict(about)
        for result in results:
            key = signature_key(parse_signature(result["signature"]), result["compute"])
            if result.get("error"):
                if key not in self.failures:
                    self.refused.append((_text(result["signature"]), result["error"]))
                self.failures[key] = result["error"]
            else:
                self.entries[key] = entry_of(result)

    def add(self, about: dict[str, str], results: list[dict[str, Any]]) -> None:
        """Takes a chunk's results; they are on disk when this returns. Raises PhantoraError if they cannot be."""
        self._accept(about, results)
        try:
            with open(self._journal, "ab") as journal:
                journal.write(orjson.dumps({"about": about, "results": results}) + b"\n")
                journal.flush()
                os.fsync(journal.fileno())
        except OSError as error:
            raise PhantoraError(f"cannot write {self._journal}: {cause_of(error)}; choose another --out") from error

    def missing(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Operators of `wanted` that were neither measured nor refused, each once."""
        seen = {**self.entries, **self.failures}.keys()
        left: dict[str, Wanted] = {}
        for entry in wanted:
            key = signature_key(parse_signature(entry.signature), entry.compute)
            if key not in seen:
                left.setdefault(key, entry)
        return list(left.values())

    def finish(self) -> Table:
        """Writes the table, and does away with the journal."""
        if self.entries:
            write_table(self.path, self.about, self.entries.values())
            self._journal.unlink(missing_ok=True)
        return Table(self.about, self.entries.values(), str(self.path))
