"""The ``NCCL_*`` environment variables: those that change what is simulated, and those that do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phantora.errors import PhantoraError

_FUNCTIONS = {
    "broadcast": "BROADCAST",
    "reduce": "REDUCE",
    "allgather": "ALL_GATHER",
    "reducescatter": "REDUCE_SCATTER",
    "allreduce": "ALL_REDUCE",
}
_ALGORITHMS = {
    "tree": "TREE",
    "ring": "RING",
    "nvls": "NVLS",
    "nvlstree": "NVLS_TREE",
    "collnetdirect": "",
    "collnetchain": "",
    "collnet": "",
    "pat": "PAT",
}
_PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "SIMPLE"}

# What NCCL does with these has no place in a simulation, or no effect on time. Not worth a word.
_WITHOUT_EFFECT = (
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_CONF_FILE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_HOSTID",
    "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_SOCKET_FAMILY",
    "NCCL_VERSION",
    "NCCL_HOME",
    "NCCL_ROOT",
    "NCCL_INCLUDE_DIR",
    "NCCL_LIB_DIR",
    "NCCL_TIMEOUT",
)
_WHY_IGNORED = {
    "NCCL_SOCKET_IFNAME": "the cluster says which network carries the traffic",
    "NCCL_IB_DISABLE": "sockets are not simulated: NICs keep the rate that the cluster gives them",
    "NCCL_NET": "the cluster says which network carries the traffic",
    "NCCL_NET_PLUGIN": "the cluster says which network carries the traffic",
    "NCCL_CROSS_NIC": "rings keep to their rail in any case",
    "NCCL_COLLNET_ENABLE": "reduction in InfiniBand switches is not simulated",
    "NCCL_TOPO_FILE": "the cluster says how hosts are wired",
    "NCCL_GRAPH_FILE": "rings follow the cluster's wiring",
    "NCCL_TUNER_PLUGIN": "plug-ins are not loaded",
}


@dataclass(frozen=True, kw_only=True)
class NcclEnvironment:
    """Settings by NCCL's environment variables. Without any: NCCL's defaults."""

    algorithms: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """NCCL_ALGO: by name of ``wire.layout.Coll`` the algorithms that remain; absent: all."""
    protocols: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """NCCL_PROTO: by name of ``wire.layout.Coll`` the protocols that remain; absent: all."""
    min_channels: int = 0
    max_channels: int = 0
    """NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS (or _CTAS); 0: NCCL's own."""
    p2p_disabled: bool = False
    """NCCL_P2P_DISABLE: GPUs of a host meet in its memory, over PCIe."""
    nvls: bool = True
    """NCCL_NVLS_ENABLE."""
    pxn: bool = True
    """NCCL_PXN_DISABLE."""
    buffer_bytes: int = 4 << 20
    """NCCL_BUFFSIZE, of a channel."""
    nics: tuple[int, ...] | None = None
    """NCCL_IB_HCA: the NICs, by number on their host, that NCCL may use; None: all."""
    honoured: Mapping[str, str] = field(default_factory=dict)
    """Variables that were taken account of, with their values."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Variables that change nothing here although they would change something in NCCL, and why."""

    def allows(self, collective: str, algorithm: str, protocol: str) -> bool:
        """True if NCCL may take `algorithm` with `protocol` for `collective`."""
        algorithms, protocols = self.algorithms.get(collective), self.protocols.get(collective)
        return (algorithms is None or algorithm in algorithms) and (protocols is None or protocol in protocols)

    def protocol_asked(self, collective: str, protocol: str) -> bool:
        """Was `protocol` asked for by name? NCCL then takes it where it would not of itself."""
        return protocol in self.protocols.get(collective, ())

    @classmethod
    def read(cls, variables: Mapping[str, str], nics: int = 0) -> NcclEnvironment:
        """Reads environment `variables`; `nics` is the number of NICs of a host.

        Raises PhantoraError for a value that NCCL would refuse.
        """
        found = {name: value.strip() for name, value in sorted(variables.items()) if name.startswith("NCCL_")}
        honoured: dict[str, str] = {}

        def take(*names: str) -> str:
            for name in names:
                if found.get(name):
                    honoured[name] = found[name]
                    return found[name]
            return ""

        def number(default: int, *names: str) -> int:
            text = take(*names)
            if not text:
                return default
            try:
                return int(text, 0)
            except ValueError:
                name = next(name for name in names if found.get(name))
                raise PhantoraError(f"{name}={text}: not a whole number") from None

        ignored: dict[str, str] = {}
        names = _hca_numbers(take("NCCL_IB_HCA"), nics) if nics else None
        if names == ():
            ignored["NCCL_IB_HCA"] = f"names none of mlx5_0 to mlx5_{nics - 1}, as the {nics} NICs of a host are called"
            honoured.pop("NCCL_IB_HCA")
        made = cls(
            algorithms=_choice("NCCL_ALGO", take("NCCL_ALGO"), _ALGORITHMS),
            protocols=_choice("NCCL_PROTO", take("NCCL_PROTO"), _PROTOCOLS),
            min_channels=number(0, "NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NRINGS"),
            max_channels=number(0, "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS"),
            p2p_disabled=number(0, "NCCL_P2P_DISABLE") != 0,
            nvls=number(2, "NCCL_NVLS_ENABLE") != 0,
            pxn=number(0, "NCCL_PXN_DISABLE") == 0,
            buffer_bytes=number(4 << 20, "NCCL_BUFFSIZE") or 4 << 20,
            nics=names or None,
            honoured=honoured,
        )
        for name in found:
            if name not in honoured and name not in _WITHOUT_EFFECT and found[name]:
                ignored.setdefault(name, _WHY_IGNORED.get(name, "not simulated"))
        object.__setattr__(made, "ignored", ignored)
        return made


def _choice(variable: str, text: str, known: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """NCCL's lists: ``ring,tree``, ``^tree``, ``allreduce:tree;allgather:ring``."""
    chosen: dict[str, frozenset[str]] = {}
    for part in filter(None, text.split(";")):
        function, colon, names = part.rpartition(":")
        functions = list(_FUNCTIONS.values())
        if colon:
            if function.strip().lower() not in _FUNCTIONS:
                raise PhantoraError(f"{variable}={text}: no collective {function!r}; known: {', '.join(_FUNCTIONS)}")
            functions = [_FUNCTIONS[function.strip().lower()]]
        names = names.strip()
        inverse, names = names.startswith("^"), names.removeprefix("^")
        listed: set[str] = set()
        for name in filter(None, (item.strip().lower().replace("_", "") for item in names.split(","))):
            if name not in known:
                raise PhantoraError(f"{variable}={text}: no {name!r}; known: {', '.join(known)}")
            listed.add(known[name])
        rest = frozenset(known.values()) - listed if inverse else frozenset(listed)
        chosen.update(dict.fromkeys(functions, rest - {""}))
    if "ALL_REDUCE" in chosen:
        chosen["BARRIER"] = chosen["ALL_REDUCE"]
    return chosen


def _hca_numbers(text: str, nics: int) -> tuple[int, ...] | None:
    """Numbers of the NICs that ``NCCL_IB_HCA`` leaves: ``mlx5_0,mlx5_1:1``, ``=mlx5_1``, ``^mlx5_3``."""
    if not text:
        return None
    exclude = text.startswith("^")
    names = [item.split(":")[0].strip() for item in text.lstrip("^=").split(",") if item.strip()]
    exact = "=" in text[:2]
    matched = {
        nic
        for nic in range(nics)
        for name in names
        if (name == f"mlx5_{nic}" if exact else f"mlx5_{nic}".startswith(name))
    }
    return tuple(nic for nic in range(nics) if (nic in matched) != exclude)
