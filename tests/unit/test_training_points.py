"""Families of modelled operators that are kept on disk: the same answers, from a file or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from phantora.cost import GpuCostModel, model_for, training_points
from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.hardware import load_gpu


def tensor(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(dtype, shape, stride=contiguous_strides(shape))


ASKED = [
    OperatorSignature("aten::cat", ((tensor("float32", 333, 1024), tensor("float32", 333, 1024)), 1)),
    OperatorSignature("aten::_softmax", (tensor("float32", 100, 3000), -1, False)),
]


def prices(cost: GpuCostModel) -> list[tuple[tuple[int, ...], str, float | None]]:
    found = [cost.operator(asked, ()) for asked in ASKED]
    return [(price.durations, price.provenance, price.error) for price in found]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[tuple[int, ...], str, float | None]]]:
    """A cache that was empty, after the first prices, and these."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return folder, prices(model_for(load_gpu("H100")))


@pytest.fixture
def kept(made: tuple[Path, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made[0], tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "phantora" / "families"


def test_the_same_prices_from_a_file(kept: Path, made: tuple[Path, object]) -> None:
    files = sorted(kept.glob("*/*.npz"))
    assert len(files) == 2 and {path.parent.stat().st_mode & 0o777 for path in files} == {0o700}
    stamps = [path.stat().st_mtime_ns for path in files]
    again = prices(model_for(load_gpu("H100")))
    assert again == made[1] and {provenance for _, provenance, _ in again} == {"interpolated"}
    assert [path.stat().st_mtime_ns for path in sorted(kept.glob("*/*.npz"))] == stamps


def test_they_are_read_from_it(kept: Path, made: tuple[Path, list[tuple[tuple[int, ...], str, float]]]) -> None:
    for path in kept.glob("*/*.npz"):
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        np.savez(path, **{**arrays, "ratio": arrays["ratio"] + np.log(2)})
    for was, now in zip(made[1], prices(model_for(load_gpu("H100"))), strict=True):
        assert sum(now[0]) == pytest.approx(2 * sum(was[0]), rel=0.01, abs=2)


@pytest.mark.parametrize("contents", [b"", b"no archive", "short"])
def test_a_broken_file_is_made_anew(kept: Path, made: tuple[Path, object], contents: bytes | str) -> None:
    for path in kept.glob("*/*.npz"):
        path.write_bytes(path.read_bytes()[:-300] if isinstance(contents, str) else contents)
    assert prices(model_for(load_gpu("H100"))) == made[1]


def test_other_tables_and_gpus_have_their_own(kept: Path) -> None:
    one, other = load_gpu("H100"), load_gpu("H200")
    folders = {training_points.points_cache(digest, gpu) for digest in ("a", "b") for gpu in (one, other)}
    assert len(folders) == 4 and None not in folders
    assert training_points.points_cache("", one) is None


def test_old_sets_make_room(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_points, "MOST_SETS", 2)
    count = training_points.WORTH_KEEPING
    many = training_points.TrainingPoints(np.zeros((count, 2)), np.zeros(count))
    for digest in "abc":
        found = training_points.points_cache(digest, load_gpu("H100"))
        assert found is not None
        found.find(("add",), lambda: {"add": many})
    assert len(list(kept.iterdir())) == 2  # with what was there
