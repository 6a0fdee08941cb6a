"""Finding torch, reading ELF files, building, caching and loading the stubs."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from phantora import stubs
from phantora.cli.doctor import table_distances
from phantora.errors import PhantoraError
from phantora.stubs import build, cache, elf, find, imports, sources

REPOSITORY = Path(__file__).parent.parent.parent


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


@pytest.fixture
def quick_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache and a build that takes no compiler: it counts its runs in a file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fake(torch: find.Torch, work: Path, earlier: object, built: object) -> None:
        with open(tmp_path / "runs", "a") as runs:
            runs.write("x")
        (work / "build.json").write_text('{"torch": "t", "cuda": "c", "libraries": [], "files": {}}')

    monkeypatch.setattr(build, "build", fake)
    return tmp_path


def test_second_build_comes_from_the_cache(quick_build: Path) -> None:
    said: list[str] = []
    first = stubs.ensure(said.append)
    assert stubs.ensure(said.append) == first
    assert (quick_build / "runs").read_text() == "x"
    assert len(said) == 1 and said[0].startswith("compiling the stub libraries for torch ")


def test_a_new_build_deletes_those_long_unused(quick_build: Path) -> None:
    folders = {}
    for name, age in (("torch-old", 2 * cache.KEPT_SECONDS), ("torch-recent", 60)):
        folders[name] = quick_build / "phantora" / name
        folders[name].mkdir(parents=True)
        os.utime(folders[name], (time.time() - age,) * 2)
    stubs.ensure()
    assert not folders["torch-old"].exists() and folders["torch-recent"].exists()


def test_damaged_build_is_made_again(quick_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library is cut short, as after a power failure; and what a build that was killed left is taken away."""

    def fake(torch: find.Torch, work: Path, earlier: object, built: object) -> None:
        (work / "a.so").write_bytes(b"whole")
        (work / "build.json").write_text('{"torch": "t", "cuda": "c", "libraries": [], "files": {"a.so": 5}}')

    monkeypatch.setattr(build, "build", fake)
    built = stubs.ensure().directory
    (built / "a.so").write_bytes(b"who")
    (quick_build / "phantora" / "building-killed").mkdir()
    assert stubs.ensure().directory == built and (built / "a.so").read_bytes() == b"whole"
    assert sorted(path.name for path in built.parent.iterdir()) == ["build.lock", built.name]


def test_concurrent_builds_happen_once(quick_build: Path) -> None:
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                stubs.ensure()
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert (quick_build / "runs").read_text() == "x"


def test_failed_build_leaves_nothing(quick_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(torch: find.Torch, work: Path, earlier: object, built: object) -> None:
        (work / "half").write_text("")
        raise PhantoraError("no")

    monkeypatch.setattr(build, "build", fail)
    with pytest.raises(PhantoraError, match="no"):
        stubs.ensure()
    assert [path.name for path in (quick_build / "phantora").iterdir()] == ["build.lock"]


def test_missing_compiler_is_named_with_its_package(
    quick_build: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PhantoraError, match=r"no gcc and no g\+\+ on the PATH.*apt install gcc g\+\+.*dnf install"):
        stubs.ensure()


def test_the_same_wheel_in_another_folder_has_the_same_key(tmp_path: Path) -> None:
    """A second environment finds the libraries that were compiled for the first; another torch does not."""
    files = [*build.IDENTITY, *(f"include/{name}" for name in ("a.h",))]

    def wheel(place: Path, content: str) -> find.Torch:
        for name in files:
            path = place / "torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        record = place / "torch-9.0.dist-info" / "RECORD"
        record.parent.mkdir()
        record.write_text("".join(f"torch/{name},sha256={content},{len(content)}\n" for name in files))
        return find.Torch("9.0", "13.0", place / "torch")

    first, second, third = (wheel(tmp_path / str(i), text) for i, text in enumerate(("one", "one", "two")))
    assert build.installed(first) == build.installed(second) != build.installed(third)
    (third.directory.parent / "torch-9.0.dist-info" / "RECORD").unlink()
    assert str(third.directory) in build.installed(third)


def test_changed_source_changes_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = find.find_torch()
    before = cache.cache_key(torch)
    copy = tmp_path / "stub"
    shutil.copytree(sources.source_directory(), copy)
    monkeypatch.setattr(sources, "source_directory", lambda: copy)
    assert cache.cache_key(torch) == before
    with open(copy / "rank.c", "a") as file:
        file.write("// changed\n")
    assert cache.cache_key(torch) != before


def test_a_library_depends_on_its_sources_and_what_they_include(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "abi").mkdir()
    for name, text in {
        "one.c": '#include "two.h"\n#include "abi/far.h"\n',
        "two.h": '#include "three.h"\n',
        "three.h": "",
        "abi/far.h": '#include "near.h"\n',
        "abi/near.h": "",
        "other.c": "",
        "other.h": "",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources, "source_directory", lambda: tmp_path)

    def key() -> str:
        return sources.library_key([tmp_path / "one.c"])

    before = key()
    for name in ("other.c", "other.h", "one.c", "three.h", "abi/near.h"):
        path, matters = tmp_path / name, not name.startswith("other")
        text = path.read_text()
        path.write_text(text + "// changed\n")
        assert (key() != before) is matters, name
        path.write_text(text)
    assert sources.library_key([tmp_path / "one.c"], "another compiler") != before


def test_only_changed_libraries_are_compiled(
    stub_set: stubs.StubSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One library of an earlier build has another key; the others are copied."""
    changed = "libnvtx3interop.so.1"
    files = [path.name for path in (stub_set.rank, stub_set.tracer)] + [changed]
    earlier = replace(stub_set, keys={**stub_set.keys, changed: "other"})
    made = []

    def part(file: str) -> build._Part:
        def make() -> None:
            made.append(file)
            (tmp_path / file).write_bytes(b"")

        return build._Part(file, stub_set.keys.get(file, ""), make)

    monkeypatch.setattr(build, "_parts", lambda torch, work: list(map(part, files)))
    build.build(find.find_torch(), tmp_path, [earlier])
    assert made == [changed]
    assert (tmp_path / stub_set.rank.name).read_bytes() == stub_set.rank.read_bytes()


@pytest.mark.parametrize(("text", "cuda"), [("'13.0'", "13.0"), ("None", None)])
def test_torch_is_found_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, cuda: str | None
) -> None:
    package = tmp_path / "torch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "version.py").write_text(f"__version__ = '2.11.0'\ncuda: Optional[str] = {text}\n")
    (package / "lib" / "libtorch_cuda.so").write_text("")
    code = "from phantora.stubs import find_torch; print(find_torch().cuda)"
    result = python(code, PYTHONPATH=os.pathsep.join((str(tmp_path), str(REPOSITORY))))
    if cuda:
        assert result.stdout.strip() == cuda, result.stderr
    else:
        assert "built without CUDA" in result.stderr and "pip install torch==2.11.0" in result.stderr


# ---------------------------------------------------------------- ELF


def nm(path: Path, *options: str) -> list[tuple[str, str]]:
    """(name with version, type letter) as binutils' nm sees it."""
    text = subprocess.run(["nm", "-D", *options, path], capture_output=True, text=True, check=True).stdout
    return [(line.split()[-1], line.split()[-2]) for line in text.splitlines()]


@pytest.mark.parametrize("library", ["libc10.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch_global_deps.so"])
def test_elf_reader_agrees_with_nm(library: str) -> None:
    path = find.find_torch().libraries / library
    read = elf.read_dynamic(path)
    ours = {s.name + (f"@{s.version}" if s.version else "") for s in read.undefined}
    assert ours == {name for name, _ in nm(path, "--undefined-only")}
    exported = {name.split("@")[0] for name, letter in nm(path, "--defined-only") if letter not in "ta"}
    assert {s.name for s in read.defined} == exported
    assert read.soname == library


def test_elf_reader_refuses_other_files(tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh\n" * 20):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(PhantoraError, match="ELF file; reinstall"):
            elf.read_dynamic(tmp_path / "file")


# ---------------------------------------------------------------- the real build


def test_every_import_of_torch_is_served_with_its_version(stub_set: stubs.StubSet) -> None:
    torch = find.find_torch()
    libraries = find.nvidia_libraries(torch)
    assert {"libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libcudnn.so.9"} <= {lib.soname for lib in libraries}
    for library in libraries:
        read = elf.read_dynamic(stub_set.directory / library.soname)
        assert read.soname == library.soname
        offered = {symbol.name: symbol.version for symbol in read.defined}
        for name, version in library.symbols.items():
            assert offered.get(name, "missing") == version, f"{name} of {library.soname}"


def test_curand_has_a_stub_where_torch_links_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.15, which was refused since CuPy needs the library."""
    read = elf.read_dynamic

    def without_curand(path: Path) -> elf.Dynamic:
        file = read(path)
        undefined = tuple(symbol for symbol in file.undefined if symbol.library != find.CURAND)
        return replace(file, needed=tuple(name for name in file.needed if name != find.CURAND), undefined=undefined)

    monkeypatch.setattr(elf, "read_dynamic", without_curand)
    found = {library.soname: library.symbols for library in find.nvidia_libraries(find.find_torch())}
    assert "curandCreateGenerator" in found[find.CURAND]


def test_optional_imports_get_no_trap(stub_set: stubs.StubSet) -> None:
    """torch asks whether the address of a weak import is null; a trap would answer for it."""
    torch = find.find_torch()
    offered = {s.name for path in stub_set.libraries for s in elf.read_dynamic(path).defined}
    implemented = {name for item in stub_set.coverage for name in item.implemented}
    weak, strong = set[str](), set[str]()
    for path in torch.libraries.glob("lib*.so"):
        for symbol in elf.read_dynamic(path).undefined:
            (weak if symbol.weak and symbol.version is None else strong).add(symbol.name)
    assert not (weak - strong - implemented) & offered


def test_coverage_adds_up(stub_set: stubs.StubSet) -> None:
    wanted = {library.soname: set(library.symbols) for library in find.nvidia_libraries(find.find_torch())}
    for item in stub_set.coverage:
        assert not set(item.implemented) & set(item.trapped)
        assert set(item.implemented) | set(item.trapped) == wanted.pop(item.soname)
    assert not wanted


def test_torch_runs_on_the_stubs_alone(stub_set: stubs.StubSet) -> None:
    result = python(
        "from phantora import stubs\n"
        "from phantora.stubs import build\n"
        f"s = build.read_set(build.Path({str(stub_set.directory)!r}))\n"
        "first = stubs.load(s); assert stubs.load(s) is first\n"
        "import torch\n"
        "files = {line.split(maxsplit=5)[-1].strip() for line in open('/proc/self/maps') if '.so' in line}\n"
        "names = ('libcu', 'libnccl', 'libnv')\n"
        "print(*sorted(f for f in files if f.rpartition('/')[2].startswith(names)), sep='\\n')"
    )
    assert result.returncode == 0, result.stderr
    loaded = result.stdout.splitlines()
    assert {Path(path).parent for path in loaded} == {stub_set.directory}
    assert len(loaded) == len(stub_set.libraries)


def test_loading_after_torch_is_refused(stub_set: stubs.StubSet) -> None:
    result = python(
        "import sys, types; sys.modules['torch'] = types.ModuleType('torch')\n"
        "from phantora.stubs import build, load\n"
        f"load(build.read_set(build.Path({str(stub_set.directory)!r})))"
    )
    assert "PhantoraError: torch was imported before" in result.stderr


def test_library_that_came_first_is_refused(stub_set: stubs.StubSet) -> None:
    soname = stub_set.coverage[0].soname
    result = python(
        "import ctypes; from phantora.stubs import build, load\n"
        f"s = build.read_set(build.Path({str(stub_set.directory)!r}))\n"
        f"ctypes.CDLL(str(s.directory / {soname!r})); load(s)"
    )
    assert f"PhantoraError: {soname} is already loaded" in result.stderr


def test_trap_names_itself(stub_set: stubs.StubSet) -> None:
    item = next((item for item in stub_set.coverage if item.trapped), None)
    if item is None:
        pytest.skip("every symbol that this torch imports is implemented")
    library = ctypes.CDLL(str(stub_set.directory / item.soname))
    pid = os.fork()
    if pid == 0:  # not connected: the call is reported and fails
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os._exit(0 if getattr(library, item.trapped[0])() != 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_sources_compile_without_a_warning(stub_set: stubs.StubSet) -> None:
    said = stub_set.directory / build.WARNINGS
    assert not said.exists(), said.read_text()


@pytest.mark.parametrize(("line", "standard"), [("201703L", 17), ("202002L", 20), ("202302L", 23), ("199711L", 17)])
def test_the_cxx_standard_is_what_torchs_headers_ask_for(tmp_path: Path, line: str, standard: int) -> None:
    header = tmp_path / "torch" / "include" / "ATen" / "ATen.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"#pragma once\n\n#if !defined(_MSC_VER) && __cplusplus < {line}\n#error no\n#endif\n")
    assert find.cxx_standard(find.Torch("9.9", "13.0", tmp_path / "torch")) == standard
    header.unlink()
    with pytest.raises(PhantoraError, match=r"torch 9\.9 .* has no headers .*install the wheel"):
        find.cxx_standard(find.Torch("9.9", "13.0", tmp_path / "torch"))


def test_cuda_headers_are_those_of_torchs_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "nowhere"))
    for name, version in (("cuda_runtime", 12080), ("cu13", 13000)):
        header = tmp_path / "nvidia" / name / "include" / "cuda_runtime_api.h"
        header.parent.mkdir(parents=True)
        header.write_text(f"#define CUDART_VERSION  {version}\n")
    for cuda, name in (("12.8", "cuda_runtime"), ("13.0", "cu13")):
        torch = find.Torch("9.9", cuda, tmp_path / "torch")
        assert find.cuda_headers(torch) == tmp_path / "nvidia" / name / "include"
    with pytest.raises(PhantoraError, match=r"of CUDA 14\.1, .* pip install nvidia-cuda-runtime$"):
        find.cuda_headers(find.Torch("9.9", "14.1", tmp_path / "torch"))


def test_an_old_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "lib" / "libtorch_cuda.so").touch()
    (package / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(package / "__init__.py")))
    with pytest.raises(PhantoraError, match=r"torch 2\.8\.0\+cu128 is older than 2\.9"):
        find.find_torch()


@pytest.mark.parametrize(
    ("torch", "cuda", "text"),
    [
        ("2.11.0+cu130", "13.0", "as installed here"),
        ("2.14.1+cu130", "13.0", "here torch is 3 minor versions newer"),
        ("2.10.0+cu128", "12.8", "here torch is 1 minor version older and CUDA is 12.8"),
        ("3.0.0+cu140", "14.0", "here torch is of another major version and CUDA is 14.0"),
    ],
)
def test_doctor_tells_how_far_the_tables_are(torch: str, cuda: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    distances = table_distances(torch, cuda)
    assert list(distances) == ["h100-sxm.parquet", "h200-sxm.parquet"]
    assert all(text in line and "torch 2.11.0+cu130, CUDA 13.0" in line for line in distances.values())


def test_what_transformer_engine_imports_is_served(stub_set: stubs.StubSet) -> None:
    """It is not installed here: its imports are in a list. What no stub implements is a trap that names itself."""
    wanted = imports.listed()["transformer_engine"]
    by_stem = {find.stem(item.soname): item for item in stub_set.coverage}
    trapped = []
    for library, names in wanted.items():
        offered = {symbol.name for symbol in elf.read_dynamic(stub_set.directory / by_stem[library].soname).defined}
        assert set(names) <= offered, library
        trapped += [name for name in names if name in by_stem[library].trapped]
    assert len([name for names in wanted.values() for name in names]) == 90
    assert trapped == ["cublasLtGroupedMatrixLayoutInit_internal"]  # of grouped products, for Blackwell and later


def test_parts_of_cudnn_are_there_for_who_needs_them(stub_set: stubs.StubSet) -> None:
    names = {find.stem(item.soname) for item in stub_set.coverage}
    assert "libcudnn" in names and names >= set(find.CUDNN_PARTS)


def test_libraries_opened_by_their_path_are_the_stubs(stub_set: stubs.StubSet, tmp_path: Path) -> None:
    """Transformer Engine opens NVIDIA's libraries by their paths in site-packages."""
    real = tmp_path / next(item.soname for item in stub_set.coverage if find.stem(item.soname) == "libnvrtc")
    real.write_text("no library")
    result = python(
        "import ctypes\nfrom phantora import stubs\nfrom phantora.stubs import build\n"
        f"stubs.load(build.read_set(build.Path({str(stub_set.directory)!r})))\n"
        f"print(ctypes.CDLL({str(real)!r})._name, ctypes.CDLL('libc.so.6')._name, sep='\\n')"
    )
    assert result.stdout.splitlines() == [str(stub_set.directory / real.name), "libc.so.6"], result.stderr


def test_a_linker_finds_the_driver(stub_set: stubs.StubSet, tmp_path: Path) -> None:
    """Triton up to 3.5, of torch 2.9, links its launchers with -lcuda."""
    (tmp_path / "libcuda.so.1").symlink_to(stub_set.directory / "libcuda.so.1")
    build.link_names(tmp_path, stub_set.coverage)
    (tmp_path / "launcher.c").write_text("int cuInit(unsigned); int start(void) { return cuInit(0); }")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-z,defs", "launcher.c", "-o", "launcher.so", "-L.", "-lcuda"]
    subprocess.run([*command, f"-Wl,-rpath-link,{stub_set.directory}"], cwd=tmp_path, check=True)
