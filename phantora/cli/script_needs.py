"""What a run would make of the packages that a script imports: from its text, without running anything."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.rank.standins import hub
from phantora.rank.standins.packages import BY_SIZE, REFUSED, STANDIN, known
from phantora.stubs import elf

MOST_FILES = 300  # of the script's own folder that are read
_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_CUDA = re.compile(r"lib(cudart|cublas|cublasLt|cudnn|nccl|cuda)\.so")
_ALWAYS = frozenset(("torch", "torchvision", "torchaudio", "numpy"))
PYTHON, MISSING = "Python", "not installed"
_HUB_KERNEL = re.compile(rf"{hub.OWNER}/[\w.-]+")


@dataclass(frozen=True)
class Need:
    """One package: the module that is imported, its installed version ("": none), what a run makes of it."""

    module: str
    version: str
    state: str
    note: str
    install: str = ""
    """The command that installs it, where it is missing and runs."""


def needs(script: Path) -> list[Need]:
    """Packages with kernels, and those that are not installed. Raises PhantoraError for a script that is no Python."""
    imported = dict.fromkeys(_imports(script))
    found: dict[str, Need] = {}
    for module in [*imported, *_required(script.resolve().parent)]:
        package = known(module)
        top = module if "/" in module else module.partition(".")[0]
        key = package.module if package else top
        if key not in found and top not in _ALWAYS and top not in sys.stdlib_module_names:
            found[key] = _need(key)
    return [need for need in found.values() if need.state != PYTHON]


def _need(module: str) -> Need:
    if _HUB_KERNEL.fullmatch(module):
        return _of_hub(module)
    package, spec = known(module), _spec(module)
    if package is not None:
        if spec is None and package.install != "nothing":
            how = "" if package.state == REFUSED else package.how
            return Need(module, "", package.state, f"{MISSING}; {package.note}", how)
        return Need(module, _version(package.distribution, module), package.state, package.note)
    if spec is None:
        return Need(module, "", MISSING, "the run ends at its import, unless the script catches that")
    libraries = _cuda_libraries(spec)
    note = f"kernels of {libraries[0]} take the time of their tensors" if libraries else ""
    return Need(module, _version(module, module), BY_SIZE if libraries else PYTHON, note)


def _of_hub(kernel: str) -> Need:
    name = kernel.partition("/")[2]
    if name in hub.STANDINS:
        return Need(kernel, "hub", STANDIN, "a kernel of the Hugging Face hub")
    package = hub.PACKAGES.get(name)
    if package is None:
        return Need(kernel, "hub", BY_SIZE, "downloaded by the run; kernels take the time of their tensors")
    if hub.known(kernel):
        return Need(kernel, "hub", STANDIN, f"the installed package {package.module}")
    return Need(kernel, "", MISSING, f"it needs the package {package.module}", package.install)


def _version(distribution: str, module: str) -> str:
    names = [distribution, *metadata.packages_distributions().get(module.partition(".")[0], ())]
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "?"


def _spec(module: str) -> Path | None:
    """The file or folder of an installed module; its parents are not imported."""
    path: list[str] | None = None
    place: Path | None = None
    for name in module.split("."):
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
        place = Path(path[0]) if path else Path(spec.origin or "")
    return place


def _cuda_libraries(place: Path) -> list[str]:
    """Compiled files of a package that call CUDA's libraries."""
    files = sorted(place.rglob("*.so")) if place.is_dir() else [place] if place.suffix == ".so" else []
    found = []
    for file in files[:MOST_FILES]:
        try:
            needed = elf.read_dynamic(file).needed
        except (OSError, ValueError, PhantoraError):
            continue
        if any(map(_CUDA.match, needed)):
            found.append(file.name)
    return found


def _imports(script: Path) -> Iterator[str]:
    """Names of imported modules, of the script and of the modules in its folder that it imports."""
    folder = script.resolve().parent
    left, seen = [script], {script.resolve()}
    while left and len(seen) <= MOST_FILES:
        file = left.pop(0)
        try:
            tree = ast.parse(file.read_bytes(), str(file))
        except (OSError, SyntaxError, ValueError) as error:
            if file is script:
                raise PhantoraError(f"{script} cannot be read as Python: {error}") from error
            continue
        for name in _named(tree):
            own = None if "/" in name else _own(folder, file.parent, name)
            if own is None:
                yield name.lstrip(".")
            elif own not in seen:
                seen.add(own)
                left.append(own)


def _named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                for alias in names:
                    yield f"{base}.{alias.name}" if module else f"{base}{alias.name}"
            case ast.Constant(value=str(text)) if _HUB_KERNEL.fullmatch(text):
                yield text


def _own(folder: Path, here: Path, name: str) -> Path | None:
    """The file of a module of the script's own folder; None for others."""
    root = here if name.startswith(".") else folder
    parts = name.lstrip(".").split(".")
    for count in range(len(parts), 0, -1):
        place = root.joinpath(*parts[:count])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file.resolve()
    return None


def _required(folder: Path) -> Iterator[str]:
    """Modules of the packages that a requirements.txt next to the script names."""
    file = folder / "requirements.txt"
    modules: dict[str, str] = {}
    for module, distributions in metadata.packages_distributions().items():
        modules.update((name.lower().replace("_", "-"), module) for name in distributions)
    for line in file.read_text(errors="replace").splitlines() if file.is_file() else ():
        if not line.strip() or line.lstrip().startswith(("#", "-")):
            continue
        if match := _NAME.match(line):
            name = match[1].lower().replace("_", "-")
            yield modules.get(name, name.replace("-", "_"))
