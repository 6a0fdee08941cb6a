"""The calls of the management library that nvidia-smi makes, by ctypes; None for what NVML does not support."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, TypeVar

_SUCCESS, _NOT_SUPPORTED = 0, 3
_TEXT = 96
_T = TypeVar("_T", bound="ctypes._CData | Structure")


class NvmlError(Exception):
    """NVML's own words."""


class Memory(Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Pci(Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("id", c_uint),
        ("sub_id", c_uint),
        ("bus_id", c_char * 32),
    )


class Process(Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu", c_uint), ("compute", c_uint))


class Nvml:
    """The library, begun."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvmlErrorString.restype = c_char_p
        self._check(library.nvmlInit_v2())

    def _check(self, code: int) -> bool:
        """False: not supported. Raises NvmlError for anything else that is no success."""
        if code not in (_SUCCESS, _NOT_SUPPORTED):
            raise NvmlError(self._library.nvmlErrorString(c_int(code)).decode())
        return code == _SUCCESS

    def text(self, name: str, *arguments: Any) -> str | None:
        """Text that a call writes into a buffer of given size."""
        buffer = ctypes.create_string_buffer(_TEXT)
        done = self._check(getattr(self._library, name)(*arguments, buffer, c_uint(_TEXT)))
        return buffer.value.decode() if done else None

    def number(self, name: str, *arguments: Any) -> int | None:
        """Unsigned int that a call writes through its last pointer."""
        value = c_uint()
        return value.value if self._check(getattr(self._library, name)(*arguments, byref(value))) else None

    def structure(self, name: str, of: type[_T], device: Device) -> _T:
        """Structure that a call writes."""
        value = of()
        self._check(getattr(self._library, name)(device.handle, byref(value)))
        return value

    def devices(self) -> list[Device]:
        """The GPUs of the host."""
        return [Device(self, index) for index in range(self.number("nvmlDeviceGetCount_v2") or 0)]


class Device:
    """A GPU by its host's number."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.nvml, self.index, self.handle = nvml, index, c_void_p()
        nvml._check(nvml._library.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(self.handle)))
        self.name = self.text("Name") or ""
        self.uuid = self.text("UUID") or ""
        self.bus_id = self.pci().bus_id.decode()

    def text(self, what: str) -> str | None:
        """nvmlDeviceGetWHAT, of a text."""
        return self.nvml.text(f"nvmlDeviceGet{what}", self.handle)

    def number(self, what: str, *arguments: int) -> int | None:
        """nvmlDeviceGetWHAT, of a number."""
        return self.nvml.number(f"nvmlDeviceGet{what}", self.handle, *map(c_uint, arguments))

    def pair(self, what: str) -> tuple[int, int]:
        """nvmlDeviceGetWHAT, of two numbers."""
        first, second = c_int(), c_int()
        self.nvml._check(getattr(self.nvml._library, f"nvmlDeviceGet{what}")(self.handle, byref(first), byref(second)))
        return first.value, second.value

    def memory(self) -> Memory:
        """Memory in bytes."""
        return self.nvml.structure("nvmlDeviceGetMemoryInfo", Memory, self)

    def pci(self) -> Pci:
        """Place on the PCI bus."""
        return self.nvml.structure("nvmlDeviceGetPciInfo_v3", Pci, self)

    def processes(self) -> list[Process]:
        """The ranks that have it."""
        count, found = c_uint(8), (Process * 8)()
        call: Callable[..., int] = self.nvml._library.nvmlDeviceGetComputeRunningProcesses_v3
        call.argtypes = (c_void_p, POINTER(c_uint), c_void_p)  # type: ignore[attr-defined]
        self.nvml._check(call(self.handle, byref(count), found))
        return list(found[: count.value])
