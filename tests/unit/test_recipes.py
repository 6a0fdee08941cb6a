"""The recipes of CONTRIBUTING.md, followed to the letter."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from phantora import importers, options, spec
from phantora.cli.main import cli
from phantora.cost import KernelLaunch, OperatorSignature, TensorSpec, model_for
from phantora.errors import PhantoraError
from phantora.hardware import gpus, load_gpu
from phantora.rank import patches, shims
from phantora.rank.patch import Rank, When
from phantora.rank.routing import FRAMEWORK, parse_routing
from phantora.spec import VARIABLE, RankSpec
from phantora.stubs.build import StubSet
from phantora.trace.export import registry
from phantora.trace.reader import open_log

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SMALL = ROOT / "tests" / "golden" / "small.arrow"


def section(title: str) -> str:
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##)", CONTRIBUTING, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def module_of(title: str) -> ModuleType:
    """The Python of a recipe, run as a module."""
    module = ModuleType("recipe")
    exec(compile(python_of(title), "CONTRIBUTING.md", "exec"), module.__dict__)
    return module


def python_of(title: str) -> str:
    block = re.search(r"^   ```python\n(.*?)^   ```", section(title), re.DOTALL | re.MULTILINE)
    assert block is not None
    return "\n".join(line[3:] for line in block[1].splitlines())


# ---------------------------------------------------------------- an option of a run


def test_an_option_is_added_as_the_recipe_says() -> None:
    field = re.search(r"```python\n(.*?)```", section("Add an option of a run"), re.DOTALL)
    assert field is not None
    text = "@dataclass(frozen=True)\nclass More(RunSpec):\n    " + field[1].strip()
    names = dict(vars(spec))
    exec(compile(text, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    assert options.spec_of(["--patience", "3", "train.py"], names["More"]("")).patience == 3.0  # type: ignore[attr-defined]


# ---------------------------------------------------------------- a GPU


def forget() -> None:
    for cached in (gpus._tables, gpus._index):
        cached.cache_clear()


@pytest.fixture
def gpu_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of GPU files, as a copy that may be written to."""
    shutil.copytree(gpus.DATA / "gpus", tmp_path / "gpus")
    monkeypatch.setattr(gpus, "DATA", tmp_path)
    forget()
    yield tmp_path / "gpus"
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize("similar", ["h100-sxm", "h200-sxm"])
def test_a_gpu_is_a_file(gpu_folder: Path, similar: str) -> None:
    text = (gpu_folder / f"{similar}.toml").read_text()
    taken_over = r"^\[(calibration|interference|communication_slowdown|power)\b.*?(?=^\[(?!\1)|\Z)"
    text = re.sub(taken_over, "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(name|product) = .*", r'\1 = "X900"', text, flags=re.MULTILINE)
    text = re.sub(r"^aliases = .*", 'aliases = ["X"]', text, flags=re.MULTILINE)
    text = re.sub(r"^calibration = .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^hbm_bandwidth = \S+", "hbm_bandwidth = 6.7e12", text, flags=re.MULTILINE)
    (gpu_folder / "x900.toml").write_text('calibration = "H200-SXM"\n' + text)
    forget()
    assert load_gpu("x").hbm_bandwidth == 6.7e12 and load_gpu("X900").interference == load_gpu("H200").interference
    shown = CliRunner().invoke(cli, ["cluster", "show", "1x8xX900"])
    assert shown.exit_code == 0 and "X900" in shown.output
    x = TensorSpec("bfloat16", (8192, 8192), (8192, 1))
    call = OperatorSignature("aten::add.Tensor", (x, x, 1)), (KernelLaunch("k", (1024, 1, 1), (256, 1, 1)),)
    price, known = model_for(load_gpu("X900")).operator(*call), model_for(load_gpu("H100")).operator(*call)
    assert price.provenance == "scaled" and price.durations[0] < 0.7 * known.durations[0]


# ---------------------------------------------------------------- a shim


@pytest.fixture
def toytrainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A framework that measures kernels when it is first used."""
    package = tmp_path / "toytrainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text("def pick_kernel(shape):\n    return 'the fastest'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.startswith("toytrainer")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def meet(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    information = folder / f"toytrainer-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toytrainer\nVersion: {version}\n")
    shim = module_of("Add a framework shim").SHIM
    monkeypatch.setattr(shims, "shims", lambda: (shim,))
    monkeypatch.setenv(VARIABLE, RankSpec(moe_routing=FRAMEWORK).to_json())
    shims.install()
    assert not parse_routing(FRAMEWORK).simulated  # the shim is applied all the same
    return importlib.import_module("toytrainer.kernels")


def test_a_shim_acts_after_the_import(toytrainer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert meet(toytrainer, "1.2.7", monkeypatch).pick_kernel(3) == "default"


def test_a_shim_refuses_a_version_that_it_does_not_know(toytrainer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = meet(toytrainer, "2.0", monkeypatch)
    with pytest.raises(PhantoraError, match=r"toytrainer 2\.0 chooses kernels .*toytrainer==1\.2, or set TOY_KERNEL"):
        kernels.pick_kernel(3)


# ---------------------------------------------------------------- a patch


def test_a_patch_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = patches.patches()
    (tmp_path / "toy_bars.py").write_text(python_of("Add a patch of torch or a library"))
    monkeypatch.setattr(patches, "__path__", [*patches.__path__, str(tmp_path)])
    found = patches.patches.__wrapped__()
    assert found[-1].name == "toy bars" and found[:-1] == known


def test_a_patch_acts_at_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toybars.py").write_text("monitor_interval = 10\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    patch, nothing = module_of("Add a patch of torch or a library").PATCH, StubSet(tmp_path, "", "", ())
    monkeypatch.setattr(patches, "patches", lambda: (patch,))
    rank = Rank(nothing, ctypes.CDLL(None))
    for when in When:
        patches.install(when, rank)
        if when is When.BEFORE_TORCH:
            assert importlib.import_module("toybars").monitor_interval == 10
            del sys.modules["toybars"]
    assert importlib.import_module("toybars").monitor_interval == 0
    del sys.modules["toybars"]


# ---------------------------------------------------------------- an importer


def test_an_importer_is_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.py").write_text(python_of("Add an importer"))
    monkeypatch.setattr(importers, "__path__", [*importers.__path__, str(tmp_path)])
    monkeypatch.setattr(importers, "READERS", importers._shipped())
    (tmp_path / "run.kernels").write_text("0 4000 copy it\n5000 9000 add\n")
    importers.import_traces([str(tmp_path / "run.kernels")], str(tmp_path / "run.arrow"))
    rows = [row for batch in open_log(tmp_path / "run.arrow").record_batches() for row in batch.to_pylist()]
    kernels = [(row["name"], row["start"], row["end"]) for row in rows if row["kind"] == "kernel"]
    assert kernels == [("copy it", 0, 4000), ("add", 5000, 9000)]
    helped = CliRunner().invoke(cli, ["import", "--help"]).output
    assert re.search(r"^  \.kernels +lines START END NAME", helped, re.MULTILINE) and ".nsys-rep" in helped
    (tmp_path / "cut.kernels").write_text("5 1 add\n")
    for bad in ("cut.kernels", "none.kernels"):
        with pytest.raises(PhantoraError, match=bad):
            importers.import_traces([str(tmp_path / bad)], str(tmp_path / "again.arrow"))


# ---------------------------------------------------------------- an export


def test_an_export_is_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = registry.Format("lines", (".tsv",), "a line per kernel", module_of("Add an export").write)
    monkeypatch.setattr(registry, "FORMATS", (*registry.FORMATS, made))
    target = tmp_path / "run.tsv"
    result = CliRunner().invoke(cli, ["export", str(SMALL), "-o", str(target), "--ranks", "0"])
    assert result.exit_code == 0, result.output
    rows = [line.split("\t") for line in target.read_text().splitlines()]
    assert rows == [["0", "nvjet_tn", "10100000", "10300000"], ["0", "nvjet_tn", "10400000", "10600000"]]
    refused = CliRunner().invoke(cli, ["export", str(SMALL), "-o", str(tmp_path / "run.csv")])
    assert isinstance(refused.exception, PhantoraError) and ".tsv" in str(refused.exception)
