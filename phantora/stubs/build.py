"""Compiles the libraries of stub/ for the torch that is installed; once, and then from a cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.stubs import elf
from phantora.stubs.find import (
    OWN_CXX,
    TESTED,
    Library,
    Torch,
    cuda_headers,
    cxx_standard,
    header_version,
    nvidia_libraries,
)
from phantora.stubs.sources import (
    engine_directory,
    engine_sources,
    library_key,
    other_limits,
    sanitizers,
    source_directory,
    sources_of,
)
from phantora.wire import engine as engine_interface
from phantora.wire import layout

# Folders of stub/ that make libphantora_rank.so: what every stub library of a rank links.
RANK_FOLDERS = ("rank/runtime", "rank/clock", "rank/memory", "rank/torch_hooks", "rank", "cuda/core")
CLOCK_FOLDER = "clock"
TRACER_FOLDER = "tracer"
# Folder of the stub of each NVIDIA library; one without a folder is all traps.
FOLDERS = {
    "libcudart": "cuda/runtime",
    "libcuda": "cuda/driver",
    "libnvidia-ml": "cuda/nvml",
    "libnvrtc": "cuda/nvrtc",
    "libcupti": "cuda/cupti",
    "libcublas": "cublas",
    "libcublasLt": "cublaslt",
    "libcudnn": "cudnn",
    "libnccl": "nccl",
    "libcusolver": "cusolver",
    "libcusparse": "cusparse",
    "libcusparseLt": "cusparselt",
    "libcufft": "cufft",
    "libcurand": "curand",
    "libcufile": "cufile",
    "libnvshmem_host": "nvshmem",
}
# What a trapped call returns under `--unsupported warn`: the library's own "not supported".
_NOT_SUPPORTED = {
    "libcudart": 801,
    "libcuda": 801,
    "libcublas": 15,
    "libcublasLt": 15,
    "libcudnn": 3000,
    "libnccl": 5,
    "libcufft": 16,
    "libcurand": 999,
    "libcusparse": 10,
    "libcusparseLt": 10,
    "libcusolver": 9,
    "libcupti": 27,
    "libnvrtc": 11,
    "libnvidia-ml": 3,
}
# Warnings are not errors here: a compiler newer than ours may have new ones. The tests forbid them.
_FLAGS = ("-O2", "-g1", "-fPIC", "-fno-semantic-interposition", "-fvisibility=hidden", "-Wall", "-Wextra")
_C = ("gcc", "-std=gnu11", *_FLAGS)
_CXX = ("g++", *_FLAGS)


@dataclass(frozen=True)
class Coverage:
    """Symbols that torch imports from a library, and those that its stub has."""

    soname: str
    implemented: tuple[str, ...]
    trapped: tuple[str, ...]


@dataclass(frozen=True)
class StubSet:
    """A finished build. `libraries` are in the order in which they must be loaded; `keys` (by file) name what each
    library is made of."""

    directory: Path
    torch_version: str
    cuda: str
    coverage: tuple[Coverage, ...]
    keys: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Paths of NVIDIA's libraries in their stub form."""
        return tuple(self.directory / item.soname for item in self.coverage)

    @property
    def rank(self) -> Path:
        """Path of the rank runtime."""
        return self.directory / "libphantora_rank.so"

    @property
    def tracer(self) -> Path:
        """Path of the operator tracer."""
        return self.directory / "libphantora_tracer.so"

    @property
    def engine(self) -> Path:
        """Path of the engine."""
        return self.directory / "libphantora_engine.so"


def file_name(soname: str) -> str:
    """The file that holds a stub; a link of the name `soname` points to it.

    torch preloads NVIDIA's own libraries, over 100 MB per process, when it finds ``libcudart.so``
    in /proc/self/maps, where links appear resolved. So that one file is named otherwise.
    """
    return soname.replace("libcudart.so.", "libcudart-") + ".so" if soname.startswith("libcudart.so.") else soname


def compilers() -> dict[str, str | None]:
    """The first line of `--version` of the C and the C++ compiler, None for a missing one."""
    found: dict[str, str | None] = {}
    for name in (_C[0], _CXX[0]):
        path = shutil.which(name)
        found[name] = None
        if path:
            result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            found[name] = result.stdout.splitlines()[0] if result.stdout else path
    return found


def read_set(directory: Path) -> StubSet | None:
    """The finished build in `directory`, or None if there is none, or part of it is missing."""
    try:
        data = json.loads((directory / "build.json").read_text())
        if any((directory / name).stat().st_size != size for name, size in data["files"].items()):
            return None
    except (OSError, ValueError):
        return None
    coverage = tuple(
        Coverage(item["soname"], tuple(item["implemented"]), tuple(item["trapped"])) for item in data["libraries"]
    )
    return StubSet(directory, data["torch"], data["cuda"], coverage, data.get("keys", {}))


def _run(command: list[str], remedy: str = "this compiler may be too old: see `phantora doctor`") -> None:
    command = [command[0], *sanitizers(), *command[1:]]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    target = Path(command[command.index("-o") + 1])
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        errors = [line for line in lines if "error" in line or "undefined" in line] or lines[-1:]
        raise PhantoraError(
            f"{command[0]} cannot make {target.name}: {errors[0] if errors else 'no message'}; {remedy}"
        )
    if result.stderr:
        with (target.parent / WARNINGS).open("a") as file:
            file.write(result.stderr)


def _together(name: str, sources: list[Path], work: Path) -> str:
    """A file that makes C++ sources one translation unit.

    Calls between them are inlined, and their headers are read once: torch's take 6 s.
    """
    whole = work / f"{name}_all.cpp"
    whole.write_text("".join(f'#include "{path}"\n' for path in sources))
    return str(whole)


WARNINGS = "warnings.txt"
"""The compilers' messages of a build that succeeded; no file without messages."""
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class _Part:
    """One library of a build. `make` compiles it; the coverage is that of a stub of NVIDIA's."""

    file: str
    key: str
    make: Callable[[], Coverage | None]


def _reuse(part: _Part, earlier: Iterable[StubSet], work: Path) -> StubSet | None:
    """The earlier build with a library of the same key, which is copied to `work`. Not from builds with warnings."""
    for found in earlier:
        if found.keys.get(part.file) == part.key and not (found.directory / WARNINGS).exists():
            shutil.copy2(found.directory / part.file, work / part.file)
            return found
    return None


def build(
    torch: Torch, work: Path, earlier: Iterable[StubSet] = (), built: Callable[[int, int], None] | None = None
) -> None:
    """Makes all libraries in `work`: copies from `earlier` builds, and compiles the others. `built` is called every ten
    seconds with the number of compiled libraries and of those to compile. Raises PhantoraError where the compiler
    refuses."""
    (work / "phantora_wire.h").write_text(layout.c_header())
    parts = _parts(torch, work)
    earlier = list(earlier)
    coverage: dict[str, Coverage | None] = {}
    compiled: list[_Part] = []
    for part in parts:
        if found := _reuse(part, earlier, work):
            coverage[part.file] = next((item for item in found.coverage if file_name(item.soname) == part.file), None)
        else:
            compiled.append(part)
    if compiled and compiled[0] is parts[0]:  # the rank runtime: what the others link
        coverage[parts[0].file] = parts[0].make()
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        tasks = {part.file: pool.submit(part.make) for part in compiled if part is not parts[0]}
        left: set[Future[Coverage | None]] = set(tasks.values())
        while left:
            _, left = wait(left, _PROGRESS_SECONDS)
            if left and built:
                built(len(compiled) - len(left), len(compiled))
        coverage.update({file: task.result() for file, task in tasks.items()})
    stubs = [item for part in parts if (item := coverage[part.file])]
    link_names(work, stubs)
    (work / "build.json").write_text(
        json.dumps(
            {
                "torch": torch.version,
                "cuda": torch.cuda,
                "libraries": [vars(item) for item in stubs],
                "files": {part.file: (work / part.file).stat().st_size for part in parts},
                "keys": {part.file: part.key for part in parts},
            }
        )
    )


def link_names(folder: Path, stubs: Iterable[Coverage]) -> None:
    """Links sonames that differ from their files', and the driver's name for linkers, which Triton uses up to 3.5."""
    names = {item.soname: file_name(item.soname) for item in stubs}
    for name, file in (names | {"libcuda.so": "libcuda.so.1"}).items():
        if name != file:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(file)


def _parts(torch: Torch, work: Path) -> list[_Part]:
    """All libraries: the rank runtime first, which the others link; then those that take longest."""
    sources = source_directory()
    include = ["-I", str(work), "-I", str(sources)]
    macros = defines(torch)
    link_rank = ["-L", str(work), "-lphantora_rank", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"]
    common = (*map(str, compilers().values()), layout.c_header(), *macros)

    def c_library(target: str, folders: tuple[str, ...], *extra: str) -> _Part:
        files = [path for folder in folders for path in sources_of(sources / folder)]

        def make() -> None:
            command = [*_C, *macros, *include, "-shared", *extra, "-o", str(work / target), *map(str, files)]
            _run([*command, "-lpthread", "-ldl", "-lm"])

        return _Part(target, library_key(files, *common), make)

    def stub(library: Library) -> _Part:
        folder = FOLDERS.get(library.stem)
        files = sources_of(sources / folder) if folder else []
        symbols = json.dumps([library.soname, sorted(library.symbols.items())])
        return _Part(
            file_name(library.soname),
            library_key([*files, sources / "rank" / "rank.h", sources / "abi" / "export.h"], *common, symbols),
            lambda: _stub(library, files, work, [*macros, *include], link_rank),
        )

    return [
        c_library("libphantora_rank.so", RANK_FOLDERS, "-Wl,-soname,libphantora_rank.so"),
        _tracer(torch, work, include, link_rank, common),
        _engine(work, include, common),
        c_library("libphantora_clock.so", (CLOCK_FOLDER,), *link_rank),
        *map(stub, nvidia_libraries(torch)),
    ]


def _tracer(torch: Torch, work: Path, include: list[str], link_rank: list[str], common: tuple[str, ...]) -> _Part:
    sources = source_directory()
    files = sources_of(sources / TRACER_FOLDER)

    def make() -> None:
        headers = torch.directory / "include"
        torch_flags = [
            "-DNDEBUG",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(_cxx11_abi(torch))}",
            "-Wno-unused-parameter",
            f"-std=c++{cxx_standard(torch)}",
            "-I",
            str(sources / "abi" / "torch_shim"),
            "-isystem",
            str(cuda_headers(torch)),
            "-isystem",
            str(headers),
            "-isystem",
            str(headers / "torch" / "csrc" / "api" / "include"),
        ]
        torch_libs = [
            "-L",
            str(torch.libraries),
            "-Wl,--no-as-needed",
            "-lc10",
            "-ltorch_cpu",
            "-lc10_cuda",
            "-ltorch_cuda",
            "-Wl,--allow-shlib-undefined",
            "-Wl,--unresolved-symbols=ignore-in-shared-libs",
        ]
        whole = _together("tracer", files, work)
        target = str(work / "libphantora_tracer.so")
        _run(
            [*_CXX, *torch_flags, *other_limits(), *include, "-shared", "-o", target, whole, *link_rank, *torch_libs],
            f"it is compiled against the headers of torch {torch.version}, in C++{cxx_standard(torch)}; if the "
            f"compiler is too old for them take a newer one, if Phantora is: pip install torch=={TESTED}",
        )

    shim = sorted(path for path in (sources / "abi" / "torch_shim").rglob("*") if path.is_file())
    return _Part("libphantora_tracer.so", library_key([*files, *shim], *common, installed(torch)), make)


def _engine(work: Path, include: list[str], common: tuple[str, ...]) -> _Part:
    interface = engine_interface.c_header()

    def make() -> None:
        folder = work / "interface"
        folder.mkdir()
        (folder / "phantora_engine.h").write_text(interface)
        whole = _together("engine", engine_sources(), work)
        headers = ["-iquote", str(folder), "-I", str(engine_directory())]
        target = str(work / "libphantora_engine.so")
        _run([*_CXX, f"-std=c++{OWN_CXX}", *include, *headers, "-shared", "-o", target, whole])

    return _Part("libphantora_engine.so", library_key(engine_sources(), *common, interface), make)


IDENTITY = ("lib/libtorch_cuda.so", "lib/libtorch_cpu.so", "lib/libc10.so", "lib/libc10_cuda.so", "version.py")
"""Files of torch that name it by their content."""


def installed(torch: Torch) -> str:
    """Names an installed torch by its content: the same wheel has one name in all environments.

    A wheel's RECORD has the SHA-256 of its files. Without it (a torch built in place) the folder and the size and time
    of the largest library are the name.
    """
    sizes = [(torch.directory / name).stat().st_size for name in IDENTITY if (torch.directory / name).exists()]
    for record in sorted(torch.directory.parent.glob("torch-*.dist-info/RECORD")):
        wanted = {f"{torch.directory.name}/{name}" for name in IDENTITY}
        rows = (line.split(",") for line in record.read_text().splitlines())
        hashes = {row[0]: row[1] for row in rows if row[0] in wanted and row[1:] and row[1]}
        if hashes.keys() == wanted:
            return " ".join([*(hashes[name] for name in sorted(wanted)), *map(str, sizes)])
    stamp = (torch.libraries / "libtorch_cuda.so").stat()
    return f"{torch.directory} {stamp.st_size} {stamp.st_mtime_ns}"


def defines(torch: Torch) -> list[str]:
    """Macros about the installed libraries, read from their own headers."""
    return [*_versions(torch), *other_limits()]


@cache
def _versions(torch: Torch) -> tuple[str, ...]:
    assert torch.cuda is not None
    major, minor = (int(part) for part in torch.cuda.split(".")[:2])
    found = [f"-DPH_CUDA_MAJOR={major}", f"-DPH_CUDA_VERSION={major * 1000 + minor * 10}"]
    if version := header_version(torch, "*", "nccl.h", ("NCCL_VERSION_CODE",)):
        found.append(f"-DPH_NCCL_VERSION={version[0]}")
    elif version := header_version(torch, "*", "nccl.h", ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH")):
        found.append(f"-DPH_NCCL_VERSION={version[0] * 10000 + version[1] * 100 + version[2]}")
    if version := header_version(torch, "*", "cudnn_version.h", ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")):
        found.append(f"-DPH_CUDNN_VERSION={version[0] * 10000 + version[1] * 100 + version[2]}")
    numbers = ("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH")
    if version := header_version(torch, "*", "cublas_api.h", numbers):
        found.append(f"-DPH_CUBLAS_VERSION={version[0] * 10000 + version[1] * 100 + version[2]}")
    return tuple(found)


def _cxx11_abi(torch: Torch) -> bool:
    return any("__cxx11" in item.name for item in elf.read_dynamic(torch.libraries / "libc10.so").defined)


def _stub(library: Library, sources: list[Path], work: Path, options: list[str], link_rank: list[str]) -> Coverage:
    """One stub library: its sources, traps for the rest, under the real library's names and versions."""
    objects: list[str] = []
    defined: set[str] = set()
    for source in sources:
        obj = work / f"{library.soname}.{source.stem}.o"
        _run([*_C, *options, "-c", "-o", str(obj), str(source)])
        defined |= set(elf.object_exports(obj))
        objects.append(str(obj))
    trapped = sorted(set(library.symbols) - defined)
    traps = work / f"{library.soname}.traps.c"
    status = _NOT_SUPPORTED.get(library.stem, 1)
    lines = ['#include "abi/export.h"', '#include "rank/rank.h"']
    lines += [
        f"PH_EXPORT int {name}(void);\nint {name}(void) {{ "
        f'ph_unsupported("{library.stem}", "{name}", false); return {status}; }}'
        for name in trapped
    ]
    traps.write_text("\n".join(lines) + "\n")
    nodes: dict[str, list[str]] = {}
    versions = {version for version in library.symbols.values() if version}
    default = library.soname if library.soname in versions else min(versions, default="")
    for name in sorted(defined | set(trapped)):
        nodes.setdefault(library.symbols.get(name) or default, []).append(name)
    script = work / f"{library.soname}.map"
    if versions:
        script.write_text(
            "".join(f"{node} {{ global: {'; '.join(names)}; }};\n" for node, names in sorted(nodes.items()))
        )
    else:
        script.write_text(
            "{ global: " + "; ".join(sorted(defined | set(trapped)) or ["phantora_nothing"]) + "; local: *; };\n"
        )
    target = work / file_name(library.soname)
    _run(
        [
            *_C,
            *options,
            "-shared",
            f"-Wl,-soname,{library.soname}",
            f"-Wl,--version-script={script}",
            "-o",
            str(target),
            *objects,
            str(traps),
            *link_rank,
            "-lpthread",
            "-ldl",
            "-lm",
        ]
    )
    for leftover in (traps, script, *map(Path, objects)):
        leftover.unlink(missing_ok=True)
    implemented = tuple(sorted(set(library.symbols) & defined))
    return Coverage(library.soname, implemented, tuple(trapped))
