"""Python packages with a CUDA runtime linked into them (cuda.bindings, CuPy): its calls go to the stub of libcudart.

Such a runtime asks the driver for tables without documentation, which the stub of the driver does not have. So its
functions are replaced before they are used: those of cuda.bindings where Cython modules look each other up, those of
CuPy, whose libraries keep the names of their functions, by a jump at their beginning.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from phantora.errors import PhantoraError
from phantora.rank.importhook import on_import

_LOOKED_UP = {
    "cuda.bindings._internal.runtime": "",
    "cuda.bindings._internal.runtime_ptds": "_ptsz",
    "cuda.bindings._bindings.cyruntime": "",
    "cuda.bindings._bindings.cyruntime_ptds": "_ptsz",
}
"""Modules of cuda.bindings (the last two up to 13.4); what names of functions on a thread's own stream end in."""
_LINKED = ("cupy_backends.cuda.api.runtime", "cupy.cuda.cub", "cupy.cuda.thrust", "cupy.cuda.jitify")
_JUMP = b"\x48\xb8%s\xff\xe0"  # mov rax, address; jmp rax
_LONG = 12
_PROTECTIONS = 7  # PROT_READ | PROT_WRITE | PROT_EXEC


def install(runtime: Path) -> None:
    """Makes each such module call the library `runtime`, as soon as it is imported."""
    stub = ctypes.CDLL(str(runtime))
    cuda = int(runtime.name.rpartition(".")[2])

    def meet(module: ModuleType) -> None:
        if _cuda_of(module) != cuda:
            return  # its structures are others: its first call is refused by name
        if module.__name__ in _LOOKED_UP:
            _replace_lookups(module, stub, _LOOKED_UP[module.__name__])
        else:
            replace_functions(Path(str(module.__file__)), stub)

    on_import((*_LOOKED_UP, *_LINKED), meet)


def _cuda_of(module: ModuleType) -> int:
    """The CUDA that a module was built for, by its first number."""
    if module.__name__ in _LOOKED_UP:
        return int(version("cuda-bindings").partition(".")[0])
    build: int = import_module("cupy_backends.cuda.api.driver").get_build_version()
    return build // 1000


def _address(stub: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(stub, name), ctypes.c_void_p).value
    except AttributeError:
        return None


def _replace_lookups(module: ModuleType, stub: ctypes.CDLL, ending: str) -> None:
    """Modules that are imported later take the addresses of `module`'s functions from its ``__pyx_capi__``."""
    api = ctypes.pythonapi
    name_of = api.PyCapsule_GetName
    name_of.argtypes, name_of.restype = [ctypes.py_object], ctypes.c_void_p
    create = api.PyCapsule_New
    create.argtypes, create.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p], ctypes.py_object
    offered = module.__pyx_capi__
    for name, capsule in list(offered.items()):
        function = name.removeprefix("_")
        address = (_address(stub, function + ending) if ending else None) or _address(stub, function)
        if address is not None:
            offered[name] = create(address, name_of(capsule), None)


@dataclass(frozen=True)
class _Function:
    name: str
    value: int
    """Its address as the library was linked."""
    size: int


def _functions(library: bytes) -> Iterator[_Function]:
    """Functions of an ELF file's symbol table; none if the table was removed."""
    sections, size, count = struct.unpack_from("<Q10xHH", library, 0x28)
    headers = [struct.unpack_from("<IIQQQQIIQQ", library, sections + size * number) for number in range(count)]
    for _, kind, _, _, start, length, link, *_ in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        names = headers[link][4]
        for name, info, _, section, value, extent in struct.iter_unpack("<IBBHQQ", library[start : start + length]):
            if info & 15 == 2 and section:  # STT_FUNC, defined
                begin = names + name
                yield _Function(library[begin : library.index(0, begin)].decode(), value, extent)


def _base(path: Path) -> int:
    """Address of the library in this process."""
    real = [str(path.resolve())]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, offset, _, _, *name = line.split(None, 5)
        if int(offset, 16) == 0 and name == real:
            return int(addresses.partition("-")[0], 16)
    raise PhantoraError(f"{path} is not where it was loaded; run `phantora doctor`")


def replace_functions(path: Path, stub: ctypes.CDLL) -> None:
    """Makes those functions of the loaded library at `path` that `stub` has too begin with a jump there."""
    if platform.machine() != "x86_64":
        return  # the first call is refused: such a runtime is not simulated
    found = list(_functions(path.read_bytes()))
    base = _base(path)
    for function in found:
        if not function.name.startswith(("cuda", "__cuda")) or function.size < _LONG:
            continue
        address = _address(stub, function.name)
        if address is not None:
            _write(base + function.value, _JUMP % struct.pack("<Q", address))
    for function in found:  # the library's kernels were reported to the runtime that is gone now
        if "__sti____cudaRegisterAll" in function.name:
            ctypes.CFUNCTYPE(None)(base + function.value)()


def _write(address: int, code: bytes) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    begin = address // page * page
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(begin, address + len(code) - begin, _PROTECTIONS) != 0:
        raise PhantoraError(
            f"a CUDA runtime that is linked into a package cannot be replaced: {os.strerror(ctypes.get_errno())}; "
            "allow memory that is both writable and executable"
        )
    ctypes.memmove(address, code, len(code))
