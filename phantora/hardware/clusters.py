"""Clusters: the short form ``2x8xH100``, one that ships (``dgx-h100:16``), or a TOML file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, known_names
from phantora.hardware import builders, toml
from phantora.hardware.gpus import DATA, gpu_names, is_gpu, load_gpu
from phantora.hardware.hosts import DEFAULT_HOST, HOST_FORMS, load_host
from phantora.hardware.topology import Topology, is_nic
from phantora.hardware.types import Cluster, Gpu, HostProfile, Link, Wiring
from phantora.units import GIB
from phantora.wire.layout import MAX_KINDS

FORMS = (
    "a cluster is HOSTSxGPUSxMODEL (2x8xH100), GPUSxMODEL for one host (8xH100), a number of GPUs (4, H100), "
    "a model (H200, one GPU), NAME:HOSTS of a known system (dgx-h100:16), or the path of a .toml file, also with :HOSTS"
)
DEFAULT_GPU = "H100"
MOST_OF_HOST, MOST_GPUS = 1024, 1 << 18  # far above any system; a slip of the hand shall not fill the memory
# One way through a switch: NVSwitch and PCIe by GPU-to-GPU copies, InfiniBand by ib_send_lat.
NVLINK_LATENCY_NS = 1000
PCIE_LATENCY_NS = 2500
NETWORK_LATENCY_NS = 2500
SOCKET_BANDWIDTH = 40e9  # between two CPUs, bytes/s: NCCL's figure for Sapphire and Emerald Rapids (topo.h)
WIRINGS = ("nvswitch", "nvlink-pairs", "pcie")
CPUS = ("intel", "amd")
ROUTINGS = ("ecmp", "adaptive")

_SPEC = re.compile(r"(?:(?P<hosts>\d+)\s*[xX*]\s*)?(?P<gpus>\d+)\s*[xX*]\s*(?P<model>[A-Za-z0-9].*)")
_TURNED = re.compile(r"(?P<model>[A-Za-z].*?)\s*[xX*:]\s*(?P<gpus>\d+)")
_GPU_FILE = re.compile(r"(?:(?P<hosts>\d{1,9})[xX*])?(?P<gpus>\d{1,9})[xX*](?P<path>.*\.toml)")
_FILE = re.compile(r"(?P<path>.*\.toml)(?::(?P<hosts>\d+))?")
_SYSTEM = re.compile(r"(?P<name>[A-Za-z][\w.-]*)(?::(?P<hosts>\d+))?")


def load_cluster(spec: str) -> Cluster:
    """The cluster that `spec` describes.

    Raises PhantoraError for one that cannot be, naming the line of the file.
    """
    text = spec.strip()
    if "+" in text:
        return mixed(text, [load_cluster(part) for part in text.split("+")])
    if (counts := _GPU_FILE.fullmatch(text)) and not Path(text).exists():
        return _of_gpu_file(int(counts["hosts"] or 1), int(counts["gpus"]), counts["path"])
    if file := _FILE.fullmatch(text):
        return _with_hosts(_from_file(Path(file["path"])), file["hosts"], text)
    if re.search(r"\d{10}", text):
        raise PhantoraError(f"cluster {text[:40]!r}...: a number in it is too large")
    if re.fullmatch(r"\d+", text):
        return _make(1, int(text), load_gpu(DEFAULT_GPU), text)
    match = _SPEC.fullmatch(text)
    if match:
        model = match["model"]
        if re.fullmatch(r"\d+", model):
            raise PhantoraError(f"cluster {spec!r} names no GPU model: write {text}x{DEFAULT_GPU}; {FORMS}")
        return _make(int(match["hosts"] or 1), int(match["gpus"]), load_gpu(model), text)
    system = _SYSTEM.fullmatch(text)
    known = system is not None and system["name"].lower() in system_names()
    if not known and (turned := _TURNED.fullmatch(text)) and is_gpu(turned["model"]):
        raise PhantoraError(f"cluster {spec!r}: write 1x{turned['gpus']}x{turned['model']}")
    if system and (known or system["hosts"]):
        return _system(system["name"], system["hosts"], text)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]*", text):
        return _make(1, 1, load_gpu(text), text)
    raise PhantoraError(f"cannot read the cluster {spec!r}: {FORMS}. GPUs: {', '.join(gpu_names())}")


def _of_gpu_file(hosts: int, gpus: int, path: str) -> Cluster:
    """Hosts of the GPU that a file describes. The cluster has its name, or that of the file where a GPU that ships has
    the same."""
    gpu = load_gpu(path)
    name = Path(path).stem if is_gpu(gpu.name) else gpu.name
    return _make(hosts, gpus, gpu, f"{hosts}x{gpus}x{name}")


def mixed(name: str, parts: Sequence[Cluster]) -> Cluster:
    """One cluster with the hosts of `parts`, in their order; the network between hosts is that of the first. Raises
    PhantoraError for hosts that differ in more than GPUs, links and NICs."""
    parts = [one for part in parts for one in part.parts]
    kinds = [replace(part, wiring=replace(part.wiring, nvlink_hosts=1)) for part in parts]
    first = kinds[0]
    if any(min(part.wiring.nvlink_hosts, part.hosts) > 1 for part in parts):
        raise PhantoraError(f"cluster {name}: NVLink over several hosts does not go with hosts of another kind")
    for kind in kinds[1:]:
        if (kind.gpus_per_host, kind.wiring) != (first.gpus_per_host, first.wiring):
            raise PhantoraError(
                f"cluster {name}: hosts of {kind.name} and {first.name} differ in more than GPUs and links: give them "
                "the same number of GPUs and NICs and the same [wiring]"
            )
    if len(kinds) > MAX_KINDS:
        raise PhantoraError(f"cluster {name}: at most {MAX_KINDS} kinds of hosts")
    hosts = sum(kind.hosts for kind in kinds)
    _make(hosts, first.gpus_per_host, first.gpu, name)  # refuses too many
    return replace(first, name=name, hosts=hosts, kinds=tuple(kinds) if len(kinds) > 1 else ())


def system_names() -> list[str]:
    """Systems that ship with the package: names before the colon of ``dgx-h100:16``."""
    return sorted(path.stem for path in (DATA / "clusters").glob("*.toml"))


def _system(name: str, hosts: str | None, text: str) -> Cluster:
    if name.lower() not in system_names():
        raise PhantoraError(
            f"cluster {text!r}: unknown system {name!r}; {known_names(name, system_names())}; else {FORMS} "
            f"with a GPU such as {DEFAULT_GPU}"
        )
    return replace(_with_hosts(_from_file(DATA / "clusters" / f"{name.lower()}.toml"), hosts, text), name=text)


def _with_hosts(cluster: Cluster, hosts: str | None, text: str) -> Cluster:
    """`cluster` with `hosts` hosts, where a number is given."""
    if hosts == "0":
        raise PhantoraError(f"cluster {text!r} has no host")
    if hosts and cluster.kinds:
        raise PhantoraError(f"cluster {text!r}: the file gives the number of hosts of each kind")
    count = int(hosts or cluster.hosts)
    _make(count, cluster.gpus_per_host, cluster.gpu, text)  # refuses too many
    return replace(cluster, hosts=count)


def _make(hosts: int, gpus: int, gpu: Gpu, name: str) -> Cluster:
    if hosts < 1 or gpus < 1:
        raise PhantoraError(f"cluster {name!r} has no GPU: hosts and GPUs per host must be at least 1")
    if gpus > MOST_OF_HOST or hosts * gpus > MOST_GPUS:
        raise PhantoraError(
            f"cluster {name!r} is too large: at most {MOST_OF_HOST:,} GPUs per host and {MOST_GPUS:,} in all"
        )
    nvlink = gpu.nvlink_bandwidth > 0
    if nvlink:
        intra = Link(gpu.nvlink_bandwidth, NVLINK_LATENCY_NS)
    else:
        intra = Link(gpu.pcie_bandwidth * builders.PCIE_SHARE, PCIE_LATENCY_NS)
    joined = max(1, gpu.nvlink_domain // gpus)
    wiring = Wiring(
        kind="nvswitch" if nvlink else "pcie",
        nics=gpus,
        gpus_per_pcie_switch=1 if nvlink else 2,
        sockets=2,
        socket_bandwidth=SOCKET_BANDWIDTH,
        nvlink_hosts=joined,
    )
    inter = Link(gpu.nic_bandwidth, NETWORK_LATENCY_NS)
    return Cluster(
        name=name,
        hosts=hosts,
        gpus_per_host=gpus,
        gpu=gpu,
        intra=intra,
        inter=inter,
        host=load_host(gpu.host or DEFAULT_HOST),
        wiring=wiring,
    )


def over_pcie(cluster: Cluster) -> Cluster:
    """`cluster` without NVLink: GPUs of a host meet over PCIe."""
    return cluster.each(
        lambda one: replace(
            one,
            wiring=replace(one.wiring, kind="pcie", nvlink_hosts=1),
            intra=Link(one.gpu.pcie_bandwidth * builders.PCIE_SHARE, PCIE_LATENCY_NS),
        )
    )


# ---------------------------------------------------------------------- cluster files

_KEYS = {"name", "hosts", "gpus_per_host", "gpu", "host", "intra", "inter", "wiring", "fabric", "nccl", "host_memory"}


def _from_file(path: Path) -> Cluster:
    """A file with hosts, gpus_per_host, gpu, and optionally name, host, host_memory, [intra], [inter], [wiring],
    [fabric] and [nccl]; what it leaves out is as in the short form."""
    table, place = toml.read(path), toml.Place(path)
    if "hosts" in table and isinstance(table["hosts"], list):
        return _of_kinds(table, place)
    return _from_table(table, place)


def _from_table(table: dict[str, Any], place: toml.Place) -> Cluster:
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise PhantoraError(
            f"{place / unknown[0]}: unknown key {unknown[0]!r}; a cluster has hosts, gpus_per_host, gpu, and may "
            "have name, host, host_memory, [intra], [inter], [wiring], [fabric] and [nccl]"
        )
    cluster = _make(
        _count(table, "hosts", 1, place),
        _count(table, "gpus_per_host", None, place),
        load_gpu(_text(table, "gpu", None, place, "GPU")),
        str(table.get("name", place.path.stem)),
    )
    cluster = replace(
        cluster, host=_host(table, place, cluster.host.name), wiring=_section(cluster.wiring, table, "wiring", place)
    )
    if "gpus_per_pcie_switch" not in table.get("wiring", {}) and cluster.wiring.kind == "nvswitch":
        shared = math.ceil(cluster.gpus_per_host / max(cluster.wiring.nics, 1))  # GPUs sit next to their NIC
        cluster = replace(cluster, wiring=replace(cluster.wiring, gpus_per_pcie_switch=shared))
    if cluster.wiring.kind == "pcie":
        cluster = over_pcie(cluster)
    cluster = replace(
        cluster,
        intra=_section(cluster.intra, table, "intra", place),
        inter=_section(cluster.inter, table, "inter", place),
        fabric=_section(cluster.fabric, table, "fabric", place),
        nccl=_variables(table, place),
        host_memory=_host_memory(table, place),
    )
    _check(cluster, place, "bandwidth" in table.get("intra", {}))
    return cluster


def _of_kinds(table: dict[str, Any], place: toml.Place) -> Cluster:
    """A file with ``[[hosts]]``: a count and the keys of a cluster of such hosts; [fabric] and [nccl] of all."""
    shared = {key: value for key, value in table.items() if key in ("fabric", "nccl", "host_memory", "gpus_per_host")}
    parts = []
    for index, kind in enumerate(table["hosts"]):
        here = place / "hosts" / index
        if not isinstance(kind, dict) or set(kind) - {"count", *_KEYS}:
            raise PhantoraError(f"{here}: a kind of hosts has count, gpu, gpus_per_host, [intra] and [inter]")
        keys = {key: value for key, value in kind.items() if key != "count"}
        gpu = keys.get("gpu", "hosts")
        parts.append(_from_table({"name": str(gpu), **shared, **keys, "hosts": kind.get("count", 1)}, here))
    return mixed(str(table.get("name", place.path.stem)), parts)


def _text(table: dict[str, Any], key: str, default: str | None, place: toml.Place, what: str) -> str:
    """A name, or the path of a .toml file next to the cluster's."""
    value = table.get(key, default)
    if not isinstance(value, str):
        raise PhantoraError(f"{place / key} must be the name of a {what} or the path of its .toml file")
    return str(place.path.parent / value) if value.endswith(".toml") else value


def _host(table: dict[str, Any], place: toml.Place, default: str) -> HostProfile:
    value = table.get("host", default)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise PhantoraError(f"{place / 'host'} must be {HOST_FORMS}, not {value!r}")
    return load_host(str(place.path.parent / value) if value.endswith(".toml") else value)


def _host_memory(table: dict[str, Any], place: toml.Place) -> int:
    """Bytes of a host; the file gives GiB."""
    value = table.get("host_memory", 0)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1 << 20:
        raise PhantoraError(f"{place / 'host_memory'} must be a number of GiB, not {value!r}")
    return round(value * GIB)


def _variables(table: dict[str, Any], place: toml.Place) -> dict[str, str]:
    """Section [nccl]: environment variables."""
    given = table.get("nccl", {})
    if not isinstance(given, dict):
        raise PhantoraError(f"{place / 'nccl'} must be a table: [nccl]")
    for name, value in given.items():
        if not name.startswith("NCCL_") or not isinstance(value, str):
            raise PhantoraError(f'{place / "nccl" / name}: [nccl] has NCCL\'s variables as text, NCCL_ALGO = "Ring"')
    return dict(given)


def _count(table: dict[str, Any], key: str, default: int | None, place: toml.Place) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PhantoraError(f"{place / key} must be a whole number of at least 1, not {value!r}")
    return value


def _section(default: Any, table: dict[str, Any], key: str, place: toml.Place) -> Any:
    """`default`, a dataclass, with the values of section `key` of the file."""
    given = table.get(key, {})
    if not isinstance(given, dict):
        raise PhantoraError(f"{place / key} must be a table: [{key}]")
    unsaid = {field.name: getattr(default, field.name) for field in fields(default)}
    return toml.build(type(default), {**unsaid, **given}, place / key)


def _check(cluster: Cluster, place: toml.Place, nvlink_given: bool) -> None:
    """Refuses impossible values, with their line. `nvlink_given`: the file gives intra.bandwidth."""
    wiring, fabric = cluster.wiring, cluster.fabric
    for section, key, value, known in (
        ("wiring", "kind", wiring.kind, WIRINGS),
        ("wiring", "cpu", wiring.cpu, CPUS),
        ("fabric", "kind", fabric.kind, tuple(builders.FABRICS)),
        ("fabric", "routing", fabric.routing, ROUTINGS),
    ):
        if value not in known:
            raise PhantoraError(f"{place / section / key} is {value!r}; known: {', '.join(known)}")
    for section, key, number in (
        ("intra", "bandwidth", cluster.intra.bandwidth),
        ("inter", "bandwidth", cluster.inter.bandwidth),
        ("wiring", "socket_bandwidth", wiring.socket_bandwidth),
    ):
        if number <= 0:
            raise PhantoraError(f"{place / section / key} must be positive, in bytes/s per direction")
    for section, key, least in (
        ("wiring", "nics", 1),
        ("wiring", "gpus_per_pcie_switch", 1),
        ("wiring", "sockets", 1),
        ("wiring", "nvlink_hosts", 1),
        ("fabric", "leaves_per_pod", 1),
        ("fabric", "oversubscription", 1),
    ):
        if getattr(wiring if section == "wiring" else fabric, key) < least:
            raise PhantoraError(f"{place / section / key} must be at least {least}")
    if wiring.nics > cluster.gpus_per_host:
        raise PhantoraError(
            f"{place / 'wiring' / 'nics'}: {wiring.nics} NICs for {cluster.gpus_per_host} GPUs; NICs of one GPU "
            "count as one, with the sum of their rates as inter.bandwidth"
        )
    if wiring.nvlink_hosts > 1 and (wiring.kind != "nvswitch" or fabric.kind == "graph"):
        raise PhantoraError(
            f"{place / 'wiring' / 'nvlink_hosts'}: NVLink joins hosts through switches only: give wiring.kind "
            "'nvswitch' and a fabric of another kind than 'graph'"
        )
    if wiring.kind != "pcie" and cluster.gpu.nvlink_bandwidth <= 0 and not nvlink_given:
        raise PhantoraError(
            f"{place / 'wiring' / 'kind'} is {wiring.kind!r} but {cluster.gpu.name} has no NVLink of its own: "
            "give intra.bandwidth, bytes/s per direction of a GPU's NVLink"
        )
    if (fabric.kind == "graph") != bool(fabric.links):
        raise PhantoraError(f"{place / 'fabric' / 'links'}: a fabric has links if, and only if, its kind is 'graph'")
    for index, link in enumerate(fabric.links):
        here = place / "fabric" / "links" / index
        if link.bandwidth <= 0:
            raise PhantoraError(f"{here / 'bandwidth'} must be positive, in bytes/s per direction")
        for end in link.ends:
            host, _, nic = end.partition(".nic")
            known_nic = host[1:].isdigit() and nic.isdigit()
            if is_nic(end) and (not known_nic or int(host[1:]) >= cluster.hosts or int(nic) >= wiring.nics):
                raise PhantoraError(
                    f"{here / 'ends'}: there is no {end}; NICs are h0.nic0 to h{cluster.hosts - 1}.nic{wiring.nics - 1}"
                )
    try:
        check_reachable(builders.build(cluster))
    except PhantoraError as error:
        raise PhantoraError(f"{place / 'fabric'}: {error}") from None


def check_reachable(topology: Topology) -> None:
    """Raises PhantoraError unless every GPU reaches every other, by way of one GPU per NIC."""
    first = {topology.nic_of.index(nic) for nic in topology.nic_of}
    width = len(topology.nic_of)
    for gpu in range(1, width):
        topology.route(0, gpu)
        topology.route(gpu, 0)
    if topology.hosts > 1:
        for gpu in range(len(topology.gpus)):
            if gpu % width in first:
                far = gpu % width + (width if gpu < width else 0)  # the same rail, where it crosses hosts
                topology.route(gpu, far)
                topology.route(far, gpu)
