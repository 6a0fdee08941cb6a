"""Answers of CUDA's C interface, call by call, written once and run twice.

Every case makes calls through ctypes and returns codes and numbers that do not depend on addresses.
Run on a machine with a GPU (``python -m tests.cuda.semantics cudart.so libcuda.so probe.fatbin > h200_cuda13.json``)
it writes down what NVIDIA's libraries answer; the test runs the same cases against the stubs and compares.
``probe.fatbin`` is ``nvcc -fatbin -arch=sm_90`` of ``__global__ void probe(int *p) { if (p) *p = 1; }``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from tests.cuda.calls import (
    D2D,
    D2H,
    DEFAULT,
    H2D,
    LEGACY,
    PER_THREAD,
    Attribute,
    Config,
    Cuda,
    Dim3,
    FuncAttributes,
    Pointer,
    register,
)
from tests.cuda.driver_cases import (
    driver_basics,
    driver_entry,
    driver_memory,
    driver_modules,
    driver_vmm,
    host_functions,
    ipc,
)


def versions(c: Cuda) -> Any:
    n, codes = c_int(-1), []
    codes.append(c.rt.cudaGetDeviceCount(byref(n)))
    runtime, driver = c_int(), c_int()
    codes += [c.rt.cudaRuntimeGetVersion(byref(runtime)), c.rt.cudaDriverGetVersion(byref(driver))]
    codes += [c.rt.cudaGetDeviceCount(None), c.clear(), driver.value >= runtime.value]
    return codes


def last_error(c: Cuda) -> Any:
    c.clear()
    first = c.rt.cudaSetDevice(c_int(99))
    return [first, c.rt.cudaPeekAtLastError(), c.rt.cudaPeekAtLastError(), c.clear(), c.clear()]


def error_survives_success(c: Cuda) -> Any:
    c.rt.cudaSetDevice(c_int(99))
    n = c_int()
    return [c.rt.cudaGetDevice(byref(n)), n.value, c.clear()]


def device_calls(c: Cuda) -> Any:
    n, out = c_int(), []
    out.append(c.rt.cudaSetDevice(c_int(-1)))
    out.append(c.rt.cudaDeviceGetAttribute(byref(n), c_int(1), c_int(50)))
    out.append(c.rt.cudaDeviceGetAttribute(byref(n), c_int(9999), c_int(0)))
    out.append(c.rt.cudaDeviceGetAttribute(None, c_int(1), c_int(0)))
    out.append(c.rt.cudaDeviceGetAttribute(byref(n), c_int(0), c_int(0)))
    least, greatest = c_int(), c_int()
    out += [c.rt.cudaDeviceGetStreamPriorityRange(byref(least), byref(greatest)), least.value, greatest.value]
    out.append(c.rt.cudaDeviceCanAccessPeer(byref(n), c_int(0), c_int(0)))
    out.append(n.value)
    out.append(c.rt.cudaDeviceCanAccessPeer(byref(n), c_int(0), c_int(77)))
    out.append(c.rt.cudaDeviceEnablePeerAccess(c_int(0), c_uint(0)))
    out.append(c.rt.cudaDeviceEnablePeerAccess(c_int(77), c_uint(0)))
    out.append(c.rt.cudaDeviceDisablePeerAccess(c_int(0)))
    text = ctypes.create_string_buffer(64)
    out.append(c.rt.cudaDeviceGetPCIBusId(text, c_int(64), c_int(0)))
    out.append(len(text.value))
    out.append(c.rt.cudaDeviceGetPCIBusId(text, c_int(5), c_int(0)))
    out.append(c.rt.cudaDeviceGetPCIBusId(text, c_int(13), c_int(0)))
    out.append(c.rt.cudaDeviceGetPCIBusId(text, c_int(12), c_int(0)))
    out.append(c.rt.cudaDeviceGetPCIBusId(text, c_int(64), c_int(44)))
    out.append(c.rt.cudaDeviceGetByPCIBusId(byref(n), b"zzz"))
    c.rt.cudaDeviceGetPCIBusId(text, c_int(64), c_int(0))
    out.append(c.rt.cudaDeviceGetByPCIBusId(byref(n), text))
    out.append(n.value)
    limit = c_size_t()
    out += [c.rt.cudaDeviceGetLimit(byref(limit), c_int(i)) for i in (0, 1, 2, 5, 6, 33)]
    flags = c_uint()
    out += [c.rt.cudaGetDeviceFlags(byref(flags)), flags.value]
    mode = c_int(2)
    out += [c.rt.cudaThreadExchangeStreamCaptureMode(byref(mode)), mode.value]
    c.clear()
    return out


def limits(c: Cuda) -> Any:
    value, out = c_size_t(), []
    for which in (0, 1, 2, 5, 6):
        c.rt.cudaDeviceGetLimit(byref(value), c_int(which))
        out.append(value.value)
    return out


def malloc_free(c: Cuda) -> Any:
    p, out = c_void_p(1234), []
    out.append(c.rt.cudaMalloc(byref(p), c_size_t(0)))
    out.append(p.value)
    out.append(c.rt.cudaMalloc(None, c_size_t(16)))
    out.append(c.rt.cudaMalloc(byref(p), c_size_t(1 << 50)))
    out.append(c.rt.cudaMalloc(byref(p), c_size_t(2**64 - 1)))
    out.append(c.rt.cudaFree(None))
    p = c.malloc(4096)
    out.append(p.value % 256 if p.value else -1)
    out.append(c.rt.cudaFree(c_void_p((p.value or 0) + 16)))
    out.append(c.clear())
    out.append(c.rt.cudaFree(p))
    out.append(c.rt.cudaFree(p))
    out.append(c.clear())
    out.append(c.rt.cudaFree(c.host(16)))
    out.append(c.rt.cudaFreeHost(None))
    out.append(c.rt.cudaFreeHost(c.host(16)))
    h = c.pinned(100)
    out.append(c.rt.cudaFree(h))
    out.append(c.clear())
    out.append(c.rt.cudaFreeHost(h))
    out.append(c.rt.cudaHostAlloc(byref(h), c_size_t(0), c_uint(0)))
    out.append(h.value)
    out.append(c.rt.cudaHostAlloc(byref(h), c_size_t(16), c_uint(0xFF00)))
    out.append(c.rt.cudaMallocManaged(byref(p), c_size_t(4096), c_uint(1)))
    out.append(c.rt.cudaFree(p))
    out.append(c.rt.cudaMallocManaged(byref(p), c_size_t(0), c_uint(1)))
    out.append(c.rt.cudaMallocManaged(byref(p), c_size_t(16), c_uint(9)))
    pitch = c_size_t()
    out.append(c.rt.cudaMallocPitch(byref(p), byref(pitch), c_size_t(100), c_size_t(3)))
    out.append(pitch.value)
    out.append(c.rt.cudaFree(p))
    out.append(c.rt.cudaMallocPitch(byref(p), byref(pitch), c_size_t(513), c_size_t(3)))
    out.append(pitch.value)
    out.append(c.rt.cudaFree(p))
    c.clear()
    return out


def copies(c: Cuda) -> Any:
    d, d2, h, pin, out = c.malloc(4096), c.malloc(4096), c.host(8192), c.pinned(8192), list[Any]()
    ctypes.memmove(h, b"phantora" * 4, 32)
    out.append(c.copy(d, h, 32, H2D))
    out.append(c.copy(d2, d, 32, D2D))
    out.append(c.copy(pin, d2, 32, D2H))
    out.append(ctypes.string_at(pin, 8).decode())
    out.append(c.copy(pin, d2, 32, DEFAULT))
    out.append(c.copy(d, h, 0, H2D))
    out.append(c.copy(d, h, 8192, H2D))
    out.append(c.copy(d, h, 16, 77))
    out.append(c.copy(d, h, 16, -1))
    out.append(c.copy(h, h, 16, H2D))
    out.append(c.copy(d, d2, 16, H2D))
    out.append(c.copy(d, h, 16, D2H))
    out.append(c.copy(d, h, 16, D2D))
    out.append(c.copy(d, h, 16, 0))
    out.append(c.copy(pin, h, 16, 0))
    out.append(c.copy(h, h, 16, DEFAULT))
    out.append(c.copy(pin, d, 16, D2D))
    out.append(c.copy(pin, d, 16, H2D))
    out.append(c.copy(pin, h, 16, H2D))
    out.append(c.copy(pin, h, 16, D2H))
    out.append(c.copy(d, pin, 16, D2D))
    out.append(c.copy(c_void_p(None), h, 16, H2D))
    out.append(c.copy(d, c_void_p(None), 16, H2D))
    out.append(c.copy(d, h, 2**63, H2D))
    bad = c_void_p((d.value or 0) + 4095)
    out.append(c.copy(bad, h, 1, H2D))
    out.append(c.copy(bad, h, 2, H2D))
    out.append(c.rt.cudaMemcpyAsync(d, h, c_size_t(16), c_int(H2D), c_void_p(None)))
    out.append(c.rt.cudaMemcpyAsync(d, h, c_size_t(16), c_int(H2D), c_void_p(LEGACY)))
    out.append(c.rt.cudaMemcpyAsync(d, h, c_size_t(16), c_int(H2D), c_void_p(PER_THREAD)))
    out.append(c.rt.cudaMemcpy2D(d, c_size_t(64), h, c_size_t(32), c_size_t(32), c_size_t(4), c_int(H2D)))
    out.append(c.rt.cudaMemcpy2D(d, c_size_t(16), h, c_size_t(32), c_size_t(32), c_size_t(4), c_int(H2D)))
    out.append(c.rt.cudaMemcpy2D(d, c_size_t(2048), h, c_size_t(32), c_size_t(32), c_size_t(4), c_int(H2D)))
    out.append(c.rt.cudaMemcpy2D(d, c_size_t(64), h, c_size_t(32), c_size_t(0), c_size_t(4), c_int(H2D)))
    out.append(c.rt.cudaMemcpyPeer(d, c_int(0), d2, c_int(0), c_size_t(16)))
    out.append(c.rt.cudaMemcpyPeer(d, c_int(0), d2, c_int(66), c_size_t(16)))
    out.append(c.rt.cudaDeviceSynchronize())
    for p in (d, d2):
        out.append(c.rt.cudaFree(p))
    out.append(c.rt.cudaFreeHost(pin))
    c.clear()
    return out


def memsets(c: Cuda) -> Any:
    d, h, out = c.malloc(4096), c.host(4096), []
    out.append(c.rt.cudaMemset(d, c_int(0x41), c_size_t(16)))
    out.append(c.copy(h, d, 8, D2H))
    out.append(ctypes.string_at(h, 8).decode())
    out.append(c.rt.cudaMemset(d, c_int(0), c_size_t(4097)))
    out.append(c.rt.cudaMemset(d, c_int(0), c_size_t(0)))
    out.append(c.rt.cudaMemset(h, c_int(0), c_size_t(16)))
    out.append(c.rt.cudaMemset(c_void_p(None), c_int(0), c_size_t(16)))
    out.append(c.rt.cudaMemset(c_void_p(None), c_int(0), c_size_t(0)))
    out.append(c.rt.cudaMemset2D(d, c_size_t(64), c_int(0x42), c_size_t(8), c_size_t(2)))
    out.append(c.rt.cudaMemset2D(d, c_size_t(4), c_int(0x42), c_size_t(8), c_size_t(2)))
    out.append(c.copy(h, d, 16, D2H))
    out.append(list(ctypes.string_at(h, 16)))
    pin = c.pinned(64)
    out.append(c.rt.cudaMemset(pin, c_int(0x43), c_size_t(16)))
    out.append(c.rt.cudaDeviceSynchronize())
    out.append(list(ctypes.string_at(pin, 4)))
    out += [c.rt.cudaFreeHost(pin), c.rt.cudaFree(d)]
    c.clear()
    return out


def pointers(c: Cuda) -> Any:
    out: list[Any] = []
    d, pin, h = c.malloc(4096), c.pinned(4096), c.host(4096)
    for p in (d, pin, h, c_void_p((d.value or 0) + 100), c_void_p((d.value or 0) + 4096)):
        a = Pointer()
        code = c.rt.cudaPointerGetAttributes(byref(a), p)
        out.append([code, a.type, a.device, a.device_pointer == p.value, a.host_pointer == p.value])
    out.append(c.rt.cudaPointerGetAttributes(None, d))
    out.append(c.rt.cudaPointerGetAttributes(byref(Pointer()), None))
    buffer = ctypes.create_string_buffer(3 * 4096)
    base = (ctypes.addressof(buffer) + 4095) & ~4095
    out.append(c.rt.cudaHostRegister(c_void_p(base), c_size_t(4096), c_uint(0)))
    out.append(c.rt.cudaHostRegister(c_void_p(base), c_size_t(4096), c_uint(0)))
    out.append(c.rt.cudaHostRegister(c_void_p(None), c_size_t(4096), c_uint(0)))
    out.append(c.rt.cudaHostRegister(c_void_p(base + 4096), c_size_t(0), c_uint(0)))
    out.append(c.rt.cudaHostRegister(c_void_p(base + 4096), c_size_t(64), c_uint(0xF000)))
    a = Pointer()
    out.append([c.rt.cudaPointerGetAttributes(byref(a), c_void_p(base)), a.type, a.device])
    p, flags = c_void_p(), c_uint()
    out.append(c.rt.cudaHostGetDevicePointer(byref(p), c_void_p(base), c_uint(0)))
    out.append(p.value == base)
    out.append(c.rt.cudaHostGetDevicePointer(byref(p), c.host(16), c_uint(0)))
    out.append(c.rt.cudaHostGetDevicePointer(byref(p), pin, c_uint(5)))
    out += [c.rt.cudaHostGetFlags(byref(flags), pin), flags.value, c.rt.cudaHostGetFlags(byref(flags), c.host(16))]
    out.append(c.rt.cudaHostUnregister(c_void_p(base)))
    out.append(c.rt.cudaHostUnregister(c_void_p(base)))
    out.append(c.rt.cudaHostUnregister(pin))
    out += [c.rt.cudaFree(d), c.rt.cudaFreeHost(pin)]
    c.clear()
    return out


def streams(c: Cuda) -> Any:
    s, n, u, out = c_void_p(), c_int(), c_uint(), []
    out.append(c.rt.cudaStreamCreate(None))
    out.append(c.rt.cudaStreamCreate(byref(s)))
    out.append(c.rt.cudaStreamGetFlags(s, byref(u)))
    out.append(u.value)
    out.append(c.rt.cudaStreamGetPriority(s, byref(n)))
    out.append(n.value)
    out += [c.rt.cudaStreamQuery(s), c.rt.cudaStreamSynchronize(s), c.rt.cudaStreamDestroy(s)]
    out.append(c.rt.cudaStreamCreateWithFlags(byref(s), c_uint(7)))
    for priority in (-5, -99, 3):
        out.append(c.rt.cudaStreamCreateWithPriority(byref(s), c_uint(1), c_int(priority)))
        out += [c.rt.cudaStreamGetPriority(s, byref(n)), n.value, c.rt.cudaStreamGetFlags(s, byref(u)), u.value]
        out.append(c.rt.cudaStreamDestroy(s))
    out.append(c.rt.cudaStreamDestroy(None))
    out.append(c.rt.cudaStreamDestroy(c_void_p(LEGACY)))
    out += [c.rt.cudaStreamQuery(None), c.rt.cudaStreamSynchronize(None), c.rt.cudaStreamSynchronize(c_void_p(2))]
    out += [c.rt.cudaStreamGetPriority(None, byref(n)), n.value, c.rt.cudaStreamGetFlags(None, byref(u)), u.value]
    status = c_int(9)
    out += [c.rt.cudaStreamIsCapturing(None, byref(status)), status.value, c.rt.cudaStreamIsCapturing(None, None)]
    out += [c.rt.cudaStreamGetDevice(None, byref(n)), n.value]
    out.append(c.rt.cudaStreamEndCapture(c.stream(), byref(c_void_p())))
    out.append(c.rt.cudaStreamWaitEvent(None, c.event(), c_uint(77)))
    out.append(c.rt.cudaStreamWaitEvent(None, c.event(), c_uint(0)))
    out.append(c.rt.cudaStreamWaitEvent(None, None, c_uint(0)))
    c.clear()
    return out


def events(c: Cuda) -> Any:
    out: list[Any] = []
    ms = c_float(-1.0)
    a, b, plain = c.event(), c.event(), c.event(2)
    out += [c.rt.cudaEventQuery(a), c.rt.cudaEventSynchronize(a), c.rt.cudaEventElapsedTime(byref(ms), a, b)]
    out.append(c.clear())
    out.append(c.rt.cudaEventRecord(a, None))
    out.append(c.rt.cudaEventSynchronize(a))
    out.append(c.rt.cudaEventElapsedTime(byref(ms), a, b))
    out.append(c.rt.cudaEventRecord(b, None))
    out.append(c.rt.cudaEventSynchronize(b))
    out.append(c.rt.cudaEventElapsedTime(byref(ms), a, b))
    out.append(ms.value >= 0)
    out.append(c.rt.cudaEventElapsedTime(byref(ms), a, a))
    out.append(ms.value)
    out.append(c.rt.cudaEventElapsedTime(None, a, b))
    out.append(c.rt.cudaEventRecord(plain, None))
    out.append(c.rt.cudaEventSynchronize(plain))
    out.append(c.rt.cudaEventElapsedTime(byref(ms), a, plain))
    out.append(c.clear())
    out.append(c.rt.cudaEventCreateWithFlags(byref(c_void_p()), c_uint(0x80)))
    out.append(c.rt.cudaEventCreateWithFlags(byref(c_void_p()), c_uint(4)))
    out.append(c.rt.cudaEventCreateWithFlags(byref(c_void_p()), c_uint(6)))
    out.append(c.rt.cudaEventCreate(None))
    out.append(c.rt.cudaEventRecord(None, None))
    out.append(c.rt.cudaEventQuery(None))
    out.append(c.rt.cudaEventSynchronize(None))
    out.append(c.rt.cudaEventDestroy(None))
    out.append(c.rt.cudaEventRecordWithFlags(a, None, c_uint(9)))
    out.append(c.rt.cudaEventRecordWithFlags(a, None, c_uint(0)))
    out += [c.rt.cudaEventDestroy(x) for x in (a, b, plain)]
    c.clear()
    return out


def launches(c: Cuda) -> Any:
    out: list[Any] = [c.launch((1, 1, 1), (1, 1, 1))]
    for grid, block in (
        ((0, 1, 1), (1, 1, 1)),
        ((1, 1, 1), (0, 1, 1)),
        ((1, 1, 1), (1, 1, 0)),
        ((1, 65536, 1), (1, 1, 1)),
        ((1, 65535, 1), (1, 1, 1)),
        ((1, 1, 65536), (1, 1, 1)),
        ((1 << 31, 1, 1), (1, 1, 1)),
        ((1, 1, 1), (1025, 1, 1)),
        ((1, 1, 1), (1, 1, 65)),
        ((1, 1, 1), (32, 33, 1)),
        ((1, 1, 1), (1024, 1, 1)),
        ((1, 1, 1), (1, 1025, 1)),
    ):
        out.append(c.launch(grid, block))
        c.clear()
    out.append(c.launch((1, 1, 1), (1, 1, 1), 48 * 1024))
    out.append(c.launch((1, 1, 1), (1, 1, 1), 48 * 1024 + 1))
    out.append(c.clear())
    out.append(c.rt.cudaFuncSetAttribute(c.kernel, c_int(8), c_int(227 * 1024)))
    out.append(c.launch((1, 1, 1), (1, 1, 1), 227 * 1024))
    out.append(c.launch((1, 1, 1), (1, 1, 1), 227 * 1024 + 1))
    out.append(c.rt.cudaFuncSetAttribute(c.kernel, c_int(8), c_int(227 * 1024 + 1)))
    out.append(c.rt.cudaFuncSetAttribute(c.kernel, c_int(8), c_int(-5)))
    out.append(c.rt.cudaFuncSetAttribute(c.kernel, c_int(9), c_int(50)))
    out.append(c.rt.cudaFuncSetAttribute(c.kernel, c_int(9), c_int(200)))
    out.append(c.rt.cudaFuncSetAttribute(c.kernel, c_int(99), c_int(0)))
    out.append(c.clear())
    out.append(c.rt.cudaFuncSetAttribute(c.kernel, c_int(8), c_int(0)))
    out.append(c.rt.cudaFuncGetAttributes(None, c.kernel))
    out.append(c.rt.cudaFuncSetCacheConfig(c.kernel, c_int(1)))
    out.append(c.rt.cudaFuncSetCacheConfig(c.kernel, c_int(77)))
    c.clear()
    argument = c_void_p(None)
    arguments = (c_void_p * 1)(ctypes.addressof(argument))
    out.append(
        c.rt.cudaLaunchCooperativeKernel(c.kernel, Dim3(132, 1, 1), Dim3(32, 1, 1), arguments, c_size_t(0), None)
    )
    out.append(
        c.rt.cudaLaunchCooperativeKernel(c.kernel, Dim3(132000, 1, 1), Dim3(1024, 1, 1), arguments, c_size_t(0), None)
    )
    c.clear()
    out.append(c.rt.cudaDeviceSynchronize())
    c.clear()
    return out


def unknown_launch(c: Cuda) -> Any:
    return [c.launch((1, 1, 1), (1, 1, 1), function=c.host(64)), c.clear()]


def unknown_attributes(c: Cuda) -> Any:
    return [c.rt.cudaFuncGetAttributes(byref(FuncAttributes()), c.host(64)), c.clear()]


def null_launch(c: Cuda) -> Any:
    return [c.rt.cudaLaunchKernel(None, Dim3(1, 1, 1), Dim3(1, 1, 1), None, c_size_t(0), None), c.clear()]


def clusters(c: Cuda) -> Any:
    out: list[Any] = []
    argument = c_void_p(None)
    arguments = (c_void_p * 1)(ctypes.addressof(argument))
    for attribute, grid, value in (
        (4, 4, (2, 1, 1)),
        (4, 4, (3, 1, 1)),
        (4, 16, (8, 1, 1)),
        (4, 16, (16, 1, 1)),
        (4, 18, (9, 1, 1)),
        (4, 4, (0, 1, 1)),
        (2, 4, (1,)),
        (6, 4, (1,)),
        (8, 4, (-3,)),
        (4, 64, (32, 1, 1)),
        (77, 4, (1,)),
    ):
        item = Attribute(id=attribute)
        for i, v in enumerate(value):
            item.value[i] = v
        config = Config(Dim3(grid, 1, 1), Dim3(32, 1, 1), 0, None, ctypes.pointer(item), 1)
        out.append(c.rt.cudaLaunchKernelExC(byref(config), c.kernel, arguments))
        c.clear()
    item = Attribute(id=4)
    item.value[0], item.value[1], item.value[2] = 2, 1, 1
    config = Config(Dim3(4, 1, 1), Dim3(128, 1, 1), 0, None, ctypes.pointer(item), 1)
    n = c_int()
    out += [c.rt.cudaOccupancyMaxActiveClusters(byref(n), c.kernel, byref(config)), n.value]
    out += [c.rt.cudaOccupancyMaxPotentialClusterSize(byref(n), c.kernel, byref(config)), n.value]
    out.append(c.rt.cudaDeviceSynchronize())
    return out


def occupancy(c: Cuda) -> Any:
    n, out = c_int(), []
    code = c.rt.cudaOccupancyMaxActiveBlocksPerMultiprocessor(byref(n), c.kernel, c_int(128), c_size_t(60000))
    out.append([code, n.value])
    c.rt.cudaFuncSetAttribute(c.kernel, c_int(8), c_int(227 * 1024))
    for block, shared in (
        (1, 0),
        (32, 0),
        (128, 0),
        (256, 0),
        (512, 0),
        (1024, 0),
        (96, 0),
        (1000, 0),
        (128, 16384),
        (128, 49152),
        (128, 65536),
        (128, 100000),
        (128, 227 * 1024),
    ):
        code = c.rt.cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            byref(n), c.kernel, c_int(block), c_size_t(shared), c_uint(0)
        )
        out.append([code, n.value])
    for block, shared in ((1025, 0), (0, 0), (-1, 0), (128, 228 * 1024)):
        n.value = -7
        code = c.rt.cudaOccupancyMaxActiveBlocksPerMultiprocessor(byref(n), c.kernel, c_int(block), c_size_t(shared))
        out.append([code, n.value])
    out.append(c.rt.cudaOccupancyMaxActiveBlocksPerMultiprocessor(None, c.kernel, c_int(32), c_size_t(0)))
    size = c_size_t()
    for blocks, threads in ((1, 128), (2, 128), (4, 256)):
        out.append(
            [
                c.rt.cudaOccupancyAvailableDynamicSMemPerBlock(byref(size), c.kernel, c_int(blocks), c_int(threads)),
                size.value,
            ]
        )
    c.rt.cudaFuncSetAttribute(c.kernel, c_int(8), c_int(0))
    c.clear()
    return out


def function_attributes(c: Cuda) -> Any:
    a = FuncAttributes()
    code = c.rt.cudaFuncGetAttributes(byref(a), c.kernel)
    return [
        code,
        a.shared,
        a.local,
        a.max_threads,
        a.cache,
        a.max_dynamic,
        a.carveout,
        a.cluster_must,
        a.cw,
        a.policy,
        a.nonportable,
        8 <= a.regs <= 255,
        a.binary,
    ]


def pools(c: Cuda) -> Any:
    pool, out, p = c_void_p(), [], c_void_p()
    out.append(c.rt.cudaDeviceGetDefaultMemPool(byref(pool), c_int(0)))
    out.append(c.rt.cudaDeviceGetDefaultMemPool(byref(pool), c_int(55)))
    value = c_uint64()
    for attribute in (1, 2, 3):
        n = c_int(-1)
        out.append([c.rt.cudaMemPoolGetAttribute(pool, c_int(attribute), byref(n)), n.value])
    for attribute in (4, 5, 7, 99):
        value.value = 77
        out.append([c.rt.cudaMemPoolGetAttribute(pool, c_int(attribute), byref(value)), value.value])
    value.value = 2**64 - 1
    out.append(c.rt.cudaMemPoolSetAttribute(pool, c_int(4), byref(value)))
    out.append(c.rt.cudaMemPoolSetAttribute(pool, c_int(5), byref(value)))
    out.append(c.rt.cudaMallocAsync(byref(p), c_size_t(1 << 20), None))
    c.rt.cudaMemPoolGetAttribute(pool, c_int(7), byref(value))
    out.append(value.value)
    out.append(c.rt.cudaFreeAsync(p, None))
    out.append(c.rt.cudaDeviceSynchronize())
    c.rt.cudaMemPoolGetAttribute(pool, c_int(7), byref(value))
    out.append(value.value)
    c.rt.cudaMemPoolGetAttribute(pool, c_int(5), byref(value))
    out.append(value.value)
    out.append(c.rt.cudaMemPoolTrimTo(pool, c_size_t(0)))
    c.rt.cudaMemPoolGetAttribute(pool, c_int(5), byref(value))
    out.append(value.value)
    value.value = 0
    out.append(c.rt.cudaMemPoolSetAttribute(pool, c_int(4), byref(value)))
    out.append(c.rt.cudaMallocAsync(byref(p), c_size_t(0), None))
    out.append(p.value)
    out.append(c.rt.cudaMallocAsync(byref(p), c_size_t(1 << 50), None))
    out.append(c.rt.cudaFreeAsync(c_void_p(None), None))
    out.append(c.rt.cudaFreeAsync(c.host(16), None))
    d = c.malloc(512)
    out.append(c.rt.cudaFreeAsync(d, None))
    out.append(c.rt.cudaMallocAsync(byref(p), c_size_t(512), None))
    out.append(c.rt.cudaFree(p))
    c.clear()
    return out


CASES: tuple[Callable[[Cuda], Any], ...] = (
    versions,
    last_error,
    error_survives_success,
    device_calls,
    limits,
    malloc_free,
    copies,
    memsets,
    pointers,
    streams,
    events,
    launches,
    unknown_launch,
    unknown_attributes,
    null_launch,
    clusters,
    occupancy,
    function_attributes,
    pools,
    driver_entry,
    driver_basics,
    driver_memory,
    driver_vmm,
    driver_modules,
    ipc,
    host_functions,
)


def run(cuda: Cuda, case: Callable[[Cuda], Any]) -> Any:
    """One case in a child process: its result, or how it failed (a library may crash on a bad handle)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            assert cuda.cu.cuInit(c_uint(0)) == 0 and cuda.rt.cudaFree(None) == 0
            result = case(cuda)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    status = os.waitpid(pid, 0)[1]
    return json.loads(text) if text else f"ended by signal {os.WTERMSIG(status)}"


def attributes(c: Cuda) -> Any:
    """cuDeviceGetAttribute for every number up to 160: [code, value]."""
    value, out = c_int(), {}
    for number in range(1, 160):
        value.value = -99
        code = c.cu.cuDeviceGetAttribute(byref(value), c_int(number), c_int(0))
        out[str(number)] = [int(code), value.value]
    return out


def properties(c: Cuda) -> Any:
    """cudaDeviceProp behind the memory size, as 32-bit words up to the reserved ones."""
    version, words = c_int(), (c_int * 512)()
    c.rt.cudaRuntimeGetVersion(byref(version))
    old = version.value < 13000
    code = (c.rt.cudaGetDeviceProperties_v2 if old else c.rt.cudaGetDeviceProperties)(words, c_int(0))
    return [code, *words[296 // 4 : (780 if old else 784) // 4]]


def main() -> None:
    runtime, driver = (ctypes.CDLL(path) for path in sys.argv[1:3])
    with open(sys.argv[3], "rb") as file:
        cuda = Cuda(runtime, driver, register(runtime, file.read()))
    report = {case.__name__: run(cuda, case) for case in (*CASES, attributes, properties)}
    json.dump(report, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
