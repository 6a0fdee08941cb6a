"""``--check races``: what a program does not order is named with both lines; what it orders is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.report import to_json
from phantora.trace.reader import open_log
from tests.support.runs import trace

# Each rank runs one of the programs. `main` is the default stream; `big` keeps the GPU busy.
PROGRAM = """
import os, torch
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
x = torch.ones(1 << 20, device="cuda")
pinned = torch.zeros(1 << 20).pin_memory()
kept = []
def no_event():
    y = x * 2
    kept.append(y)
    with torch.cuda.stream(side):
        y + 1  # reads y
def no_record_stream():
    y = x * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y + 2  # reads the freed y
    del y
    x * 3  # takes its memory
def early_read():
    pinned.copy_(x, non_blocking=True)
    pinned[5].item()  # reads pinned
    pinned + 1  # adds to pinned
def early_write():
    x.copy_(pinned, non_blocking=True)
    pinned.fill_(1)  # writes pinned
def ordered():
    y = x * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        z = y + 1
    y.record_stream(side)
    del y
    x * 3
    main.wait_stream(side)
    pinned.copy_(z, non_blocking=True)
    pinned.flatten().chunk(2)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    pinned[5].item()
    x.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    pinned.fill_(1)
def on_the_host():
    early_read()
    torch.cuda.synchronize()
    early_write()
def on_streams():
    no_event()
    no_record_stream()
(on_streams, on_the_host, ordered)[rank]()
torch.cuda.synchronize()
"""
RACES = {
    "y + 1  # reads y": "waits for no event of the default stream",
    "x * 3  # takes its memory": "was freed and allocated again without record_stream",
    "pinned[5].item()  # reads pinned": "the host has not waited for the default stream",
    "pinned + 1  # adds to pinned": "the host has not waited for the default stream",
    "pinned.fill_(1)  # writes pinned": "the host has not waited for the default stream",
}


def test_races_are_named_and_orders_are_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = trace(tmp_path, "--cluster", "1x3xH100", "--check", "races", "--fail", "train.py", check=False)
    assert done.status == 1, done.err
    lines = PROGRAM.splitlines()
    found = {}
    for race in json.loads(to_json(analyze(open_log(done.log), details=False)))["races"]:
        second, first = re.findall(r"at train\.py:(\d+)", race["what"])
        assert int(first) < int(second)
        found[lines[int(second) - 1].strip()] = race["what"].partition("; ")[2]
    assert found.keys() == RACES.keys()
    assert all(missing in found[line] for line, missing in RACES.items())
