"""Ways in which distributed programs hang, and what is said of each.

    python -m tests.robustness.hangs [NAME ...]

Runs each program of `hang_programs.py` on three simulated GPUs and prints whether the message names what is
expected: the reason, the ranks, the line of the script. Ends with status 1 if one does not.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from phantora.run_process import PHANTORA

PROGRAMS = Path(__file__).with_name("hang_programs.py")
TIMEOUT_S = 6


@dataclass(frozen=True)
class Expected:
    """Expected text of a program's standard error; `here`: the marked lines of these functions are named."""

    said: tuple[str, ...]
    here: tuple[str, ...] = ()
    status: int = 1


OUTSIDE = "rank 2 runs or sleeps outside CUDA"
MISSING = r"waits in all_reduce of 1024 float32, sequence number \d+ of group .*; not there: rank 2"
MISMATCH = r"mismatched collectives in group .*\(ranks 0-2\), sequence number"
ENDED = "a rank ended before the collectives of its group"
SENDS = "each send needs a receive"
CREATION = "rank 0 waits in the creation of a communicator of 2 ranks"  # torch makes it at a pair's first call
CASES = {
    "missing_member": Expected((MISSING, OUTSIDE), ("everyone", "missing_member")),
    "member_that_ended": Expected((MISSING, "rank 2 has exited with status 0", ENDED), ("everyone",)),
    "member_that_died": Expected(("rank 2 .*SIGKILL",), status=137),
    "member_that_raised": Expected(("ValueError: no such file", "rank 2"), ("member_that_raised",)),
    "member_that_is_stopped": Expected((r"rank 2 is stopped; `kill -CONT \d+`",), status=0),
    "other_order": Expected((MISMATCH, "broadcast of 1024 float32, root 0", "all_reduce of 1024 float32")),
    "other_size": Expected((MISMATCH, "all_reduce of 1025 float32")),
    "other_dtype": Expected((MISMATCH, "all_reduce of 1024 bfloat16")),
    "other_root": Expected((MISMATCH, "root 1")),
    "one_collective_more": Expected((r"rank 0 waits in all_reduce .*not there: rank 1, 2", ENDED), ("everyone",)),
    "cycle_of_groups": Expected((CREATION,), ("cycle_of_groups",)),
    "cycle_of_sends": Expected((CREATION, SENDS), ("cycle_of_sends",)),
    "send_without_receive": Expected((CREATION, SENDS), ("send_without_receive",)),
    "receive_without_send": Expected((CREATION, SENDS), ("receive_without_send",)),
    "group_that_one_rank_makes": Expected(("rank 0 ",), ("group_that_one_rank_makes",)),
    "object_that_one_rank_does_not_gather": Expected(("not there: rank 2",), ("object_that_one_rank_does_not_gather",)),
    "key_that_nobody_sets": Expected((MISSING, OUTSIDE), ("everyone", "key_that_nobody_sets")),
    "gloo_barrier": Expected(("rank 0 runs or sleeps outside CUDA", "calling barrier"), ("gloo_barrier",)),
    "lock_taken_twice": Expected((MISSING, OUTSIDE), ("everyone", "lock_taken_twice")),
    "queue_that_stays_empty": Expected((MISSING, OUTSIDE), ("everyone", "queue_that_stays_empty")),
    "worker_that_dies": Expected((r"DataLoader worker \(pid\(?s?\)? .*killed",)),
    "long_python_loop": Expected(("rank 2 computes on the CPU at",), ("long_python_loop",), 0),
}


def marked(function: str) -> int:
    """The line of `function` that is marked as the place of its hang."""
    lines = PROGRAMS.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"def {function}("))
    return next(i for i in range(begin, len(lines)) if lines[i].endswith("# here")) + 1


def missed(name: str, expected: Expected, folder: Path) -> tuple[list[str], float, str]:
    """Missing parts of a program's report, its seconds, and its whole output."""
    command = [*PHANTORA, "trace", "--cluster", "3", "--hang-timeout", str(TIMEOUT_S)]
    begin = time.monotonic()
    output = ["--no-summary", "-o", str(folder / "run.arrow"), str(PROGRAMS), name]
    done = subprocess.run([*command, *output], capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    wanted = [*expected.said, *(rf"hang_programs\.py\S* ?.*\b{marked(f)}\b" for f in expected.here)]
    missing = [pattern for pattern in wanted if re.search(pattern, text) is None]
    if done.returncode != expected.status:
        missing.append(f"status {expected.status} (is {done.returncode})")
    return missing, time.monotonic() - begin, text


def main(names: list[str]) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or CASES:
            missing, seconds, text = missed(name, CASES[name], Path(folder))
            failed += bool(missing)
            verdict = "does not say: " + "; ".join(missing) if missing else "right"
            print(f"{name:40} {seconds:6.1f} s  {verdict}", flush=True)
            if missing:
                print(text, file=sys.stderr, flush=True)
    print(f"{len(names or CASES) - failed} of {len(names or CASES)} named right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
