"""The hook that checks commit messages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / ".ci" / "commit_message.py"
_spec = importlib.util.spec_from_file_location("commit_message", HOOK)
assert _spec is not None and _spec.loader is not None
commit_message = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(commit_message)


@pytest.mark.parametrize(
    "subject",
    [
        "engine: merge flows of one collective",
        "published: process rows with tensor parallelism",
        "fits, plan: refuse a model that has not run",
        ".ci: embed the folder's name",
        "docs: re-read what is measured",
        'Revert "rank: the first thread that launches moves the clock"',
        "fixup! engine: merge flows of one collective",
        "Merge branch 'main'",
    ],
)
def test_good_subjects(subject: str) -> None:
    assert list(commit_message.problems(f"{subject}\n", 1, 1)) == []


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("merge flows of one collective", "not `area: change`"),
        ("engine: merge flows.", "without a full stop"),
        ("Engine: merge flows", "not `area: change`"),
        ("engine: merged flows", '"merged" begins no imperative'),
        ("engine: merges flows", '"merges" begins no imperative'),
        ("engine: merging flows", '"merging" begins no imperative'),
        ("engine: the flows of a collective", '"the" begins no imperative'),
        ("engine: time is kept in ns", '"time" begins no imperative'),
        ("engine: NCCL sends", '"NCCL" begins no imperative'),
        ("engine: merge " + "x" * 60, "74 characters; at most 72"),
        ("", "not `area: change`"),
    ],
)
def test_bad_subjects(subject: str, problem: str) -> None:
    found = list(commit_message.problems(f"{subject}\n\nA body.\n", 1, 1))
    assert len(found) == 1 and problem in found[0]


@pytest.mark.parametrize(
    ("body", "files", "lines", "good"),
    [
        ("", 5, 100, True),
        ("", 6, 6, False),
        ("", 1, 101, False),
        ("\n\nSigned-off-by: A <a@b.c>\n", 6, 6, False),
        ("\n\n# What git adds\n", 6, 6, False),
        ("\n\n# ------------------------ >8 ------------------------\ndiff --git a b\n", 6, 6, False),
        ("\n\nFlows of equal routes cost as much as one.\n", 6, 600, True),
        ("\nFlows of equal routes cost as much as one.\n", 6, 600, False),
    ],
)
def test_bodies(body: str, files: int, lines: int, good: bool) -> None:
    found = list(commit_message.problems(f"engine: merge flows{body}", files, lines))
    assert (not found) == good


def test_the_hook_counts_what_is_staged_and_what_a_branch_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "core.hooksPath=/dev/null")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def check(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(HOOK), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "tree: begin")
    (tmp_path / "message").write_text("engine: merge flows\n")
    (tmp_path / "a.txt").write_text("a line\n" * 100)
    git("add", "a.txt")
    assert check("message") == (0, "")
    (tmp_path / "b.txt").write_text("one more\n")
    git("add", "b.txt")
    status, text = check("message")
    assert status == 1 and text.startswith("commit message: 2 files and 101 lines change: add a body")
    git("commit", "-q", "-m", "engine: merge flows")
    git("mv", "a.txt", "c.txt")
    git("commit", "-q", "-m", "engine: rename flows")
    status, text = check("--range", "HEAD~2..HEAD")
    assert status == 1 and text.count("\n") == 1 and ": 2 files and 101 lines change" in text


def test_pre_commit_installs_the_hook() -> None:
    config = (HOOK.parents[1] / ".pre-commit-config.yaml").read_text()
    assert "default_install_hook_types: [pre-commit, commit-msg]\n" in config
    assert "        entry: .ci/commit_message.py\n        language: system\n        stages: [commit-msg]\n" in config
