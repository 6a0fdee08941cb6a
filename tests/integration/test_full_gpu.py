"""Memory that was given back on a full GPU, and what the next who asks for it waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.runs import trace

SCRIPT = """
import ctypes, json, sys, time, torch
runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
MIB = 1 << 20

def timed(call):
    begin = time.perf_counter()
    return call(), (time.perf_counter() - begin) * 1e3

def take(size):
    pointer = ctypes.c_void_p()
    status, ms = timed(lambda: runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return pointer if not status else None, ms

torch.zeros(1, device="cuda")
roomy, _ = take(64 * MIB)
runtime.cudaFree(roomy)
found = {"roomy": take(64 * MIB)[1]}
held = []
while torch.cuda.mem_get_info()[0] > 1024 * MIB:
    held.append(take(512 * MIB)[0])
rest = torch.cuda.mem_get_info()[0] // (2 * MIB) * (2 * MIB)
held.append(take(rest)[0])
found["refused"] = take(512 * MIB)[1]
runtime.cudaFree(held.pop(0))
found["at once"] = take(256 * MIB)[1]
found["next"] = take(128 * MIB)[1]
runtime.cudaFree(held.pop(0))
time.sleep(1.0)
found["later"] = take(512 * MIB)[1]
json.dump(found, open(sys.argv[1], "w"))
"""


def test_what_was_given_back_is_cleared_first(tmp_path: Path) -> None:
    """On an H100 7.7 ms for 256 MiB that were freed just before, 7.0 to 8.6 for 1 GiB, else 0.1 to 0.3:
    near_capacity.py OUT blocks. Who wants a part of it waits for all (OUT calls)."""
    script, out = tmp_path / "script.py", tmp_path / "found.json"
    script.write_text(SCRIPT)
    trace(tmp_path, "--cluster", "1x1xH100", "--host", "emerald-rapids-fast", str(script), str(out))
    found = json.loads(out.read_text())
    assert found["at once"] == pytest.approx(8.2, abs=0.4)
    assert max(found[quick] for quick in ("roomy", "refused", "next", "later")) < 0.2
