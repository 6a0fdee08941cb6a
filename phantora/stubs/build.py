"""Compiles the libraries of stub/ for the torch that is installed; once, and then from a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import phantora
from phantora.errors import PhantoraError
from phantora.stubs import elf, imports
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
from phantora.wire import engine as engine_interface
from phantora.wire import layout

# Folders of stub/ that make libphantora_rank.so: what every stub library of a rank links.
RANK_FOLDERS = ("rank/runtime", "rank/clock", "rank/memory", "rank/torch_hooks", "rank", "cuda/core")
CLOCK_FOLDER = "clock"
TRACER_FOLDER = "tracer"
# Folder of the stub of each NVIDIA library; one without a folder is all traps.
FOLDERS = {
    "libcudart": "cuda/runtime", "libcuda": "cuda/driver", "libnvidia-ml": "cuda/nvml", "libnvrtc": "cuda/nvrtc",
    "libcupti": "cuda/cupti", "libcublas": "cublas", "libcublasLt": "cublaslt", "libcudnn": "cudnn",
    "libnccl": "nccl", "libcusolver": "cusolver", "libcusparse": "cusparse", "libcusparseLt": "cusparselt",
    "libcufft": "cufft", "libcurand": "curand", "libcufile": "cufile", "libnvshmem_host": "nvshmem",
}  # fmt: skip
# What a trapped call returns under `--unsupported warn`: the library's own "not supported".
_NOT_SUPPORTED = {
    "libcudart": 801, "libcuda": 801, "libcublas": 15, "libcublasLt": 15, "libcudnn": 3000, "libnccl": 5,
    "libcufft": 16, "libcurand": 999, "libcusparse": 10, "libcusparseLt": 10, "libcusolver": 9,
    "libcupti": 27,
    "libnvrtc": 11, "libnvidia-ml": 3,
}  # fmt: skip
# Warnings are not errors here: a compiler newer than ours may have new ones. The tests forbid them.
_FLAGS = (
    "-O2", "-g1", "-fPIC", "-fno-semantic-interposition", "-fvisibility=hidden", "-Wall", "-Wextra",
)  # fmt: skip
_C = ("gcc", "-std=gnu11", *_FLAGS)
_CXX = ("g++", *_FLAGS)


@dataclass(frozen=True)
class Coverage:
    """What a stub library covers of the symbols that torch imports from it."""

    soname: str
    implemented: tuple[str, ...]
    trapped: tuple[str, ...]


@dataclass(frozen=True)
class StubSet:
    """A finished build. `libraries` are in the order in which they must be loaded."""

    directory: Path
    torch_version: str
    cuda: str
    coverage: tuple[Coverage, ...]

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


def source_directory() -> Path:
    """The folder with the C sources: of the checkout, or of the installed package."""
    next_to = Path(phantora.__file__).parent.parent / "stub"
    if (next_to / "rank" / "rank.h").exists():
        return next_to
    spec = importlib.util.find_spec("phantora._stub")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(location) / "rank" / "rank.h").exists():
            return Path(location)
    raise PhantoraError(
        "the sources of the stub libraries are missing from the installation; install phantora again"
    )


def engine_directory() -> Path:
    """The folder with the C++ sources of the simulator's engine."""
    return Path(phantora.__file__).parent / "sim" / "engine"


def engine_sources() -> list[Path]:
    """The files of the engine that are compiled."""
    return [*sources_of(engine_directory()), *sources_of(engine_directory() / "fold")]


def sources_of(folder: Path) -> list[Path]:
    """The files of a folder that are compiled, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".c", ".cpp"))


def file_name(soname: str) -> str:
    """The file that holds a stub; a link of the name `soname` points to it.

    torch preloads NVIDIA's own libraries, over 100 MB per process, when it finds ``libcudart.so``
    in /proc/self/maps, where links appear resolved. So that one file is named otherwise.
    """
    return (
        soname.replace("libcudart.so.", "libcudart-") + ".so"
        if soname.startswith("libcudart.so.")
        else soname
    )


def _sources() -> list[tuple[str, Path]]:
    """Every source with its path below the folder of the stubs or of the engine."""
    return sorted(
        (str(path.relative_to(root)), path)
        for root in (source_directory(), engine_directory())
        for path in root.rglob("*")
        if path.suffix in (".c", ".cpp", ".h")
    )


def source_digest() -> str:
    """Names what is compiled, and how."""
    digest = hashlib.sha256()
    for name, path in _sources():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    digest.update((layout.c_header() + engine_interface.c_header()).encode())
    for path in (Path(__file__), Path(imports.__file__), *sorted(imports.FOLDER.glob("*.txt"))):
        digest.update(path.read_bytes())
    digest.update(" ".join([*other_limits(), *sanitizers()]).encode())
    return digest.hexdigest()


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
        Coverage(item["soname"], tuple(item["implemented"]), tuple(item["trapped"]))
        for item in data["libraries"]
    )
    return StubSet(directory, data["torch"], data["cuda"], coverage)


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
"""What the compilers said of a build that succeeded; missing where they said nothing."""
_PROGRESS_SECONDS = 10.0


def build(torch: Torch, work: Path, built: Callable[[int, int], None] | None = None) -> None:
    """Compiles all libraries into `work`; `built` is called every ten seconds with how many are done, and of how many.
    Raises PhantoraError where the compiler refuses."""
    sources = source_directory()
    (work / "phantora_wire.h").write_text(layout.c_header())
    include = ["-I", str(work), "-I", str(sources)]
    macros = defines(torch)
    link_rank = ["-L", str(work), "-lphantora_rank", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"]

    def c_library(folders: tuple[str, ...], target: str, *extra: str) -> None:
        files = [str(path) for folder in folders for path in sources_of(sources / folder)]
        command = [*_C, *macros, *include, "-shared", *extra, "-o", str(work / target), *files]
        _run([*command, "-lpthread", "-ldl", "-lm"])

    def tracer() -> None:
        headers = torch.directory / "include"
        torch_flags = [
            "-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={int(_cxx11_abi(torch))}", "-Wno-unused-parameter",
            f"-std=c++{cxx_standard(torch)}", "-I", str(sources / "abi" / "torch_shim"),
            "-isystem", str(cuda_headers(torch)), "-isystem", str(headers),
            "-isystem", str(headers / "torch" / "csrc" / "api" / "include"),
        ]  # fmt: skip
        torch_libs = ["-L", str(torch.libraries), "-Wl,--no-as-needed",
                      "-lc10", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda", "-Wl,--allow-shlib-undefined",
                      "-Wl,--unresolved-symbols=ignore-in-shared-libs"]  # fmt: skip
        whole = _together("tracer", sources_of(sources / TRACER_FOLDER), work)
        target = str(work / "libphantora_tracer.so")
        _run(
            [*_CXX, *torch_flags, *other_limits(), *include, "-shared", "-o", target, whole, *link_rank, *torch_libs],
            f"it is compiled against the headers of torch {torch.version}, in C++{cxx_standard(torch)}; if the "
            f"compiler is too old for them take a newer one, if Phantora is: pip install torch=={TESTED}",
        )

    def engine() -> None:
        whole = _together("engine", engine_sources(), work)
        interface = work / "interface"
        interface.mkdir()
        (interface / "phantora_engine.h").write_text(engine_interface.c_header())
        target = str(work / "libphantora_engine.so")
        headers = ["-iquote", str(interface), "-I", str(engine_directory())]
        standard = f"-std=c++{OWN_CXX}"
        _run([*_CXX, standard, *include, *headers, "-shared", "-o", target, whole])

    c_library(RANK_FOLDERS, "libphantora_rank.so", "-Wl,-soname,libphantora_rank.so")
    libraries = nvidia_libraries(torch)
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        others = [pool.submit(tracer), pool.submit(engine)]
        others.append(pool.submit(c_library, (CLOCK_FOLDER,), "libphantora_clock.so", *link_rank))
        stubs = [pool.submit(_stub, library, sources, work, macros, include, link_rank) for library in libraries]
        left: set[Future[Any]] = {*others, *stubs}
        total = len(left)
        while left:
            _, left = wait(left, _PROGRESS_SECONDS)
            if left and built:
                built(total - len(left), total)
        for task in others:
            task.result()
        coverage = [stub.result() for stub in stubs]
    whole = {path.name: path.stat().st_size for path in sorted(work.glob("*.so*")) if not path.is_symlink()}
    (work / "build.json").write_text(
        json.dumps({
            "torch": torch.version, "cuda": torch.cuda,
            "libraries": [vars(item) for item in coverage],
            "files": whole,
        })
    )  # fmt: skip


def defines(torch: Torch) -> list[str]:
    """What the sources must know of the installed libraries, read from their own headers."""
    assert torch.cuda is not None
    major, minor = (int(part) for part in torch.cuda.split(".")[:2])
    found = [f"-DPH_CUDA_MAJOR={major}", f"-DPH_CUDA_VERSION={major * 1000 + minor * 10}"]
    if version := header_version(torch, "*", "nccl.h", ("NCCL_VERSION_CODE",)):
        found.append(f"-DPH_NCCL_VERSION={version[0]}")
    elif version := header_version(torch, "*", "nccl.h", ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH")):
        found.append(f"-DPH_NCCL_VERSION={version[0] * 10000 + version[1] * 100 + version[2]}")
    if version := header_version(
        torch, "*", "cudnn_version.h", ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")
    ):
        found.append(f"-DPH_CUDNN_VERSION={version[0] * 10000 + version[1] * 100 + version[2]}")
    numbers = ("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH")
    if version := header_version(torch, "*", "cublas_api.h", numbers):
        found.append(f"-DPH_CUBLAS_VERSION={version[0] * 10000 + version[1] * 100 + version[2]}")
    return found + other_limits()


def other_limits() -> list[str]:
    """Macros of `PHANTORA_DEFINES` (NAME=NUMBER ...): limits of the stubs other than their own, for experiments on what
    they cost, such as PH_SMALL_ELEMENTS. Raises PhantoraError for anything else."""
    words = os.environ.get("PHANTORA_DEFINES", "").split()
    for word in words:
        if not re.fullmatch(r"PH_[A-Z_]+=\d+", word):
            raise PhantoraError(f"PHANTORA_DEFINES: {word!r} is not of the form PH_NAME=NUMBER")
    return [f"-D{word}" for word in words]


def sanitizers() -> list[str]:
    """Options of the compiler for `PHANTORA_SANITIZE`: ``address``, ``undefined``, ``address,undefined`` or ``thread``.

    The sanitizer's runtime must be loaded first (docs/reliability.md). Raises PhantoraError for anything else."""
    chosen = os.environ.get("PHANTORA_SANITIZE", "")
    if chosen not in ("", "address", "undefined", "address,undefined", "thread"):
        raise PhantoraError(f"PHANTORA_SANITIZE: {chosen!r} is not address, undefined, address,undefined or thread")
    return [f"-fsanitize={chosen}", "-fno-omit-frame-pointer"] if chosen else []


def is_usual() -> bool:
    """Whether the environment asks for the stubs as they are, and not for an experiment or for sanitizers."""
    return not other_limits() and not sanitizers()


def _cxx11_abi(torch: Torch) -> bool:
    return any("__cxx11" in item.name for item in elf.read_dynamic(torch.libraries / "libc10.so").defined)


def _stub(
    library: Library, sources: Path, work: Path, defines: list[str], include: list[str], link_rank: list[str]
) -> Coverage:
    """One stub library: its sources, traps for the rest, under the real library's names and versions."""
    folder = FOLDERS.get(library.stem)
    objects: list[str] = []
    defined: set[str] = set()
    for source in sources_of(sources / folder) if folder else ():
        obj = work / f"{library.soname}.{source.stem}.o"
        _run([*_C, *defines, *include, "-c", "-o", str(obj), str(source)])
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
            "{ global: "
            + "; ".join(sorted(defined | set(trapped)) or ["phantora_nothing"])
            + "; local: *; };\n"
        )
    target = work / file_name(library.soname)
    _run([
        *_C, *include, "-shared", f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={script}",
        "-o", str(target), *objects, str(traps), *link_rank, "-lpthread", "-ldl", "-lm",
    ])  # fmt: skip
    if target.name != library.soname:
        (work / library.soname).symlink_to(target.name)
    for leftover in (traps, script, *map(Path, objects)):
        leftover.unlink(missing_ok=True)
    implemented = tuple(sorted(set(library.symbols) & defined))
    return Coverage(library.soname, implemented, tuple(trapped))
