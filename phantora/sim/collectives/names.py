"""Names of communication kernels."""

from __future__ import annotations

from phantora.sim.collectives import experts, symmetric
from phantora.sim.collectives.tuner import TREE
from phantora.wire.layout import EXPERTS, NCCL_DTYPE_NAMES, SYMMETRIC, Coll

_KERNEL_DTYPES = {
    "int8": "u8",
    "uint8": "u8",
    "int32": "u32",
    "uint32": "u32",
    "int64": "u64",
    "uint64": "u64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}


def kernel_name(kind: int, redop: int, dtype: int, algorithm: str, protocol: str, members: int = 0) -> str:
    """The name of the device function, as profilers show it with NCCL 2.28.

    NCCL compiles one entry per collective and type: the name has ``Sum`` and ``LL`` whatever
    reduction (`redop`) and `protocol` run inside, and signed integers share the unsigned entry.
    """
    name = Coll.names()[kind]
    if kind in EXPERTS:
        return experts.NAMES[kind]
    if kind in SYMMETRIC:
        return symmetric.kernel_name(kind, dtype, members)
    if name in ("ALL_TO_ALL", "GATHER", "SCATTER"):
        text = "SendRecv"
    elif name in ("ALL_GATHER", "BROADCAST"):
        text = "AllGather_RING_LL" if name == "ALL_GATHER" else "Broadcast_RING_LL"
    else:
        base = {"REDUCE_SCATTER": "ReduceScatter", "REDUCE": "Reduce"}.get(name, "AllReduce")
        tree = "TREE" if algorithm == TREE and base == "AllReduce" else "RING"
        text = f"{base}_Sum_{_KERNEL_DTYPES[NCCL_DTYPE_NAMES[dtype]]}_{tree}_LL"
    return f"ncclDevKernel_{text}(ncclDevKernelArgsStorage<4096ul>)"


SEND_RECV_KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
