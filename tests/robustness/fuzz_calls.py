"""Targets of fuzz.py: CUDA's runtime and driver and NCCL, called with any arguments that do not crash the real ones.

The entry points are read from the stubs' sources. Each byte of an input chooses: a function, then each of its arguments
from what fits its type: handles that were made before (also destroyed ones) and 0, 1, 2; device and host memory, freed
memory; sizes up to that of the host's buffers where there are pointers, and any number where there are none; structures
of zeros; NULL. Wild addresses and handles of another kind are not tried: the real libraries crash, too.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ringdump import make_session

ROOT = Path(__file__).resolve().parents[2]

LIBRARIES = {"stub/cuda/runtime": "libcudart", "stub/cuda/driver": "libcuda.so", "stub/nccl": "libnccl"}
BUFFER = 1 << 20
SMALL = (0, 1, 2, 3, 4, 7, 64, 1000, 4096)
LARGE = (*SMALL, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TEXTS = (b"", b"x", b"cudaMalloc", b"kernel" * 300, b"\xff\xfe")
NUMBERS = frozenset(
    (
        "int",
        "unsigned",
        "unsignedint",
        "size_t",
        "unsignedlong",
        "unsignedlonglong",
        "longlong",
        "uint64_t",
        "uint32_t",
        "int64_t",
        "unsignedchar",
        "unsignedshort",
        "uint8_t",
        "uint16_t",
        "ncclDataType_t",
        "ncclRedOp_t",
        "ncclResult_t",
    )
)
BY_VALUE = {"ncclUniqueId": 128, "cudaIpcHandle": 64}
WRITTEN = frozenset(("data",))  # by the library itself, at once: memory of the host
POINTERS = re.compile(r"src|dst|source|target|pointer|ptr|buff|address|memory|host|data|base")
MOST_OUT = 64
LAST_CODE = 2000  # no error of CUDA or NCCL has a larger number
ENDS = re.compile(r"nccl\w*(Destroy|Abort|Finalize|Deregister|Revoke)")
# What follows addresses that structures or arrays bring, with sizes of their own; what calls or loads what it is given.
LEFT_OUT = re.compile(
    r"DeviceReset|PrimaryCtxReset|LaunchKernelEx|LaunchCooperative|ModuleLoad|LibraryLoad|LinkAdd|LinkCreate|Batch|HostFunc|AddCallback|HostNode"
)


@dataclass(frozen=True)
class Parameter:
    """`kind`: out, handle, pointer, text, buffer, number or a structure by value (its C name); `of`: which handles."""

    kind: str
    of: str = ""


@dataclass(frozen=True)
class Call:
    name: str
    library: str
    parameters: tuple[Parameter, ...]


def _parameter(text: str) -> Parameter | None:
    """None for one that is not tried: floating point, a function."""
    written = "const " not in text
    text = text.replace("const ", "").strip()
    split = re.match(r"(.*?)(\w+)(?:\[\])?$", text)
    if split is None:
        return None
    kind, name = split[1].replace(" ", ""), split[2]
    if "(" in text or kind in ("float", "double"):
        return None
    if kind == "char*":
        return Parameter("buffer" if written else "text")
    if kind.endswith("**") or re.fullmatch(r"(ncclComm_t|ncclWindow_t|CU\w+|ncclRedOp_t)\*", kind):
        return Parameter("out", _handles(name))
    if kind in ("void*", "ncclComm_t", "ncclWindow_t", "cudaStream_t", "cudaEvent_t", "CUdeviceptr"):
        if name in WRITTEN:
            return Parameter("buffer")
        pointer = kind == "CUdeviceptr" or POINTERS.search(name)
        return Parameter("pointer") if pointer else Parameter("handle", _handles(name))
    if kind.endswith("*"):  # to a number or a structure of CUDA's; else a handle, as the stubs see it
        known = kind[:-1] in (*NUMBERS, "float", "double") or re.match(r"(cuda|CU|nccl|dim3)", kind)
        return Parameter("buffer") if known else Parameter("handle", _handles(name))
    if kind in BY_VALUE or kind == "dim3":
        return Parameter(kind)
    return Parameter("number") if kind in NUMBERS else None


def _handles(name: str) -> str:
    """One word for `newcomm`, `comm`, `graph_exec`, ..."""
    for word in (
        "comm",
        "exec",
        "node",
        "graph",
        "stream",
        "event",
        "pool",
        "function",
        "kernel",
        "module",
        "library",
        "context",
        "handle",
        "win",
    ):
        if word in name.lower():
            return word
    return "memory" if POINTERS.search(name) else name


@functools.cache
def calls() -> tuple[Call, ...]:
    """Calls that the sources of the stubs define, and that the built libraries export."""
    found, loaded_set = [], _loaded()
    for folder, library in LIBRARIES.items():
        loaded = loaded_set.libraries[library]
        for path in sorted((ROOT / folder).glob("*.c")):
            for name, parameters in _declared(_compiled(path.read_text(), loaded_set.cuda)):
                taken = [_parameter(text) for text in parameters.split(",")] if parameters.strip() != "void" else []
                if "HostRegister" in name:  # what was freed may be memory of Python's by now
                    taken = [Parameter("buffer") if p and p.kind == "pointer" else p for p in taken]
                if None not in taken and hasattr(loaded, name) and not LEFT_OUT.search(name):
                    found.append(Call(name, library, tuple(p for p in taken if p)))
    return tuple(found)


def _compiled(source: str, cuda: int) -> str:
    """The lines that are compiled for a major version of CUDA; those under other conditions are left out."""
    kept, under = [], [True]
    for line in source.splitlines():
        if line.startswith("#if"):
            condition = re.fullmatch(r"#if PH_CUDA_MAJOR (>=|==|<) (\d+)", line)
            compare = {">=": int.__ge__, "==": int.__eq__, "<": int.__lt__}
            under.append(bool(condition) and compare[condition[1]](cuda, int(condition[2])))  # type: ignore[index]
        elif line.startswith("#else"):
            under[-1] = not under[-1]
        elif line.startswith("#endif"):
            under.pop()
        elif all(under):
            kept.append(line)
    return "\n".join(kept)


def _declared(source: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"^(?:ENTRY|STREAM)\((\w+),\s*\w+,\s*\w+,\s*\(([^()]*)\),", source, re.MULTILINE):
        yield match[1], match[2]
    for match in re.finditer(r"^NCCL_API\([^,]*, (\w+), ([^)]*)\) \{", source, re.MULTILINE):
        yield match[1], match[2]


@dataclass
class Loaded:
    """The stubs in this process, which is rank 0 of a run that answers at once."""

    session: Any
    libraries: dict[str, ctypes.CDLL]
    buffers: list[Any]
    cuda: int
    """Major version."""
    handles: dict[str, list[int]] = field(default_factory=dict)


@functools.cache
def _loaded() -> Loaded:
    from phantora.stubs.cache import ensure

    built = ensure()
    session = make_session(null_mode=1)
    rank = ctypes.CDLL(str(built.rank), mode=ctypes.RTLD_GLOBAL)
    if rank.ph_connect(os.dup(session.fd), 0, 0, 2):
        raise SystemExit("cannot connect to the session")
    libraries = {
        stem: ctypes.CDLL(next(str(path) for path in built.libraries if path.name.startswith(stem)), ctypes.RTLD_GLOBAL)
        for stem in LIBRARIES.values()
    }
    libraries["libcuda.so"].cuInit(0)
    libraries["libcudart"].cudaFree(None)
    buffers = [ctypes.create_string_buffer(BUFFER) for _ in range(4)]
    return Loaded(session, libraries, buffers, int(built.cuda.split(".")[0]))


def _argument(parameter: Parameter, numbers: tuple[int, ...], choice: int, outs: list[tuple[str, Any]]) -> Any:
    loaded = _loaded()
    kind = parameter.kind
    if kind == "number":
        return ctypes.c_uint64(numbers[choice % len(numbers)])
    if kind == "dim3":
        return _Dim3(choice, 1, 1)
    if kind in BY_VALUE:
        return (_Bytes128 if BY_VALUE[kind] == 128 else _Bytes64)()
    if kind == "text":
        return ctypes.c_char_p(TEXTS[choice % len(TEXTS)] if choice < 240 else None)
    if choice >= 240:
        return ctypes.c_void_p(None)
    if kind == "out":
        outs.append((parameter.of, (ctypes.c_uint64 * MOST_OUT)()))  # one handle, or as many as a buffer says
        return outs[-1][1]
    if kind == "buffer":
        buffer = loaded.buffers[choice % len(loaded.buffers)]
        ctypes.memset(buffer, 0, 4096)
        buffer[0] = choice % MOST_OUT
        return buffer
    known = loaded.handles.get("memory" if kind == "pointer" else parameter.of, [])
    if kind == "pointer" and choice % 3 == 0:
        return loaded.buffers[choice % len(loaded.buffers)]
    if known and choice % 8:
        return ctypes.c_void_p(known[choice % len(known)])
    return ctypes.c_void_p(choice % 3 if parameter.of == "stream" else 0)


class _Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class _Bytes128(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class _Bytes64(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def call(path: Path) -> None:
    """Makes the calls that the bytes of a file choose. Raises AssertionError for an answer that is no error code."""
    os.chdir(path.parent)  # one entry point writes a file
    trace = os.open(path.with_suffix(".call"), os.O_CREAT | os.O_WRONLY, 0o600)
    choices = iter(path.read_bytes())
    try:
        for first, second in zip(choices, choices, strict=False):
            chosen = calls()[(first << 8 | second) % len(calls())]
            pointers = any(p.kind in ("pointer", "buffer") for p in chosen.parameters)
            outs: list[tuple[str, Any]] = []
            arguments = [_argument(p, SMALL if pointers else LARGE, next(choices, 0), outs) for p in chosen.parameters]
            os.pwrite(trace, chosen.name.encode().ljust(64), 0)
            function = getattr(_loaded().libraries[chosen.library], chosen.name)
            text = chosen.name.endswith(("String", "GetLastError"))
            function.restype = ctypes.c_void_p if text else ctypes.c_int
            code = function(*arguments)
            if not text and not 0 <= code <= LAST_CODE:
                raise AssertionError(f"{chosen.name} answers {code}")
            if ENDS.search(chosen.name):  # NCCL has freed it: to use it again would crash there, too
                for parameter, argument in zip(chosen.parameters, arguments, strict=True):
                    kept = _loaded().handles.get(parameter.of, [])
                    if parameter.kind == "handle" and argument.value in kept:
                        kept.remove(argument.value)
            for kind, out in outs:
                if code == 0 and out[0]:
                    kept = _loaded().handles.setdefault(kind, [])
                    kept.append(out[0])
                    del kept[:-32]
    finally:
        os.close(trace)


def seeds() -> list[bytes]:
    """Random bytes: each chooses something that exists."""
    return [random.Random(number).randbytes(4096) for number in range(8)]
