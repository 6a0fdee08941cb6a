"""The command line of the simulated host's nvidia-smi."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from phantora.errors import PhantoraError
from phantora.rank.smi.fields import Field, application_field, gpu_field
from phantora.rank.smi.nvml import Device, Nvml, NvmlError, Process
from phantora.rank.smi.summary import summary
from phantora.spec import rank_spec

INVALID, REFUSED, NOT_FOUND, NO_DRIVER = 2, 3, 6, 9  # as NVIDIA numbers what nvidia-smi returns
_FORMS = (
    "the summary, -L, --query-gpu=FIELDS and --query-compute-apps=FIELDS with --format=csv[,noheader][,nounits], -i ID"
)


class Stop(Exception):
    """Ends it with a message and a status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Request:
    """A command line."""

    values: dict[str, str] = field(default_factory=dict)
    """Values by long name: id, query-gpu, query-compute-apps, format."""
    list_gpus: bool = False


_VALUES = {"-i": "id", "--id": "id", "--query-gpu": "query-gpu", "--format": "format"}
_VALUES |= {"--query-compute-apps": "query-compute-apps"}


def parse(arguments: Sequence[str]) -> Request:
    """The command line; raises Stop for what is not simulated."""
    request, left = Request(), list(arguments)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name in ("-L", "--list-gpus") and not equals:
            request.list_gpus = True
        elif name in ("-h", "--help"):
            raise Stop(f"nvidia-smi of a simulated host: {_FORMS}", 0)
        elif name in _VALUES:
            if not equals and not left:
                raise Stop(f"Option {name} needs a value.", INVALID)
            request.values[_VALUES[name]] = value if equals else left.pop(0)
        else:
            raise Stop(f"{name} is not simulated; what is: {_FORMS}", REFUSED)
    if {"query-gpu", "query-compute-apps"} & request.values.keys():
        form = request.values.get("format", "").split(",")
        if "csv" not in form or not set(form) <= {"csv", "noheader", "nounits"}:
            raise Stop("a query needs --format=csv[,noheader][,nounits]", INVALID)
    return request


def chosen(devices: Sequence[Device], ids: str | None) -> list[Device]:
    """The devices that ``-i`` names: by number, UUID or bus."""
    if ids is None:
        return list(devices)
    found = []
    for one in ids.split(","):
        # A bus by its end: 0000:19:00.0, or 19:00.0.
        bus = one.upper() if ":" in one else None
        named = [
            device
            for device in devices
            if one in (str(device.index), device.uuid) or (bus and device.bus_id.endswith(bus))
        ]
        if not named:
            raise Stop("No devices were found", NOT_FOUND)
        found += named
    return found


def table(
    names: str,
    lookup: Callable[[str], tuple[str, Field] | None],
    subjects: Sequence[tuple[Device, Process | None]],
    form: Sequence[str],
) -> list[str]:
    """Lines of CSV, as nvidia-smi separates them; raises Stop for a name that is no field."""
    columns = []
    for name in names.split(","):
        known = lookup(name.strip())
        if known is None:
            raise Stop(f'Field "{name.strip()}" is not a valid field to query.', INVALID)
        columns.append(known)
    lines = []
    if "noheader" not in form:
        lines.append(", ".join(f"{title} [{column.unit}]" if column.unit else title for title, column in columns))
    for device, process in subjects:
        cells = []
        for _, column in columns:
            value = column.read(device, process)
            unit = f" {column.unit}" if column.unit and "nounits" not in form else ""
            cells.append("[N/A]" if value is None else f"{value}{unit}")
        lines.append(", ".join(cells))
    return lines


def answer(nvml: Nvml, request: Request) -> str:
    """The printed text."""
    devices = chosen(nvml.devices(), request.values.get("id"))
    form = request.values.get("format", "").split(",")
    if request.list_gpus:
        return "\n".join(f"GPU {device.index}: {device.name} (UUID: {device.uuid})" for device in devices)
    if "query-gpu" in request.values:
        return "\n".join(table(request.values["query-gpu"], gpu_field, [(device, None) for device in devices], form))
    if "query-compute-apps" in request.values:
        subjects = [(device, process) for device in devices for process in device.processes()]
        return "\n".join(table(request.values["query-compute-apps"], application_field, subjects, form))
    return summary(nvml, devices)


def open_nvml() -> Nvml:
    """The stub of NVML in this process, which sees the simulated host's GPUs. Raises PhantoraError, NvmlError."""
    from phantora.rank.hook import attach, open_session
    from phantora.rank.stub_loader import find_stubs
    from phantora.stubs import load

    stub_set = find_stubs(rank_spec().stubs)
    attach(load(stub_set), open_session(), may_join=False)
    return Nvml(ctypes.CDLL(next(str(path) for path in stub_set.libraries if path.name.startswith("libnvidia-ml."))))


def main(arguments: Sequence[str]) -> int:
    """Prints what was asked for; the status."""
    try:
        request = parse(arguments)
        print(answer(open_nvml(), request))
    except Stop as stop:
        print(f"nvidia-smi (phantora): {stop}", file=sys.stderr if stop.status else sys.stdout)
        return stop.status
    except NvmlError as error:
        print(f"nvidia-smi (phantora): {error}", file=sys.stderr)
        return NO_DRIVER
    except PhantoraError as error:
        print(f"nvidia-smi (phantora): {error}", file=sys.stderr)
        return error.exit_status
    return 0
