"""JSON Schemas validate what commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phantora.cli.main import cli
from phantora.errors import Reason
from phantora.result import RunReport, RunResult
from tests.support.fakelog import small_run


def test_schemas_validate_what_commands_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    a, b = (str(small_run(steps=n).write(tmp_path / f"{n}.arrow")) for n in (2, 3))

    def said(*words: str) -> Any:
        return json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)

    from phantora.cli.report import print_report

    result = RunResult(0, Reason.OK, "", Path(a), RunReport(0, 2, log=a))
    print_report(result, summary=False, as_json=True, price=2.0)
    printed = {
        "analyze": said("analyze", a, "--json", "--price", "2"),
        "diff": said("diff", a, b, "--json", "--fail-above", "2%"),
        "trace": json.loads(capsys.readouterr().out),
    }
    for name, printed_by in printed.items():
        schema = said("schema", name)
        validator = jsonschema.Draft202012Validator(schema)
        validator.check_schema(schema)
        assert [error.message for error in validator.iter_errors(printed_by)] == [], name
    broken = {**printed["diff"], "verdict": {**printed["diff"]["verdict"], "result": "maybe"}}
    assert not jsonschema.Draft202012Validator(said("schema", "diff")).is_valid(broken)

