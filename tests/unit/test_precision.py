"""The option of a script that asks for FP8, found in its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.hardware import load_cluster
from phantora.spec import RunSpec
from phantora.sweeps.precision import float8

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parser.add_argument('--fp8', action='store_true')", ("--fp8",)),
        (
            "kinds = ['delayed', 'mxfp8']\ngroup.add_argument('--fp8-recipe', choices=kinds)",
            ("--fp8-recipe", "delayed"),
        ),
        ("parser.add_argument('--precision', choices=('bf16', 'fp8'))", ("--precision", "fp8")),
        ("parser.add_argument('--fp8-cache', action='store_true')", ()),
        ("parser.add_argument('--precision', choices=('bf16', 'fp32'))", ()),
    ],
)
def test_the_option_for_products_in_fp8(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import shapes\n")
    (tmp_path / "shapes.py").write_text(text)
    assert float8(RunSpec(str(script)), load_cluster("1x8xH100")) == words
    assert float8(RunSpec(str(script)), load_cluster("1x8xA100")) == (), "a GPU without FP8"
    assert float8(RunSpec(str(script), ("--fp8",)), load_cluster("1x8xH100")) == (), "it is given"
