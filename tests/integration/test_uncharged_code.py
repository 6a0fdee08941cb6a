"""Code whose amount of work depends on addresses or on other processes costs no host time."""

from __future__ import annotations

from pathlib import Path

from support.runs import trace

# Each piece of work is asked for through C alone, so that all frames between two readings of the clock are its own.
PROGRAM = """
import time
from functools import partial
import torch
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

torch.ones(1, device="cuda")
table = CustomDecompTable()
signatures = [(int, object), (object, int), (bool, object), (object, object)]
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
}
for name, what in work.items():
    print(name, spent(what), sep=": ")
"""


def test_sets_of_operators_and_of_classes_cost_nothing(tmp_path: Path) -> None:
    """They are gone through in the order of addresses, which paths and the environment move."""
    (tmp_path / "program.py").write_text(PROGRAM)
    out = trace(tmp_path, "--cluster", "1", "program.py").out
    told = {name: int(ns) for name, _, ns in (line.partition(": ") for line in out.splitlines())}
    assert len(told) == 8, out
    reading = told.pop("nothing")
    assert told.pop("a function") > reading
    assert set(told.values()) == {reading}, told
