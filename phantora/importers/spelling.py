"""Names and numbers in traces of profilers: calls that wait, kernels of NCCL, numbers of streams."""

from __future__ import annotations

import re

from phantora.importers.rank import CODES, Rows, is_device
from phantora.trace.analysis.communicators import collective_kind
from phantora.trace.export.chrome import STREAM_OFFSET
from phantora.wire.layout import Coll

_COMMUNICATES = re.compile(r"^(?:void )?(?:nccl|rccl|msccl)", re.IGNORECASE)
_SYNCHRONIZES = re.compile(r"^(?:cuda|cu|hip)\w*Synchronize\w*$")


PARAMETERS = "record_param_comms"
"""The operator around the launches of a call of torch.distributed, whose arguments describe the call."""
COLLECTIVES = {
    "allreduce": Coll.ALL_REDUCE,
    "allreduce_coalesced": Coll.ALL_REDUCE,
    "all_reduce": Coll.ALL_REDUCE,
    "_allgather_base": Coll.ALL_GATHER,
    "allgather": Coll.ALL_GATHER,
    "all_gather": Coll.ALL_GATHER,
    "allgather_into_tensor_coalesced": Coll.ALL_GATHER,
    "all_gather_into_tensor_coalesced": Coll.ALL_GATHER,
    "_reduce_scatter_base": Coll.REDUCE_SCATTER,
    "reduce_scatter": Coll.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": Coll.REDUCE_SCATTER,
    "broadcast": Coll.BROADCAST,
    "reduce": Coll.REDUCE,
    "all_to_all": Coll.ALL_TO_ALL,
    "all_to_allv": Coll.ALL_TO_ALL,
    "alltoall": Coll.ALL_TO_ALL,
    "alltoall_base": Coll.ALL_TO_ALL,
    "gather": Coll.GATHER,
    "scatter": Coll.SCATTER,
    "barrier": Coll.BARRIER,
}
"""NCCL's collectives by Kineto's names."""


_SPELLED = {
    Coll.ALL_REDUCE: "all_reduce",
    Coll.ALL_GATHER: "all_gather",
    Coll.REDUCE_SCATTER: "reduce_scatter",
    Coll.BROADCAST: "broadcast",
    Coll.REDUCE: "reduce",
    Coll.ALL_TO_ALL: "all_to_all",
}


def named_by_call(kernel: str, collective: str) -> str:
    """The name of a communication kernel, with the collective that was called where it tells none: RCCL's kernels are
    all with one name, ``ncclDevKernel_Generic_1``."""
    if collective_kind(kernel) != kernel:
        return kernel
    kind = _SPELLED.get(COLLECTIVES.get(collective, -1))
    return f"{kernel.partition('(')[0]} {kind or collective}"


def communicates(kernel: str) -> bool:
    """True if `kernel` is one of NCCL or RCCL."""
    return _COMMUNICATES.match(kernel) is not None


def synchronizes(call: str) -> bool:
    """True if the host waits for the GPU in `call`."""
    return _SYNCHRONIZES.match(call) is not None


def number_streams(rows: Rows) -> None:
    """Streams from 0 on: CUDA's default stream is CUPTI's 7, and of AMD's GPUs the numbers are as they are."""
    device = is_device(rows["kind"]) | (rows["kind"] == CODES["wait"])
    if device.any() and int(rows["stream"][device].min()) >= STREAM_OFFSET:
        rows["stream"][device] -= STREAM_OFFSET
