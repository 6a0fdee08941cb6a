"""The part of fuzz.py that is guided by coverage: atheris for what Python reads, libFuzzer for the engine.

Each runs in a process of its own, which ends at a crash and is started again. It says how many inputs were accepted and
refused in a file that both sides map. Exceptions, and inputs that take too long, are found in `found`; crashes where
libFuzzer leaves them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora.stubs import find, sources
from phantora.wire import engine, layout
from tests.robustness import fuzz_corpora

HERE = Path(__file__).resolve().parent
ENGINE = {"ranks": {}, "ranks, replayed": {"PHANTORA_FUZZ_REPLAYED": "1"}}  # targets, and what chooses them
NOT_GUIDED = {"CUDA and NCCL": "its code is that of the stubs, which are built without counters of coverage"}
COMPILER = ("clang++", "clang++-14", "clang++-15", "clang++-16", "clang++-17", "clang++-18", "clang++-19")
FLAGS = (
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-omit-frame-pointer",
    "-static-libstdc++",
    "-static-libgcc",
    "-fsanitize=fuzzer,address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)
LARGEST = 1 << 20  # bytes of a seed or of an input
LARGEST_OF_RANKS = 8192
WAIT = 120  # seconds after which an input is found to wait for something
SLOW = 10  # seconds of an input of the engine, with sanitizers
MEMORY_MB = 4096
LINE = re.compile(rb"^#\d+\s+(\w+)\s+cov: (\d+) .*?corp: (\d+)", re.MULTILINE)


def engine_program() -> Path:
    """Path of the engine's fuzzer for these sources."""
    digest = hashlib.sha256(sources.source_digest().encode() + " ".join(FLAGS).encode())
    for path in sorted(HERE.glob("engine_*")):
        digest.update(path.read_bytes())
    return HERE.parents[1] / "build" / f"engine_fuzzer-{digest.hexdigest()[:16]}"


def compile_engine(made: Path) -> Path:
    """The engine with libFuzzer and sanitizers, as the program `made`."""
    compiler = next((name for name in COMPILER if shutil.which(name)), None)
    if compiler is None:
        raise SystemExit(
            "the engine's fuzzer needs clang and libFuzzer (apt-get install clang libclang-rt-14-dev), or "
            "--engine-fuzzer FILE of a machine that has them"
        )
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "phantora_wire.h").write_text(layout.c_header())
        (folder / "phantora_engine.h").write_text(engine.c_header())
        files = (*sources.engine_sources(), HERE / "engine_fuzzer.cpp", HERE / "engine_mutations.cpp")
        (folder / "whole.cpp").write_text("".join(f'#include "{path}"\n' for path in files))
        include = [f"-I{path}" for path in (folder, HERE, sources.source_directory(), sources.engine_directory())]
        command = [compiler, f"-std=c++{find.OWN_CXX}", *FLAGS, *include, "-o", str(made), str(folder / "whole.cpp")]
        subprocess.run(command, check=True)
    return made


@dataclass
class Options:
    """Options of the command line."""

    seconds: float
    seed: int
    keep: Path
    corpus: Path | None
    """Folder for the inputs of each target; None: not kept."""
    engine: Path
    """Program of the engine's fuzzer; it is made if it is not there."""
    ended: threading.Event


@dataclass
class Fuzzer:
    """One target under libFuzzer, with its files in `folder`."""

    name: str
    suffix: str
    folder: Path
    engine: Path
    ended: threading.Event = field(default_factory=threading.Event)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        for name in ("seeds", "artifacts", "found"):
            (self.folder / name).mkdir()
        self.counts.write_bytes(bytes(16))
        self.environment |= {"PHANTORA_FUZZ_COUNTS": str(self.counts), **ENGINE.get(self.name, {})}

    @property
    def counts(self) -> Path:
        return self.folder / "counts"

    @property
    def input(self) -> Path:
        """The input under way, of targets that read files."""
        return self.folder / f"input{self.suffix}"

    def command(self, seconds: float, *arguments: str) -> list[str]:
        common = [f"-artifact_prefix={self.folder / 'artifacts'}/", *arguments]
        if self.name in ENGINE:
            limits = [f"-max_len={LARGEST_OF_RANKS}", f"-timeout={SLOW}", f"-rss_limit_mb={MEMORY_MB}", "-entropic=0"]
            return [str(self.engine), f"-max_total_time={max(1, round(seconds))}", *limits, *common]
        limits = [f"-max_len={LARGEST}", f"-timeout={WAIT}", "-rss_limit_mb=0"]  # the child has set its own
        return [
            sys.executable,
            "-m",
            "tests.robustness.fuzz_child",
            self.name,
            str(self.input),
            str(self.folder / "found"),
            str(seconds),
            *limits,
            *common,
        ]

    def start(self, seconds: float, *arguments: str) -> tuple[int, float, bytes]:
        """Exit status, CPU seconds and what libFuzzer printed."""
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                self.command(seconds, *arguments), env=self.environment, stderr=errors, stdout=subprocess.DEVNULL
            )

            def stop(*_: object) -> None:
                self.ended.set()
                child.terminate()

            before = signal.signal(signal.SIGTERM, stop)
            try:
                _, status, usage = os.wait4(child.pid, 0)
            finally:
                signal.signal(signal.SIGTERM, before)
            child.returncode = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            return child.returncode, usage.ru_utime + usage.ru_stime, errors.read()

    def findings(self, status: int, printed: bytes) -> dict[str, bytes]:
        """Findings of the last process: a line, and the input."""
        found = {}
        for path in sorted((self.folder / "found").glob("*.json")):
            found[json.loads(path.read_text())] = path.with_suffix(".input").read_bytes()
            path.unlink()
        artifacts = sorted((self.folder / "artifacts").iterdir())
        if status and not artifacts and self.input.exists():
            found[ending(status, printed)] = self.input.read_bytes()
        for path in artifacts:
            if status:  # else one that libFuzzer calls slow: the limits are ours
                found[ending(status, printed)] = path.read_bytes()
            path.unlink()
        if status and not found:
            said = printed.decode(errors="replace")[-2000:]
            raise SystemExit(f"{self.name}: the fuzzer itself does not run:\n{said}")
        return found


def ending(status: int, printed: bytes) -> str:
    """End of a process, in a line."""
    text = printed.decode(errors="replace")
    for pattern in (r"runtime error: (.*)", r"SUMMARY: (.*)", r"ERROR: libFuzzer: (.*)", r"(the engine still moves.*)"):
        if said := re.search(pattern, text):
            place = re.search(r"\b(?:phe|phn)::.* \S*/(\w+\.(?:cpp|h):\d+)", text)
            what = re.sub(r"0x[0-9a-f]+", "0x...", said[1])  # one finding, wherever memory lies
            return (what[:200] + (f" ({place[1]})" if place else "")).replace(str(HERE.parents[1]), "")
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"


@dataclass
class Progress:
    """Progress of a target, over all its processes."""

    spent: float = 0.0
    start: int = -1
    """Edges that the seeds and the corpus reach."""
    edges: int = 0
    inputs: int = 0
    """Inputs in the corpus."""

    def add(self, seconds: float, printed: bytes) -> None:
        self.spent += seconds
        lines = LINE.findall(printed)
        for kind, edges, inputs in lines:
            if kind == b"INITED" and self.start < 0:
                self.start = int(edges)
            self.edges, self.inputs = max(self.edges, int(edges)), int(inputs)


def check(names: Sequence[str], options: Options) -> None:
    """Checks that the targets have all that they need."""
    if any(name not in ENGINE and name not in NOT_GUIDED for name in names) and not importlib.util.find_spec("atheris"):
        raise SystemExit("--guided needs atheris: pip install atheris")
    if any(name in ENGINE for name in names) and not options.engine.exists():
        options.engine.parent.mkdir(parents=True, exist_ok=True)
        compile_engine(options.engine)


def prepare(fuzzer: Fuzzer, seeds: Sequence[bytes]) -> list[Path]:
    """Writes the first inputs. Those that are too large for libFuzzer are left out."""
    paths = []
    for number, data in enumerate(seeds):
        if len(data) <= LARGEST:
            paths.append(fuzzer.folder / "seeds" / f"{number:04}")
            paths[-1].write_bytes(data)
    return paths


HEAD = f"{'corpus':>8} {'edges: start':>12} {'end':>6}"


def run(name: str, target: Any, seeds: Sequence[bytes], options: Options) -> int:
    """Prints the row of a target, and returns how many findings there are."""
    if name in NOT_GUIDED:
        print(f"{name:16} not guided: {NOT_GUIDED[name]}", flush=True)
        return 0
    if options.ended.is_set():
        return 0
    progress, findings = Progress(), dict[str, Path]()
    with tempfile.TemporaryDirectory() as made:
        fuzzer = Fuzzer(name, target.suffix, Path(made), options.engine, options.ended)
        corpus = (options.corpus or fuzzer.folder / "corpora") / fuzz_corpora.file_name(name)
        corpus.mkdir(parents=True, exist_ok=True)
        prepare(fuzzer, seeds)
        seed = options.seed
        while options.seconds - progress.spent >= 1 and not options.ended.is_set():
            seed += 1
            left = options.seconds - progress.spent
            where = (str(corpus), str(fuzzer.folder / "seeds"))
            status, spent, printed = fuzzer.start(left, f"-seed={seed % (1 << 32)}", *where)
            progress.add(spent, printed)
            for text, data in fuzzer.findings(0 if options.ended.is_set() else status, printed).items():
                if text not in findings:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    stem = f"{fuzz_corpora.file_name(name)}-{seed}-{len(findings)}"
                    findings[text] = options.keep / f"{stem}{target.suffix}"
                    findings[text].write_bytes(data)
        accepted, refused = struct.unpack("QQ", fuzzer.counts.read_bytes())
    print(
        f"{name:16} {progress.spent:8.0f} s {accepted + refused:8} {accepted:8} {refused:8} {len(findings):8} "
        f"{progress.inputs:8} {progress.start:12} {progress.edges:6}",
        flush=True,
    )
    for text, kept in findings.items():
        print(f"    {text}  {kept}", flush=True)
    return len(findings)


def limit_memory(most: int) -> None:
    """Next to what the process has mapped so far: one that has loaded torch has more than that by itself."""
    most += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


# ---------------------------------------------------------------- what each input reaches
STARTED = re.compile(r"^(STARTED|FT|COV) (\d+) ?(.*)$")


def reached(fuzzer: Fuzzer, paths: Sequence[Path]) -> Mapping[Path, frozenset[int]]:
    """The edges that each file reaches first, in this order. libFuzzer writes them to the file by which it merges
    corpora. A process that an input ended is started again behind it."""
    control, edges = fuzzer.folder / "control", dict[Path, frozenset[int]]()
    left = list(paths)
    while left:
        control.write_text("\n".join([str(len(left)), "0", *map(str, left), ""]))
        fuzzer.start(3600, "-merge_inner=1", f"-merge_control_file={control}")
        last = -1
        for line in control.read_text().splitlines()[2 + len(left) :]:
            if not (said := STARTED.match(line)):
                continue
            last = int(said[2])
            if said[1] == "COV":
                edges[left[last]] = frozenset(map(int, said[3].split()))
        if last < 0:
            raise SystemExit(f"{fuzzer.name}: libFuzzer reads no input")
        left = left[last + 1 :]
    return edges
