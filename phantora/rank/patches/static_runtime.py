"""Python packages with a CUDA runtime linked into them (cuda.bindings, CuPy, the CuTe DSL): its calls go to the stubs.

Such a runtime asks the driver for tables without documentation, which the stub of the driver does not have. So its
functions are replaced before they are used: those of cuda.bindings where Cython modules look each other up, those of
CuPy, whose libraries keep the names of their functions, by a jump at their beginning.

The library of the CuTe DSL keeps no names but those of its exports (``_cudaFree``), most of which are one jump to the
runtime's function. That jump shows where the function is, so ours is written there: the library itself calls it, too.
Exports named after functions of the driver (``_cuLibraryUnload``) ask the runtime for these: they lead to ours at once.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from phantora.errors import PhantoraError
from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_LOOKED_UP = {
    "cuda.bindings._internal.runtime": "",
    "cuda.bindings._internal.runtime_ptds": "_ptsz",
    "cuda.bindings._bindings.cyruntime": "",
    "cuda.bindings._bindings.cyruntime_ptds": "_ptsz",
}
"""Modules of cuda.bindings (the last two up to 13.4); what names of functions on a thread's own stream end in."""
_LINKED = ("cupy_backends.cuda.api.runtime", "cupy.cuda.cub", "cupy.cuda.thrust", "cupy.cuda.jitify")
_EXPORTING = {"cutlass._mlir._mlir_libs": "libcute_dsl_runtime.so"}
"""Packages that load a library whose exports lead to the functions of a runtime, and the library's name."""
_CHANGED = frozenset(("cudaGetDeviceProperties",))
"""Exported functions whose structures differ between CUDA 12 and 13."""
_OTHER_NAMES = {"cudaLaunchKernelEx": "cudaLaunchKernelExC"}
"""The runtime's names of functions that have C++ names too."""
_NEAR_JUMP = 0xE9  # jmp rel32
_LANDING = b"\xf3\x0f\x1e\xfa"  # endbr64
_SYMBOLS, _EXPORTS = 2, 11  # SHT_SYMTAB, SHT_DYNSYM
_JUMP = b"\x48\xb8%s\xff\xe0"  # mov rax, address; jmp rax
_LONG, _SHORT = 12, 5  # bytes of this jump, and of one within a library
_PROTECTIONS = 7  # PROT_READ | PROT_WRITE | PROT_EXEC


def install(rank: Rank) -> None:
    """Makes each such module call the stubs of CUDA's runtime and driver, as soon as it is imported."""
    runtime, driver = rank.library("libcudart"), rank.library("libcuda")
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
    on_import(_EXPORTING, lambda module: _meet_exporting(module, stub, ctypes.CDLL(str(driver)), cuda))


def _meet_exporting(module: ModuleType, runtime: ctypes.CDLL, driver: ctypes.CDLL, cuda: int) -> None:
    """Loads the library that `module` has chosen, if it has not yet, and replaces what its exports lead to."""
    name = _EXPORTING[module.__name__]
    for path in _chosen(module, name) or _mapped(name):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        same = f"cu{cuda}" in path.parts
        replace_exports(path, runtime, driver, frozenset() if same else _CHANGED)


def _chosen(module: ModuleType, name: str) -> list[Path]:
    """The library that the CuTe DSL loads with its first kernel: by a variable, or next to its compiler."""
    if named := [Path(path) for path in os.environ.get("CUTE_DSL_LIBS", "").split(os.pathsep) if path.endswith(name)]:
        return named
    flavour = re.search(r"\.cu(\d+)\.", Path(str(module._cutlass_ir.__file__)).name)
    folders = [path for path in Path(str(module.__file__)).parents if flavour and path.name == "nvidia_cutlass_dsl"]
    found = [folder / f"cu{flavour[1]}" / "lib" / name for folder in folders if flavour]
    return [path for path in found if path.exists()]


def _mapped(name: str) -> list[Path]:
    """Libraries of this process whose files have the name."""
    words = (line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines())
    return sorted({Path(word[5]) for word in words if len(word) == 6 and Path(word[5]).name == name})


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
    """Address of the function as the library was linked."""
    size: int


def _functions(library: bytes, table: int = _SYMBOLS) -> Iterator[_Function]:
    """Functions of an ELF file's symbol table, or of its exports; none if the table was removed."""
    sections, size, count = struct.unpack_from("<Q10xHH", library, 0x28)
    headers = [struct.unpack_from("<IIQQQQIIQQ", library, sections + size * number) for number in range(count)]
    for _, kind, _, _, start, length, link, *_ in headers:
        if kind != table:
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


def replace_exports(path: Path, runtime: ctypes.CDLL, driver: ctypes.CDLL, without: Collection[str] = ()) -> int:
    """Makes calls of the library at `path` go to the stubs: by its exports, whose names may begin with ``_``.

    Exports of the driver's functions become jumps to `driver`; where exports jump to functions of a runtime that is
    linked in, those become jumps to `runtime`. Returns the number of replaced functions.
    """
    if platform.machine() != "x86_64":
        return 0
    library = path.read_bytes()
    base, count = _base(path), 0
    for function in _functions(library, _EXPORTS):
        name = function.name.lstrip("_")
        if name in without or function.size < _SHORT:
            continue
        address = _address(runtime, _OTHER_NAMES.get(name, name)) if name.startswith("cuda") else None
        target = _led_to(ctypes.string_at(base + function.value, _LONG), function.value)
        if re.match(r"cu[A-Z]", name) and function.size >= _LONG:
            address, target = _address(driver, name), function.value
        if address is not None and target is not None and 0 < target < len(library):
            _write(base + target, _JUMP % struct.pack("<Q", address))
            count += 1
    return count


def _led_to(code: bytes, value: int) -> int | None:
    """The place to which `code` at `value` jumps at once; None if it begins otherwise."""
    skipped = len(_LANDING) if code.startswith(_LANDING) else 0
    if code[skipped] != _NEAR_JUMP:
        return None
    (distance,) = struct.unpack_from("<i", code, skipped + 1)
    return int(value + skipped + 5 + distance)


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


PATCH = Patch("static runtime", When.BEFORE_TORCH, install)
