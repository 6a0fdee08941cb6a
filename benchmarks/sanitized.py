"""A rank and its simulator in one process without Python (`ring_driver.cpp`), under a sanitizer or valgrind.

    python benchmarks/sanitized.py thread|address,undefined|valgrind [--rounds N] [--keep FOLDER]

`thread` looks for races between the threads of a rank and the engine, the others for memory that is not theirs. Ends
with the status of the program, which is not 0 if anything was found.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.ringdump import make_session

from phantora.stubs import build
from phantora.stubs.find import find_torch
from phantora.wire import engine, layout

ROOT = Path(__file__).resolve().parents[1]
WAYS = {"thread": ["-fsanitize=thread"], "address,undefined": ["-fsanitize=address,undefined"], "valgrind": []}
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=0 exitcode=66", "UBSAN_OPTIONS": "print_stacktrace=1 halt_on_error=1",
    "ASAN_OPTIONS": "detect_leaks=0",
}  # fmt: skip
VALGRIND = ("valgrind", "--error-exitcode=66", "--track-origins=yes", "--fair-sched=yes", "--main-stacksize=8388608")
ENGINE_SECONDS = 3600


def compiled(folder: Path, flags: list[str]) -> Path:
    """The program, made in `folder`."""
    (folder / "phantora_wire.h").write_text(layout.c_header())
    (folder / "phantora_engine.h").write_text(engine.c_header())
    sources, native = build.source_directory(), build.engine_directory()
    common = [*flags, "-O1", "-g", "-fno-omit-frame-pointer", *build.defines(find_torch()), "-I", str(folder),
              "-I", str(sources), "-I", str(native)]  # fmt: skip
    whole = folder / "whole.cpp"
    files = (*build.sources_of(native), ROOT / "benchmarks" / "ring_driver.cpp")
    whole.write_text("".join(f'#include "{path}"\n' for path in files))
    objects = []
    for part in build.RANK_FOLDERS:
        for source in build.sources_of(sources / part):
            objects.append(str(folder / f"{part.replace('/', '-')}-{source.stem}.o"))
            subprocess.run(["gcc", "-std=gnu11", *common, "-c", "-o", objects[-1], str(source)], check=True)
    made = folder / "ring_driver"
    links = ["-lpthread", "-ldl", "-lm", "-rdynamic"]
    subprocess.run(
        ["g++", f"-std=c++{build.OWN_CXX}", *common, "-o", str(made), str(whole), *objects, *links], check=True
    )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=list(WAYS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="leave the program here, and take it from here if it is there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = given.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "ring_driver"
        if not program.exists():
            compiled(folder, WAYS[given.way])
        session = make_session()
        wrapper = {"thread": ("setarch", "-R"), "valgrind": VALGRIND}.get(given.way, ())
        begin = time.monotonic()
        status = subprocess.run(
            [*wrapper, str(program), str(session.fd), str(given.rounds)], pass_fds=(session.fd,),
            env={**os.environ, **OPTIONS}, timeout=ENGINE_SECONDS, check=False,
        ).returncode  # fmt: skip
        print(f"{given.way}, {given.rounds} rounds: status {status} after {time.monotonic() - begin:.0f} s")
        session.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
