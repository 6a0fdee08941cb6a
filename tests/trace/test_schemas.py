"""JSON Schemas validate what each command prints with --json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phantora.api import Run
from phantora.cli.main import cli
from phantora.cli.report import Report
from phantora.cli.schema import COMMANDS
from phantora.errors import Reason
from phantora.json_data import encode
from phantora.result import RunReport, RunResult
from phantora.sweeps import compare as comparison
from phantora.sweeps import questions
from phantora.sweeps.answer import Row
from phantora.sweeps.compare import Choice, Comparison
from phantora.sweeps.expressions import Value
from phantora.sweeps.questions import OnResult
from phantora.sweeps.run import Request
from tests.support.fakelog import small_run
from tests.support.sweeps import measured, small_answer

SPACE = 'target = ["train.py"]\n[matrix]\nbatch = [1, 2]\n[arguments]\nbatch = "--batch={batch}"\n'

DUMP = Path(__file__).resolve().parents[1] / "golden" / "dumps" / "leak" / "oom.pickle"


def said(*words: str) -> Any:
    return json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_run(steps=2).write(tmp_path_factory.mktemp("logs") / "run.arrow"))


def ended(log: str, capsys: pytest.CaptureFixture[str]) -> Any:
    result = RunResult(0, Reason.OK, "", Path(log), RunReport(0, 2, log=log))
    report = Report(summary=False, as_json=True, price=2.0)
    report.analyze(result)
    report.end(result)
    return json.loads(capsys.readouterr().out)


def of_a_script(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Output of a command that runs a script; the run itself is left out."""
    found = small_answer(folder)
    if command == "sweep":
        return found.as_data()
    monkeypatch.chdir(folder)
    (folder / "train.py").touch()
    if command == "sweep-dry-run":
        (folder / "space.toml").write_text(SPACE)
        return said("sweep", "space.toml", "--dry-run", "--json")
    ran, does_not_fit = found.rows[0], next(row for row in found.rows if row.status == "out of memory")
    if command == "compare":
        point = ran.entry.point
        one = Choice(
            cluster=point.cluster,
            gpu=point.gpu,
            gpus=8,
            value=None,
            row=ran,
            unit="tokens",
            dollars_per_hour=16.0,
            dollars=1.0,
        )
        answer = Comparison(choices=(one,), best=(one,), verdict=("",), folder=folder)
        monkeypatch.setattr(comparison, "compare", lambda *_: answer)
        return said(command, "--json", "-q", "--gpus", "H100", "train.py")

    def run_point(request: Request, values: Mapping[str, Value], on_result: OnResult) -> Row:
        return does_not_fit if values.get("--batch") == 2 else ran

    monkeypatch.setattr(questions, "run_point", run_point)
    more = ("--largest", "--batch") if command == "fits" else ("--tokens", "1T", "--price", "2")
    return said(command, "--json", "-q", *more, "train.py")


@pytest.mark.parametrize("command", COMMANDS)
def test_schemas_validate_what_commands_print(
    command: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    longer = str(small_run(steps=3).write(tmp_path / "longer.arrow"))
    words = {
        "analyze": ("analyze", log, "--json", "--price", "2"),
        "cluster-show": ("cluster", "show", "2x2xH100", "--json"),
        "diff": ("diff", log, longer, "--json", "--fail-above", "2%"),
        "doctor": ("doctor", "--json"),
        "why": ("why", str(DUMP), "--json"),
        "goodput": ("goodput", log, "--trials", "10", "--steps", "1000", "--json", "--price", "2"),
    }
    if command in ("trace", "replay"):
        printed = ended(log, capsys)
    elif command == "query":
        printed = [{"one": 1}]  # the columns are those of the user's SQL
    elif command in words:
        printed = said(*words[command])
    else:
        printed = of_a_script(command, tmp_path, monkeypatch)
    schema = said("schema", command)
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    assert [error.message for error in validator.iter_errors(printed)] == [] and printed
    assert set(keys_without_unit(schema)) == set()
    assert not validator.is_valid({"no": "such key"})


def keys_without_unit(schema: Any) -> Iterator[str]:
    """Keys of numbers whose names are those of a time or a size, without its unit."""
    if isinstance(schema, dict):
        for key, inner in schema.get("properties", {}).items():
            if re.search(r"(time|start|end|memory|capacity|bandwidth|duration)$", key) and "number" in str(inner):
                yield key
        for inner in schema.values():
            yield from keys_without_unit(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from keys_without_unit(inner)


def test_a_verdict_has_one_of_three_results(log: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    printed = said("diff", log, log, "--json", "--fail-above", "2%")
    printed["verdict"]["result"] = "maybe"
    assert not jsonschema.Draft202012Validator(said("schema", "diff")).is_valid(printed)


def test_numbers_that_are_not_finite_are_null() -> None:
    assert encode(measured(float("nan")))["step_time_ns"] is None and encode(measured(1))["step_time_ns"] == 1e6


def test_the_glossary_has_the_keys_of_a_summary(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/glossary.md").read_text().partition("## Keys of `summary()`")[2]
    assert {key for key in Run(small_run().write(tmp_path / "run.arrow")).summary() if f"`{key}`" not in page} == set()
