"""The process that measures: ``python -m phantora.profile.worker``.

Reads chunks of operators from standard input, one JSON object a line, each chunk ended by an empty
line; answers on standard output with one line per operator and an empty line per chunk. The first
line it writes names the GPU and the versions of what was measured with. It ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict
from typing import Any

import orjson


def main() -> int:
    """Measures what comes as JSON lines on standard input, answers on standard output; returns the exit status."""
    # Whatever libraries print must not come between our lines.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from phantora.cost.wanted import wanted_from

    def answer(value: dict[str, Any] | None) -> None:
        answers.write((orjson.dumps(value) if value is not None else b"") + b"\n")
        answers.flush()

    import torch

    if not torch.cuda.is_available():
        answer({"fatal": "torch finds no GPU on this machine"})
        return 1
    from phantora.profile.measure import Bench, environment

    bench = Bench()
    answer(environment())
    chunk = []
    for line in sys.stdin.buffer:
        if line.strip():
            chunk.append(wanted_from(orjson.loads(line), "standard input"))
            continue
        for measurement in bench.measure(chunk, lambda index: answer({"at": index})):
            answer(asdict(measurement))
        answer(None)
        chunk = []
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        sys.exit(main())
