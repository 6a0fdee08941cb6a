"""Files that are no whole log of this Phantora: every reader says so in one line, or reads what is left."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pytest

from phantora.errors import PhantoraError
from phantora.trace.analysis.analyze import analyze
from phantora.trace.export import export
from phantora.trace.reader import open_log
from phantora.trace.schema import METADATA_KEY
from tests.support.fakelog import small_run


def another_version(path: Path, format_: int) -> None:
    schema = pa.schema([("kind", pa.utf8())], metadata={METADATA_KEY: json.dumps({"format": format_}).encode()})
    with pa.ipc.new_file(path, schema) as file:
        file.write_batch(pa.record_batch([["kernel"]], schema=schema))


def other_operators(path: Path) -> None:
    """As a Phantora wrote its log that had the same columns and knew operators by other fields."""
    run = small_run()
    run.trailer["operators"] = [{"op": "aten::mm", "ns": 1}]
    run.write(path)


def timeline(path: Path) -> None:
    export(small_run().write(path.with_name("x.arrow")), str(path.with_suffix(".perfetto")))
    path.with_suffix(".perfetto").rename(path)


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "text": (lambda path: path.write_text("step 1 loss 0.0\n" * 100), "not a Phantora log"),
    "timeline": (lambda path: timeline(path), "not a Phantora log"),
    "arrow": (lambda path: pyarrow.feather.write_feather(pa.table({"a": [1]}), path), "not a Phantora log"),
    "older": (lambda path: another_version(path, 1), "format 1, this Phantora reads format 3; run `phantora trace`"),
    "newer": (lambda path: another_version(path, 99), "format 99, this Phantora reads format 3; upgrade"),
    "operators": (other_operators, "another version of Phantora (0.1) wrote the log"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "nothing": (lambda path: None, "No such file"),
}


@pytest.mark.parametrize("file", FOREIGN)
def test_foreign_files_are_refused(tmp_path: Path, file: str) -> None:
    make, reported = FOREIGN[file]
    path = tmp_path / "run.json"
    make(path)
    with pytest.raises(PhantoraError) as error:
        open_log(path)
    assert str(error.value).startswith(f"{path}: ") and reported in str(error.value)


COMMANDS = {
    "analyze": ("{log}",),
    "diff": ("{good}", "{log}"),
    "replay": ("{log}",),
    "view": ("--no-browser", "{log}"),
    "export": ("{log}", "-o", "x.perfetto"),
}


def test_every_command_says_it_in_one_line(tmp_path: Path) -> None:
    names = {"log": str(tmp_path / "run.json"), "good": str(small_run().write(tmp_path / "good.arrow"))}
    other_operators(tmp_path / "run.json")
    code = "import sys\nfrom phantora.cli.main import cli, main\n"
    code += "for command in sys.argv[1].split('\\n'):\n  sys.argv[1:] = command.split('\\t')\n"
    code += "  try: main()\n  except SystemExit as end: print(end.code)\n"
    lines = "\n".join("\t".join([command, *(a.format(**names) for a in given)]) for command, given in COMMANDS.items())
    done = subprocess.run(
        [sys.executable, "-c", code, lines], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1"] * len(COMMANDS)
    said = done.stderr.splitlines()
    assert len(said) == len(COMMANDS) and all("another version of Phantora" in line for line in said), done.stderr


def test_wrong_bytes(tmp_path: Path) -> None:
    """Damage of a stored log ends in a report or in an error that names the file."""
    data = (Path(__file__).parents[1] / "golden" / "small.arrow").read_bytes()
    chooser, path = random.Random(7), tmp_path / "damaged.arrow"
    refused = 0
    for _ in range(60):
        wrong = bytearray(data)
        for _ in range(chooser.choice((1, 1, 8))):
            wrong[chooser.randrange(len(wrong))] = chooser.randrange(256)
        path.write_bytes(wrong)
        try:
            analyze(open_log(path))
            export(path, str(tmp_path / "x.perfetto"))
        except PhantoraError as error:
            refused += 1
            assert str(error).startswith(str(path))
    assert refused > 20


def test_a_run_without_rows_is_not_damaged(tmp_path: Path) -> None:
    log = open_log(small_run(ranks=0).write(tmp_path / "run.arrow"))
    assert log.complete
    with pytest.raises(PhantoraError, match="the log has no rows"):
        analyze(log)
