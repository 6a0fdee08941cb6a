"""Code whose amount of work depends on addresses or on other processes costs no host time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.charges import differences
from tests.support.runs import trace

# Each piece of work is asked for through C alone, so that all frames between two readings of the clock are its own.
PROGRAM = """
import time
from _thread import allocate_lock
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from weakref import WeakSet, WeakValueDictionary
import torch
from filelock import FileLock
from sympy.multipledispatch import conflict
from sympy.multipledispatch.dispatcher import Dispatcher
from torch.export.decomp_utils import CustomDecompTable

def charged(): pass
def another(): return [len(str(i)) for i in range(3)]

def spent(work):
    for _ in range(2000):
        charged()  # what has not run for a while is charged more
    begin = time.monotonic_ns()
    work()
    return time.monotonic_ns() - begin

class Thing: pass

class Finalized:
    def __del__(self): charged()

torch.ones(1, device="cuda")
things = [Thing() for _ in range(3)]
held, named = WeakSet(things), WeakValueDictionary(enumerate(things))
table = CustomDecompTable()
signatures = [(int, object), (object, int), (bool, object), (object, object)]
ends = [Finalized() for _ in range(3)]
pool, held = ThreadPoolExecutor(4), allocate_lock()
held.acquire()
dispatcher = Dispatcher("dispatcher")
for signature in signatures[2:]:
    dispatcher.add(signature, int)
work = {
    "nothing": int,
    "a function": another,
    "a table": CustomDecompTable,
    "all of a table": table.materialize,
    "operators of a table": table.keys,
    "an order": partial(conflict.ordering, signatures),
    "ambiguities": partial(conflict.ambiguities, signatures),
    "a method": partial(dispatcher.dispatch, bool, int),
    "what dies": things.clear,
    "a finalizer": ends.clear,
    "a thread of a pool": partial(pool.submit, held.acquire),
    "another thread": partial(pool.submit, int),
    "a file lock": FileLock("lock").acquire,
    "a package's version": partial(version, "filelock"),
}
for name, what in work.items():
    print(name, spent(what), sep=": ")
held.release()
"""


def test_sets_of_operators_and_of_classes_cost_nothing(tmp_path: Path) -> None:
    """They are gone through in the order of addresses, which paths and the environment move. Nor does what weak
    references call when objects die, as those of a process that has ended, nor finalizers, nor whether a pool needs
    one more thread, nor what looks for a package's version and
    lists folders once more into which others wrote."""
    (tmp_path / "program.py").write_text(PROGRAM)
    out = trace(tmp_path, "--cluster", "1", "program.py").out
    reported = {name: int(ns) for name, _, ns in (line.partition(": ") for line in out.splitlines())}
    assert len(reported) == 14, out
    reading = reported.pop("nothing")
    assert reported.pop("a function") > reading
    assert set(reported.values()) == {reading}, reported


THREADS = """
import threading
import time
import torch
from phantora.rank.patches import tuning

functions = [eval(f"lambda: len(str({number})) + {number}") for number in range(3000)]  # a loop of one costs nothing

def busy():
    for _ in range(3):
        for function in functions: function()
def bare(): tuning.excluded(busy)
def thread():
    started = threading.Thread(target=busy)
    started.start()
    started.join()

def spent(gradient):
    for what in (bare, thread, busy):
        begin = time.monotonic_ns()
        what()
        print(threading.current_thread() is threading.main_thread(), what.__name__, time.monotonic_ns() - begin)
    return gradient

x = torch.ones(4, device="cuda", requires_grad=True)
spent(x)
x.register_hook(spent)
(2 * x).sum().backward()
"""


def test_a_thread_that_autograd_starts_moves_no_clock(tmp_path: Path) -> None:
    """It inherits the name by which autograd's own are known. What a Triton kernel does is found in such a thread: a
    compiled step of four sequences took 13.2 ms instead of 2.2, whenever its tokens were new."""
    (tmp_path / "program.py").write_text(THREADS)
    lines = [line.split() for line in trace(tmp_path, "--cluster", "1", "program.py").out.splitlines()]
    assert [line[:2] for line in lines] == [
        [main, what] for main in ("True", "False") for what in ("bare", "thread", "busy")
    ]
    for main in (lines[:3], lines[3:]):
        aside, thread, own = (int(line[2]) for line in main)
        assert max(aside, thread) < 100_000 < own, lines


CHARGED = """
import sys
import torch

def always(): return 1
def sometimes(): return len(str(2))

x = torch.ones(8, device="cuda")
for _ in range(3):
    always()
if sys.argv[1:]:
    sometimes()
x.sum()
"""


def test_runs_that_differ_name_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(CHARGED)
    folders = [tmp_path / name for name in ("one", "again", "other")]
    for folder, arguments in zip(folders, ([], [], ["more"]), strict=True):
        folder.mkdir()
        monkeypatch.setenv("PHANTORA_CHARGES", str(folder))
        trace(tmp_path, "--cluster", "1", "-o", f"{folder.name}.arrow", "program.py", *arguments)
    one, again, other = folders
    assert list(differences(one, again)) == ["charges: 0 of 1 ranks differ"]
    lines = [line.strip() for line in differences(one, other)]
    assert lines[0] == "charges: 1 of 1 ranks differ"
    assert lines[4].endswith("program.py:always")
    first = next(line for line in lines if line.startswith("+"))
    assert first.endswith("program.py:sometimes")


BARS = """
import threading
import torch
from tqdm import tqdm

torch.ones(1, device="cuda")
for _ in tqdm(range(3), disable=True): pass
print(tqdm.monitor, [thread.name for thread in threading.enumerate()])
"""


@pytest.mark.parametrize("preload", [(), ("--preload", "tqdm")])
def test_no_thread_of_tqdm_changes_what_bars_cost(tmp_path: Path, preload: tuple[str, ...]) -> None:
    """Ten seconds of real time after the first bar, its monitor made a lock that the script makes if there is none."""
    (tmp_path / "program.py").write_text(BARS)
    out = trace(tmp_path, "--cluster", "1", *preload, "program.py").out
    assert out.splitlines()[-1].startswith("None ['MainThread'"), out


SAVES = """
import sys
import torch
x, model = torch.randn(24 << 20), torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    torch.save(x, sys.argv[1])
    torch.load(sys.argv[1])
"""


def test_a_checkpoint_is_no_uncounted_work(tmp_path: Path) -> None:
    """`--disk` has its time: records, checksums and files."""
    (tmp_path / "saves.py").write_text(SAVES)
    assert "which is not counted" not in trace(tmp_path, "--cluster", "1", "saves.py", str(tmp_path / "model.pt")).err
