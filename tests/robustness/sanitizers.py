"""Starts a program under a sanitizer or valgrind, and collects what all of its processes report (`sanitized.py`).

Only Phantora's libraries are made for the sanitizers; Python, torch and all others are as they are. So the
sanitizer's runtime must be loaded before Python. Valgrind looks at all code. The thread sanitizer sees the memory and
the threads of all libraries, but not the atomic operations by which others order them. What these two say of others'
code alone is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# No --error-exitcode: what is found in Python would change the status of each process of Python.
_VALGRIND = (
    "valgrind",
    "--track-origins=yes",
    "--fair-sched=yes",
    "--main-stacksize=8388608",
    "--trace-children=yes",
    "--num-callers=30",
    "--fullpath-after=",
)
_ADDRESS = {
    # Leaks: Python keeps what it has at its end. Stacks for signals: at the end of a thread the sanitizer would unmap
    # the one of LLVM, which Triton compiles with.
    "ASAN_OPTIONS": "detect_leaks=0 use_sigaltstack=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
_THREAD = {
    # A process of Python forks while it has threads; its child goes on. There must be none but Python's own then: a
    # thread of the child may have the address of one that the child does not have, which ends it ("dup thread").
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # What is found in others' code must not change a rank's status.
    "TSAN_OPTIONS": "exitcode=0 die_after_fork=0 history_size=4",
}


@dataclass(frozen=True)
class Way:
    """A way to run a program: plain, or under a checker."""

    sanitize: str = ""
    """Sanitizers of the libraries (`PHANTORA_SANITIZE`)."""
    runtimes: tuple[str, ...] = ()
    """Libraries that are loaded before all others."""
    options: Mapping[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()


WAYS = {
    # libstdc++: the sanitizer looks for what throws exceptions when it is loaded, and ends a process that throws one
    # where it found nothing.
    "address": Way("address", ("libasan.so", "libstdc++.so"), _ADDRESS),
    "undefined": Way("undefined", (), _ADDRESS),
    "address,undefined": Way("address,undefined", ("libasan.so", "libstdc++.so"), _ADDRESS),
    # Its memory must lie where it expects it: no random addresses.
    "thread": Way("thread", ("libtsan.so",), _THREAD, ("setarch", "-R")),
    "valgrind": Way(options={"PYTHONMALLOC": "malloc"}, wrapper=_VALGRIND),
}


def run(
    way: Way, command: Sequence[str], reports: Path, *, libraries: Path | None = None, pass_fds: Sequence[int] = ()
) -> int:
    """The status of `command`; what is found goes into the folder `reports`. `libraries`: torch's folder of them.

    The sanitizer's own `dlopen` forgets whose search path counts, so that libraries next to the caller are not found.
    """
    environment = {**os.environ, **way.options, "PHANTORA_SANITIZE": way.sanitize}
    for name in way.options:
        if name.endswith("SAN_OPTIONS"):
            environment[name] += f" log_path={reports / 'report'}"
    if way.runtimes:
        preloaded = [_of_compiler(name) for name in way.runtimes]
        if way.sanitize == "address,undefined":
            environment["UNDEFINED_REPORTS"] = str(reports / "undefined")
            preloaded.append(_helper(reports.parent))
        environment["LD_PRELOAD"] = " ".join(preloaded)
    if libraries and way.sanitize:
        before = os.environ.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{libraries}:{before}" if before else str(libraries)
    wrapper = list(way.wrapper)
    if wrapper[:1] == ["valgrind"]:
        wrapper.append(f"--log-file={reports / 'valgrind.%p'}")
    return subprocess.run([*wrapper, *command], env=environment, pass_fds=pass_fds, check=False).returncode


def _of_compiler(library: str) -> str:
    asked = ["gcc", f"-print-file-name={library}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _helper(folder: Path) -> str:
    """The path of `undefined_reports.c`, compiled."""
    made = str(folder / "undefined_reports.so")
    source = str(Path(__file__).resolve().with_name("undefined_reports.c"))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


# ---------------------------------------------------------------------- what was found

_HEADING = re.compile(
    r"(?:ERROR|WARNING|FATAL): \w+Sanitizer|==\d+==\w+Sanitizer|\w+Sanitizer: CHECK failed|: runtime error: "
)
_WARNING = "WARNING: ThreadSanitizer"
_FRAME = re.compile(r"#\d+ ")
_FRAMES = 4  # that two reports must have in common to be the same
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|==\d+==|\([pt]id=\d+\)|\bT\d+\b|BuildId: \w+")
_OF_VALGRIND = re.compile(r"==(\d+)== ?(.*)")
_MEMCHECK = re.compile(
    r"(Invalid |Use of uninit|Conditional jump|Syscall param|Mismatched free|Source and destination overlap|"
    r"Argument .* of function|Process terminating)"
)


def found(reports: Path, ours: Sequence[Path]) -> dict[str, int]:
    """Each distinct report of the folder, and how often it is there. `ours`: folders of sources and libraries, one of
    which must be in the stacks of races and of what valgrind reports."""
    count: dict[str, tuple[str, int]] = {}
    for path in sorted(reports.iterdir()):
        lines = path.read_text(errors="replace").splitlines()
        of_valgrind = path.name.startswith("valgrind.")
        for text in _of_valgrind(lines) if of_valgrind else _of_sanitizer(lines):
            if (of_valgrind or _WARNING in text) and not any(str(folder) in text for folder in ours):
                continue
            key = _gist(text)
            first, times = count.get(key, (text, 0))
            count[key] = first, times + 1
    return dict(count.values())


def _gist(text: str) -> str:
    """The heading and the first frames, without what differs from process to process."""
    heading, *rest = text.splitlines()
    frames = [line for line in rest if _FRAME.search(line) or line.startswith(("   at ", "   by "))]
    return _CHANGING.sub("", "\n".join([heading, *frames[:_FRAMES]]))


def _of_sanitizer(lines: Sequence[str]) -> Iterator[str]:
    report: list[str] = []
    for line in lines:
        if _HEADING.search(line):
            if report:
                yield "\n".join(report)
            report = [line]
        elif report:
            report.append(line)
    if report:
        yield "\n".join(report)


def _of_valgrind(lines: Sequence[str]) -> Iterator[str]:
    """Errors. The lines of forked processes may be mixed in one file."""
    of_process: dict[str, list[str]] = {}
    for line in lines:
        if match := _OF_VALGRIND.match(line):
            of_process.setdefault(match[1], []).append(match[2])
    for every in of_process.values():
        for text in "\n".join(every).split("\n\n"):
            if _MEMCHECK.match(text):
                yield text
