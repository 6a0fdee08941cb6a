"""Symbols that other packages import from NVIDIA's libraries: lists, so that the stubs have them in any installation.

``imported/NAME.txt`` contains a line ``libcudart cudaMalloc`` for each symbol, made by
``python -m phantora.stubs imports FILE...`` from the libraries of the package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from phantora.stubs import elf

FOLDER = Path(__file__).parent / "imported"
PREFIXES = (
    ("nccl", "libnccl"),
    ("nvml", "libnvidia-ml"),
    ("nvshmem", "libnvshmem_host"),
    ("nvrtc", "libnvrtc"),
    ("cuFile", "libcufile"),
    ("cuda", "libcudart"),
    ("cudnn", "libcudnn"),
    ("cublasLt", "libcublasLt"),
    ("cublas", "libcublas"),
    ("cufft", "libcufft"),
    ("curand", "libcurand"),
    ("cusparseLt", "libcusparseLt"),
    ("cusparse", "libcusparse"),
    ("cusolver", "libcusolver"),
    ("cupti", "libcupti"),
    ("nvtx", "libnvToolsExt"),
)
STEMS = frozenset(library for _, library in PREFIXES) | {"libcuda"}


def library_of(symbol: str) -> str | None:
    """The library, by its name before ``.so``, that has a symbol without version; None for none of NVIDIA's."""
    library = next((library for prefix, library in PREFIXES if symbol.startswith(prefix)), None)
    return "libcuda" if library is None and re.match(r"cu[A-Z]", symbol) else library


def listed() -> dict[str, dict[str, tuple[str, ...]]]:
    """For each list the symbols by library."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        of_package = found.setdefault(path.stem, {})
        for line in path.read_text().splitlines():
            library, symbol = line.split()
            of_package[library] = (*of_package.get(library, ()), symbol)
    return found


def lines(files: Iterable[Path]) -> list[str]:
    """The list for the libraries `files`. Raises PhantoraError for what is no ELF file."""
    found = set()
    for path in files:
        for symbol in elf.read_dynamic(path).undefined:
            library = symbol.library.split(".so")[0] if symbol.library else library_of(symbol.name)
            if library in STEMS and not symbol.weak:
                found.add(f"{library} {symbol.name}")
    return sorted(found)
