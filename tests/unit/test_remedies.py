"""Remedies of a run that does not fit, and its worst batch, without a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, Dataset, dataloader

from phantora.rank.patches.remedies import layers_of
from phantora.rank.patches.worst_batch import change, length
from phantora.spec import RunSpec
from phantora.sweeps.answer import answer
from phantora.sweeps.batch import larger_batches, smaller_batch
from phantora.sweeps.objective import Objective
from phantora.sweeps.page import sweep_page
from phantora.sweeps.plan import make_plan
from phantora.sweeps.questions import Tried
from phantora.sweeps.remedies import Remedied
from phantora.sweeps.render import render
from phantora.sweeps.result import OUT_OF_MEMORY, RAN, Result
from phantora.sweeps.runner import Entry
from phantora.sweeps.space import space_of
from phantora.sweeps.task import Shared, Task
from tests.support.sweeps import GIB, measured

pytestmark = pytest.mark.unit


def test_the_batch_of_a_command_line_is_halved() -> None:
    assert smaller_batch(["--seq", "8", "--batch", "8"], 2) == ("--batch", "4")
    assert smaller_batch(["--per_device_train_batch_size=8"], 4) == ("--per_device_train_batch_size=2",)
    assert smaller_batch(["--batch", "3"], 2) == smaller_batch(["--batches", "8"], 2) == smaller_batch([], 2) == ()


def test_the_option_of_the_batch_is_in_the_arguments_or_in_the_text(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from shapes import parser\n")
    assert larger_batches(RunSpec(str(script))) == ""
    (tmp_path / "shapes.py").write_text("parser.add_argument('--microbatches')\nparser.add_argument('--batch-size')\n")
    assert larger_batches(RunSpec(str(script))) == "batch-size=1,2,4"
    assert larger_batches(RunSpec(str(script), ("--mbs=3",))) == "mbs=3,6,12"


def test_repeated_layers_are_entries_of_one_class() -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.ReLU())) for _ in range(3)]
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "layers": nn.ModuleList(blocks)})
    assert layers_of(model) == blocks
    assert layers_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))) == [], "a layer has parts"


@pytest.fixture
def texts() -> Iterator[list[str]]:
    """What is noted while the DataLoader gives its longest samples."""
    notes: list[str] = []
    iterators: Any = dataloader._BaseDataLoaderIter
    original = iterators._next_index
    change(dataloader, notes.append)
    yield notes
    iterators._next_index = original


class Texts(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros((3, 9, 1, 7)[index])


def test_every_batch_has_the_longest_samples(texts: list[str]) -> None:
    loader: Any = DataLoader(Texts(), batch_size=2, collate_fn=list)
    assert [[len(one) for one in batch] for batch in loader] == [[9, 7], [9, 7]]
    assert texts == ["every batch has the longest of 4 samples: 9 elements each at most, half have 5"]


def test_the_length_of_a_sample() -> None:
    assert length({"input_ids": [1, 2, 3], "label": 1}) == 4
    assert length((torch.zeros(2, 3), "abc")) == 9


def test_a_run_that_leaves_little_or_grows_is_not_safe() -> None:
    def tried(**changes: Any) -> Tried:
        return Tried("train.py", 1, Result("key", {}, RAN, measured=measured(1, **changes)), 0.04)

    assert tried(memory=76).safe and not tried(memory=77).safe and tried(memory=77).fits
    growing = tried(grows="1.00 GiB an iteration, kept by leak.py:3 (outs)", full=41, remedy="`.detach()`")
    assert not growing.safe
    says = growing.says(80 * GIB)
    assert says[0] == "Out of memory in iteration 41: it grows by 1.00 GiB an iteration, kept by leak.py:3 (outs)."
    assert says[1].startswith("In the iterations that ran: Fits") and says[2] == "What would help: `.detach()`."
    ended = replace(growing, result=replace(growing.result, status=OUT_OF_MEMORY, needs=105 * GIB))
    assert [text.partition(":")[0] for text in ended.says(80 * GIB)] == ["Memory does not last", "What would help"]


def test_the_sentence_of_a_remedy() -> None:
    one = Remedied(name="half", how="--batch 4", fits=True, memory=40 * GIB, slower=0.02, at_most=True)
    assert one.says(80 * GIB) == "Simulated remedy: half (--batch 4), 40.00 GiB of 80.00 GiB, at most 2% slower."


SPACE = {"target": ["train.py"], "matrix": {"tp": [1, 2, 4]}, "tokens": "4096", "arguments": {"tp": "--tp"}}


def test_a_faster_point_without_room_is_passed_over(tmp_path: Path) -> None:
    entries = []
    for point in make_plan(space_of(SPACE, "small")).points:
        task, number = Task.of(point, Shared(tmp_path)), point.number
        found = measured(100 * number, memory=79 if number == 1 else 40)
        entries.append(Entry(task, Result(task.key, point.values, RAN, measured=found, command=("phantora",))))
    found_answer = answer(entries, Objective(), ["tp"], tmp_path)
    assert [row.entry.point.number for row in found_answer.rows] == [2, 3, 1] and found_answer.best is not None
    assert [row.rank for row in found_answer.passed_over] == [3]
    console = Console(width=100, file=(text := StringIO()))
    render(found_answer, console)
    said = " ".join(text.getvalue().split())
    sentence = "3 is 50.0% better than 1 and passed over: it leaves 1.2% of its memory, less than 4% (--margin)."
    assert sentence in said and sentence in sweep_page(found_answer)
    loose = answer(entries, Objective(margin=0.01), ["tp"], tmp_path)
    assert loose.best is not None and loose.best.entry.point.number == 1 and not loose.passed_over
