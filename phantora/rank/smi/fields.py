"""Fields of a GPU and of a process: those of ``--query-gpu`` and ``--query-compute-apps``.

Names and units are those of ``nvidia-smi --help-query-gpu``. What the simulation has no model of
(temperature, utilisation) NVML's stub calls "not supported": nvidia-smi then writes ``[N/A]``, as for a board
without a sensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from phantora.rank.smi.nvml import Device, Process
from phantora.units import MIB

GRAPHICS, SM, MEMORY, VIDEO = range(4)  # nvmlClockType_t
Value = str | int | None


@dataclass(frozen=True)
class Field:
    """A column. `read` gives the value for a subject, None where it is not supported."""

    read: Callable[[Device, Process | None], Value]
    unit: str = ""


def _text(what: str) -> Field:
    return Field(lambda device, _: device.text(what))


def _number(what: str, unit: str = "", *arguments: int) -> Field:
    return Field(lambda device, _: device.number(what, *arguments), unit)


def _of(read: Callable[[Device], Value], unit: str = "") -> Field:
    return Field(lambda device, _: read(device), unit)


def _memory(part: str) -> Field:
    return _of(lambda device: getattr(device.memory(), part) // MIB, "MiB")


def _hexadecimal(part: str, digits: int) -> Field:
    return _of(lambda device: f"0x{getattr(device.pci(), part):0{digits}X}")


def _enabled(what: str) -> Field:
    return _of(lambda device: "Enabled" if device.number(what) else "Disabled")


def _power(what: str) -> Field:
    def read(device: Device) -> str | None:
        milliwatts = device.number(what)
        return None if milliwatts is None else f"{milliwatts / 1e3:.2f}"

    return _of(read, "W")


def _system(what: str) -> Field:
    return _of(lambda device: device.nvml.text(f"nvmlSystemGet{what}"))


def _now(_: Device) -> str:
    return datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]


def _capability(device: Device) -> str:
    major, minor = device.pair("CudaComputeCapability")
    return f"{major}.{minor}"


_UNKNOWN = _of(lambda device: None)


def _unknown(unit: str = "") -> Field:
    return _of(lambda device: None, unit)


def _clocks(kind: str, call: str) -> dict[str, Field]:
    parts = {"graphics": GRAPHICS, "sm": SM, "memory": MEMORY, "video": VIDEO}
    return {f"clocks.{kind}.{part}": _number(call, "MHz", number) for part, number in parts.items()}


_GPU: dict[str, Field] = {
    "timestamp": _of(_now),
    "driver_version": _system("DriverVersion"),
    "count": _of(lambda device: len(device.nvml.devices())),
    "name": _text("Name"),
    "serial": _UNKNOWN,
    "uuid": _text("UUID"),
    "index": _number("Index"),
    "pci.bus_id": _of(lambda device: device.bus_id),
    "pci.domain": _hexadecimal("domain", 4),
    "pci.bus": _hexadecimal("bus", 2),
    "pci.device": _hexadecimal("device", 2),
    "pci.device_id": _hexadecimal("id", 8),
    "pci.sub_device_id": _hexadecimal("sub_id", 8),
    "pcie.link.gen.current": _number("CurrPcieLinkGeneration"),
    "pcie.link.gen.max": _number("MaxPcieLinkGeneration"),
    "pcie.link.width.current": _number("CurrPcieLinkWidth"),
    "pcie.link.width.max": _number("MaxPcieLinkWidth"),
    "compute_cap": _of(_capability),
    "compute_mode": _of(lambda device: "Default" if device.number("ComputeMode") == 0 else None),
    "persistence_mode": _enabled("PersistenceMode"),
    "mig.mode.current": _of(lambda device: "Enabled" if device.pair("MigMode")[0] else "Disabled"),
    "mig.mode.pending": _of(lambda device: "Enabled" if device.pair("MigMode")[1] else "Disabled"),
    "pstate": _of(lambda device: f"P{device.number('PerformanceState')}"),
    "memory.total": _memory("total"),
    "memory.reserved": _of(lambda device: 0, "MiB"),
    "memory.used": _memory("used"),
    "memory.free": _memory("free"),
    **_clocks("current", "ClockInfo"),
    **_clocks("max", "MaxClockInfo"),
    **{f"utilization.{part}": _unknown("%") for part in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")},
    **{f"temperature.{part}": _UNKNOWN for part in ("gpu", "memory", "gpu.tlimit")},
    "fan.speed": _unknown("%"),
    **{f"power.{part}": _power("PowerUsage") for part in ("draw", "draw.average", "draw.instant")},
    **{f"power.{part}": _unknown("W") for part in ("min_limit", "max_limit")},
    "power.limit": _power("PowerManagementLimit"),
    "power.default_limit": _power("PowerManagementDefaultLimit"),
    "enforced.power.limit": _power("EnforcedPowerLimit"),
    "power.management": _enabled("PowerManagementMode"),
    **dict.fromkeys(("display_mode", "display_active", "vbios_version", "accounting.mode"), _UNKNOWN),
    **dict.fromkeys(("ecc.mode.current", "ecc.mode.pending"), _UNKNOWN),
}
_SHORT = {
    "gpu_name": "name",
    "gpu_serial": "serial",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
    "pcie.link.gen.gpucurrent": "pcie.link.gen.current",
}


def _of_process(read: Callable[[Process], Value], unit: str = "") -> Field:
    return Field(lambda _, process: None if process is None else read(process), unit)


def _command(process: Process) -> str | None:
    try:
        return os.readlink(f"/proc/{process.pid}/exe")
    except OSError:  # another user's, or it has ended
        return None


_APPLICATION: dict[str, Field] = {
    "timestamp": _of(_now),
    "gpu_name": _text("Name"),
    "gpu_bus_id": _of(lambda device: device.bus_id),
    "gpu_serial": _UNKNOWN,
    "gpu_uuid": _text("UUID"),
    "pid": _of_process(lambda process: int(process.pid)),
    "process_name": _of_process(_command),
    "used_gpu_memory": _of_process(lambda process: int(process.used) // MIB, "MiB"),
}


def _lookup(table: Mapping[str, Field], short: Mapping[str, str], name: str) -> tuple[str, Field] | None:
    title = short.get(name, name)
    return (title, table[title]) if title in table else None


gpu_field = partial(_lookup, _GPU, _SHORT)
"""A field of ``--query-gpu`` with its title; None for a name that is no field."""
application_field = partial(_lookup, _APPLICATION, {"name": "process_name", "used_memory": "used_gpu_memory"})
"""A field of ``--query-compute-apps`` with its title; None for a name that is no field."""
process_name = _command
