"""Cases of semantics.py: the driver's interface, memory between processes, host functions."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from tests.cuda.calls import D2H, AccessDesc, AllocationProp, Cuda, IpcHandle, Location, Pointer


def driver_entry(c: Cuda) -> Any:
    p, status, out = c_void_p(), c_int(9), []
    for name in (b"cuMemCreate", b"cuGetErrorString", b"cuNoSuchCall"):
        p.value = None
        code = c.rt.cudaGetDriverEntryPointByVersion(name, byref(p), c_uint(12000), c_uint64(0), byref(status))
        out.append([code, status.value, bool(p.value)])
    out.append(
        [c.cu.cuGetProcAddress_v2(b"cuLaunchKernel", byref(p), c_int(12000), c_uint64(0), byref(status)), status.value]
    )
    out.append(
        [c.cu.cuGetProcAddress_v2(b"cuNoSuchCall", byref(p), c_int(12000), c_uint64(0), byref(status)), status.value]
    )
    c.clear()
    return out


def driver_basics(c: Cuda) -> Any:
    n, out, text = c_int(), [], ctypes.create_string_buffer(100)
    out += [
        c.cu.cuInit(c_uint(0)),
        c.cu.cuInit(c_uint(1)),
        c.cu.cuDeviceGetCount(byref(n)),
        c.cu.cuDeviceGet(byref(n), c_int(0)),
        n.value,
    ]
    out += [
        c.cu.cuDeviceGet(byref(n), c_int(99)),
        c.cu.cuDeviceGetName(text, c_int(100), c_int(0)),
        c.cu.cuDeviceGetName(text, c_int(100), c_int(99)),
    ]
    out += [
        c.cu.cuDeviceGetAttribute(byref(n), c_int(75), c_int(0)),
        n.value,
        c.cu.cuDeviceGetAttribute(byref(n), c_int(9999), c_int(0)),
    ]
    out.append(c.cu.cuDeviceGetAttribute(byref(n), c_int(1), c_int(99)))
    context, flags, active = c_void_p(), c_uint(), c_int()
    out += [c.cu.cuCtxGetCurrent(byref(context)), bool(context.value)]
    out += [c.cu.cuDevicePrimaryCtxGetState(c_int(0), byref(flags), byref(active)), flags.value, active.value]
    primary = c_void_p()
    out += [c.cu.cuDevicePrimaryCtxRetain(byref(primary), c_int(0)), primary.value == context.value]
    out += [c.cu.cuDevicePrimaryCtxRetain(byref(primary), c_int(99))]
    out += [c.cu.cuCtxPushCurrent_v2(context), c.cu.cuCtxPopCurrent_v2(byref(primary)), primary.value == context.value]
    out += [c.cu.cuCtxGetDevice(byref(n)), n.value, c.cu.cuCtxSetCurrent(context), c.cu.cuCtxSynchronize()]
    out += [c.cu.cuDevicePrimaryCtxRelease_v2(c_int(0)), c.cu.cuDevicePrimaryCtxRelease_v2(c_int(99))]
    message = c_char_p()
    out += [c.cu.cuGetErrorString(c_int(2), byref(message)), (message.value or b"").decode()]
    out += [c.cu.cuGetErrorName(c_int(700), byref(message)), (message.value or b"").decode()]
    out += [c.cu.cuGetErrorString(c_int(12345), byref(message))]
    size = c_size_t()
    out += [c.cu.cuDeviceTotalMem_v2(byref(size), c_int(0)), c.cu.cuDeviceTotalMem_v2(None, c_int(0))]
    return out


def driver_memory(c: Cuda) -> Any:
    p, out, n = c_uint64(), [], c_uint()
    out += [
        c.cu.cuMemAlloc_v2(byref(p), c_size_t(0)),
        c.cu.cuMemAlloc_v2(byref(p), c_size_t(1 << 50)),
        c.cu.cuMemAlloc_v2(byref(p), c_size_t(4096)),
    ]
    out += [
        c.cu.cuMemsetD32_v2(p, c_uint(7), c_size_t(4)),
        c.cu.cuMemsetD32_v2(p, c_uint(7), c_size_t(4096)),
        c.cu.cuMemcpyDtoH_v2(byref(n), p, c_size_t(4)),
        n.value,
    ]
    out += [
        c.cu.cuMemsetD16_v2(p, ctypes.c_ushort(0x102), c_size_t(4)),
        c.cu.cuMemcpyDtoH_v2(byref(n), p, c_size_t(4)),
        n.value,
    ]
    base, size = c_uint64(), c_size_t()
    out += [
        c.cu.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(p.value + 8)),
        base.value == p.value,
        size.value,
    ]
    out += [c.cu.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(16))]
    kind = c_uint(99)
    out += [c.cu.cuPointerGetAttribute(byref(kind), c_int(2), p), kind.value]
    ordinal = c_int(-3)
    out += [c.cu.cuPointerGetAttribute(byref(ordinal), c_int(9), p), ordinal.value]
    out += [
        c.cu.cuPointerGetAttribute(byref(kind), c_int(2), c.host(16)),
        c.cu.cuPointerGetAttribute(byref(kind), c_int(999), p),
    ]
    out += [c.cu.cuMemFree_v2(p), c.cu.cuMemFree_v2(p), c.cu.cuMemFree_v2(c_uint64(0))]
    return out


def driver_vmm(c: Cuda) -> Any:
    out: list[Any] = []
    prop = AllocationProp(type=1, handles=0, location=Location(1, 0))
    size, address, handle = c_size_t(), c_uint64(), c_uint64()
    for flag in (0, 1):
        out.append([c.cu.cuMemGetAllocationGranularity(byref(size), byref(prop), c_int(flag)), size.value])
    mib = 1 << 20
    out.append(c.cu.cuMemAddressReserve(byref(address), c_size_t(8 * mib), c_size_t(0), c_uint64(0), c_uint64(0)))
    out.append(c.cu.cuMemAddressReserve(byref(c_uint64()), c_size_t(1000), c_size_t(0), c_uint64(0), c_uint64(0)))
    out.append(c.cu.cuMemAddressReserve(byref(c_uint64()), c_size_t(0), c_size_t(0), c_uint64(0), c_uint64(0)))
    out.append(c.cu.cuMemCreate(byref(handle), c_size_t(2 * mib), byref(prop), c_uint64(0)))
    out.append(c.cu.cuMemCreate(byref(c_uint64()), c_size_t(1000), byref(prop), c_uint64(0)))
    out.append(c.cu.cuMemCreate(byref(c_uint64()), c_size_t(1 << 50), byref(prop), c_uint64(0)))
    out.append(c.cu.cuMemMap(address, c_size_t(2 * mib), c_size_t(0), handle, c_uint64(0)))
    out.append(c.cu.cuMemMap(address, c_size_t(2 * mib), c_size_t(0), handle, c_uint64(0)))
    out.append(c.cu.cuMemMap(c_uint64(address.value + 2 * mib), c_size_t(1000), c_size_t(0), handle, c_uint64(0)))
    access = AccessDesc(Location(1, 0), 3)
    out.append(c.cu.cuMemSetAccess(address, c_size_t(2 * mib), byref(access), c_size_t(1)))
    out.append(c.cu.cuMemSetAccess(c_uint64(address.value + 4 * mib), c_size_t(2 * mib), byref(access), c_size_t(1)))
    out.append(c.cu.cuMemsetD32_v2(address, c_uint(9), c_size_t(4)))
    out.append(c.rt.cudaMemcpy(c.host(64), c_void_p(address.value + 2 * mib - 8), c_size_t(16), c_int(D2H)))
    a = Pointer()
    out.append([c.rt.cudaPointerGetAttributes(byref(a), c_void_p(address.value)), a.type, a.device])
    retained = c_uint64()
    out.append(c.cu.cuMemRetainAllocationHandle(byref(retained), c_void_p(address.value)))
    out.append(retained.value == handle.value)
    out.append(c.cu.cuMemRelease(retained))
    read = AllocationProp()
    out.append(
        [
            c.cu.cuMemGetAllocationPropertiesFromHandle(byref(read), handle),
            read.type,
            read.location.type,
            read.location.id,
        ]
    )
    out.append(c.cu.cuMemRelease(handle))
    out.append(c.cu.cuMemUnmap(address, c_size_t(2 * mib)))
    out.append(c.cu.cuMemUnmap(address, c_size_t(2 * mib)))
    out.append(c.cu.cuMemRelease(handle))
    out.append(c.cu.cuMemAddressFree(address, c_size_t(8 * mib)))
    out.append(c.cu.cuMemAddressFree(address, c_size_t(8 * mib)))
    c.clear()
    return out


def driver_modules(c: Cuda) -> Any:
    out: list[Any] = []
    module, function = c_void_p(), c_void_p()
    head = b".version 8.0\n.target sm_90\n.address_size 64\n"
    ptx = head + b".visible .entry probe2(.param .u64 p)\n{\nret;\n}\n\0"
    out.append(c.cu.cuModuleLoadData(byref(module), ptx))
    out.append(c.cu.cuModuleGetFunction(byref(function), module, b"probe2"))
    out.append(c.cu.cuModuleGetFunction(byref(c_void_p()), module, b"absent"))
    argument = c_uint64(0)
    arguments = (c_void_p * 1)(ctypes.addressof(argument))

    def launch(grid: tuple[int, int, int], block: tuple[int, int, int], shared: int = 0) -> int:
        return int(
            c.cu.cuLaunchKernel(
                function,
                *(c_uint(v) for v in grid),
                *(c_uint(v) for v in block),
                c_uint(shared),
                c_void_p(None),
                arguments,
                c_void_p(None),
            )
        )

    out += [
        launch((1, 1, 1), (1, 1, 1)),
        launch((0, 1, 1), (1, 1, 1)),
        launch((1, 1, 1), (0, 1, 1)),
        launch((1, 1, 1), (1025, 1, 1)),
        launch((1, 70000, 1), (1, 1, 1)),
        launch((1, 1, 1), (1, 1, 1), 50000),
    ]
    n = c_int()
    for attribute in (0, 1, 7, 8, 9):
        out.append([c.cu.cuFuncGetAttribute(byref(n), c_int(attribute), function), n.value])
    out += [c.cu.cuFuncSetAttribute(function, c_int(8), c_int(100000)), launch((1, 1, 1), (1, 1, 1), 100000)]
    out += [
        c.cu.cuFuncSetAttribute(function, c_int(8), c_int(300000)),
        c.cu.cuFuncSetAttribute(function, c_int(0), c_int(3)),
    ]
    out += [c.cu.cuFuncGetAttribute(byref(n), c_int(99), function), c.cu.cuFuncSetCacheConfig(function, c_int(2))]
    out.append([c.cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(n), function, c_int(256), c_size_t(0)), n.value])
    name = c_char_p()
    out.append([c.cu.cuFuncGetName(byref(name), function), (name.value or b"").decode()])
    out += [
        c.cu.cuModuleUnload(module),
        c.cu.cuModuleLoadData(byref(module), None),
        c.cu.cuModuleLoad(byref(module), b"/nonexistent.cubin"),
    ]
    out.append(c.cu.cuCtxSynchronize())
    return out


def ipc(c: Cuda) -> Any:
    out: list[Any] = []
    handle, d, p = IpcHandle(), c.malloc(4096), c_void_p()
    out.append(c.rt.cudaIpcGetMemHandle(byref(handle), d))
    out.append(c.rt.cudaIpcOpenMemHandle(byref(p), handle, c_uint(1)))
    out.append(c.rt.cudaIpcGetMemHandle(byref(handle), c.host(64)))
    out.append(c.rt.cudaIpcOpenMemHandle(byref(p), IpcHandle(b"x" * 60), c_uint(1)))
    out.append(c.rt.cudaIpcCloseMemHandle(c.host(16)))
    out.append(c.rt.cudaIpcGetEventHandle(byref(handle), c.event()))
    out.append(c.rt.cudaIpcGetEventHandle(byref(handle), c.event(6)))
    out.append(c.rt.cudaFree(d))
    c.clear()
    return out


def host_functions(c: Cuda) -> Any:
    seen: list[int] = []
    host = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append(data or 0))
    callback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(
        lambda stream, status, data: seen.append(100 + status + (data or 0))
    )
    c.keep += [host, callback]
    s, out = c.stream(), []
    out.append(c.rt.cudaLaunchHostFunc(s, host, c_void_p(1)))
    out.append(c.rt.cudaStreamAddCallback(s, callback, c_void_p(2), c_uint(0)))
    out.append(c.rt.cudaLaunchHostFunc(s, host, c_void_p(3)))
    out.append(c.rt.cudaStreamSynchronize(s))
    out.append(list(seen))
    out.append(c.rt.cudaStreamAddCallback(s, callback, c_void_p(2), c_uint(1)))
    out.append(c.rt.cudaLaunchHostFunc(s, None, None))
    c.clear()
    return out
