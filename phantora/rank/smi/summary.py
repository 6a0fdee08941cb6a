"""The table that nvidia-smi prints without arguments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from phantora.rank.smi.fields import process_name
from phantora.rank.smi.nvml import Device, Nvml
from phantora.units import MIB

_WIDTHS = (41, 24, 22)
_WHOLE = sum(_WIDTHS) + 2


def _line(fill: str, joint: str, ends: str = "+") -> str:
    return ends + joint.join(fill * width for width in _WIDTHS) + ends


def _row(*cells: str) -> str:
    return "|" + "|".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)) + "|"


def _wide(text: str) -> str:
    return f"|{text:<{_WHOLE}}|"


def _device(device: Device) -> list[str]:
    memory = device.memory()
    on = "On" if device.number("PersistenceMode") else "Off"
    name = device.name if len(device.name) <= 24 else device.name[:21] + "..."
    watts = [(device.number(what) or 0) // 1000 for what in ("PowerUsage", "EnforcedPowerLimit")]
    power = f"{watts[0]:4}W / {watts[1]:4}W"
    mig = "Enabled" if device.pair("MigMode")[0] else "Disabled"
    return [
        _row(f" {device.index:>3}  {name:<24} {on:>9} ", f"{device.bus_id:>19} N/A ", f"{'N/A':>21} "),
        _row(
            f" N/A   N/A    P{device.number('PerformanceState')}{power:>23} ",
            f"{f'{memory.used // MIB}MiB / {memory.total // MIB:>6}MiB':>23} ",
            f"{'N/A':>8}{'Default':>13} ",
        ),
        _row("", "", f"{mig:>21} "),
        _line("-", "+"),
    ]


def _processes(devices: Sequence[Device]) -> list[str]:
    rows = [
        _wide(
            f" {device.index:>3}   N/A  N/A {process.pid:>16}      C   {(process_name(process) or '[N/A]')[-28:]:<28}"
            f"{f'{process.used // MIB}MiB':>18} "
        )
        for device in devices
        for process in device.processes()
    ]
    return rows or [_wide("  No running processes found")]


def summary(nvml: Nvml, devices: Sequence[Device]) -> str:
    """The whole table."""
    driver = nvml.text("nvmlSystemGetDriverVersion")
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2") or 0
    version = f"{cuda // 1000}.{cuda % 1000 // 10}"
    edge = "+" + "-" * _WHOLE + "+"
    lines = [
        datetime.now().strftime("%a %b %e %H:%M:%S %Y"),
        edge,
        _wide(f" NVIDIA-SMI {driver:<20} Driver Version: {driver:<14} CUDA Version: {version}"),
        _line("-", "+"),
        _row(" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A ", " Volatile Uncorr. ECC "),
        _row(" Fan  Temp   Perf          Pwr:Usage/Cap ", "           Memory-Usage ", " GPU-Util  Compute M. "),
        _row("", "", f"{'MIG M.':>21} "),
        _line("=", "+", "|"),
        *(line for device in devices for line in _device(device)),
        "",
        edge,
        _wide(" Processes:"),
        _wide(f"  GPU   GI   CI {'PID':>16}   Type   {'Process name':<28}{'GPU Memory':>18} "),
        _wide(f"        ID   ID{'Usage':>{_WHOLE - 16}} "),
        "|" + "=" * _WHOLE + "|",
        *_processes(devices),
        edge,
    ]
    return "\n".join(lines)
