#!/usr/bin/env python3
"""Checks commit messages against CONTRIBUTING.md ("Commits").

.ci/commit_message.py FILE            # the message in FILE, of the commit that is staged: a commit-msg hook
.ci/commit_message.py --range A..B    # the commits of a branch
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUBJECT_LENGTH = 72
FILES, LINES = 5, 100  # a commit that changes more needs a body
SUBJECT = re.compile(r"[a-z.][\w.-]*(?:[ ,/]+[\w.-]+)*: \S.*[^.\s]")
GENERATED = re.compile(r"Merge |Revert \"|(?:fixup|squash|amend)! ")
TRAILER = re.compile(r"[A-Z]\w*(?:-\w+)+: |\(cherry picked from ")
NO_VERB = re.compile(
    "an?|all|and|any|as|at|both|by|each|every|few|for|from|if|in|its?|many|more|most|no|none|not|of|on|one|only|or|other|"
    "several|some|that|the|these|this|those|to|two|what|when|where|which|who|whose|with"
)
VERB_IN_S = re.compile("[a-z]+ss|bias|canvas|focus")
VERB_IN_ED_OR_ING = re.compile("bring|embed|feed|need|ping|proceed|ring|seed|shed|speed|spring|string|swing")
STATEMENT = re.compile(
    r"\S+ (?:(?!how|that|what|when|where|which|who)\S+ )?"
    r"(?:is|are|was|were|has|have|had|does|do|can|cannot|may|must|will) "
)
"""A sentence about a subject: "rates are halved"."""


def problems(message: str, files: int, lines: int) -> Iterator[str]:
    """Violations in a message of a commit that changes `files` files and `lines` lines."""
    message = re.split(r"^# -+ >8 -+$", message, maxsplit=1, flags=re.MULTILINE)[0]
    subject, *rest = "\n".join(line for line in message.splitlines() if not line.startswith("#")).strip().split("\n")
    if GENERATED.match(subject):
        return
    if len(subject) > SUBJECT_LENGTH:
        yield f"the subject has {len(subject)} characters; at most {SUBJECT_LENGTH}"
    if not SUBJECT.fullmatch(subject):
        yield "the subject is not `area: change`, without a full stop"
    elif not is_imperative(change := subject.partition(": ")[2]):
        yield f'"{change.split()[0]}" begins no imperative (`engine: merge flows of one collective`)'
    if rest and rest[0].strip():
        yield "a blank line must follow the subject"
    if (files > FILES or lines > LINES) and not any(line.strip() and not TRAILER.match(line) for line in rest):
        yield (
            f"{files} files and {lines} lines change: add a body with cause, choice, what was rejected and how it was "
            f"checked (required above {FILES} files or {LINES} lines)"
        )


def is_imperative(change: str) -> bool:
    """False if `change` is recognised as another form: its first word is no verb, or one with an ending, or a subject
    follows."""
    word = change.split()[0]
    if not re.fullmatch("[a-z]+(?:-[a-z]+)*", word) or NO_VERB.fullmatch(word) or STATEMENT.match(change):
        return False
    if word.endswith("s"):
        return VERB_IN_S.fullmatch(word) is not None
    return not word.endswith(("ed", "ing")) or VERB_IN_ED_OR_ING.fullmatch(word) is not None


def changed(*arguments: str) -> tuple[int, int]:
    """Files and lines of `git ARGUMENTS`; a rename counts the lines that differ."""
    rows = [row.split("\t") for row in git(*arguments, "--numstat", "-M", "--format=").splitlines() if row]
    return len(rows), sum(int(count) for row in rows for count in row[:2] if count != "-")


def git(*arguments: str) -> str:
    """Output of a git command."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def main(arguments: list[str]) -> int:
    """The exit status: 1 if a message has a problem."""
    match arguments:
        case ["--range", commits]:
            names = git("rev-list", "--no-merges", commits).split()
            messages = {n[:9]: (git("show", "-s", "--format=%B", n), *changed("show", n)) for n in names}
        case [file]:
            messages = {"commit message": (Path(file).read_text(encoding="utf-8"), *changed("diff", "--cached"))}
        case _:
            sys.exit(str(__doc__))
    found = [f"{name}: {line}" for name, found in messages.items() for line in problems(*found)]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
