"""Files of `.github`, and what the workflow and `.ci/run` start."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_what_github_requires(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "labels", "body"}
    assert all(part["type"] in ("textarea", "input", "dropdown", "checkboxes") for part in form["body"])
    names = [part["id"] for part in form["body"]]
    assert len(set(names)) == len(names) >= 2
    assert all(part["attributes"]["label"] for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_the_workflow_runs_ci_in_a_path_with_a_space() -> None:
    job = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["run"]
    folder = job["defaults"]["run"]["working-directory"]
    assert re.fullmatch(r"\S+ \S+/phantora", folder) and job["steps"][0]["with"]["path"] == folder
    commands = [step["run"].split()[0] for step in job["steps"] if "run" in step]
    assert commands == [".ci/commit_message.py", ".ci/run"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)


def test_ci_runs_every_check() -> None:
    """Those of CONTRIBUTING.md and of pre-commit."""
    text = (ROOT / ".ci" / "run").read_text()
    checks = ("ruff check .", "ruff format --check", "clang-format --dry-run --Werror", "mkdocs build --strict", "mypy")
    bare = re.sub(r"\"\$(bin|tools)/", "", text).replace('"', "")
    assert [check for check in (*checks, "pytest") if check not in bare] == []


def test_owners_and_contacts_name_what_exists() -> None:
    rules = [line.split() for line in (ROOT / ".github" / "CODEOWNERS").read_text().splitlines() if line[:1] != "#"]
    assert rules and all(owner.startswith("@") for _, *owners in rules for owner in owners)
    assert all(pattern == "*" or (ROOT / pattern.strip("/")).exists() for pattern, *_ in rules)
    (contact,) = read(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]
    assert contact["url"] in (ROOT / "SECURITY.md").read_text()
