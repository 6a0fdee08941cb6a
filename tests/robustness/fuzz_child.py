"""A target of fuzz.py under atheris, in a process of its own (fuzz_guided.py starts it).

    python -m tests.robustness.fuzz_child TARGET INPUT FOUND SECONDS [options of libFuzzer]

INPUT is where the input under way is written, FOUND the folder for what is found. After SECONDS of CPU the process
ends.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import sys
import time
import traceback
from io import StringIO
from pathlib import Path

import atheris

# Of the package, and of Python's library what reads for it: what is imported below here is instrumented.
INSTRUMENTED = ["phantora", "tomllib", "tomli", "json", "http", "socketserver", "email"]
MOST_FOUND = 100  # then the process ends: the target is broken

with atheris.instrument_imports(include=INSTRUMENTED):
    from tests.robustness import fuzz, fuzz_guided


class Child:
    """Gives inputs to the target, and notes how it took them."""

    def __init__(self, name: str, path: Path, found: Path, seconds: float) -> None:
        self.target = fuzz.TARGETS[name]
        self.path, self.found, self.seconds = path, found, seconds
        self.sink = StringIO()
        self.texts: set[str] = set()
        # What the target imports when it makes its seeds, and when it first reads, is instrumented too.
        with atheris.instrument_imports(include=INSTRUMENTED):
            self.seeds = [data for data in fuzz.first_inputs(name) if len(data) <= fuzz_guided.LARGEST]
            for data in self.seeds:
                self.give(data, timed=False)
        fuzz_guided.limit_memory(fuzz.MEMORY)
        with open(os.environ["PHANTORA_FUZZ_COUNTS"], "r+b") as file:
            self.counts = mmap.mmap(file.fileno(), 16)

    def give(self, data: bytes, timed: bool = True) -> bytes:
        """a: accepted, r: refused, x: a finding."""
        try:
            return fuzz.give(self.target, self.path, data, self.sink)
        except BaseException as error:
            if not timed and isinstance(error, TimeoutError):
                return b"a"  # what it imports takes its time
            self.note(data, fuzz.reported(error))
            return b"x"

    def note(self, data: bytes, text: str) -> None:
        if text in self.texts:
            return
        self.texts.add(text)
        path = self.found / f"{os.getpid()}-{len(self.texts)}.json"
        path.with_suffix(".input").write_bytes(data)
        path.write_text(json.dumps(text))
        if len(self.texts) >= MOST_FOUND:
            os._exit(0)

    def one(self, data: bytes) -> None:
        if time.process_time() > self.seconds:
            os._exit(0)
        letter = self.give(data)
        accepted, refused = struct.unpack("QQ", self.counts[:])
        self.counts[:] = struct.pack("QQ", accepted + (letter == b"a"), refused + (letter == b"r"))

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        """Half of the changes are libFuzzer's, which knows what was compared; the others those of the blind mode."""
        chance = random.Random(seed)
        if chance.randrange(2):
            return bytes(atheris.Mutate(data, most))
        return fuzz.mutated(bytearray(data), self.seeds, self.target.text, chance)[:most]


def main() -> None:
    name, path, found, seconds, *options = sys.argv[1:]
    try:
        child = Child(name, Path(path), Path(found), float(seconds))
        atheris.Setup([sys.argv[0], *options], child.one, custom_mutator=child.mutate)
        atheris.Fuzz()
    except Exception:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
