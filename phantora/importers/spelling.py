"""How names and numbers of profilers are read: calls that wait, kernels of NCCL, numbers of streams."""

from __future__ import annotations

import re

from phantora.importers.rank import CODES, Rows, is_device
from phantora.trace.export.chrome import STREAM_OFFSET

_COMMUNICATES = re.compile(r"^(?:void )?(?:nccl|rccl|msccl)", re.IGNORECASE)
_SYNCHRONIZES = re.compile(r"^(?:cuda|cu|hip)\w*Synchronize\w*$")


def communicates(kernel: str) -> bool:
    """Is `kernel` one of NCCL or RCCL?"""
    return _COMMUNICATES.match(kernel) is not None


def synchronizes(call: str) -> bool:
    """Does the host wait for the GPU in `call`?"""
    return _SYNCHRONIZES.match(call) is not None


def number_streams(rows: Rows) -> None:
    """Streams from 0 on: CUDA's default stream is CUPTI's 7, and of AMD's GPUs the numbers are as they are."""
    device = is_device(rows["kind"]) | (rows["kind"] == CODES["wait"])
    if device.any() and int(rows["stream"][device].min()) >= STREAM_OFFSET:
        rows["stream"][device] -= STREAM_OFFSET
