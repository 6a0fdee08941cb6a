"""Clusters: the short form ``2x8xH100``, or a TOML file for everything else."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.hardware import toml
from phantora.hardware.gpus import DATA, gpu_names, load_gpu
from phantora.hardware.types import Cluster, Gpu, HostProfile, Link
from phantora.wire.layout import Api

FORMS = (
    "a cluster is HOSTSxGPUSxMODEL (2x8xH100), GPUSxMODEL for one host (8xH100), a number of GPUs (4, H100), "
    "a model (H200, one GPU), or the path of a .toml file"
)
DEFAULT_GPU = "H100"
# One way through a switch: NVSwitch and PCIe by GPU-to-GPU copies, InfiniBand by ib_send_lat.
NVLINK_LATENCY_NS = 1000
PCIE_LATENCY_NS = 2500
NETWORK_LATENCY_NS = 2500
# PCIe packets carry 256 bytes of payload with 24 to 28 of headers; measured 55.5 of 63 GB/s on H200.
PCIE_EFFICIENCY = 0.88

_SPEC = re.compile(r"(?:(?P<hosts>\d+)\s*[xX*]\s*)?(?P<gpus>\d+)\s*[xX*]\s*(?P<model>[A-Za-z0-9].*)")


def load_cluster(spec: str) -> Cluster:
    """The cluster that `spec` describes."""
    text = spec.strip()
    if text.endswith(".toml"):
        return _from_file(Path(text))
    if re.fullmatch(r"\d+", text):
        return _make(1, int(text), load_gpu(DEFAULT_GPU), text)
    match = _SPEC.fullmatch(text)
    if match:
        model = match["model"]
        if re.fullmatch(r"\d+", model):
            raise PhantoraError(f"cluster {spec!r} names no GPU model: write {text}x{DEFAULT_GPU}; {FORMS}")
        return _make(int(match["hosts"] or 1), int(match["gpus"]), load_gpu(model), text)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]*", text):
        return _make(1, 1, load_gpu(text), text)
    raise PhantoraError(f"cannot read the cluster {spec!r}: {FORMS}. GPUs: {', '.join(gpu_names())}")


def _make(hosts: int, gpus: int, gpu: Gpu, name: str) -> Cluster:
    if hosts < 1 or gpus < 1:
        raise PhantoraError(f"cluster {name!r} has no GPU: hosts and GPUs per host must be at least 1")
    if gpu.nvlink_bandwidth > 0:
        intra = Link(gpu.nvlink_bandwidth, NVLINK_LATENCY_NS)
    else:
        intra = Link(gpu.pcie_bandwidth * PCIE_EFFICIENCY, PCIE_LATENCY_NS)
    return Cluster(
        name, hosts, gpus, gpu, intra, Link(gpu.nic_bandwidth, NETWORK_LATENCY_NS), load_host("default")
    )


def _from_file(path: Path) -> Cluster:
    """A file with hosts, gpus_per_host, gpu, and optionally name, host, [intra] and [inter]."""
    table = toml.read(path)
    unknown = sorted(set(table) - {"name", "hosts", "gpus_per_host", "gpu", "host", "intra", "inter"})
    if unknown:
        raise PhantoraError(
            f"{path}: unknown key {unknown[0]!r}; a cluster has hosts, gpus_per_host, gpu, and may have "
            "name, host, [intra] and [inter]"
        )
    gpu = table.get("gpu")
    if not isinstance(gpu, str):
        raise PhantoraError(f"{path}: gpu must be the name of a GPU or the path of its .toml file")
    cluster = _make(
        _count(table, "hosts", 1, path),
        _count(table, "gpus_per_host", None, path),
        load_gpu(_beside(path, gpu)),
        str(table.get("name", path.stem)),
    )
    host = table.get("host", "default")
    if not isinstance(host, str):
        raise PhantoraError(f"{path}: host must be the name of a host profile or the path of its .toml file")
    return replace(
        cluster,
        host=load_host(_beside(path, host)),
        intra=_link(table, "intra", cluster.intra, path),
        inter=_link(table, "inter", cluster.inter, path),
    )


def _beside(path: Path, name: str) -> str:
    return str(path.parent / name) if name.endswith(".toml") else name


def _count(table: dict[str, Any], key: str, default: int | None, path: Path) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PhantoraError(f"{path}: {key} must be a whole number of at least 1, not {value!r}")
    return value


def _link(table: dict[str, Any], key: str, default: Link, path: Path) -> Link:
    given = table.get(key, {})
    if not isinstance(given, dict):
        raise PhantoraError(f"{path}: [{key}] must be a table with bandwidth (bytes/s) and latency_ns")
    merged = {"bandwidth": default.bandwidth, "latency_ns": default.latency_ns, **given}
    link = toml.build(Link, merged, f"{path}: {key}")
    if link.bandwidth <= 0:
        raise PhantoraError(f"{path}: {key}.bandwidth must be positive, in bytes/s per direction")
    return link


@cache
def load_host(name: str) -> HostProfile:
    """The host profile called `name`, or at a ``.toml`` path. Every API has a cost."""
    path = Path(name) if name.endswith(".toml") else DATA / "hosts" / f"{name}.toml"
    if not path.exists():
        known = sorted(p.stem for p in (DATA / "hosts").glob("*.toml"))
        raise PhantoraError(
            f"unknown host profile {name!r}; known: {', '.join(known)}, or the path of a .toml file"
        )
    profile = toml.build(HostProfile, toml.read(path), str(path))
    wanted = set(Api.names())
    missing, unknown = sorted(wanted - set(profile.api_ns)), sorted(set(profile.api_ns) - wanted)
    if missing or unknown:
        what = f"api_ns.{missing[0]} is missing" if missing else f"api_ns.{unknown[0]} is not a known call"
        raise PhantoraError(f"{path}: {what}; give each of {', '.join(Api.names())}")
    return profile
