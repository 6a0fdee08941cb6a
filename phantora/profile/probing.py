"""Runs the probe of the host: under the stub libraries, and also with the real ones where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from phantora import run_process
from phantora.errors import PhantoraError
from phantora.profile import host_probe
from phantora.profile.alternation import go_on_alone, new_turns
from phantora.profile.host import Probe, read_probe
from phantora.spec import RankSpec, RunSpec

CORES = 2  # the thread of Python and that of autograd; one of them waits
_LOOK_S = 0.05


@contextmanager
def on_the_same_cores() -> Iterator[None]:
    """Processes that are started meanwhile share two cores: those of a shared machine differ in speed from one to the
    next (validation/holdout.md). Two that this process may use, or all if it may use fewer than four."""
    allowed = os.sched_getaffinity(0)
    middle = sorted(allowed)[len(allowed) // 2 :][:CORES]
    if len(allowed) >= 2 * CORES:
        os.sched_setaffinity(0, middle)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def run_probes(rounds: int, keep: Path | None = None, gpu: bool = True) -> tuple[Probe, Probe | None]:
    """The probe under the stub libraries, and with the real ones if `gpu`: None where these find no GPU. Both run at
    the same time, row by row in turns and on the same cores. `keep`: a folder for what they print. Raises
    PhantoraError when one fails."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        turns = folder / "turns"
        new_turns(turns)
        with on_the_same_cores():
            probes = [_Running(stubbed, rounds, folder, turns) for stubbed in ((False, True) if gpu else (True,))]
        try:
            if not gpu:
                go_on_alone(turns)
            while any(probe.process.poll() is None for probe in probes):
                if any(probe.found_no_gpu() for probe in probes):
                    go_on_alone(turns)
                if any(probe.failed() for probe in probes):
                    break
                time.sleep(_LOOK_S)
            found = {probe.stubbed: probe.found(keep) for probe in probes if probe.process.poll() is not None}
        finally:
            for probe in probes:
                probe.end()
    stubbed = found[True]
    assert stubbed is not None
    return stubbed, found.get(False)


class _Running:
    """One of the two processes."""

    def __init__(self, stubbed: bool, rounds: int, folder: Path, turns: Path) -> None:
        self.stubbed = stubbed
        self._name = f"host_probe_{'stubs' if stubbed else 'gpu'}.jsonl"
        self._out, self._output = folder / self._name, folder / f"{self._name}.txt"
        script, words = str(Path(host_probe.__file__)), (str(self._out), str(rounds), str(turns), str(int(stubbed)))
        command: Sequence[str] = (sys.executable, script, *words)
        if stubbed:
            spec = RunSpec(script, words, null=True, ranks=RankSpec(quiet=True))
            command = run_process.Files.of(folder, "probe", spec).command
        environment = run_process.environment()
        if stubbed:
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        with open(self._output, "w", encoding="utf-8") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    def found_no_gpu(self) -> bool:
        """True if the process with the real libraries ended without a GPU."""
        return not self.stubbed and self.process.poll() == host_probe.NO_GPU

    def failed(self) -> bool:
        return self.process.poll() not in (None, 0) and not self.found_no_gpu()

    def found(self, keep: Path | None) -> Probe | None:
        """The parsed output of the probe; None: no GPU. Raises PhantoraError if it failed."""
        if self.found_no_gpu():
            return None
        if self.process.returncode or not self._out.exists():
            output = (self._output.read_text(errors="replace").strip() or "no output").splitlines()[-1]
            where = "under the stub libraries" if self.stubbed else "on this machine's GPU"
            raise PhantoraError(
                f"the probe of the host failed {where} (status {self.process.returncode}): {output[:300]}"
            )
        text = self._out.read_text(encoding="utf-8")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / self._name).write_text(text, encoding="utf-8")
        return read_probe(text)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
