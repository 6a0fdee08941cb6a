"""Options of a run: one field of a spec, found in every form."""

from __future__ import annotations

import inspect
import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import phantora
from phantora.cli.main import COMMANDS, cli
from phantora.cli.settings import defaults
from phantora.errors import PhantoraError
from phantora.options import (
    HeadedCommand,
    changed,
    keywords_module,
    page,
    places,
    run_options,
    spec_of,
    with_keywords,
    with_options,
    words,
)
from phantora.spec import (
    COMMAND,
    FITS,
    HEADINGS,
    MODULE,
    RUNS,
    SWEEP,
    TRACE,
    FoldSpec,
    LaunchSpec,
    OutputSpec,
    RankSpec,
    RunSpec,
    WhatIfSpec,
    option,
)
from phantora.sweeps.plan import make_plan
from phantora.sweeps.space import space_of

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.unit


def test_what_is_made_from_the_fields_is_current() -> None:
    for path, text in runpy.run_path(str(ROOT / "docs" / "options.py"))["generated"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python docs/options.py"


@dataclass(frozen=True)
class More(RunSpec):
    """A run with one more field."""

    patience: float = option(2.0, "Seconds until a rank counts as slow.", HEADINGS[6], metavar="S", unit="s", low=0)


def test_an_option_is_one_field(tmp_path: Path) -> None:
    command = HeadedCommand("trace", params=[], callback=lambda **_: None)
    run_options(TRACE, spec=More)(command)
    shown = CliRunner().invoke(command, ["--help"]).output
    below = " ".join(shown.partition("Checks:")[2].partition("Ranks' output")[0].split())
    assert "--patience S" in below and "[default: 2.0; x>=0]" in below
    with command.make_context("trace", ["--patience", "3.5"]) as context:
        assert changed(More(""), context.params) == More("", patience=3.5)
    (tmp_path / "run.toml").write_text("[trace]\npatience = 4\n")
    assert defaults(str(tmp_path / "run.toml"), lambda name: command) == {"trace": {"patience": 4}}

    spec = spec_of(["--patience", "3.5", "train.py", "--lr", "1"], More(""))
    assert spec == More("train.py", ("--lr", "1"), patience=3.5)
    assert words(spec) == ("--patience", "3.5", "train.py", "--lr", "1")
    table = {"cluster": ["1x1xH100"], "matrix": {"slow": [1, 2]}, "options": {"slow": "--patience"}}
    space = replace(space_of(table, "sweep"), run=spec)
    assert [point.spec for point in make_plan(space).points] == [replace(spec, patience=n) for n in (1.0, 2.0)]

    @with_keywords(FITS, spec=More)
    def fits(**options: Any) -> None:
        """Fits."""

    assert inspect.signature(fits).parameters["patience"].default == 2.0
    assert "patience: Seconds until a rank counts as slow." in (fits.__doc__ or "")
    assert keywords_module(More).count("    patience: float\n") == len(RUNS)
    for name in RUNS:
        assert with_options(More(""), name, {"patience": 3}) == More("", patience=3.0)
    assert "| `--patience S` | `2.0` s | Seconds until a rank counts as slow. | `fits`" in page(command, More)


@pytest.mark.parametrize("name", RUNS)
def test_every_command_has_the_options_of_a_run_that_it_takes(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert name in COMMANDS and command is not None
    has = {flag for one in command.params for flag in one.opts}
    wanted = {place.flag for place in places() if name in place.option.commands}
    assert wanted <= has and "--data-loading" in has


SPECS = [
    RunSpec("train.py", ("-c", "3", "--", "--fold")),
    RunSpec("my.trainer", kind=MODULE, preload=("a", "b"), cluster="dgx-h100:2"),
    RunSpec("torchrun", ("--nproc-per-node", "4", "train.py"), COMMAND, host="1.5", hang_timeout=60.0),
    RunSpec(
        "a.py",
        fold=FoldSpec("dp=4", real_ranks=(1, 3)),
        output=OutputSpec("x.perfetto", force=True, recording=False, flows=True, missing="m.jsonl"),
    ),
    RunSpec("a.py", launch=LaunchSpec(nnodes="2", run_id="7", master_port=29, ranks_filter="0"), profile="live"),
    RunSpec(
        "a.py",
        what_if=WhatIfSpec(degrade=("*=0.5",), straggler=("rank=0:2",), background=("0->1=1GB/s",)),
        null=True,
        gpu_memory=40.5,
    ),
    RunSpec(
        "a.py", ranks=RankSpec(seed=3, data_loading="12ms", assume=("eos=2", "nms=1"), modules=True, check="races")
    ),
]


@pytest.mark.parametrize("spec", SPECS)
def test_words_give_the_same_run(spec: RunSpec) -> None:
    assert spec_of(words(spec)) == spec


@given(
    st.builds(
        RunSpec,
        st.text("abc.", min_size=1),
        st.lists(st.text(max_size=4)).map(tuple),
        kind=st.sampled_from(["script", MODULE, COMMAND]),
        gpu_memory=st.none() | st.floats(1, 1e9),
        preload=st.lists(st.text("abc.", min_size=1, max_size=3)).map(tuple),
        host_scale=st.floats(0, 1e6),
    )
)
def test_words_give_the_same_run_whatever_its_values(spec: RunSpec) -> None:
    assert spec_of(words(spec)) == spec


def test_words_change_a_run_and_keep_the_rest() -> None:
    base = RunSpec("train.py", ("--lr", "1"), cluster="2x8xH100", ranks=RankSpec(seed=3))
    found = spec_of(["--disk", "free"], base)
    assert found == replace(base, ranks=replace(base.ranks, disk="free"))
    assert spec_of([], base) is base


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hang_timeout": 0}, "--hang-timeout 0.0: give 1 or more"),
        ({"master_port": 70_000}, "--master-port 70000: give 0 to 65535"),
        ({"host_time": "often"}, "--host-time 'often': give modelled or measured or none"),
        ({"assume": "eos=2"}, "--assume 'eos=2': give a sequence"),
        ({"seed": "x"}, "--seed 'x': give a whole number"),
        ({"real_ranks": "1,b"}, "--real-ranks '1,b' is not a list of ranks such as 0,5"),
        ({"modules": 1}, "--modules 1: give true or false"),
    ],
)
def test_wrong_values_of_keywords_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(PhantoraError) as error:
        changed(RunSpec("train.py"), values)
    assert str(error.value) == message


def test_keywords_that_a_call_does_not_have_are_refused() -> None:
    with pytest.raises(TypeError, match="sweep: unknown options flows"):
        with_options(RunSpec(""), SWEEP, {"flows": True})
    with pytest.raises(PhantoraError, match=r"No such option:? '?--sped"):
        spec_of(["--sped", "1", "train.py"])
    with pytest.raises(TypeError, match="unknown options sped"):
        phantora.run("train.py", sped=1)  # type: ignore[call-arg]
