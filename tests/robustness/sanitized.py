"""A program, or a rank and its simulator without Python (`ring_driver.cpp`), under a sanitizer or valgrind.

    python -m tests.robustness.sanitized WAY [--keep FOLDER] -- python -m pytest -n 1 tests/cuda
    python -m tests.robustness.sanitized WAY [--keep FOLDER] [--rounds N]

WAY is `thread`, which looks for races between threads, or `address`, `undefined`, `address,undefined` or `valgrind`,
which look for memory that is not the program's and for what C leaves undefined. The stubs and the engine are made for
it first. Prints each distinct report of all processes once. Ends with 66 if there is one, otherwise with the status of
the program.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from phantora import stubs
from phantora.cache import cache_directory
from phantora.stubs import build, find, sources
from phantora.stubs.find import find_torch
from phantora.wire import engine, layout
from tests.robustness import sanitizers
from tests.support.ringdump import make_session

FOUND = 66  # the status


def compiled(folder: Path, way: sanitizers.Way) -> Path:
    """The program without Python, made in `folder`."""
    (folder / "phantora_wire.h").write_text(layout.c_header())
    (folder / "phantora_engine.h").write_text(engine.c_header())
    stub, native = sources.source_directory(), sources.engine_directory()
    flags = [f"-fsanitize={way.sanitize}"] if way.sanitize else []
    level = "-O0" if "undefined" in way.sanitize else "-O1"  # 18 s of CPU for the engine, or 70
    common = [
        *flags,
        level,
        "-g",
        "-fno-omit-frame-pointer",
        *build.defines(find_torch()),
        "-I",
        str(folder),
        "-I",
        str(stub),
        "-I",
        str(native),
    ]
    whole = folder / "whole.cpp"
    files = (*sources.engine_sources(), Path(__file__).with_name("ring_driver.cpp"))
    whole.write_text("".join(f'#include "{path}"\n' for path in files))
    objects = []
    for part in build.RANK_FOLDERS:
        for source in sources.sources_of(stub / part):
            objects.append(str(folder / f"{part.replace('/', '-')}-{source.stem}.o"))
            subprocess.run(["gcc", "-std=gnu11", *common, "-c", "-o", objects[-1], str(source)], check=True)
    made = folder / "ring_driver"
    links = ["-lpthread", "-ldl", "-lm", "-rdynamic"]
    subprocess.run(
        ["g++", f"-std=c++{find.OWN_CXX}", *common, "-o", str(made), str(whole), *objects, *links], check=True
    )
    return made


def drive(way: sanitizers.Way, folder: Path, reports: Path, rounds: int) -> int:
    """The status of the program without Python."""
    program = folder / "ring_driver"
    if not program.exists():
        compiled(folder, way)
    session = make_session()
    try:
        command = [str(program), str(session.fd), str(rounds)]
        return sanitizers.run(way, command, reports, pass_fds=(session.fd,))
    finally:
        session.close()


def start(way: sanitizers.Way, command: Sequence[str], reports: Path) -> int:
    """The status of `command`. Compilers need no sanitizer, and would be slow under one: the stubs are made before."""
    os.environ["PHANTORA_SANITIZE"] = way.sanitize
    stubs.ensure(print)
    return sanitizers.run(way, command, reports, libraries=find_torch().libraries)


def main(arguments: list[str]) -> int:
    own, command = arguments, []
    if "--" in arguments:
        own, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=list(sanitizers.WAYS))
    parser.add_argument("--rounds", type=int, default=200, help="of the program without Python")
    parser.add_argument("--keep", type=Path, help="leave the reports here, and the program without Python")
    given = parser.parse_args(own)
    way = sanitizers.WAYS[given.way]
    with tempfile.TemporaryDirectory() as made:
        folder = (given.keep or Path(made)).resolve()
        reports = folder / time.strftime("reports-%Y%m%d-%H%M%S")
        reports.mkdir(parents=True)
        begin = time.monotonic()
        status = start(way, command, reports) if command else drive(way, folder, reports, given.rounds)
        ours = (sources.source_directory(), sources.engine_directory(), cache_directory())
        found = sanitizers.found(reports, ours)
    for text, times in found.items():
        print(f"\n---- {times} times:\n{text}")
    print(f"{given.way}: status {status} after {time.monotonic() - begin:.0f} s, {len(found)} distinct reports")
    return FOUND if found else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
