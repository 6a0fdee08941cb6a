"""A real rank process without a simulator: every request is answered at once, every record is kept."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phantora.hardware import device_fields, load_gpu
from phantora.stubs import StubSet
from phantora.wire import layout
from phantora.wire.session import Session

RECORD = layout.dtype(layout.Record)
REPLY = layout.dtype(layout.Reply)
_SYS_FUTEX = 202  # x86-64
_FUTEX_WAKE = 1

# Loads the stubs, then torch, then the tracer, and becomes rank 0: what phantora.launch does.
_BOOT = """
import ctypes, runpy, sys
from pathlib import Path
from phantora.stubs import build, load
directory, session, program, tracer = sys.argv[1:5]
stubs = build.read_set(Path(directory))
rank = load(stubs)
import torch
if tracer == "1":
    ctypes.CDLL(str(stubs.tracer)).phantora_tracer_install()
if session != "-1" and rank.ph_connect(int(session), 0, 0, 1) != 0:
    sys.exit("cannot connect")
sys.argv = sys.argv[3:4] + sys.argv[5:]
try:
    runpy.run_path(program, run_name="__main__")
finally:
    sys.stdout.flush()
    rank.ph_exit(0)
"""


@dataclass
class Dump:
    """What one rank said. `names` and `signatures` are the texts by id, blobs are joined to records."""

    output: str
    errors: str
    status: int
    records: npt.NDArray[np.void]
    names: dict[int, str] = field(default_factory=dict)
    signatures: dict[int, str] = field(default_factory=dict)

    def of(self, *kinds: str) -> npt.NDArray[np.void]:
        return self.records[np.isin(self.records["kind"], [getattr(layout.Kind, kind) for kind in kinds])]


class _Ring:
    """The simulator's side of rank 0's ring."""

    def __init__(self, session: Session) -> None:
        header = session.header
        self.session = session
        self.ring = np.ndarray((layout.RING_RECORDS,), RECORD, buffer=session.area, offset=int(header["ring_offset"]))
        self.replies = np.ndarray((layout.REPLY_SLOTS,), REPLY, buffer=session.area, offset=int(header["reply_offset"]))
        self.control = session.control[0:1]
        self.taken = 0
        self.pieces: list[npt.NDArray[np.void]] = []
        self.libc = ctypes.CDLL(None)

    def drain(self) -> int:
        head = int(self.control["head"][0])
        if head == self.taken:
            return 0
        places = np.arange(self.taken, head) & (layout.RING_RECORDS - 1)
        piece = self.ring[places].copy()
        self.pieces.append(piece)
        for record in piece[(piece["slot"] != 0xFF) & (piece["kind"] != layout.Kind.BLOB)]:
            self._answer(record)
        count, self.taken = head - self.taken, head
        self.control["tail"] = head
        self.control["tail_futex"] += 1
        self._wake(self.control.ctypes.data + RECORD_CONTROL_FUTEX)
        return count

    def _answer(self, record: np.void) -> None:
        reply = self.replies[record["slot"]]
        reply["status"] = 0
        reply["time"] = record["time"]
        reply["value"] = 0
        reply["length"] = 0
        reply["futex"] = 1
        self._wake(self.replies.ctypes.data + int(record["slot"]) * REPLY.itemsize)

    def _wake(self, address: int) -> None:
        self.libc.syscall(_SYS_FUTEX, ctypes.c_void_p(address), _FUTEX_WAKE, 64, None, None, 0)


_control_fields = layout.dtype(layout.Control).fields
assert _control_fields is not None
RECORD_CONTROL_FUTEX = int(_control_fields["tail_futex"][1])


def run_connected(
    stub_set: StubSet,
    program: Path,
    *arguments: str,
    gpu: str = "H100",
    api_ns: Mapping[str, int] | None = None,
    tracer: bool = True,
    connect: bool = True,
    null_mode: bool = False,
    timeout: float = 240.0,
) -> Dump:
    """Runs `program` as rank 0 of 1 on one simulated GPU until it ends; `timeout` in seconds."""
    device = device_fields(load_gpu(gpu))
    session = Session.create(1, 1, device, api_ns or {}, null_mode=null_mode)
    os.set_inheritable(session.fd, True)
    root = str(Path(__file__).parent.parent.parent)
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=root, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    command = [sys.executable, "-c", _BOOT, str(stub_set.directory), str(session.fd if connect else -1), str(program)]
    command += ["1" if tracer else "0", *arguments]
    ring = _Ring(session)
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, pass_fds=(session.fd,))
            deadline = time.monotonic() + timeout
            while process.poll() is None:
                if time.monotonic() > deadline:
                    process.kill()
                if not ring.drain():
                    time.sleep(0.0002)
            ring.drain()
            out.seek(0)
            err.seek(0)
            output, errors = out.read().decode(), err.read().decode()
    finally:
        session.close()
    records = np.concatenate(ring.pieces) if ring.pieces else np.zeros(0, RECORD)
    dump = Dump(output, errors, process.returncode, records)
    _join_texts(dump)
    return dump


def _join_texts(dump: Dump) -> None:
    blob = b""
    offset = RECORD.itemsize - layout.BLOB_BYTES
    for record in dump.records[np.isin(dump.records["kind"], (
        layout.Kind.BLOB, layout.Kind.DEFINE_NAME, layout.Kind.DEFINE_SIGNATURE
    ))]:  # fmt: skip
        if record["kind"] == layout.Kind.BLOB:
            blob += record.tobytes()[offset : offset + int(record["id"])]
            continue
        table = dump.names if record["kind"] == layout.Kind.DEFINE_NAME else dump.signatures
        table[int(record["id"])] = blob.decode()
        blob = b""
    dump.records = dump.records[dump.records["kind"] != layout.Kind.BLOB]
