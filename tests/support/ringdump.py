"""Runs code as rank 0 of a session without a simulator, and decodes what it wrote to its ring.

:func:`run` forks this process, :func:`run_script` one that has imported torch on the stubs. Requests
are answered at once: status 0, at the time of the request.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phantora.wire import layout, records
from phantora.wire.session import Session, SessionConfig
from tests.support import forked

RECORD = layout.dtype(layout.Record)
BLOB = layout.dtype(layout.Blob)
REPLY = layout.dtype(layout.Reply)
BLOB_KIND = layout.Kind.names().index("BLOB")
DEVICE: Mapping[str, Any] = {
    "name": b"NVIDIA H100 80GB HBM3",
    "major": 9,
    "minor": 0,
    "sms": 132,
    "max_threads_per_sm": 2048,
    "regs_per_sm": 65536,
    "max_blocks_per_sm": 32,
    "smem_per_sm": 233472,
    "smem_per_block_optin": 232448,
    "clock_khz": 1980000,
    "memory_clock_khz": 2619000,
    "bus_width": 5120,
    "l2_bytes": 52428800,
    "nvlink": 1,
    "memory_bytes": 1 << 30,
    "context_bytes": 256 << 20,
    "spare_bytes": 64 << 20,
    "cublas_bytes": 66 << 20,
    "cudnn_bytes": 10 << 20,
}
_SYS_FUTEX, _FUTEX_WAKE = 202, 1


@dataclass
class Dump:
    """`records` without the BLOB pieces, which are joined in the field ``blob`` of their taker."""

    records: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0
    value: Any = None
    stderr: str = ""

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]


@dataclass
class Reader:
    """The simulator's end of one rank's ring. Without `keep` it answers requests and drops all other records unread,
    which takes a hundredth of the time."""

    session: Session
    payloads: dict[int, bytes] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    blob: bytes = b""
    keep: bool = True

    def __post_init__(self) -> None:
        header = self.session.header
        self.ring = np.ndarray(
            (layout.RING_RECORDS,), RECORD, buffer=self.session.area, offset=int(header["ring_offset"])
        )
        self.replies = np.ndarray(
            (layout.REPLY_SLOTS,), REPLY, buffer=self.session.area, offset=int(header["reply_offset"])
        )
        self.control = self.session.control[:1]
        self.libc = ctypes.CDLL(None)

    def drain(self) -> bool:
        """Takes all records there are; True if there was one."""
        head, tail = int(self.control["head"][0]), int(self.control["tail"][0])
        places = np.arange(tail, head) % layout.RING_RECORDS
        if not self.keep:
            asking = self.ring["slot"][places] != layout.CONSTANTS["PH_NO_SLOT"]
            places = places[asking & (self.ring["kind"][places] != BLOB_KIND)]
        for place in places.tolist():
            self.take(self.ring[place : place + 1])
        if head == tail:
            return False
        self.control["tail"] = head
        if self.control["producer_waiting"][0]:
            self.control["tail_futex"] += 1
            self.wake(self.control["tail_futex"])
        return True

    def take(self, raw: np.ndarray[Any, np.dtype[np.void]]) -> None:
        kind = layout.Kind.names()[raw["kind"][0]]
        if kind == "BLOB":
            blob = raw.view(BLOB)[0]
            self.blob += blob["data"][: int(blob["used"])].tobytes()
            return
        record: dict[str, Any] = {**records.read(raw), "kind": kind, "blob": self.blob}
        self.blob = b""
        self.records.append(record)
        if record["slot"] != layout.CONSTANTS["PH_NO_SLOT"]:
            self.answer(record)

    def answer(self, record: dict[str, Any]) -> None:
        reply = self.replies[record["slot"] : record["slot"] + 1]
        data, value, status = b"", 0, 0
        if record["kind"] == "EXCHANGE":  # as if every member had sent what this one sends
            part = len(record["blob"]).to_bytes(4, "little") + record["blob"]
            whole = self.payloads[record["ticket"]] = part * record["members"]
            data, value = whole[: layout.REPLY_BYTES], len(whole)
        if record["kind"] == "PAYLOAD":
            known = self.payloads.get(record["ticket"])
            if known is None:
                status = -1
            else:
                data, value = known[record["offset"] : record["offset"] + layout.REPLY_BYTES], len(known)
        reply["status"], reply["time"], reply["value"], reply["length"] = (status, record["time"], value, len(data))
        reply["data"][0, : len(data)] = np.frombuffer(data, np.uint8)
        reply["futex"] = 1
        self.wake(reply["futex"])

    def wake(self, word: np.ndarray[Any, Any]) -> None:
        self.libc.syscall(_SYS_FUTEX, ctypes.c_void_p(word.ctypes.data), _FUTEX_WAKE, 1 << 30, None, None, 0)


def make_session(**settings: Any) -> Session:
    """A session of one rank; `settings` as :class:`SessionConfig`, ``device`` fields are merged."""
    device, api_ns = {**DEVICE, **settings.pop("device", {})}, settings.pop("api_ns", {})
    workspaces = settings.pop("workspaces", None)
    return Session.create(SessionConfig(1, 1, **settings), device, api_ns, workspaces)


def _follow(reader: Reader, ended: threading.Event) -> None:
    while not ended.is_set():
        if not reader.drain():
            time.sleep(0.0005)
    reader.drain()


def rank_library(path: Path) -> ctypes.CDLL:
    """The rank runtime with the types that ctypes would guess wrong."""
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ph_now": (ctypes.c_int64, []),
        "ph_advance": (None, [ctypes.c_int64]),
        "ph_name": (ctypes.c_uint32, [ctypes.c_uint64, ctypes.c_char_p, size]),
        "ph_hash": (ctypes.c_uint64, [ctypes.c_char_p, size, ctypes.c_uint64]),
        "ph_emit": (None, [pointer]),
        "ph_emit_blob": (None, [pointer, ctypes.c_char_p, size]),
        "ph_memory_alloc": (pointer, [ctypes.c_int, size]),
        "ph_memory_free": (ctypes.c_int, [pointer]),
        "ph_memory_charge": (ctypes.c_bool, [ctypes.c_int, ctypes.c_int64]),
        "ph_memory_info": (None, [ctypes.c_int, pointer, pointer]),
        "ph_memory_wrote": (None, [pointer, size]),
        "ph_memory_clear": (None, [pointer, size]),
        "ph_memory_copy": (None, [pointer, pointer, size]),
        "ph_memory_set": (None, [pointer, ctypes.c_int, size]),
        "ph_pinned_alloc": (pointer, [size]),
        "ph_pinned_free": (ctypes.c_int, [pointer]),
        "ph_register": (ctypes.c_int, [pointer, size, ctypes.c_int, ctypes.c_int]),
        "ph_unregister": (ctypes.c_int, [pointer]),
        "ph_memory_find": (ctypes.c_bool, [pointer, pointer]),
        "ph_expect": (None, [pointer, size, ctypes.c_uint64]),
        "ph_touch": (None, [pointer, size]),
        "ph_touch_drop": (None, [pointer, size]),
        "ph_refused": (ctypes.c_char_p, []),
        "ph_unsupported": (None, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_bool]),
        "ph_stream_create": (pointer, [ctypes.c_int, ctypes.c_uint, ctypes.c_int]),
        "ph_stream_destroy": (ctypes.c_int, [pointer]),
        "ph_stream_of": (pointer, [pointer, ctypes.c_bool]),
        "ph_event_create": (pointer, [ctypes.c_int, ctypes.c_uint]),
        "ph_event_destroy": (ctypes.c_int, [pointer]),
        "ph_event_alive": (ctypes.c_bool, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def emit(library: ctypes.CDLL, kind: str, blob: bytes = b"", **fields: int) -> None:
    record = records.make(kind, **fields)
    if blob:
        library.ph_emit_blob(record.ctypes.data, blob, len(blob))
    else:
        library.ph_emit(record.ctypes.data)


def run(
    function: Callable[[ctypes.CDLL], Any],
    rank: Path,
    *,
    payloads: Mapping[int, bytes] | None = None,
    before: Callable[[ctypes.CDLL], Any] | None = None,
    devices: int = 1,
    **settings: Any,
) -> Dump:
    """Calls `function` with the rank runtime in a forked child that is connected as rank 0.

    `before` is called before the connection. The value comes back pickled; an exception in the
    child is raised here as an AssertionError.
    """
    session = make_session(**settings)
    reader = Reader(session, dict(payloads or {}))
    results, errors = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(errors[1], 2)
        status = 1
        try:
            library = rank_library(rank)
            if before:
                before(library)
            assert library.ph_connect(session.fd, 0, 0, devices) == 0
            os.write(results[1], pickle.dumps(function(library)))
            library.ph_exit(0)
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        os._exit(status)
    os.close(results[1])
    os.close(errors[1])
    ended = threading.Event()
    follower = threading.Thread(target=_follow, args=(reader, ended))
    follower.start()
    with os.fdopen(results[0], "rb") as values, os.fdopen(errors[0], "rb") as messages:
        value, stderr = values.read(), messages.read().decode()
    _, wait_status = os.waitpid(pid, 0)
    ended.set()
    follower.join()
    session.close()
    status = os.waitstatus_to_exitcode(wait_status)
    if status == 1:
        raise AssertionError(stderr)
    return Dump(reader.records, status, pickle.loads(value) if value else None, stderr)


def run_script(
    text: str,
    *,
    devices: int = 1,
    payloads: Mapping[int, bytes] | None = None,
    timeout: float = 300,
    environment: Mapping[str, str] | None = None,
    keep: bool = True,
    **settings: Any,
) -> Dump:
    """Runs `text` in a new process: stubs loaded, torch imported, connected as rank 0.

    `library` is the rank runtime. What the script prints is the dump's ``value``. Without `keep` it has no records.
    """
    session = make_session(**settings)
    reader = Reader(session, dict(payloads or {}), keep=keep)
    ended = threading.Event()
    follower = threading.Thread(target=_follow, args=(reader, ended))
    follower.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            (file := Path(folder, "script.py")).write_text(text)
            result = forked.completed(
                ("tests.support.script",),
                ("tests.support.script", str(os.getpid()), str(session.fd), str(devices), str(file)),
                {**os.environ, **(environment or {}), "PYTHONPATH": forked.python_path()},
                os.getcwd(),
                timeout,
            )
    finally:
        ended.set()
        follower.join()
        session.close()
    return Dump(reader.records, result.returncode, result.stdout, result.stderr)
