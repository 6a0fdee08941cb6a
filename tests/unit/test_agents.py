"""Names in AGENTS.md and the skill exist: commands, options, files, keys of the JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phantora.cli.main import COMMANDS, cli
from phantora.json_data import encode
from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log
from tests.support.fakelog import small_run

ROOT = Path(__file__).resolve().parents[2]
SKILL, PAGE = ROOT / "skills/phantora/SKILL.md", ROOT / "AGENTS.md"


@pytest.mark.parametrize("path", [SKILL, PAGE])
def test_commands_options_and_files_exist(path: Path) -> None:
    text = path.read_text()
    for line in re.findall(r"phantora (?:[a-z]+) [^`\n]*|phantora [a-z]+", text):
        words = line.split(" > ")[0].split()
        if words[1] not in COMMANDS:
            continue
        command = cli.get_command(None, words[1])  # type: ignore[arg-type]
        assert command is not None
        options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        script = words.index("train.py") if "train.py" in words else len(words)
        for word in words[2:script]:
            assert not word.startswith("-") or word in {*options, "--"}, f"{line}: {word}"
        assert not options.intersection(words[script:]), line  # the script would get them
    for name in re.findall(r"`((?:docs|tests|skills|samples)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


def test_keys_of_the_json_exist(tmp_path: Path) -> None:
    found = encode(analyze(open_log(small_run().write(tmp_path / "run.arrow"))))
    text = SKILL.read_text()
    for key in ("step_time_ns", "error", "mfu", "throughput", "energy"):
        assert f"`{key}`" in text and key in found["headline"]
    assert {"findings", "fit"} <= found["details"].keys() and "unmeasured" in found
