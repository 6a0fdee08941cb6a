"""``python -m phantora.runs SPEC RESULT``: runs the spec of one file and writes its result to the other
(``phantora.run_process``)."""

from __future__ import annotations

import sys
from pathlib import Path

from phantora.errors import PhantoraError, Reason
from phantora.result import RunResult, first_line
from phantora.runs.local import run
from phantora.spec import RunSpec
from phantora.without_pandas import block_pandas


def main(spec: str, result: str) -> int:
    """The run's exit status."""
    block_pandas()
    try:
        found = run(RunSpec.from_json(Path(spec).read_text(encoding="utf-8")))
    except PhantoraError as error:
        found = RunResult.refused(error)
    if found.reason != Reason.OK:
        print(f"FAILED: {first_line(found.message)}", file=sys.stderr, flush=True)
    Path(result).write_text(found.to_json(), encoding="utf-8")
    return found.status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
