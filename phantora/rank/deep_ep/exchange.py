"""Kernels that exchange rows between experts, on the streams of the rank."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

from phantora.errors import PhantoraError


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libnccl.so.2")
    library.phantora_exchange_rows.argtypes = [
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    return library


@dataclass(frozen=True)
class Moved:
    """The rank's data to move: its tokens, rows (of one token for one member, or one expert), and bytes of a row."""

    tokens: int
    rows: int
    row_bytes: int


def launch(kind: int, moved: Moved, sms: int, group: Any, stream: Any) -> None:
    """A kernel of ``wire.layout.EXPERTS`` on `stream`; every member of `group` must launch it."""
    import torch

    backend = group._get_backend(torch.device("cuda"))
    error = _library().phantora_exchange_rows(
        kind, max(1, moved.row_bytes), moved.rows, moved.tokens, sms, backend._comm_ptr(), stream.cuda_stream
    )
    if error:
        raise PhantoraError(f"DeepEP: the group's communicator refuses an exchange (ncclResult_t {error})")
