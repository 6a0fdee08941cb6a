"""Packages with a CUDA runtime linked into them: its calls go to the stub."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.rank.patches import static_runtime
from phantora.stubs import StubSet
from tests.support.runs import records, trace

BINDINGS = """
import ctypes
import numpy as np
import torch
from cuda.bindings import driver, nvrtc, runtime

def get(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

SOURCE = b'extern "C" __global__ void one(float *x) { x[threadIdx.x] += 1; }'
stream, begin, end = get(runtime.cudaStreamCreate()), get(runtime.cudaEventCreate()), get(runtime.cudaEventCreate())
sent, got = np.arange(256, dtype=np.float32), np.zeros(256, dtype=np.float32)
memory = get(runtime.cudaMalloc(1024))
to, back = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
get(runtime.cudaEventRecord(begin, stream))
get(runtime.cudaMemcpyAsync(memory, sent.ctypes.data, 1024, to, stream))
get(runtime.cudaMemcpyAsync(got.ctypes.data, memory, 1024, back, stream))
get(runtime.cudaMemsetAsync(memory, 0, 512, stream))
program = get(nvrtc.nvrtcCreateProgram(SOURCE, b"one", 0, [], []))
get(nvrtc.nvrtcCompileProgram(program, 0, []))
image = b" " * get(nvrtc.nvrtcGetCUBINSize(program))
get(nvrtc.nvrtcGetCUBIN(program, image))
function = get(driver.cuModuleGetFunction(get(driver.cuModuleLoadData(image)), b"one"))
get(driver.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream, ((memory,), (ctypes.c_void_p,)), 0))
get(runtime.cudaEventRecord(end, stream))
get(runtime.cudaStreamSynchronize(stream))
assert (got == sent).all()
assert get(runtime.cudaEventElapsedTime(begin, end)) > 0
assert b"H100" in get(runtime.cudaGetDeviceProperties(0)).name
assert get(runtime.cudaRuntimeGetVersion()) // 1000 == int(torch.version.cuda.split(".")[0])
get(runtime.cudaFree(memory))
"""

LINKED = """
static int initialized;
__attribute__((noinline)) static int cudaGetDeviceCount(int *count) {
  for (int i = 0; i < 4; i++) initialized += *count = -i;
  return 801;
}
__attribute__((noinline)) static int cudaNobodyHasThis(int *count) { return *count = initialized++, 7; }
int devices(int *count) { return cudaGetDeviceCount(count); }
int other(int *count) { return cudaNobodyHasThis(count); }
static void __sti____cudaRegisterAll(void) __attribute__((used));
int registered;
static void __sti____cudaRegisterAll(void) { registered++; }
"""


def test_cuda_bindings(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    (tmp_path / "program.py").write_text(BINDINGS)
    run = trace(tmp_path, "--cluster", "1x1xH100", "program.py")
    assert not run.err.count("not supported"), run.err
    assert [row["name"] for row in records(run.log, "kernel", "name")] == ["one"]
    assert sorted(row["bytes"] for row in records(run.log, "memcpy", "bytes")) == [1024, 1024]
    assert [row["bytes"] for row in records(run.log, "memset", "bytes")] == [512]


def test_functions_linked_into_a_library_become_the_stubs(tmp_path: Path) -> None:
    """As in CuPy. Those that the stub does not have stay, and the library's kernels are registered once more."""
    (tmp_path / "linked.c").write_text(LINKED)
    (tmp_path / "stub.c").write_text("int cudaGetDeviceCount(int *count) { *count = 5; return 0; }")
    for name in ("linked", "stub"):
        command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(tmp_path / f"{name}.so"), str(tmp_path / f"{name}.c")]
        subprocess.run(command, check=True)
    library, count = ctypes.CDLL(str(tmp_path / "linked.so")), ctypes.c_int()
    assert library.devices(ctypes.byref(count)) == 801
    static_runtime.replace_functions(tmp_path / "linked.so", ctypes.CDLL(str(tmp_path / "stub.so")))
    assert library.devices(ctypes.byref(count)) == 0 and count.value == 5
    assert library.other(ctypes.byref(count)) == 7
    assert ctypes.c_int.in_dll(library, "registered").value == 1


EXPORTING = """
__attribute__((visibility("hidden"), noinline)) int inner_count(int *count) {
  static int calls;
  for (int i = 0; i < 4; i++) calls += *count = -i;
  return 801;
}
int devices(int *count) { return inner_count(count); }
__asm__(".globl _cudaGetDeviceCount; .type _cudaGetDeviceCount, @function\\n_cudaGetDeviceCount: .byte 0xe9\\n"
        ".long inner_count - . - 4\\n.size _cudaGetDeviceCount, . - _cudaGetDeviceCount");
int _cuDeviceGetCount(int *count) { *count = -9; return inner_count(count) - 1; }
int _cudaNobodyHasThis(int *count) { return inner_count(count) + 1; }
"""


def test_functions_that_exports_lead_to_become_the_stubs(tmp_path: Path) -> None:
    """As in the CuTe DSL, whose library has no names but its exports. It calls the hidden functions itself, too."""
    (tmp_path / "exporting.c").write_text(EXPORTING)
    (tmp_path / "runtime.c").write_text("int cudaGetDeviceCount(int *count) { *count = 5; return 0; }")
    (tmp_path / "driver.c").write_text("int cuDeviceGetCount(int *count) { *count = 6; return 0; }")
    for name in ("exporting", "runtime", "driver"):
        flags = ["-O1", "-s", "-shared", "-fPIC"]
        subprocess.run(["gcc", *flags, "-o", str(tmp_path / f"{name}.so"), str(tmp_path / f"{name}.c")], check=True)
    library, count = ctypes.CDLL(str(tmp_path / "exporting.so")), ctypes.c_int()
    assert library.devices(ctypes.byref(count)) == library._cudaGetDeviceCount(ctypes.byref(count)) == 801
    stubs = (ctypes.CDLL(str(tmp_path / f"{name}.so")) for name in ("runtime", "driver"))
    assert static_runtime.replace_exports(tmp_path / "exporting.so", *stubs) == 2
    for function in (library.devices, library._cudaGetDeviceCount):
        assert function(ctypes.byref(count)) == 0 and count.value == 5
    assert library._cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 6
    assert library._cudaNobodyHasThis(ctypes.byref(count)) == 1


CUTE = """
import torch
from flash_attn.cute import flash_attn_func

q, k, v = (torch.randn(2, 4096, 16, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
out = flash_attn_func(q, k, v, causal=True)
out = out[0] if isinstance(out, tuple) else out
out.backward(torch.ones_like(out))
torch.cuda.synchronize()
"""


def test_flash_attention_4_takes_an_attentions_time(tmp_path: Path) -> None:
    pytest.importorskip("flash_attn.cute")
    (tmp_path / "program.py").write_text(CUTE)
    run = trace(tmp_path, "--cluster", "1x1xH100", "program.py")
    kernels = [row for row in records(run.log, "kernel", "name", "start", "end") if "cutlass" in row["name"]]
    forward, *backward = (row["end"] - row["start"] for row in kernels)
    assert 220e3 < forward < 300e3 and 600e3 < sum(backward) < 800e3


def test_every_import_of_cupy_has_a_stub_or_a_trap(stub_set: StubSet) -> None:
    by_library = {item.soname.split(".so")[0]: {*item.implemented, *item.trapped} for item in stub_set.coverage}
    lines = (Path(static_runtime.__file__).parents[2] / "stubs" / "imported" / "cupy.txt").read_text().splitlines()
    assert len(lines) > 500
    for line in lines:
        library, symbol = line.split()
        assert symbol in by_library[library], line


SPARSE = {
    "cupyx/scipy/sparse/_base.py": "class _spbase:\n    pass\n",
    "program.py": """
import cupyx.scipy.sparse._base as base

class csr_matrix(base._spbase):
    def __init__(self, rows, columns=0):
        self.shape = rows, columns

print(csr_matrix(2, columns=3).shape)
""",
}


def test_a_sparse_matrix_of_cupy_is_refused_by_name(tmp_path: Path) -> None:
    """Its kernels compute nothing: a matrix of 1,000 had one. This CuPy has only what all inherit."""
    for name, text in SPARSE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = trace(tmp_path, "--cluster", "1x1xH100", "program.py", check=False)
    assert run.status == 78 and not run.out
    assert run.err.splitlines()[0].startswith(
        "phantora: cupyx.scipy.sparse.csr_matrix (its indices would come from CuPy's own kernels, which compute "
        "nothing: use torch.sparse_csr_tensor) is not supported by the simulator; run with --unsupported warn"
    )
    run = trace(tmp_path, "--cluster", "1x1xH100", "--unsupported", "warn", "program.py")
    assert run.out == "(2, 3)\n" and run.err.count("csr_matrix (its indices") == 1
    assert "the matrix is made, and its indices are not true" in run.err and "no-op" not in run.err


WITHOUT_TORCH = {
    "cupy/__init__.py": "import ctypes\nruntime = ctypes.CDLL('libcudart.so.%s')\n",
    "program.py": """
import ctypes, sys
import cupy
count = ctypes.c_int()
seen = cupy.runtime.cudaGetDeviceCount(ctypes.byref(count)), count.value
block = ctypes.c_void_p()
size = ctypes.c_size_t(64)
made = cupy.runtime.cudaMalloc(ctypes.byref(block), size), cupy.runtime.cudaMemset(block, 0, size)
print(*seen, *made, "torch" in sys.modules)
""",
}


def test_a_command_that_uses_cupy_and_never_torch_sees_the_gpu(tmp_path: Path, stub_set: StubSet) -> None:
    cuda = next(path.name for path in stub_set.libraries if path.name.startswith("libcudart.so")).rpartition(".")[2]
    for name, text in WITHOUT_TORCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text % cuda if "%" in text else text)
    run = trace(tmp_path, "--cluster", "1x1xH100", "--", sys.executable, "program.py", alone=True)
    assert run.out == "0 1 0 0 False\n"
