"""Time of checkpoints (``--disk``; docs/data-loading.md, "Checkpoints").

``torch.save`` and ``torch.load`` of a file, ``torch.distributed.checkpoint`` and safetensors write and read for real.
A file is written into the host's memory (``FILE_WRITE_GIB`` of the host model; torch's with ``FILE_SUM_GIB``; over an
earlier file ``FILE_REPLACE_GIB``). The disk follows: a call waits for it if it synchronises its files, as distributed
checkpoints do, or if the file system is shared. A file of this run is read from the host's memory (``FILE_READ_GIB``,
and the pages of new tensors), another one at the disk's rate. A mapped file of this run takes no time before its use.

A save in the background takes its time from the end of its call on; who asks for its result waits until then. Its
thread has Python's lock while it plans and sums what it writes: the rank's own work stands still meanwhile. The
time from begin to end is an annotation of the log (:data:`phantora.wire.names.CHECKPOINT`, ``CHECKPOINT_READ``).

It runs in a rank. The terminal's process calls :func:`parse` alone, to check the option.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.rank.clock import NEXT_TO_PYTHON, Runtime
from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches.staging import Staging, await_awake
from phantora.rank.patches.tensor_files import timed_class
from phantora.spec import RankSpec, SlowDisk, rank_spec
from phantora.units import RATE
from phantora.wire.names import CHECKPOINT, CHECKPOINT_READ, CHECKPOINT_WAIT

OPTION = "--disk"
NO_TIME = "free"
_SHARED = ",shared"
_SAVER = "torch.distributed.checkpoint.state_dict_saver"
_STAGING = "torch.distributed.checkpoint.staging"
_WRITER = "torch.distributed.checkpoint.filesystem"
_SAFETENSORS = "safetensors"
_TENSORS = "safetensors.torch"
_SAID_FROM_NS = 10_000_000  # a shorter read is no assumption worth a line


@dataclass(frozen=True)
class Disk:
    """The disk of checkpoints."""

    rate: float
    """Bytes/s; infinite: no time."""
    shared: bool = False
    """One disk for the whole cluster, not one per host."""
    slow: tuple[SlowDisk, ...] = ()
    """Faults of it."""

    @property
    def free(self) -> bool:
        """Do files take no time?"""
        return math.isinf(self.rate)

    def ns(self, size: int, ranks: int, start: int) -> int:
        """Time to write `size` bytes from the time `start` (ns) on, while `ranks` ranks write as much to it."""
        left, now = size * ranks / self.rate * 1e9, start
        for moment in sorted({edge for one in self.slow for edge in (one.start_ns, one.end_ns) if edge > start}):
            if (done := (moment - now) * self._share(now)) >= left:
                break
            left, now = left - done, moment
        return int(now - start + left / self._share(now))

    def _share(self, time: int) -> float:
        return math.prod(one.factor for one in self.slow if one.start_ns <= time < one.end_ns)


def parse(text: str) -> Disk:
    """``free``, ``2GB/s`` or ``20GB/s,shared``. Raises PhantoraError."""
    if text == NO_TIME:
        return Disk(float("inf"))
    if not (rate := RATE.read(text.removesuffix(_SHARED))):
        raise PhantoraError(f"{OPTION} {text}: give free, the rate of each host's disk such as 2GB/s, or 20GB/s,shared")
    return Disk(rate, text.endswith(_SHARED))


class Checkpoints:
    """Gives the checkpoints of this rank their time."""

    def __init__(
        self,
        disk: Disk,
        runtime: Runtime,
        say: Callable[[], None],
        filling: Callable[[], AbstractContextManager[None]],
        exclude: Callable[[bool], object] = bool,
    ) -> None:
        """`say` is called at each save and each long read. Tensors that are made within `filling` are read from a file:
        their pages are new. `exclude` is called when this thread begins and ends work whose time is the disk's."""
        self._exclude = exclude
        self._disk = disk
        self._filling = filling
        self._runtime = runtime
        self._say = say
        self._inside = threading.local()
        self._staging = Staging(runtime)
        self._tensors = 0
        """Written to distributed checkpoints since the last save in the background began."""
        self._sizes: dict[str, int] = {}
        """Sizes of the files and folders that this rank has written, by path."""
        self._written_at = 0
        """End of the disk's writes so far, ns."""
        with tempfile.TemporaryFile() as new:
            self._began = os.fstat(new.fileno()).st_mtime
            """The time of files that are written now: real, and of the kernel's clock."""

    def meet(self, module: Any) -> None:
        """Changes `module` after its import."""
        if module.__name__ == _SAVER:
            for name in ("save", "async_save"):
                original = getattr(module, name)
                changed = self._sync(original) if name == "save" else self._async(original)
                for user in (module, sys.modules.get("torch.distributed.checkpoint")):
                    if user is not None:
                        setattr(user, name, changed)
        elif module.__name__ == _STAGING:
            self._staging.meet(module)
        elif module.__name__ == _WRITER:
            writer, reader = module._FileSystemWriter, module.FileSystemReader
            writer.write_data = self._distributed(writer.write_data)
            module._write_item = self._counted(module._write_item)
            reader.read_data = self._distributed_read(reader.read_data)
        elif module.__name__ == _SAFETENSORS:
            _replace(module, "safe_open", timed_class(module.safe_open, self._read))
        elif module.__name__ == _TENSORS:
            _replace(module, "save_file", self._file(module.save_file, 1, "filename", summed=False))
        else:
            import torch

            module.save = torch.save = self._file(module.save, 1, "f")
            module.load = torch.load = self._read_file(module.load)

    @property
    def _ranks(self) -> int:
        """Ranks that write a distributed checkpoint to the same disk."""
        return int(os.environ.get("WORLD_SIZE" if self._disk.shared else "LOCAL_WORLD_SIZE", "1"))

    def _moves(self) -> bool:
        return self._runtime.is_virtual() and self._runtime.moves_clock()

    @contextmanager
    def _span(self, name: str) -> Iterator[bool]:
        """An annotation around the outermost save of this thread; false in those within."""
        from torch.autograd.profiler import record_function

        if getattr(self._inside, "save", False) or not self._moves():
            yield False
            return
        self._inside.save = True
        self._exclude(True)
        try:
            with record_function(name):
                yield True
        finally:
            self._exclude(False)
            self._inside.save = False

    def _to_memory(self, size: int, path: Any, summed: bool = True) -> int:
        """ns until `size` bytes are in files at `path`, which may be in the host's memory."""
        from phantora.wire.layout import Api

        replaced = self._sizes.get(str(path), 0)
        self._sizes[str(path)] = size
        if self._disk.free:
            return 0
        ns = self._runtime.bytes_ns
        return ns(Api.FILE_WRITE_GIB, size) + summed * ns(Api.FILE_SUM_GIB, size) + ns(Api.FILE_REPLACE_GIB, replaced)

    def _to_disk(self, size: int, ranks: int, given: int) -> int:
        """Time at which the disk has written `size` bytes that it receives at the time `given`."""
        begins = max(self._written_at, given)
        self._written_at = begins + self._disk.ns(size, ranks, begins)
        return self._written_at

    def _written(self, size: int, ranks: int, synchronised: bool, path: Any, summed: bool = True) -> None:
        if self._moves() and size:
            self._say()
            self._runtime.advance(self._to_memory(size, path, summed))
            ends = self._to_disk(size, ranks, self._runtime.now())
            if synchronised or self._disk.shared:
                self._runtime.advance(ends - self._runtime.now())

    def _file(self, save: Any, place: int, name: str, summed: bool = True) -> Any:
        """`save`, whose argument `name` at `place` is a path or an open file. One rank writes it."""

        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            target = args[place] if len(args) > place else kwargs.get(name)
            is_path = isinstance(target, (str, os.PathLike))
            before = 0 if is_path else _position(target)
            with self._span(CHECKPOINT) as outermost:
                result = save(*args, **kwargs)
                if outermost:
                    path = target if is_path else getattr(target, "name", "")
                    self._written(_position(target) - before, 1, False, path, summed)
            return result

        return timed

    def _read(self, size: int, path: Any = None, ranks: int = 1, mapped: bool = False) -> None:
        """`size` bytes of the file or the files in the folder at `path` were read, or are `mapped`."""
        from phantora.wire.layout import Api

        if self._is_in_memory(path):
            spent = 0 if self._disk.free or mapped else self._runtime.bytes_ns(Api.FILE_READ_GIB, size)
        else:
            spent = self._disk.ns(size, ranks, self._runtime.now())
        if spent and self._moves():
            if spent >= _SAID_FROM_NS:
                self._say()
            with self._span(CHECKPOINT_READ):
                self._runtime.advance(spent)

    def _is_in_memory(self, path: Any) -> bool:
        """True if this run has written it, so that it is in the memory of the host."""
        try:
            where = path if isinstance(path, (str, os.PathLike)) else path.fileno()
            return not self._disk.shared and os.stat(where).st_mtime >= self._began
        except (OSError, AttributeError, ValueError):
            return False

    def _read_file(self, load: Any) -> Any:
        """`load`, whose first argument is a path or an open file. All of a mapped file is read from a disk, too."""

        @functools.wraps(load)
        def timed(f: Any, *args: Any, **kwargs: Any) -> Any:
            before = 0 if isinstance(f, (str, os.PathLike)) else _position(f)
            mapped = bool(kwargs.get("mmap"))
            self._exclude(True)
            try:
                with nullcontext() if getattr(self._inside, "read", False) else self._filling():
                    result = load(f, *args, **kwargs)
            finally:
                self._exclude(False)
            self._read(_size(f) - before, f, mapped=mapped)
            return result

        return timed

    def _distributed_read(self, read: Any) -> Any:
        from phantora.wire.layout import Api

        @functools.wraps(read)
        def timed(this: Any, plan: Any, planner: Any) -> Any:
            self._inside.read = True  # its tensors are small parts, whose memory is used again
            try:
                result = read(this, plan, planner)
            finally:
                self._inside.read = False
            size = sum(this.storage_data[item.storage_index].length for item in plan.items)
            self._read(size, this.path, self._ranks)
            if self._moves() and not self._disk.free:
                # A record goes through an object of Python, which is read and written. Caches read what is written.
                self._runtime.advance(self._runtime.bytes_ns(Api.HOST_MOVE_GIB, 3 * size))
            return result

        return timed

    def _distributed(self, write: Any) -> Any:
        @functools.wraps(write)
        def timed(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = write(this, *args, **kwargs)
            size = sum(one.size_in_bytes for one in result.value())
            self._written(size, self._ranks, _synchronises(this), this.path)
            return result

        return timed

    def _sync(self, save: Any) -> Any:
        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._runtime.moves_clock():
                with self._span(CHECKPOINT):
                    return save(*args, **kwargs)
            self._runtime.apart_begin(False)  # in the background: _in_background has its timeline
            try:
                return save(*args, **kwargs)
            finally:
                self._runtime.apart_end()

        return timed

    def _async(self, save: Any) -> Any:
        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._tensors = 0
            with self._span(CHECKPOINT) as outermost:
                answer = save(*args, **kwargs)
            if outermost:
                writer = kwargs.get("storage_writer")
                folder = kwargs.get("checkpoint_id") or getattr(writer, "path", None)
                future = getattr(answer, "upload_completion", answer)
                self._say()
                await_awake(future, self._runtime)  # when it is done on this machine is chance, and must not show
                size = _own_files(Path(folder) if folder else None)
                if staged := getattr(answer, "staging_completion", None):
                    self._late(staged, self._staging.ends)
                self._in_background(future, size, folder, writer is None or _synchronises(writer))
            return answer

        return timed

    def _counted(self, write: Any) -> Any:
        @functools.wraps(write)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._tensors += 1
            return write(*args, **kwargs)

        return counted

    def _in_background(self, future: Any, size: int, folder: Any, synchronised: bool) -> None:
        """The timeline of a save of `size` bytes to `folder`, from the end of its copy on. Who waits for `future` waits
        for its end."""
        from phantora.wire.layout import Api

        began = max(self._runtime.now(), self._staging.ends)
        python = 0 if self._disk.free else self._runtime.times_ns(Api.FILE_TENSOR, self._tensors)
        if python and os.environ.get("RANK", "0") == "0":  # it plans for all
            others = int(os.environ.get("WORLD_SIZE", "1")) - 1
            python += self._runtime.times_ns(Api.FILE_PLAN, self._tensors * others)
        in_memory = began + python + self._to_memory(size, folder)
        locked = 0 if self._disk.free else self._runtime.bytes_ns(Api.FILE_LOCKED_GIB, size)
        if python or locked:
            planned, written = began + python, in_memory - began - python
            self._runtime.contend(began, planned, NEXT_TO_PYTHON, in_memory, written / max(1, written - locked))
        on_disk = self._to_disk(size, self._ranks, in_memory)
        self._late(future, on_disk if synchronised or self._disk.shared else in_memory)

    def _late(self, future: Any, ends: int) -> None:
        """`future` is done at the time `ends`, and not before."""
        result = future.result

        def timed_result(timeout: float | None = None) -> Any:
            if self._moves() and (missing := ends - self._runtime.now()) > 0:
                with self._span(CHECKPOINT_WAIT):
                    self._runtime.advance(missing)
            return result(timeout)

        def timed_done() -> bool:
            return not self._moves() or ends <= self._runtime.now()

        future.result, future.done = timed_result, timed_done


def _replace(owner: Any, name: str, changed: Any) -> None:
    """Gives `changed` to all loaded modules that have `name` of `owner`."""
    original = getattr(owner, name)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, changed)


def _synchronises(writer: Any) -> bool:
    """True if a writer of distributed checkpoints waits for the disk."""
    return bool(getattr(writer, "sync_files", True))


def _position(target: Any) -> int:
    """Bytes of a file, or written to an open one so far; 0 for buffers in memory."""
    try:
        if isinstance(target, (str, os.PathLike)):
            return os.path.getsize(target)
        target.fileno()
        return int(target.tell())
    except (OSError, AttributeError, ValueError):
        return 0


def _size(target: Any) -> int:
    """Bytes of a file, by its path or open; 0 for buffers in memory."""
    try:
        return os.stat(target if isinstance(target, (str, os.PathLike)) else target.fileno()).st_size
    except (OSError, AttributeError, ValueError):
        return 0


def _own_files(folder: Path | None) -> int:
    """Bytes that this rank wrote to a distributed checkpoint."""
    rank = os.environ.get("RANK", "0")
    return sum(path.stat().st_size for path in folder.glob(f"__{rank}_*.distcp")) if folder else 0


def install(rank: Rank) -> None:
    """Times the checkpoints of this rank."""
    note = ctypes.PyDLL(str(rank.tracer)).phantora_assumed
    note.argtypes, note.restype = [ctypes.c_char_p, ctypes.c_size_t], None
    text, host = rank_spec().disk, f"h{os.environ.get('GROUP_RANK', '0')}"
    said = f"checkpoints go to a disk of {text} (--disk)".encode()

    def say() -> None:
        if text == RankSpec.disk:
            note(said, len(said))

    tensors = ctypes.PyDLL(str(rank.tracer))
    tensors.phantora_host_tensors.restype = ctypes.c_uint64
    tensors.phantora_filled_since.argtypes = [ctypes.c_uint64]
    tensors.phantora_filled_since.restype = None

    @contextmanager
    def filling() -> Iterator[None]:
        latest = tensors.phantora_host_tensors()
        yield
        tensors.phantora_filled_since(latest)

    disk = parse(text)
    slow = tuple(one for one in rank_spec().slow_disks if disk.shared or fnmatchcase(host, one.hosts))
    exclude = rank.runtime.ph_unmodelled_exclude
    saves = Checkpoints(replace(disk, slow=slow), Runtime.of(rank.runtime), say, filling, exclude)
    on_import((_SAVER, _STAGING, _WRITER, _SAFETENSORS, _TENSORS, "torch.serialization"), saves.meet)


PATCH = Patch("disk", When.AFTER_TORCH, install)
