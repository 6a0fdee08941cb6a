"""Tools of the cases of semantics.py: CUDA's structures, the two libraries with a few shorthands, a kernel."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

H2D, D2H, D2D, DEFAULT = 1, 2, 3, 4
LEGACY, PER_THREAD = 1, 2


class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class Pointer(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("device", c_int),
        ("device_pointer", c_void_p),
        ("host_pointer", c_void_p),
        ("reserved", ctypes.c_long * 8),
    ]


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDesc(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class FuncAttributes(ctypes.Structure):
    _fields_ = (
        [("shared", c_size_t), ("const", c_size_t), ("local", c_size_t)]
        + [
            (name, c_int)
            for name in (
                "max_threads",
                "regs",
                "ptx",
                "binary",
                "cache",
                "max_dynamic",
                "carveout",
                "cluster_must",
                "cw",
                "ch",
                "cd",
                "policy",
                "nonportable",
            )
        ]
        + [("reserved", c_int * 16)]
    )


class Attribute(ctypes.Structure):
    _fields_ = [("id", c_int), ("pad", ctypes.c_char * 4), ("value", c_int * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", Dim3),
        ("block", Dim3),
        ("shared", c_size_t),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", c_uint),
    ]


class Cuda:
    """The two libraries with a few shorthands."""

    def __init__(self, runtime: ctypes.CDLL, driver: ctypes.CDLL, kernel: int) -> None:
        self.rt, self.cu, self.kernel = runtime, driver, c_void_p(kernel)
        self.keep: list[Any] = []
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            getattr(runtime, name).restype = c_char_p

    def clear(self) -> int:
        return int(self.rt.cudaGetLastError())

    def malloc(self, size: int) -> c_void_p:
        pointer = c_void_p()
        assert self.rt.cudaMalloc(byref(pointer), c_size_t(size)) == 0
        return pointer

    def pinned(self, size: int) -> c_void_p:
        pointer = c_void_p()
        assert self.rt.cudaHostAlloc(byref(pointer), c_size_t(size), c_uint(0)) == 0
        return pointer

    def host(self, size: int) -> c_void_p:
        buffer = ctypes.create_string_buffer(size)
        self.keep.append(buffer)
        return ctypes.cast(buffer, c_void_p)

    def stream(self, flags: int = 0) -> c_void_p:
        handle = c_void_p()
        assert self.rt.cudaStreamCreateWithFlags(byref(handle), c_uint(flags)) == 0
        return handle

    def event(self, flags: int = 0) -> c_void_p:
        handle = c_void_p()
        assert self.rt.cudaEventCreateWithFlags(byref(handle), c_uint(flags)) == 0
        return handle

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int = 0,
        function: c_void_p | None = None,
        stream: c_void_p | None = None,
    ) -> int:
        argument = c_void_p(None)
        arguments = (c_void_p * 1)(ctypes.addressof(argument))
        return int(
            self.rt.cudaLaunchKernel(
                function or self.kernel, Dim3(*grid), Dim3(*block), arguments, c_size_t(shared), stream
            )
        )

    def copy(self, dst: c_void_p, src: c_void_p, size: int, kind: int) -> int:
        return int(self.rt.cudaMemcpy(dst, src, c_size_t(size), c_int(kind)))


def register(runtime: ctypes.CDLL, image: bytes) -> int:
    """Registers the kernel of a fat binary as compiled programs do; returns its host function's address."""

    class Wrapper(ctypes.Structure):
        _fields_ = [("magic", c_int), ("version", c_int), ("data", c_void_p), ("names", c_void_p)]

    data = ctypes.create_string_buffer(image, len(image) + 64)
    wrapper = Wrapper(0x466243B1, 1, ctypes.addressof(data), None)
    host = ctypes.create_string_buffer(64)
    begin, function, end = (runtime[f"__cudaRegister{what}"] for what in ("FatBinary", "Function", "FatBinaryEnd"))
    begin.restype = c_void_p
    handle = c_void_p(begin(byref(wrapper)))
    name = c_char_p(b"_Z5probePi")
    function(handle, host, name, name, c_int(-1), None, None, None, None, None)
    end(handle)
    _registered.append((data, wrapper, host, name))
    return ctypes.addressof(host)


_registered: list[Any] = []
