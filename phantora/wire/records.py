"""The records of a rank: one kind for each event, and its fields.

A record is a head that all kinds share (:data:`HEAD`) and five 8-byte words. What the words hold depends on the
kind: C and C++ read and write them as members of a union (``record.copy.bytes``), Python as fields of
:func:`fields`. So no place in the code packs or unpacks words.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.wire.schema import NUMPY, Enum, Struct, c_field, dtype, size_check

WORDS = 5
_LETTERS = {"u1": "B", "u2": "H", "u4": "I", "i4": "i", "u8": "Q", "i8": "q", "f8": "d"}
"""Format letters of module struct by numpy's types."""
HEAD = Struct(
    "ph_head",
    (
        ("uint8_t", "kind", 1, "enum ph_kind"),
        ("uint8_t", "flags", 1, "PH_F_*"),
        ("uint8_t", "slot", 1, "reply slot of a request, PH_NO_SLOT otherwise"),
        ("uint8_t", "thread", 1, "index of the issuing thread in the rank, 0 = main"),
        ("uint32_t", "id", 1, ""),
        ("int64_t", "time", 1, "host clock when the call was made (before its own cost)"),
        ("uint32_t", "stream", 1, "stream id in the rank; 0..devices-1 are the legacy default streams"),
        ("uint32_t", "op", 1, "operator instance that issued it, 0 = none"),
    ),
)

# How a record looks where its kind does not matter, as in a recording.
Record = Struct("ph_record", HEAD.fields + tuple(("uint64_t", f"word{word}", 1, "") for word in range(WORDS)))


@dataclass(frozen=True)
class Body:
    """Words of some kinds of records: a member of the union in C."""

    name: str
    fields: tuple[tuple[str, str, str], ...]  # (type, name, meaning), without implicit padding

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return sum(np.dtype(NUMPY[ctype]).itemsize for ctype, _, _ in self.fields)


_TRANSFER = (
    ("int32_t", "peer", "rank in the communicator"),
    ("uint32_t", "dtype", "ncclDataType_t"),
    ("uint64_t", "count", "elements"),
    ("int64_t", "bytes", ""),
    ("uint64_t", "ticket", "of the payload, or 0"),
)

BODIES = {
    body.name: body
    for body in (
        Body("start", (("uint64_t", "pid", ""), ("uint64_t", "local_rank", ""), ("uint64_t", "devices", "visible"))),
        Body(
            "exit", (("int64_t", "status", ""), ("int64_t", "device_peak", "most bytes that were taken of any device"))
        ),
        Body("op_begin", (("int64_t", "start", "host clock when the operator started"),)),
        Body(
            "op_end",
            (
                ("uint64_t", "l2_hits", "1 + the share of its operands that L2 holds, in PH_L2_STEPS; 0: unknown"),
                ("uint64_t", "l2_written", "1 + the written share of what they displace, in PH_L2_STEPS; 0: unknown"),
            ),
        ),
        Body("span", (("int64_t", "start", "host clock; `time` is its end"),)),
        Body(
            "stream_create",
            (
                ("int64_t", "priority", "lower is served first"),
                ("uint64_t", "device", ""),
                ("uint64_t", "queues", "CUDA_DEVICE_MAX_CONNECTIONS; 0: not set"),
            ),
        ),
        Body(
            "kernel",
            (
                ("uint32_t", "grid_x", "blocks"),
                ("uint16_t", "grid_y", ""),
                ("uint16_t", "grid_z", ""),
                ("uint16_t", "block_x", "threads"),
                ("uint16_t", "block_y", ""),
                ("uint16_t", "block_z", ""),
                ("uint16_t", "pad", ""),
                ("uint64_t", "shared_bytes", ""),
            ),
        ),
        Body("copy", (("uint64_t", "bytes", ""), ("int64_t", "peer", "device, or -1"))),
        Body("fill", (("uint64_t", "bytes", ""),)),
        Body("host_func", (("int64_t", "duration", "modelled, ns"),)),
        Body("device_sync", (("uint64_t", "device", ""),)),
        Body(
            "comm",
            (
                ("uint64_t", "key_hi", "shared by all members"),
                ("uint64_t", "key_lo", ""),
                ("uint64_t", "members", ""),
                ("uint64_t", "rank", "own one in it"),
            ),
        ),
        Body(
            "exchange",
            (
                ("uint64_t", "key_hi", ""),
                ("uint64_t", "key_lo", ""),
                ("uint64_t", "members", ""),
                ("uint64_t", "ticket", "for further pieces"),
                ("uint64_t", "index", "own one"),
            ),
        ),
        Body("group", (("uint64_t", "records", "that follow and form one launch"),)),
        Body(
            "collective",
            (
                ("uint8_t", "coll", "enum ph_coll"),
                ("uint8_t", "dtype", "ncclDataType_t"),
                ("uint8_t", "redop", "ncclRedOp_t; above 4 a pre-multiplied sum"),
                ("uint8_t", "blocks", "of a kernel on the memory of peers, at most 255; 0: NCCL's"),
                ("int32_t", "root", ""),
                ("uint64_t", "count", "elements; of experts' rows: bytes of a row"),
                ("int64_t", "bytes", "that it moves in this rank's view, see docs/collectives.md"),
                ("uint64_t", "ticket", "of the payload, or 0"),
                (
                    "double",
                    "scalar",
                    "of a pre-multiplied sum; of a barrier on symmetric memory the limit; of experts tokens",
                ),
            ),
        ),
        Body("transfer", _TRANSFER),
        Body(
            "peer_copy",
            (
                ("int32_t", "peer", "rank in the communicator"),
                ("uint32_t", "push", "1: to its memory, 0: from it"),
                ("uint64_t", "bytes", ""),
                ("uint64_t", "blocks", "of the kernel that copies, 0: a copy engine does"),
            ),
        ),
        Body(
            "signal",
            (
                ("int32_t", "peer", "rank in the communicator"),
                ("uint32_t", "channel", ""),
                ("int64_t", "limit", "ns after which its kernel gives up waiting, 0: never"),
            ),
        ),
        Body("payload", (("uint64_t", "ticket", ""), ("uint64_t", "offset", "bytes"))),
        Body(
            "memory",
            (
                ("int64_t", "allocated", "bytes"),
                ("int64_t", "reserved", "bytes"),
                ("int64_t", "change", "bytes"),
                ("uint64_t", "address", "in a recording: the row that allocated the block"),
            ),
        ),
        Body(
            "moved",
            (
                ("int64_t", "since", ""),
                ("uint64_t", "by", "rank whose answer released it"),
                ("uint64_t", "answer", "which of its answers, counted from 1; 0: none"),
            ),
        ),
        Body("room", (("uint64_t", "depth", "commands"),)),
        Body(
            "timed",
            (
                ("int64_t", "duration", "ns on the GPU; of communication from the last arrival on"),
                ("int64_t", "delay", "ns by which it began later than its stream, its launch and its waits explain"),
                ("double", "crowd", "of communication: how many shared its links meanwhile, itself counted"),
            ),
        ),
        Body("share", (("int64_t", "bytes", "taken; below 0: given back"),)),
        Body("meter", (("uint64_t", "rank", "whose GPU"), ("int64_t", "device", "of it; -1: the one that it uses"))),
        Body(
            "asked",
            (
                ("uint64_t", "pad0", ""),
                ("uint64_t", "pad1", ""),
                ("uint64_t", "pad2", ""),
                ("int64_t", "resumes", "of a request in a recording: host clock after the answer"),
            ),
        ),
    )
}

# (kind, its body or "", meaning). `id`, `stream` and `op` of the head are reported in the meaning.
KINDS: tuple[tuple[str, str, str], ...] = (
    ("NOP", "", "nothing"),
    ("BLOB", "", "a ph_blob: pieces join, the next other record takes them"),
    ("RANK_START", "start", "a request if the place had a process before: until that one's work is done"),
    ("RANK_EXIT", "exit", ""),
    ("DEFINE_NAME", "", "id = new name id (kernel description, annotation, API); blob = UTF-8 text"),
    ("DEFINE_SIGNATURE", "", "id = new signature id; blob = JSON text of the operator signature"),
    ("OP_BEGIN", "op_begin", "op = instance, id = signature; sent at its first launch"),
    ("OP_END", "op_end", "op = instance, id = signature if it is now another; all launches lie between"),
    ("ANNOTATION", "span", "id = name: a finished user annotation or span"),
    ("STREAM_CREATE", "stream_create", "stream = new id, flags = PH_F_NONBLOCKING"),
    ("STREAM_DESTROY", "", "stream"),
    ("SITE", "", "id = name: where the program makes the next collectives, sends and receives"),
    ("KERNEL", "kernel", "stream, id = name, op"),
    ("MEMCPY", "copy", "stream, op, id = enum ph_copy"),
    ("MEMSET", "fill", "stream, op"),
    ("EVENT_RECORD", "", "stream, id = event; flags = PH_F_TIMING"),
    ("EVENT_DESTROY", "", "id = event"),
    ("STREAM_WAIT", "", "stream waits for the last record of event id made before this"),
    ("HOST_FUNC", "host_func", "stream"),
    ("STREAM_SYNC", "", "request: until stream is empty"),
    ("DEVICE_SYNC", "device_sync", "request: until all streams of the device are empty"),
    ("EVENT_SYNC", "", "request: until event id has completed"),
    ("STREAM_QUERY", "", "request: is stream empty at `time`?"),
    ("EVENT_QUERY", "", "request: has event id completed at `time`?"),
    ("EVENT_TIME", "", "request: reply.time = completion time of event id (it has completed)"),
    ("COMM_CREATE", "comm", "id = new comm; blob = name; if folded or PH_F_SHARED, zero byte, START+STRIDExCOUNT,..."),
    ("COMM_DESTROY", "", "id = comm"),
    # Without id: a communicator is made. Else two ranks send or receive for the first time: id = comm, stream = peer.
    ("EXCHANGE", "exchange", "request: blob = own bytes; reply = all blobs by index, each behind its uint32 length"),
    ("GROUP_BEGIN", "group", "COLLECTIVE, SEND and RECV records follow"),
    ("COLLECTIVE", "collective", "stream, id = comm, op; blob = own contribution if there is a ticket"),
    ("SEND", "transfer", "stream, id = comm, op; blob = payload if there is a ticket"),
    ("RECV", "transfer", "stream, id = comm, op"),
    # The reply's status is 1 if the bytes follow from unknown values.
    ("PAYLOAD", "payload", "request: reply = bytes from the offset on, value = total; without a slot: nobody will ask"),
    ("MEMORY", "memory", "id = enum ph_mem: of torch's allocator; op: name; of a free: us since a watchdog's poll"),
    ("UNSUPPORTED", "", "id = name of a call that was let through under --unsupported warn"),
    ("CLOCK", "", "nothing but `time`: the host clock has reached it"),
    ("HOST_SPAN", "span", "id = name: host operator that launched nothing but is worth a row"),
    ("MOVED", "moved", "in recordings only: the host slept outside CUDA and was moved to `time`"),
    ("ROOM", "room", "request: until no stream of the GPU has more than this many pending commands"),
    ("COMM_ABORT", "", "id = comm: what this rank waits for in it ends"),
    ("CORRELATE", "", "id = what a profiler calls the launches that follow"),
    ("PROFILE", "", "request: reply = ph_activity of what has ended of them, as many as fit; value = their number"),
    ("PROFILE_NAME", "", "request: id = name in a ph_activity; reply = text"),
    ("PEER_COPY", "peer_copy", "stream, id = comm, op: from or to the memory of a peer, which does nothing"),
    ("PUT_SIGNAL", "signal", "stream, id = comm, op: tells a peer; unless PH_F_COUNTED once the one before is taken"),
    ("WAIT_SIGNAL", "signal", "stream, id = comm, op: waits for a peer's signal and takes it"),
    ("TIMED", "timed", "in recordings of real runs only: how long the launch that follows took"),
    ("HOME", "", "id = number in the rank of the GPU that its place has, where several processes share GPUs"),
    ("SHARE", "share", "memory of a GPU that processes share; request: status 1: it does not fit, value: free bytes"),
    ("METER", "meter", "request: reply.value = what a GPU drew up to `time`: mJ (id 0), or lately: mW (id 1)"),
)

Kind = Enum("ph_kind", "PH_", tuple((name, meaning) for name, _, meaning in KINDS))


@cache
def fields(kind: str) -> np.dtype[np.void]:
    """The dtype of a record of `kind` (``"KERNEL"``): the head, then the fields of its body by name. As long as a
    record, so that arrays of records can be viewed as arrays of it.

    Raises KeyError for a kind that there is not.
    """
    name = next((body for name, body, _ in KINDS if name == kind), None)
    if name is None:
        raise KeyError(kind)
    return _dtype(BODIES.get(name))


def answered() -> np.dtype[np.void]:
    """The dtype of a request in a recording, which tells when its rank went on."""
    return _dtype(BODIES["asked"])


def _dtype(body: Body | None) -> np.dtype[np.void]:
    head = dtype(HEAD)
    names = [name for _, name, _, _ in HEAD.fields]
    formats: list[npt.DTypeLike] = [head[name] for name in names]
    offsets = [int(head.fields[name][1]) for name in names] if head.fields else []
    at = head.itemsize
    for ctype, name, _ in body.fields if body else ():
        names.append(name)
        formats.append(NUMPY[ctype])
        offsets.append(at)
        at += np.dtype(NUMPY[ctype]).itemsize
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": head.itemsize + 8 * WORDS})


def c_record() -> list[str]:
    """``ph_record`` in C."""
    lines: list[str] = []
    for body in BODIES.values():
        missing = 8 * WORDS - body.bytes
        if missing < 0 or missing % 2:
            raise ValueError(f"the fields of {body.name} take {body.bytes} bytes")
        # Every body fills all words: an initialiser of some of its fields makes all others zero.
        lines += ["", f"typedef struct ph_{body.name}_fields {{"]
        lines += [f"  {c_field(ctype, name, 1, meaning)}" for ctype, name, meaning in body.fields]
        if missing % 8:
            lines.append(f"  uint16_t rest_of_word[{missing % 8 // 2}];")
        if missing // 8:
            lines.append(f"  uint64_t rest[{missing // 8}];")
        lines += [f"}} ph_{body.name}_fields;", size_check(f"ph_{body.name}_fields", 8 * WORDS)]
    lines += ["", "typedef struct ph_record {"]
    lines += [f"  {c_field(*field)}" for field in HEAD.fields]
    users = {name: ", ".join(kind for kind, body, _ in KINDS if body == name) for name in BODIES}
    lines += ["  union {", f"    uint64_t words[{WORDS}];"]
    lines += [f"    ph_{name}_fields {name};" + (f"  // {users[name]}" if users[name] else "") for name in BODIES]
    return [*lines, "  };", "} ph_record;", size_check("ph_record", dtype(Record).itemsize)]


def make(kind: str, **values: float) -> npt.NDArray[np.void]:
    """One record of `kind` with these fields, all others zero, as an array of the generic dtype."""
    return np.frombuffer(bytearray(pack(kind, **values)), dtype(Record))


def pack(kind: str, **values: float) -> bytes:
    """The bytes of one record of `kind` with these fields, all others zero."""
    packer, order, number = _packer(kind, tuple(values))
    return packer.pack(number, *[values[name] for name in order])


@cache
def _packer(kind: str, names: tuple[str, ...]) -> tuple[struct.Struct, list[str], int]:
    """What packs the number of `kind` and the fields `names`, their order, and that number."""
    form = fields(kind)
    known: Mapping[str, Any] = form.fields or {}
    order = sorted(names, key=lambda name: int(known[name][1]))
    text, at = "<", 0
    for name in ("kind", *order):
        field, offset = known[name][:2]
        text += f"{offset - at}x{_LETTERS[field.str.lstrip('|<')]}"
        at = offset + field.itemsize
    return struct.Struct(f"{text}{form.itemsize - at}x"), order, getattr(Kind, kind)


def read(record: npt.NDArray[np.void]) -> dict[str, int | float]:
    """The fields of one record (an array of one, of the generic dtype) by their names; ``kind`` is its number."""
    named = record.view(fields(Kind.names()[int(record["kind"][0])]))
    return {name: named[name][0].item() for name in named.dtype.names or ()}
