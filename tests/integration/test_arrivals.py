"""Copies to pinned memory arrive when the host has waited for them, and not before."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import trace

PROGRAM = """
import torch
host = torch.zeros(8, dtype=torch.int64).pin_memory()
x = torch.full((8,), 7, device="cuda")
side = torch.cuda.Stream()


def copy(value, stream=None):
    torch.cuda.synchronize()
    host.zero_()
    x.fill_(value)
    with torch.cuda.stream(stream):
        if stream:
            stream.wait_stream(torch.cuda.default_stream())
        host.copy_(x, non_blocking=True)


copy(1)
early = int(host[0])
torch.cuda.current_stream().synchronize()
print("stream", early, int(host[0]))
copy(2)
event = torch.cuda.Event()
event.record()
early = int(host[0])
event.synchronize()
print("event", early, int(host[0]))
copy(3, side)
torch.cuda.current_stream().synchronize()
early = int(host[0])
torch.cuda.current_stream().wait_stream(side)
torch.cuda.current_stream().synchronize()
print("streams", early, int(host[0]))
copy(4)
back = host.cuda(non_blocking=True)
print("back", back.tolist()[0])
copy(5)
print("item", x[3].item(), int(host[0]))
"""


def test_bytes_arrive_with_the_wait_that_covers_their_copy(tmp_path: Path) -> None:
    (tmp_path / "arrivals.py").write_text(PROGRAM)
    out = trace(tmp_path, "--cluster", "1x1xH100", "arrivals.py").out
    assert out.splitlines() == ["stream 0 1", "event 0 2", "streams 0 3", "back 4", "item 5 5"]
