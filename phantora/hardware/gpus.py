"""The built-in GPUs: ``data/gpus/*.toml``."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.extensions import extensions
from phantora.hardware import toml
from phantora.hardware.types import Calibration, CommunicationSlowdown, Gpu, Interference, Power

DATA = Path(__file__).parent / "data"
_OF = "of"  # the key of [calibration] for the GPU whose values fill in the missing ones
# Tables that a GPU without a calibration of its own takes over with it.
_MEASURED: dict[str, type[Any]] = {
    "interference": Interference,
    "communication_slowdown": CommunicationSlowdown,
    "power": Power,
}


@cache
def _tables() -> dict[str, tuple[Path, dict[str, Any]]]:
    """Data files by the canonical name of the GPU."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    folders = [DATA / "gpus", *(Path(folder) for folder in extensions("phantora.gpus"))]
    for path in (path for folder in folders for path in sorted(folder.glob("*.toml"))):
        table = toml.read(path)
        found[str(table.get("name", path.stem))] = (path, table)
    return found


def gpu_names() -> list[str]:
    """Canonical names, sorted."""
    return sorted(_tables())


def is_gpu(name: str) -> bool:
    """True for the name of a GPU of the package, in any spelling that is read."""
    return _key(name) in _index()


def _key(name: str) -> str:
    return name.strip().upper().replace("_", "-").replace(" ", "-")


@cache
def _index() -> dict[str, str]:
    index: dict[str, str] = {}
    for name, (_, table) in _tables().items():
        for alias in (name, *table.get("aliases", ()), str(table.get("product", name))):
            index[_key(alias)] = name
    return index


_OTHER_MAKER = re.compile(r"mi\d{2,3}[a-z]?|gaudi|tpu|trn|trainium|inferentia", re.IGNORECASE)
_OTHER_SIZE = 1.05
_MISSPELT = 0.8  # of difflib: another model of the same generation is no misspelling


def memory_chosen(name: str) -> str:
    """The GPU that `name` stands for where GPUs of that name differ in memory, as ``A100`` of 40 and 80 GB; else ""."""
    canonical = _index().get(_key(name))
    identical = {_tables()[known][1]["memory_bytes"] for known in _tables() if known.startswith(_key(name) + "-")}
    return canonical if canonical and max(identical, default=0) > _OTHER_SIZE * min(identical, default=0) else ""


@cache
def load_gpu(name: str) -> Gpu:
    """The GPU called `name`: canonical name, alias or product name in any case, or a ``.toml`` path."""
    if name.endswith(".toml"):
        path = Path(name)
        return _build(path, toml.read(path))
    canonical = _index().get(_key(name))
    if canonical is None:
        if _OTHER_MAKER.match(_key(name)):
            raise PhantoraError(
                f"{name} is no NVIDIA GPU. Phantora simulates CUDA programs: choose one of {', '.join(gpu_names())}."
            )
        near = difflib.get_close_matches(_key(name), _index(), n=3, cutoff=_MISSPELT)
        hint = f"; did you mean {' or '.join(dict.fromkeys(_index()[key] for key in near))}?" if near else "."
        raise PhantoraError(
            f"unknown GPU {name!r}{hint} Known: {', '.join(gpu_names())}. "
            "Another GPU can be described in a .toml file of the same form and given by its path."
        )
    return _build(*_tables()[canonical])


def _build(path: Path, table: dict[str, Any]) -> Gpu:
    table = dict(table)
    calibration = table.get("calibration")
    table["calibrated_on"], table["calibrated_clock_khz"] = str(table.get("name", path.stem)), table.get("clock_khz", 0)
    own = dict(calibration) if isinstance(calibration, dict) else {_OF: calibration}
    if _OF not in own:
        table["calibration"] = own
    else:
        reference = _calibration_source(path, own.pop(_OF))
        table["calibration"] = reference["calibration"] | own
        table["calibrated_on"], table["calibrated_clock_khz"] = reference["name"], reference["clock_khz"]
        for key in _MEASURED:
            table.setdefault(key, reference[key])
    where = toml.Place(path)
    for key in _MEASURED:
        if not isinstance(table.get(key, {}), dict):
            raise PhantoraError(f"{where}: {key} must be a table like [{key}] of data/gpus/h200-sxm.toml")
    if not isinstance(table["calibration"], dict):
        raise PhantoraError(f"{where}: calibration must be a table or the name of a GPU that has one")
    built = {
        "calibration": toml.build(Calibration, table["calibration"], where / "calibration"),
        **{key: toml.build(cls, table.get(key, {}), where / key) for key, cls in _MEASURED.items()},
    }
    gpu = toml.build(Gpu, {**table, **built}, where)
    for required in ("bfloat16", "float16", "float32", "float64"):
        if gpu.peak_flops.get(required, 0.0) <= 0:
            raise PhantoraError(f"{where / 'peak_flops'}.{required} is missing; give the dense FLOP/s of the datasheet")
    return limited(gpu, gpu.limit_watts, str(where / "limit_watts")) if gpu.limit_watts else gpu


def limited(gpu: Gpu, watts: float, where: str) -> Gpu:
    """The GPU with a limit of its power; `where` it was given, for messages. Raises PhantoraError."""
    idle = gpu.power.idle * gpu.power_watts
    if watts <= idle:
        raise PhantoraError(f"{where} is {watts:g}, and {gpu.name} idles at {idle:.0f} W; give a limit above that")
    if watts > gpu.power_watts:
        raise PhantoraError(f"{where} is {watts:g}, and {gpu.name} takes {gpu.power_watts} W at most")
    return replace(gpu, limit_watts=watts)


def _calibration_source(path: Path, name: Any) -> dict[str, Any]:
    found = _tables().get(_index().get(_key(str(name)), "")) if isinstance(name, str) else None
    if found is None or not isinstance(found[1].get("calibration"), dict) or _OF in found[1]["calibration"]:
        raise PhantoraError(
            f"{path}: calibration must be a table, or the name of a GPU that has one (H200-SXM), not {name!r}"
        )
    return found[1]


def device_fields(gpu: Gpu) -> dict[str, int | bytes]:
    """Values for ``wire.layout.Device``."""
    fit = gpu.calibration
    return {
        "name": gpu.product.encode(),
        "major": gpu.compute_capability[0],
        "minor": gpu.compute_capability[1],
        "sms": gpu.sms,
        "max_threads_per_sm": gpu.max_threads_per_sm,
        "regs_per_sm": gpu.regs_per_sm,
        "max_blocks_per_sm": gpu.max_blocks_per_sm,
        "smem_per_sm": gpu.smem_per_sm,
        "smem_per_block_optin": gpu.smem_per_block_optin,
        "clock_khz": gpu.clock_khz,
        "memory_clock_khz": gpu.memory_clock_khz,
        "bus_width": gpu.bus_width,
        "l2_bytes": gpu.l2_bytes,
        "persisting_l2_bytes": gpu.persisting_l2_bytes,
        "nvlink": int(gpu.nvlink_bandwidth > 0),
        "memory_bytes": gpu.memory_bytes,
        "context_bytes": gpu.context_bytes,
        "spare_bytes": gpu.spare_bytes,
        "nccl_bytes_per_comm": gpu.nccl_bytes_per_comm,
        "nccl_channels": fit.nccl_channels if gpu.nvlink_bandwidth > 0 else fit.nccl_pcie_channels,
        "nccl_peer_channels": fit.nccl_peer_channels,
        "nccl_connection_bytes": fit.nccl_connection_bytes,
        "nccl_kernel_bytes": fit.nccl_kernel_bytes,
        "nccl_send_bytes": fit.nccl_send_bytes,
        "cublas_bytes": fit.cublas_bytes,
        "cudnn_bytes": fit.cudnn_bytes,
        "idle_mw": round(1e3 * gpu.power.resting * gpu.power_watts),
        "limit_mw": round(1e3 * (gpu.limit_watts or gpu.power_watts)),
        "default_limit_mw": 1000 * gpu.power_watts,
    }
