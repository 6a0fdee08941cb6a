"""Text of `phantora doctor`: compiler, torch, coverage, cache, memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from phantora.cache import cache_directory
from phantora.errors import PhantoraError
from phantora.json_data import Bytes
from phantora.stubs import transformer_engine
from phantora.stubs.build import Coverage, compilers, read_set
from phantora.stubs.cache import cache_key, ensure
from phantora.stubs.find import find_torch


@dataclass(frozen=True, kw_only=True)
class Report:
    """`problems` are essential; everything else informs."""

    DERIVED: ClassVar = ("ok",)

    compilers: dict[str, str | None]
    torch: str | None
    cuda: str | None
    torch_directory: str | None
    cache: str
    built: bool
    libraries: tuple[Coverage, ...]
    transformer_engine: str
    shared_memory_free: Bytes
    memory_free: Bytes
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if nothing is missing."""
        return not self.problems

    def text(self) -> str:
        """The report for a terminal."""
        lines = [f"compiler   {name}: {version or 'missing'}" for name, version in self.compilers.items()]
        if self.torch:
            lines.append(f"torch      {self.torch}, CUDA {self.cuda}, in {self.torch_directory}")
        lines.append(f"stubs      {self.cache} ({'built' if self.built else 'not built'})")
        wide = max((len(item.soname) for item in self.libraries), default=0) + 2
        if self.libraries:
            lines.append(f"coverage   {'library':<{wide}}imported  implemented  trapped")
        for item in self.libraries:
            total = len(item.implemented) + len(item.trapped)
            if not total:
                continue
            lines.append(f"           {item.soname:<{wide}}{total:>8}{len(item.implemented):>13}{len(item.trapped):>9}")
        if self.libraries:
            lines.append("           a trapped call ends the rank with its name; --json lists the calls")
        if self.transformer_engine:
            lines.append(f"engine     Transformer Engine {self.transformer_engine}")
        lines.append(
            f"memory     {self.memory_free / 2**30:.1f} GiB available "
            "(the ranks' shared memory is taken from it), "
            f"/dev/shm {self.shared_memory_free / 2**30:.1f} GiB free (only for torch's DataLoader workers)"
        )
        lines += [f"problem    {problem}" for problem in self.problems]
        return "\n".join(lines)


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def doctor() -> Report:
    """Looks at everything and, if it can, builds the stubs."""
    problems: list[str] = []
    found = compilers()
    torch = None
    libraries: tuple[Coverage, ...] = ()
    built = False
    engine = ""
    cache = cache_directory()
    try:
        torch = find_torch()
        cache = cache / cache_key(torch)
        stub_set = read_set(cache) or ensure()
        libraries, built = stub_set.coverage, True
        engine = transformer_engine.state(torch)
    except PhantoraError as error:
        problems.append(str(error))
    try:
        shm = os.statvfs("/dev/shm")
        free = shm.f_bavail * shm.f_frsize
    except OSError:
        free = 0
    return Report(
        compilers=found,
        torch=torch.version if torch else None,
        cuda=torch.cuda if torch else None,
        torch_directory=str(torch.directory) if torch else None,
        cache=str(cache),
        built=built,
        libraries=libraries,
        transformer_engine=engine,
        shared_memory_free=free,
        memory_free=_available_memory(),
        problems=tuple(problems),
    )
