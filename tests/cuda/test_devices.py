"""Several devices, capacity, processes, and the libraries other than the runtime and the driver."""

from __future__ import annotations

import ctypes
import os
import pickle
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import pytest

from phantora.stubs import StubSet
from tests.cuda.calls import AccessDesc, AllocationProp, Attribute, IpcHandle, Location
from tests.cuda.stublib import Stubs, connected
from tests.support import ringdump

MIB = 1 << 20
LIBRARIES = ("libcuda.so", "libcudart.so", "libnvidia-ml.so", "libnvrtc.so", "libcupti.so")


@pytest.mark.parametrize("stem", LIBRARIES)
def test_everything_torch_imports_is_implemented(stub_set: StubSet, stem: str) -> None:
    coverage = next(item for item in stub_set.coverage if item.soname.startswith(stem))
    assert coverage.trapped == ()


def test_devices_are_per_thread_and_streams_belong_to_one(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        import threading

        n, out = c_int(), []
        out.append(c.rt.cudaGetDeviceCount(byref(n)))
        out.append(n.value)
        s0 = c.stream()
        e0 = c.event()
        c.set_device(1)
        seen: list[int] = []

        def look() -> None:
            here = c_int()
            c.rt.cudaGetDevice(byref(here))
            seen.append(here.value)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        out += seen
        out.append(c.launch((1, 1, 1), (1, 1, 1), stream=s0))  # a stream of device 0
        out.append(c.rt.cudaEventRecord(e0, None))  # an event of device 0
        s1 = c.stream()
        out += [c.rt.cudaStreamGetDevice(s0, byref(n)), n.value, c.rt.cudaStreamWaitEvent(s1, e0, c_uint(0))]
        out += [c.rt.cudaSetDevice(c_int(2)), c.rt.cudaGetDevice(byref(n)), n.value]
        return out

    dump = connected(stub_set, program, devices=2)
    assert dump.value == [0, 2, 0, 400, 400, 0, 0, 0, 101, 0, 1]
    assert [r["device"] for r in dump.of("STREAM_CREATE")] == [0, 1]


def test_peer_access(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        n = c_int(9)
        out = [c.rt.cudaDeviceCanAccessPeer(byref(n), c_int(0), c_int(1)), n.value]
        out += [
            c.rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(0)),
            c.rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(0)),
        ]
        out += [c.rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(1)), c.rt.cudaDeviceDisablePeerAccess(c_int(1))]
        out += [
            c.rt.cudaDeviceDisablePeerAccess(c_int(1)),
            c.rt.cudaDeviceGetP2PAttribute(byref(n), c_int(2), c_int(0), c_int(1)),
        ]
        return [*out, n.value]

    assert connected(stub_set, program, devices=2).value == [0, 1, 0, 704, 1, 0, 705, 0, 1]
    without = connected(stub_set, program, devices=2, device={"nvlink": 0}).value
    assert without[:4] == [0, 0, 217, 217]


def test_more_devices_than_bits_of_a_word(stub_set: StubSet) -> None:
    """The largest NVLink domain has 72."""

    def program(c: Stubs) -> Any:
        n, bus = c_int(), ctypes.create_string_buffer(16)
        c.rt.cudaGetDeviceCount(byref(n))
        out = [n.value, c.rt.cudaDeviceEnablePeerAccess(c_int(70), c_uint(0))]
        out.append(c.rt.cudaDeviceDisablePeerAccess(c_int(6)))
        c.set_device(71)
        return [*out, c.rt.cudaDeviceGetPCIBusId(bus, c_int(16), c_int(71)), c.launch((1, 1, 1), (1, 1, 1))]

    assert connected(stub_set, program, devices=72).value == [72, 0, 705, 0, 0]


def test_capacity_is_one_account_for_all_kinds_of_memory(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        start, out, p, handle = c.free_bytes(), [], c_void_p(), c_uint64()
        prop = AllocationProp(type=1, location=Location(1, 0))
        d = c.malloc(100 * MIB)
        out.append((start - c.free_bytes()) // MIB)
        assert c.cu.cuMemCreate(byref(handle), c_size_t(50 * MIB), byref(prop), c_uint64(0)) == 0
        out.append((start - c.free_bytes()) // MIB)
        assert c.rt.cudaMallocAsync(byref(p), c_size_t(MIB), None) == 0
        out.append((start - c.free_bytes()) // MIB)  # a pool grows by 32 MiB
        out.append(c.cu.cuMemCreate(byref(c_uint64()), c_size_t(2048 * MIB), byref(prop), c_uint64(0)))
        out.append(c.rt.cudaMalloc(byref(c_void_p()), c_size_t(start - 100 * MIB)))  # the context gives 64 MiB back
        assert c.rt.cudaFreeAsync(p, None) == 0 and c.rt.cudaFree(d) == 0 and c.cu.cuMemRelease(handle) == 0
        out.append((start - c.free_bytes()) // MIB)
        return out

    assert connected(stub_set, program).value == [100, 150, 182, 2, 2, -64]


def test_a_pool_keeps_what_its_threshold_says(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        start, pool, p, out = c.free_bytes(), c_void_p(), c_void_p(), []
        assert c.rt.cudaDeviceGetDefaultMemPool(byref(pool), c_int(0)) == 0
        assert c.rt.cudaMemPoolSetAttribute(pool, c_int(4), byref(c_uint64(2**64 - 1))) == 0
        for _ in range(2):
            assert c.rt.cudaMallocAsync(byref(p), c_size_t(40 * MIB), None) == 0
            out.append((start - c.free_bytes()) // MIB)
            assert c.rt.cudaFreeAsync(p, None) == 0
            out.append((start - c.free_bytes()) // MIB)
        assert c.rt.cudaMemPoolTrimTo(pool, c_size_t(0)) == 0
        out.append((start - c.free_bytes()) // MIB)
        return out

    assert connected(stub_set, program).value == [64, 64, 64, 64, 0]


def test_a_mapping_outlives_its_handle_and_reads_as_zero_when_remapped(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        start, address, handle, word, out = c.free_bytes(), c_uint64(), c_uint64(), c_uint(), []
        prop = AllocationProp(type=1, location=Location(1, 0))
        access = AccessDesc(Location(1, 0), 3)
        assert c.cu.cuMemAddressReserve(byref(address), c_size_t(64 * MIB), c_size_t(0), c_uint64(0), c_uint64(0)) == 0
        out.append(c.free_bytes() - start)  # address space costs nothing
        for _ in range(2):
            assert c.cu.cuMemCreate(byref(handle), c_size_t(4 * MIB), byref(prop), c_uint64(0)) == 0
            assert c.cu.cuMemMap(address, c_size_t(4 * MIB), c_size_t(0), handle, c_uint64(0)) == 0
            assert c.cu.cuMemSetAccess(address, c_size_t(4 * MIB), byref(access), c_size_t(1)) == 0
            assert c.cu.cuMemRelease(handle) == 0
            out.append((start - c.free_bytes()) // MIB)
            assert c.cu.cuMemcpyDtoH_v2(byref(word), address, c_size_t(4)) == 0
            out.append(word.value)
            assert c.cu.cuMemsetD32_v2(address, c_uint(77), c_size_t(4)) == 0
            assert c.cu.cuMemUnmap(address, c_size_t(4 * MIB)) == 0
            out.append((start - c.free_bytes()) // MIB)
        return out

    assert connected(stub_set, program).value == [0, 4, 0, 0, 4, 0, 0]


def test_no_device_before_connecting_and_none_in_a_forked_child(stub_set: StubSet) -> None:
    def look(runtime: ctypes.CDLL) -> list[int]:
        n, p = c_int(7), c_void_p()
        out = [runtime.cudaGetDeviceCount(byref(n)), n.value, runtime.cudaMalloc(byref(p), c_size_t(16))]
        return [*out, runtime.cudaGetLastError(), runtime.cudaRuntimeGetVersion(byref(n))]

    before: list[list[int]] = []
    runtime = next(str(path) for path in stub_set.libraries if path.name.startswith("libcudart"))

    def program(rank: ctypes.CDLL) -> Any:
        c = Stubs(stub_set, rank)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, pickle.dumps(look(c.rt)))
            os._exit(0)
        child = pickle.loads(os.read(reader, 4096))
        os.waitpid(pid, 0)
        still = c.launch((1, 1, 1), (1, 1, 1))
        rank.ph_exit(0)
        return before, child, still, c.rt.cudaDeviceSynchronize(), c.launch((1, 1, 1), (1, 1, 1))

    dump = ringdump.run(program, stub_set.rank, before=lambda _: before.append(look(ctypes.CDLL(runtime))))
    assert dump.value == ([[100, 0, 100, 100, 0]], [3, 0, 3, 3, 0], 0, 0, 0)
    assert len(dump.of("KERNEL")) == 1  # neither the child's nor what follows the end is recorded


def test_the_driver_wants_to_be_initialised(stub_set: StubSet) -> None:
    path = next(str(path) for path in stub_set.libraries if path.name.startswith("libcuda.so"))

    def program(_: ctypes.CDLL) -> list[int]:
        driver, n = ctypes.CDLL(path), c_int(7)
        return [
            driver.cuDeviceGetCount(byref(n)),
            n.value,
            driver.cuInit(0),
            driver.cuDeviceGetCount(byref(n)),
            n.value,
        ]

    assert ringdump.run(program, stub_set.rank).value == [3, 7, 0, 0, 1]


def test_memory_of_another_process_opens_as_zeros_and_costs_nothing(stub_set: StubSet) -> None:
    def export(c: Stubs) -> bytes:
        handle, d = IpcHandle(), c.malloc(3 * MIB)
        assert c.rt.cudaIpcGetMemHandle(byref(handle), c_void_p((d.value or 0) + 512)) == 0
        return bytes(handle)

    handle = connected(stub_set, export).value

    def use(c: Stubs) -> list[int]:
        start, p, q, word, out = c.free_bytes(), c_void_p(), c_void_p(), c_uint(5), []
        copy = IpcHandle.from_buffer_copy(handle)
        out += [
            c.rt.cudaIpcOpenMemHandle(byref(p), copy, c_uint(1)),
            c.rt.cudaIpcOpenMemHandle(byref(q), copy, c_uint(1)),
        ]
        out += [
            p.value == q.value,
            start - c.free_bytes(),
            c.copy(ctypes.cast(byref(word), c_void_p), p, 4, 2),
            word.value,
        ]
        out += [c.rt.cudaFree(p), c.rt.cudaIpcCloseMemHandle(q), c.copy(ctypes.cast(byref(word), c_void_p), p, 4, 2)]
        out += [c.rt.cudaIpcCloseMemHandle(p), c.rt.cudaIpcCloseMemHandle(p)]
        return out

    assert connected(stub_set, use).value == [0, 0, True, 0, 0, 0, 1, 0, 0, 0, 1]


def test_null_mode_answers_without_recording(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        e, d = c.event(), c.malloc(64)
        out = [c.launch((1, 1, 1), (1, 1, 1)), c.rt.cudaEventRecord(e, None), c.rt.cudaEventSynchronize(e)]
        return [*out, c.rt.cudaEventQuery(e), c.copy(c.host(64), d, 64, 2), c.rt.cudaDeviceSynchronize()]

    dump = connected(stub_set, program, null_mode=True)
    assert dump.value == [0] * 6 and dump.of("KERNEL") == []


def test_graph_calls_without_a_model_fail_by_name(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        s, pointer = c.stream(1), c_void_p()
        out = [c.rt.cudaStreamBeginCapture(s, c_int(0)), c.rt.cudaMallocAsync(byref(pointer), c_size_t(64), s)]
        return [*out, c.rt.cudaGraphAddKernelNode(None, None, None, c_size_t(0), None), c.rt.cudaGraphLaunch(None, s)]

    dump = connected(stub_set, program)
    assert dump.value == [0, 900, 801, 1]
    assert "cudaMallocAsync on a stream that is captured" in dump.stderr and "cudaGraphAddKernelNode" in dump.stderr
    assert dump.of("UNSUPPORTED")


def test_per_thread_default_stream(stub_set: StubSet) -> None:
    def program(c: Stubs) -> int:
        call = c.rt.cudaMemsetAsync_ptsz
        d = c.malloc(64)
        assert call(d, c_int(0), c_size_t(64), None) == 0
        assert c.rt.cudaMemsetAsync(d, c_int(0), c_size_t(64), None) == 0
        return 0

    own, legacy = connected(stub_set, program).of("MEMSET")
    assert legacy["stream"] == 0 and own["stream"] != 0


def test_runtime_compilation_to_launch(stub_set: StubSet) -> None:
    source = b"""
    // __global__ void commented(int);
    template <typename T> __global__ void __launch_bounds__(128, 2) scaled(T *p, T by) { *p *= by; }
    extern "C" __global__ void __launch_bounds__ (256) plain(float *p) {}
    """

    def program(c: Stubs) -> Any:
        p, size, out = c_void_p(), c_size_t(), []
        out.append(c.nvrtc.nvrtcCreateProgram(byref(p), c_char_p(source), None, c_int(0), None, None))
        out.append(c.nvrtc.nvrtcAddNameExpression(p, b"&scaled<float>"))
        lowered = c_char_p()
        out.append(c.nvrtc.nvrtcGetLoweredName(p, b"&scaled<float>", byref(lowered)))
        out.append(c.nvrtc.nvrtcCompileProgram(p, c_int(0), None))
        out.append(c.nvrtc.nvrtcGetLoweredName(p, b"&scaled<float>", byref(lowered)))
        out.append(c.nvrtc.nvrtcGetLoweredName(p, b"other", byref(lowered)))
        out.append(c.nvrtc.nvrtcGetCUBINSize(p, byref(size)))
        image = ctypes.create_string_buffer(size.value)
        out.append(c.nvrtc.nvrtcGetCUBIN(p, image))
        module, kernel = c_void_p(), c_void_p()
        out.append(c.cu.cuModuleLoadData(byref(module), image))
        out.append(c.cu.cuModuleGetFunction(byref(kernel), module, b"absent"))
        shape = [c_uint(1)] * 6
        for name in (b"plain", lowered):
            out.append(c.cu.cuModuleGetFunction(byref(kernel), module, name))
            out.append(c.cu.cuLaunchKernel(kernel, *shape, c_uint(0), None, None, None))
        library, count = c_void_p(), c_uint()
        nothing: list[Any] = [None, None, c_uint(0), None, None, c_uint(0)]
        out.append(c.rt.cudaLibraryLoadData(byref(library), image, *nothing))
        out += [c.rt.cudaLibraryGetKernelCount(byref(count), library), count.value]
        out.append(c.rt.cudaLibraryGetKernel(byref(kernel), library, b"plain"))
        out.append(c.launch((1, 1, 1), (1, 1, 1), function=kernel))
        out += [c.rt.cudaLibraryUnload(library), c.launch((1, 1, 1), (1, 1, 1), function=kernel), c.clear()]
        out.append(c.nvrtc.nvrtcDestroyProgram(byref(p)))
        out.append(c.cu.cuModuleLoadData(byref(module), b"not an image"))
        return out

    dump = connected(stub_set, program)
    by_library = [0, 0, 3, 0, 0, 0, 400, 400]
    assert dump.value == [0, 0, 9, 0, 0, 10, 0, 0, 0, 500, 0, 0, 0, 0, *by_library, 0, 200]
    assert [r["blob"] for r in dump.of("DEFINE_NAME")] == [b"plain", b"scaled<float>"]


def test_management_library(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        m, n, device, out = c.nvml, c_uint(), c_void_p(), []
        out.append(m.nvmlDeviceGetCount_v2(byref(n)))  # before nvmlInit
        out += [m.nvmlInit_v2(), m.nvmlDeviceGetCount_v2(byref(n)), n.value]
        out += [
            m.nvmlDeviceGetHandleByIndex_v2(c_uint(2), byref(device)),
            m.nvmlDeviceGetHandleByIndex_v2(c_uint(1), byref(device)),
        ]
        name = ctypes.create_string_buffer(64)
        out += [m.nvmlDeviceGetName(device, name, c_uint(64)), name.value, m.nvmlDeviceGetName(device, name, c_uint(3))]
        pci = ctypes.create_string_buffer(16)
        c.rt.cudaDeviceGetPCIBusId(pci, c_int(16), c_int(1))
        same = c_void_p()
        out += [m.nvmlDeviceGetHandleByPciBusId_v2(pci, byref(same)), same.value == device.value]
        uuid = ctypes.create_string_buffer(96)
        out += [
            m.nvmlDeviceGetUUID(device, uuid, c_uint(96)),
            m.nvmlDeviceGetHandleByUUID(uuid, byref(same)),
            same.value == device.value,
        ]
        memory = (ctypes.c_ulonglong * 3)()
        c.set_device(1)
        free = c.free_bytes()
        out += [m.nvmlDeviceGetMemoryInfo(device, memory), memory[1] == free, memory[0] - memory[1] == memory[2]]
        out += [
            m.nvmlDeviceGetNvLinkState(device, c_uint(17), byref(n)),
            n.value,
            m.nvmlDeviceGetNvLinkState(device, c_uint(18), byref(n)),
        ]
        out += [
            m.nvmlDeviceGetTemperature(device, c_int(0), byref(n)),
            m.nvmlDeviceGetName(c_void_p(64), name, c_uint(64)),
        ]
        m.nvmlErrorString.restype = c_char_p
        out += [m.nvmlErrorString(c_int(3)), m.nvmlShutdown(), m.nvmlShutdown()]
        return out

    assert connected(stub_set, program, devices=2).value == [
        1,
        0,
        0,
        2,
        2,
        0,
        0,
        b"NVIDIA H100 80GB HBM3",
        7,
        0,
        True,
        0,
        0,
        True,
        0,
        True,
        True,
        0,
        1,
        2,
        3,
        2,
        b"Not Supported",
        0,
        1,
    ]


def test_profiling_interface_delivers_nothing(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        version, ident, subscriber = c_uint(), c_uint64(), c_void_p()
        callback = ctypes.CFUNCTYPE(None)(lambda: None)
        out = [c.cupti.cuptiGetVersion(byref(version)), c.cupti.cuptiSubscribe(byref(subscriber), callback, None)]
        out += [c.cupti.cuptiActivityEnable(c_int(3)), c.cupti.cuptiActivityFlushAll(c_uint(1))]
        out += [c.cupti.cuptiActivityGetNextRecord(ctypes.create_string_buffer(8), c_size_t(8), byref(c_void_p()))]
        for value in (5, 6):
            out.append(c.cupti.cuptiActivityPushExternalCorrelationId(c_int(3), c_uint64(value)))
        for _ in range(3):
            out += [c.cupti.cuptiActivityPopExternalCorrelationId(c_int(3), byref(ident)), ident.value]
        return out

    assert connected(stub_set, program).value == [0, 0, 0, 0, 12, 0, 0, 0, 6, 0, 5, 18, 5]


def test_calls_in_profiles_have_cuptis_names(stub_set: StubSet) -> None:
    """Torch asks for them from 2.13 on."""

    def program(c: Stubs) -> list[Any]:
        out = []
        for domain, function in ((2, 211), (2, 41), (2, 99999), (1, 211)):
            name = ctypes.c_char_p(b"before")
            out += [c.cupti.cuptiGetCallbackName(c_int(domain), c_uint(function), byref(name)), name.value]
        return [*out, c.cupti.cuptiGetCallbackName(c_int(2), c_uint(211), None)]

    assert connected(stub_set, program).value == [
        0,
        b"cudaLaunchKernel_v7000",
        0,
        b"cudaMemcpyAsync_v3020",
        1,
        None,
        1,
        None,
        1,
    ]


def test_cluster_occupancy_is_near_an_h200s(stub_set: StubSet) -> None:
    """Measured on an H200 (132 multiprocessors): size -> clusters of 128 threads without shared memory."""
    from tests.cuda.calls import Config, Dim3

    def program(c: Stubs) -> list[int]:
        out = []
        for size in (1, 2, 4, 8):
            item, n = Attribute(id=4), c_int()
            item.value[0], item.value[1], item.value[2] = size, 1, 1
            config = Config(Dim3(64, 1, 1), Dim3(128, 1, 1), 0, None, ctypes.pointer(item), 1)
            assert c.rt.cudaOccupancyMaxActiveClusters(byref(n), c.kernel, byref(config)) == 0
            out.append(n.value)
        return out

    assert connected(stub_set, program).value == [1056, 528, 248, 124]


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("1,7,2", [1]),
        ("GPU-", []),
        ("", []),
        ("1,1", []),
        ("-1", []),
    ],
)
def test_visible_devices(
    stub_set: StubSet, monkeypatch: pytest.MonkeyPatch, listed: str | None, seen: list[int]
) -> None:
    """Device n of a process is the n-th that CUDA_VISIBLE_DEVICES names; NVML shows all of them."""
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)

    def program(c: Stubs) -> Any:
        n, all_of_host, text = c_int(), c_uint(), ctypes.create_string_buffer(96)
        code, buses, uuids = c.rt.cudaGetDeviceCount(byref(n)), [], []
        for device in range(n.value):
            c.rt.cudaDeviceGetPCIBusId(text, c_int(16), c_int(device))
            buses.append(text.value)
        c.nvml.nvmlInit_v2()
        c.nvml.nvmlDeviceGetCount_v2(byref(all_of_host))
        for device in range(all_of_host.value):
            handle = c_void_p()
            c.nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(device), byref(handle))
            c.nvml.nvmlDeviceGetUUID(handle, text, c_uint(96))
            uuids.append(text.value.decode())
        return code, buses, c.rt.cudaSetDevice(c_int(n.value)), uuids

    code, buses, beyond, uuids = connected(stub_set, program, devices=4).value
    assert len(set(uuids)) == 4
    assert [int(bus.split(b":")[1], 16) for bus in buses] == [0x19 + 0x11 * device for device in seen]
    assert (code, beyond) == ((0, 101) if seen else (100, 100))
    if listed is None:  # the same by the beginning of an UUID
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{uuids[3][:12]},{uuids[0]}")
        assert connected(stub_set, program, devices=4).value[1] == [buses[3], buses[0]]


def test_nvml_counts_memory_where_it_is(stub_set: StubSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's second GPU is the first of this process."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    def program(c: Stubs) -> list[int]:
        free, total = c_size_t(), c_size_t()
        c.rt.cudaMemGetInfo(byref(free), byref(total))
        c.nvml.nvmlInit_v2()
        used = [total.value - free.value]
        for device in range(2):
            handle, memory = c_void_p(), (ctypes.c_ulonglong * 3)()
            c.nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(device), byref(handle))
            c.nvml.nvmlDeviceGetMemoryInfo(handle, memory)
            used.append(memory[2])
        return used

    mine, unused, used = connected(stub_set, program, devices=2).value
    assert unused == 0 and used == mine > 0


def test_freed_memory_cannot_be_registered(stub_set: StubSet) -> None:
    """Nothing is there: whoever copied to it would crash. The runtime's answer is cudaErrorInvalidValue."""

    def register(s: Stubs) -> list[int]:
        device, host = c_void_p(), ctypes.create_string_buffer(64)
        assert s.rt.cudaMalloc(byref(device), c_size_t(4096)) == 0 and s.rt.cudaFree(device) == 0
        return [
            s.rt.cudaHostRegister(device, c_size_t(4096), 0),
            s.rt.cudaHostRegister(host, c_size_t(64), 0),
            s.rt.cudaHostUnregister(host),
        ]

    assert connected(stub_set, register).value == [1, 0, 0]


def test_freed_memory_cannot_be_copied(stub_set: StubSet) -> None:
    """As host memory, whatever direction is given: a copy ended the process."""

    def copy(s: Stubs) -> list[int]:
        device, host = c_void_p(), ctypes.create_string_buffer(64)
        assert s.rt.cudaMalloc(byref(device), c_size_t(4 << 20)) == 0 and s.rt.cudaFree(device) == 0
        ways = [(host, device, 0), (device, host, 0), (host, device, 4), (device, host, 4), (host, host, 0)]
        return [s.rt.cudaMemcpyAsync(dst, src, c_size_t(64), kind, None) for dst, src, kind in ways]

    assert connected(stub_set, copy).value == [1, 1, 1, 1, 0]


def test_registered_memory_that_is_gone_cannot_be_written(stub_set: StubSet) -> None:
    """Its owner unmapped it without a word to CUDA: a set and a write of a word ended the process."""

    def write(s: Stubs) -> list[int]:
        map_, unmap = ctypes.CDLL(None).mmap, ctypes.CDLL(None).munmap
        map_.restype = c_void_p
        page = c_void_p(map_(None, c_size_t(4096), 3, 0x22, -1, c_size_t(0)))
        codes = [s.rt.cudaHostRegister(page, c_size_t(4096), 0), s.rt.cudaMemset(page, 1, c_size_t(64))]
        assert unmap(page, c_size_t(4096)) == 0
        codes += [s.rt.cudaMemset(page, 1, c_size_t(64)), s.cu.cuStreamWriteValue32_v2(None, page, 1, 0)]
        codes += [s.rt.cudaMemsetAsync(page, 1, c_size_t(64), None)]
        device = c_void_p()
        assert s.rt.cudaMalloc(byref(device), c_size_t(4096)) == 0
        ways = ((page, device), (device, page))
        codes += [s.rt.cudaMemcpyPeerAsync(dst, 0, src, 0, c_size_t(64), None) for dst, src in ways]
        return [*codes, s.rt.cudaHostUnregister(page)]

    assert connected(stub_set, write).value == [0, 0, 1, 1, 1, 1, 1, 0]
