"""A rank and its simulator under the sanitizers for memory and for what C leaves undefined (docs/reliability.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.robustness import sanitizers

WAY = "address,undefined"
FAULTY = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  (void)argv;
  volatile int largest = 2147483647;
  largest = largest + argc;
  int child = fork();
  volatile char *block = malloc(8);
  if (!child) block[8] = 1;
  waitpid(child, NULL, 0);
  return 0;
}
"""


def test_nothing_is_found_in_a_rank_and_its_simulator() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.robustness.sanitized", WAY, "--rounds", "20"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_any_process_does_wrong_is_found(tmp_path: Path) -> None:
    """A program whose own status is 0: both sanitizers, and a process that it forks."""
    source, program, reports = tmp_path / "faulty.c", tmp_path / "faulty", tmp_path / "reports"
    source.write_text(FAULTY)
    subprocess.run(["gcc", "-g", f"-fsanitize={WAY}", "-o", str(program), str(source)], check=True)
    reports.mkdir()
    assert sanitizers.run(sanitizers.WAYS[WAY], [str(program)], reports) == 0
    found = "\n".join(sanitizers.found(reports, []))
    assert "signed integer overflow" in found and "heap-buffer-overflow" in found
