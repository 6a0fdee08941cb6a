"""The torch of this interpreter, and the NVIDIA libraries that it links. Nothing is imported."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from phantora.errors import PhantoraError, cause_of
from phantora.stubs import elf, imports

# Libraries that a stub takes the place of, by the name before `.so`; unversioned symbols are
# assigned by prefix. In the order in which they are loaded.
NVIDIA = (
    "libcuda",
    "libnvidia-ml",
    "libcudart",
    "libnvrtc",
    "libcublasLt",
    "libcublas",
    "libcudnn",
    "libnccl",
    "libcufft",
    "libcurand",
    "libcusparse",
    "libcusparseLt",
    "libcusolver",
    "libcupti",
    "libcufile",
    "libnvshmem_host",
    "libnvJitLink",
    "libnvToolsExt",
    "libnvtx3interop",
)
CUDNN_PARTS = (
    "libcudnn_graph",
    "libcudnn_engines_runtime_compiled",
    "libcudnn_engines_precompiled",
    "libcudnn_heuristic",
    "libcudnn_ops",
    "libcudnn_cnn",
    "libcudnn_adv",
)
"""Libraries of cuDNN. Transformer Engine requires them, and imports nothing from them."""

CURAND = "libcurand.so.10"  # with CUDA 12 and 13; torch up to 2.14 links it, CuPy with any torch

OWN_CXX = 17  # the C++ standard of our own sources
OLDEST, TESTED = (2, 9), "2.11.0"  # torch


@dataclass(frozen=True)
class Torch:
    """An installed torch. `cuda` is None for a CPU build."""

    version: str
    cuda: str | None
    directory: Path

    @property
    def libraries(self) -> Path:
        """The folder of torch's shared libraries."""
        return self.directory / "lib"


@dataclass(frozen=True)
class Library:
    """One NVIDIA library that torch links: `symbols` maps an imported name to its version node."""

    soname: str
    symbols: dict[str, str | None]

    @property
    def stem(self) -> str:
        """Name of the library without its version."""
        return stem(self.soname)


def stem(soname: str) -> str:
    """``libcudart`` of ``libcudart.so.13``."""
    return soname.split(".so")[0]


def find_torch() -> Torch:
    """Raises PhantoraError if torch is absent or built without CUDA."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise PhantoraError(f"torch is not installed in this environment; install it: pip install torch=={TESTED}")
    directory = Path(spec.origin).parent
    try:
        text = (directory / "version.py").read_text()
    except OSError as error:
        raise PhantoraError(
            f"torch in {directory} has no version.py; install it again: pip install torch=={TESTED}"
        ) from error
    version = re.search(r"__version__\s*=\s*'([^']+)'", text)
    cuda = re.search(r"^cuda[^=\n]*=\s*'([^']+)'", text, re.MULTILINE)
    found = Torch(version.group(1) if version else "unknown", cuda.group(1) if cuda else None, directory)
    if found.cuda is None or not (found.libraries / "libtorch_cuda.so").exists():
        raise PhantoraError(
            f"torch {found.version} is built without CUDA, so it has no GPU code to run; "
            f"install the CUDA build (no GPU or driver is needed): pip install torch=={TESTED}"
        )
    numbers = re.match(r"(\d+)\.(\d+)", found.version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise PhantoraError(
            f"torch {found.version} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest that Phantora runs; "
            f"pip install torch=={TESTED}"
        )
    return found


def nvidia_libraries(torch: Torch) -> list[Library]:
    """Every NVIDIA library that torch's own libraries link, with the symbols they take from each, and those that other
    packages take (:mod:`phantora.stubs.imports`)."""
    symbols: dict[str, dict[str, str | None]] = {}
    unversioned: set[str] = set()
    for path in sorted(torch.libraries.glob("lib*.so")):
        file = elf.read_dynamic(path)
        for soname in file.needed:
            if stem(soname) in NVIDIA:
                symbols.setdefault(soname, {})
        for item in file.undefined:
            if item.library is None:
                if not item.weak:  # an optional symbol that the real library may lack, as nvshmem_init
                    unversioned.add(item.name)
            elif stem(item.library) in NVIDIA:
                symbols.setdefault(item.library, {})[item.name] = item.version
    major = torch.cuda.split(".")[0] if torch.cuda else ""
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1", f"libnvrtc.so.{major}", CURAND):  # opened at run time
        symbols.setdefault(soname, {})
    by_stem = {stem(soname): soname for soname in symbols}
    for name in sorted(unversioned):
        library = imports.library_of(name)
        if library in by_stem:
            symbols[by_stem[library]].setdefault(name, None)
    for package in imports.listed().values():
        for library, names in package.items():
            _add(symbols[by_stem[library]], by_stem[library], names)
    if "libcudnn" in by_stem:
        version = by_stem["libcudnn"].partition(".so")[2]
        symbols |= {f"{part}.so{version}": {} for part in CUDNN_PARTS}
    order = {name: index for index, name in enumerate((*NVIDIA, *CUDNN_PARTS))}
    return [Library(soname, symbols[soname]) for soname in sorted(symbols, key=lambda s: order[stem(s)])]


def _add(symbols: dict[str, str | None], soname: str, names: tuple[str, ...]) -> None:
    """Symbols that a list names, with the version that the library gives its others."""
    version = soname if soname in symbols.values() else None
    for name in names:
        symbols.setdefault(name, version)


def cuda_headers(torch: Torch) -> Path:
    """The folder with ``cuda_runtime_api.h``, which torch's headers include: of the NVIDIA package that torch depends
    on, of the environment, or of a CUDA toolkit. Raises PhantoraError if there is none."""
    places = [
        *sorted(torch.directory.parent.glob("nvidia/*/include")),
        *(Path(root) / "include" for root in (os.environ.get("CUDA_HOME"), sys.prefix, "/usr/local/cuda") if root),
    ]
    major = torch.cuda.split(".")[0] if torch.cuda else ""
    for place in places:
        header = place / "cuda_runtime_api.h"
        if header.exists() and re.search(rf"define CUDART_VERSION\s+{major}0", header.read_text(errors="replace")):
            return place
    package = "nvidia-cuda-runtime" + ("-cu12" if major == "12" else "")
    raise PhantoraError(
        f"cuda_runtime_api.h of CUDA {torch.cuda}, which the headers of torch {torch.version} include, is not "
        f"installed; pip install {package}"
    )


def cxx_standard(torch: Torch) -> int:
    """The C++ standard that torch's own headers ask for: 17, 20, ..."""
    try:
        text = (torch.directory / "include" / "ATen" / "ATen.h").read_text()
    except OSError as error:
        raise PhantoraError(
            f"torch {torch.version} in {torch.directory} has no headers ({cause_of(error)}: ATen/ATen.h); install the "
            "wheel from PyPI"
        ) from error
    asked = re.search(r"__cplusplus\s*<\s*20(\d\d)\d\d", text)  # 201703, 202002
    return max(OWN_CXX, int(asked.group(1)) if asked else 0)


def header_version(torch: Torch, package: str, header: str, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Numbers that a header of an installed NVIDIA wheel defines, or None if it is not there.

    `package` is the folder under ``nvidia/``; ``*`` matches any.
    """
    for path in sorted(torch.directory.parent.glob(f"nvidia/{package}/include/{header}")):
        text = path.read_text(errors="replace")
        found = [re.search(rf"#define\s+{name}\s+(\d+)", text) for name in names]
        if all(found):
            return tuple(int(match.group(1)) for match in found if match)
    return None
