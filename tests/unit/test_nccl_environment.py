"""NCCL_* variables: what they change, and what is said of the others."""

from __future__ import annotations

import pytest

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster
from phantora.sim.collectives import CollectiveModel, CollectivePrice, NcclEnvironment
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

BF16 = NCCL_DTYPE_NAMES.index("bfloat16")
MIB = 1 << 20


def price(spec: str, size: int, kind: int = Coll.ALL_REDUCE, **variables: str) -> CollectivePrice:
    cluster = load_cluster(spec)
    model = CollectiveModel(cluster, NcclEnvironment.read(variables, cluster.wiring.nics))
    return model.collective(kind, tuple(range(cluster.world_size)), size, BF16)


def test_algorithm_and_protocol() -> None:
    assert price("8xH100", 1 << 30).algorithm == "NVLS"
    assert price("8xH100", 1 << 30, NCCL_NVLS_ENABLE="0").algorithm == "RING"
    assert price("8xH100", 1 << 30, NCCL_ALGO="Ring").algorithm == "RING"
    assert price("8xH100", 1 << 30, NCCL_ALGO="^nvls,ring").algorithm == "TREE"
    assert price("8xH100", 1 << 30, NCCL_ALGO="allgather:ring;allreduce:tree").algorithm == "TREE"
    assert price("8xH100", 1 << 30, Coll.ALL_GATHER, NCCL_ALGO="Tree").algorithm == "RING"  # there is no other
    assert price("4xH100", 1 << 30, NCCL_PROTO="LL").protocol == "LL"
    assert price("4xL40S", MIB, NCCL_PROTO="LL128").protocol == "LL128"
    slow = price("4xH100", 1 << 30, NCCL_PROTO="LL").duration_ns
    assert slow > 1.8 * price("4xH100", 1 << 30).duration_ns


def test_channels_and_buffers() -> None:
    assert price("4xH200", 1 << 30).channels == 24
    few = price("4xH200", 1 << 30, NCCL_MAX_NCHANNELS="4")
    assert few.channels == 4 and few.duration_ns > 3 * price("4xH200", 1 << 30).duration_ns
    assert price("2x8xH100", MIB, NCCL_MIN_NCHANNELS="32", NCCL_ALGO="Ring").channels == 32
    small = price("4xH200", 64 * MIB, NCCL_BUFFSIZE=str(MIB))
    assert small.duration_ns != price("4xH200", 64 * MIB).duration_ns


def test_transport() -> None:
    over_pcie = price("4xH100", 1 << 30, NCCL_P2P_DISABLE="1")
    assert over_pcie.duration_ns > 5 * price("4xH100", 1 << 30).duration_ns
    half = price("2x8xH100", 1 << 30, NCCL_ALGO="Ring", NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2,mlx5_3")
    whole = price("2x8xH100", 1 << 30, NCCL_ALGO="Ring")
    assert half.duration_ns == pytest.approx(2 * whole.duration_ns, rel=0.1)
    assert NcclEnvironment.read({"NCCL_IB_HCA": "^mlx5_0"}, 4).nics == (1, 2, 3)
    assert NcclEnvironment.read({"NCCL_IB_HCA": "=mlx5_1:1"}, 16).nics == (1,)
    assert NcclEnvironment.read({"NCCL_IB_HCA": "mlx5_1"}, 16).nics == (1, 10, 11, 12, 13, 14, 15)  # a prefix


def test_what_is_ignored_is_named() -> None:
    read = NcclEnvironment.read(
        {
            "NCCL_DEBUG": "INFO",
            "NCCL_IB_HCA": "bnxt",
            "NCCL_FOO": "1",
            "NCCL_ALGO": "Ring",
            "HOME": "/",
            "NCCL_HOME": "/",
        },
        8,
    )
    assert set(read.ignored) == {"NCCL_IB_HCA", "NCCL_FOO"}
    assert read.honoured == {"NCCL_ALGO": "Ring"}
    assert read.nics is None


@pytest.mark.parametrize(
    "variables",
    [{"NCCL_ALGO": "rings"}, {"NCCL_PROTO": "LL256"}, {"NCCL_ALGO": "alltoall:ring"}, {"NCCL_MAX_NCHANNELS": "many"}],
)
def test_what_nccl_refuses(variables: dict[str, str]) -> None:
    with pytest.raises(PhantoraError, match=next(iter(variables))):
        NcclEnvironment.read(variables)
