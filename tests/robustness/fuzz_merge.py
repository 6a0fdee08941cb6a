"""Makes tests/robustness/corpora.zip of what guided runs of fuzz.py found.

    python -m tests.robustness.fuzz_merge FOLDER [TARGET ...] [--bytes 6000] [--also FILE ...]

FOLDER is what --corpus of fuzz.py named. For each target, what it contains and what is kept already is given to the
reader. Of the inputs that reach edges that the seeds do not, those are kept that reach most of them for their size,
until all are reached or the zip has reached its size. --also keeps files whatever they reach, for a finding that is
fixed.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import zlib
from pathlib import Path

from tests.robustness import fuzz, fuzz_corpora, fuzz_guided

ENTRY = 130  # bytes of a zip for each input in addition to its contents
MOST_INPUTS = 4000


def size(data: bytes) -> int:
    return len(zlib.compress(data, 9)) + ENTRY


def candidates(name: str, folder: Path) -> list[bytes]:
    """The smallest first: they are the ones to keep where several reach the same."""
    found = [path.read_bytes() for path in sorted((folder / fuzz_corpora.file_name(name)).glob("*"))]
    unlike = {data for data in (*found, *fuzz_corpora.kept(name)) if len(data) <= fuzz_guided.LARGEST}
    return sorted(unlike, key=lambda data: (len(data), data))[:MOST_INPUTS]


def chosen(reached: dict[bytes, frozenset[int]], known: frozenset[int], most: int) -> list[bytes]:
    """Inputs that together reach many edges that are not `known`, of `most` bytes in a zip."""
    taken: list[bytes] = []
    left = {data: edges - known for data, edges in reached.items()}
    sizes = {data: size(data) for data in left}
    spent = 0
    while left := {data: edges for data, edges in left.items() if edges and spent + sizes[data] <= most}:
        best = max(left, key=lambda data: (len(left[data]) / sizes[data], data))
        gained = left.pop(best)
        taken.append(best)
        spent += sizes[best]
        left = {data: edges - gained for data, edges in left.items()}
    return taken


def edges_of(name: str, inputs: list[bytes], options: fuzz_guided.Options) -> list[frozenset[int]]:
    """The edges that each input is the first to reach."""
    with tempfile.TemporaryDirectory() as made:
        fuzzer = fuzz_guided.Fuzzer(name, fuzz.TARGETS[name].suffix, Path(made), options.engine)
        paths = fuzz_guided.prepare(fuzzer, inputs)
        reached = fuzz_guided.reached(fuzzer, paths)
        return [reached.get(path, frozenset()) for path in paths]


def merge(name: str, folder: Path, most: int, also: list[bytes], options: fuzz_guided.Options) -> None:
    seeds = [data for data in fuzz.TARGETS[name].seeds() if len(data) <= fuzz_guided.LARGEST]
    inputs = candidates(name, folder)
    edges = edges_of(name, [*seeds, *also, *inputs], options)
    first = len(seeds) + len(also)
    known = frozenset().union(*edges[:first])
    reached = dict(zip(inputs, edges[first:], strict=True))
    whole = known.union(*reached.values())
    taken = chosen(reached, known, most)
    after = known.union(*(reached[data] for data in taken))
    if not (taken or also):
        print(f"{name:16} {len(inputs):6} inputs reach no more than the seeds", flush=True)
        return
    path = fuzz_corpora.write(name, {*taken, *also})
    print(
        f"{name:16} {len(inputs):6} inputs; edges: {len(known)} of the seeds, {len(after)} with {len(taken)} kept, "
        f"{len(whole)} of all; {path.stat().st_size} bytes",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="*", choices=[*fuzz.TARGETS, []], metavar="TARGET")
    parser.add_argument("--bytes", type=int, default=6000)
    parser.add_argument("--also", type=Path, nargs="*", default=[])
    parser.add_argument("--engine-fuzzer", type=Path)
    given = parser.parse_args()
    names = [name for name in given.targets or fuzz.TARGETS if name not in fuzz_guided.NOT_GUIDED]
    engine = (given.engine_fuzzer or fuzz_guided.engine_program()).absolute()
    options = fuzz_guided.Options(0, 0, Path(), given.folder, engine, threading.Event())
    fuzz_guided.check(names, options)
    for name in names:
        merge(name, given.folder, given.bytes, [path.read_bytes() for path in given.also], options)


if __name__ == "__main__":
    main()
