"""Every launch of a Triton kernel, announced to the operator tracer with its arguments and with what it does.

Torch has no operator for them. Triton launches through `CudaLauncher`, whoever made the kernel (a program, a library,
`triton.autotune`, Inductor), and Inductor also through a launcher of its own, `StaticallyLaunchedCudaKernel`. The
compiled kernel's IR is followed with the launch's arguments (:mod:`phantora.ttir`), once for each kind of launch.
From torch 2.14 on Inductor replaces that launcher from a kernel's second launch on by one of C, which calls no Python;
it is refused, as Inductor itself does for kernels that it does not support.
"""

from __future__ import annotations

import ctypes
import functools
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import orjson

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches import launch_cache, tuning
from phantora.rank.patches.operator_announcer import Announcer
from phantora.rank.patches.tuning import COMPILER, DRIVER, HEURISTICS
from phantora.ttir import store
from phantora.ttir.launch import Argument, Descriptor, Launch, Memory, UnknownIntegers
from phantora.ttir.parse import Function, parse
from phantora.ttir.programs import work_of
from phantora.ttir.slice import Deciding, deciding, written
from phantora.ttir.stores import Stores, stores_of
from phantora.ttir.work import LINE_BYTES
from phantora.wire.shared import KNOWN, SMALL_ELEMENTS, UNKNOWN

STATIC = "torch._inductor.runtime.static_triton_launcher"
CUDA = "torch.cuda._utils"
INDUCTOR = re.compile(r"triton_(poi|red|per|tem|for|spl|mm|bmm|convolution|flex|scaled)\w*|triton_$")
READ_BYTES = 1 << 22  # integers of larger tensors do not distinguish launches
EXPONENTS: dict[str, tuple[Any, int]] = {  # bits of the exponent: all are ones in an infinity or a NaN
    "torch.float64": (np.uint64, 11),
    "torch.float32": (np.uint32, 8),
    "torch.bfloat16": (np.uint16, 8),
    "torch.float16": (np.uint16, 5),
}


@dataclass(kw_only=True)
class Kernel:
    """A compiled kernel: its IR, read when it is first launched, and how it runs."""

    name: str
    ir: str
    warps: int
    stages: int
    shared: int
    registers: int
    spills: int
    functions: dict[str, Function] | None = None
    deciding: Deciding | None = None
    written: tuple[int, ...] = ()  # places of the arguments that it stores to
    follows_pointers: bool = False  # it loads addresses: integers behind them are no arguments
    broken: str = ""

    def understand(self) -> None:
        """Reads the kernel's IR once; `broken`: why it could not be read."""
        if self.functions is not None or self.broken:
            return
        try:
            self.functions = parse(self.ir)
            self.deciding = deciding(self.functions)
            names, stores = next(iter(self.functions.values())).arguments, written(self.functions)
            self.written = tuple(place for place, name in enumerate(names) if name in stores)
            self.follows_pointers = "tt.int_to_ptr" in self.ir
        except Exception as error:  # IR of another Triton
            self.broken = str(error) or type(error).__name__


class _Range(ctypes.Structure):
    """`ph_range` of stub/rank/memory.h."""

    _fields_ = (("base", ctypes.c_size_t), ("size", ctypes.c_size_t), ("space", ctypes.c_int), ("device", ctypes.c_int))


class Launches:
    """Describes launches, each kind once."""

    def __init__(self, tracer: Path) -> None:
        self._announcer = Announcer(tracer)
        self._library = self._announcer.library
        self._library.phantora_assumed.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._library.phantora_assumed.restype = None
        self._runtime = ctypes.CDLL(None)
        self._runtime.ph_memory_find.restype = ctypes.c_bool
        self._kinds: dict[tuple[Any, ...], tuple[bytes, dict[int, Stores]]] = {}

    def around(
        self, kernel: Kernel, grid: tuple[int, int, int], given: Sequence[Any], launch: Callable[[], Any]
    ) -> Any:
        """Calls `launch`, whose kernel gets the arguments `given` (those that the IR's function has)."""
        given = [_unwrapped(value) for value in given]
        text, stores = self._kind(kernel, grid, given)
        done = self._announcer.around(text, launch, given, kernel.written)
        for place in kernel.written:
            if place in stores:
                self._write(given[place].data_ptr(), stores[place])
            elif place < len(given):
                self._forget(given[place])
        return done

    def _write(self, address: int, stores: Stores) -> None:
        """Simulated device memory is memory of this process; what is still on its way there is waited for."""
        for offset, data in stores:
            where, size = ctypes.c_void_p(address + offset), ctypes.c_size_t(len(data))
            self._runtime.ph_touch(where, size)
            ctypes.memmove(where, data, len(data))
            self._runtime.ph_memory_mark(where, size, KNOWN)

    def _forget(self, value: Any) -> None:
        """The memory that a kernel stores to keeps its finite numbers and counts as unknown (docs/values.md)."""
        tensor = value.base if hasattr(value, "block_shape") else value
        if not hasattr(tensor, "data_ptr") or not tensor.is_cuda or not tensor.numel():
            return
        memory = self._memory(tensor)
        where, size = ctypes.c_void_p(memory.address), ctypes.c_size_t(memory.span)
        if tensor.numel() <= SMALL_ELEMENTS or self._runtime.ph_memory_flags(where, size) & KNOWN:
            if str(tensor.dtype) in EXPONENTS and memory.span <= READ_BYTES:
                self._runtime.ph_touch(where, size)
                _make_finite(memory, *EXPONENTS[str(tensor.dtype)])
            self._runtime.ph_memory_mark(where, size, UNKNOWN)

    def of_cuda(self, given: Sequence[Any], launch: Callable[[], Any]) -> Any:
        """Launches a kernel of CUDA C++ that torch compiles and launches for a program: its arguments are known."""
        table = {"op": "cuda::kernel", "args": [_described(value, True) for value in given], "bwd": False}
        return self._announcer.around(orjson.dumps(table), launch, given)

    def _kind(
        self, kernel: Kernel, grid: tuple[int, int, int], given: Sequence[Any]
    ) -> tuple[bytes, dict[int, Stores]]:
        """A launch as it is announced, and the integers that it stores, as far as they are known."""
        if kernel.functions is None and not kernel.broken:
            tuning.excluded(kernel.understand)
        known = kernel.deciding
        names = next(iter(kernel.functions.values())).arguments if kernel.functions else []
        plain = len(names) == len(given)  # else descriptors take several places
        parts: list[Any] = [id(kernel), grid, tuning.at_work()]
        stores_few = any(_few_integers(given[place]) for place in kernel.written if place < len(given))
        for place, value in enumerate(given):
            name = names[place] if plain else None
            if hasattr(value, "data_ptr"):
                parts.append((value.dtype, value.shape, value.stride(), value.is_cuda))
                reads = known is not None and name in known.read and value.is_cuda
                if reads or (stores_few and _few_integers(value)):
                    parts += [self._sum(value), stores_few and self._given(value)]
            elif hasattr(value, "block_shape"):
                parts.append((value.base.dtype, tuple(value.shape), tuple(value.strides)))
            elif isinstance(value, (int, bool)) and (
                stores_few or known is None or name is None or name in known.direct
            ):
                parts.append(value)
        key = tuple(parts)
        kind = self._kinds.get(key)
        if kind is None:
            text = self._describe(kernel, grid, given, names if plain else None)
            kind = self._kinds[key] = text, {}
            if stores_few and not kernel.follows_pointers:
                kind = self._kinds[key] = text, self._stores(kernel, grid, given)
        if stores_few and kernel.follows_pointers:
            return kind[0], self._stores(kernel, grid, given)
        return kind

    def _stores(self, kernel: Kernel, grid: tuple[int, int, int], given: Sequence[Any]) -> dict[int, Stores]:
        """All arguments of the launch's kind may decide: numbers, and what small tensors of integers hold."""
        if kernel.functions is None:
            return {}
        launch = self._launch(kernel, grid, given)
        arguments = tuple(
            replace(a, values=None) if isinstance(a, Memory) and not self._given(value) else a
            for a, value in zip(launch.arguments, given, strict=True)
        )
        launch, functions = replace(launch, arguments=arguments, read=self._at), kernel.functions
        try:
            found: dict[int, Stores] = tuning.excluded(lambda: stores_of(functions, launch))
            return found
        except Exception:  # IR of another Triton, or unknown integers: stores are unknown
            return {}

    def _describe(
        self, kernel: Kernel, grid: tuple[int, int, int], given: Sequence[Any], names: list[str] | None
    ) -> bytes:
        described = []
        for place, value in enumerate(given):
            decides = names is None or kernel.deciding is None or names[place] in kernel.deciding.direct
            described.append(_described(value, decides))
        space = "inductor" if INDUCTOR.match(kernel.name) else "triton"
        table: dict[str, Any] = {"op": f"{space}::{kernel.name}", "args": described, "bwd": False}
        if tuning.at_work():
            table["tuning"] = True
        if kernel.functions is not None:
            tensors_only = names is not None and not any(hasattr(value, "block_shape") for value in given)
            if tensors_only and kernel.deciding is not None and not kernel.deciding.read:  # else it is not rebuilt
                key = tuning.excluded(lambda: store.keep(kernel.ir, kernel.warps, kernel.stages))
                table |= {"ir": key, "grid": grid} if key else {}
            try:
                table["work"] = self._work(kernel, kernel.functions, grid, given, described)
            except Exception as error:  # IR of another Triton: the tensors give the price, as its provenance shows
                table["unread"] = str(error)[:200]
        else:
            table["unread"] = kernel.broken[:200]
        if "unread" in table:
            table["products"] = "tt.dot" in kernel.ir
            self._report(f"{kernel.name} is priced by its tensors: {table['unread']}")
        for what in table.get("work", {}).get("unknown", ()):
            self._report(f"unknown in {kernel.name}: {what}")
        return orjson.dumps(table)

    def _report(self, text: str) -> None:
        output = text.encode()
        self._library.phantora_assumed(output, len(output))

    def _work(
        self,
        kernel: Kernel,
        functions: dict[str, Function],
        grid: tuple[int, int, int],
        given: Sequence[Any],
        described: list[Any],
    ) -> Any:
        """Work of a launch; its analysis moves no clock. If no integers in memory decide it, it is found once on this
        machine: a run logs the same with an empty and with a full cache."""
        launch = self._launch(kernel, grid, given)
        if kernel.deciding is None or kernel.deciding.read:
            return tuning.excluded(lambda: work_of(functions, launch).text())
        addresses: list[int] = []
        places: list[Any] = []
        for value in given:  # where tensors lie within a line of L2, and which are the same
            tensor = value.base if hasattr(value, "block_shape") else value
            if hasattr(tensor, "data_ptr"):
                address = tensor.data_ptr()
                places.append([*map(address.__eq__, addresses), address % LINE_BYTES])
                addresses.append(address)
        about = (kernel.warps, kernel.stages, kernel.shared, kernel.registers, kernel.spills, grid)
        shapes = [
            [list(v.block_shape), list(v.shape), list(v.strides)] if hasattr(v, "block_shape") else None for v in given
        ]
        key = orjson.dumps([kernel.ir, about, described, places, shapes])
        return tuning.excluded(lambda: launch_cache.found(key, lambda: work_of(functions, launch).text()))

    def _launch(self, kernel: Kernel, grid: tuple[int, int, int], given: Sequence[Any]) -> Launch:
        arguments = tuple(self._argument(value) for value in given)
        return Launch(
            grid,
            arguments,
            kernel.warps,
            stages=kernel.stages,
            shared=kernel.shared,
            registers=kernel.registers,
            spills=kernel.spills,
        )

    def _argument(self, value: Any) -> Argument:
        if hasattr(value, "block_shape"):
            return Descriptor(self._memory(value.base), tuple(value.shape), tuple(value.strides))
        if hasattr(value, "data_ptr"):
            return self._memory(value)
        return value if isinstance(value, (int, float, bool)) else None

    def _memory(self, tensor: Any) -> Memory:
        size = tensor.element_size()
        count = tensor.numel()
        span = (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))) * size if count else 0
        whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
        address = tensor.data_ptr()
        small = tensor.untyped_storage().nbytes() <= SMALL_ELEMENTS * size
        values = functools.partial(self._bytes, address, span, small) if whole and tensor.is_cuda else None
        return Memory(address, min(count * size, span), span, values)

    def _bytes(self, address: int, size: int, small: bool) -> np.ndarray[Any, Any]:
        """Simulated device memory is memory of this process; what is still on its way is waited for.

        Raises UnknownIntegers for bytes that a kernel computed from what is not known: they read as zero, and a mask of
        zeros would leave nothing to do.
        """
        self._runtime.ph_touch(ctypes.c_void_p(address), ctypes.c_size_t(size))
        held = np.frombuffer(ctypes.string_at(address, size), np.uint8)
        flags = self._runtime.ph_memory_flags(ctypes.c_void_p(address), ctypes.c_size_t(size))
        known = flags & KNOWN or (small and not flags & UNKNOWN)
        if not known and not held.any():
            raise UnknownIntegers("integers that decide what a kernel does are not known")
        return held

    def _at(self, address: int, size: int) -> np.ndarray[Any, Any] | None:
        """Bytes of an allocation of device memory, if they are known."""
        found = _Range()
        if not self._runtime.ph_memory_find(ctypes.c_void_p(address), ctypes.byref(found)):
            return None
        if address + size > found.base + found.size:
            return None
        where, bytes_ = ctypes.c_void_p(address), ctypes.c_size_t(size)
        self._runtime.ph_touch(where, bytes_)
        flags = self._runtime.ph_memory_flags(where, bytes_)
        small = size <= SMALL_ELEMENTS and not flags & UNKNOWN
        return np.frombuffer(ctypes.string_at(address, size), np.uint8) if flags & KNOWN or small else None

    def _given(self, value: Any) -> bool:
        """A small tensor of integers of which none is unknown: what follows from unknown ones is unknown."""
        if not _few_integers(value):
            return False
        memory = self._memory(value)
        where, size = ctypes.c_void_p(memory.address), ctypes.c_size_t(memory.span)
        return not self._runtime.ph_memory_flags(where, size) & UNKNOWN

    def _sum(self, tensor: Any) -> int:
        memory = self._memory(tensor)
        if memory.values is None or memory.span > READ_BYTES:
            return 0
        try:
            return zlib.crc32(memory.values().data)
        except UnknownIntegers:
            return 0


def _make_finite(memory: Memory, word: Any, bits: int) -> None:
    """An online softmax keeps its maximum in memory that begins at -inf: what follows from it would stay infinite."""
    words = np.ctypeslib.as_array((ctypes.c_char * memory.span).from_address(memory.address)).view(word)
    exponent = word((1 << bits) - 1) << word(8 * words.itemsize - 1 - bits)
    words[(words & exponent) == exponent] = 0


class _Wrapped:
    """A tensor inside a wrapper that gives the address: the tensor's own data_ptr() would copy a copy-on-write one."""

    def __init__(self, wrapper: Any, tensor: Any) -> None:
        self._tensor, self.data_ptr = tensor, wrapper.data_ptr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


def _unwrapped(value: Any) -> Any:
    """Arguments that have an address and are no tensors: torch's ConstTensorWrapper (``_tensor``), Triton's
    TensorWrapper (``base``). Others are pointers of which nothing is known: None."""
    if not hasattr(value, "data_ptr") or hasattr(value, "is_cuda"):
        return value
    for name in ("_tensor", "base"):
        tensor = getattr(value, name, None)
        if hasattr(tensor, "is_cuda"):
            return _Wrapped(value, tensor)
    return None


def _few_integers(value: Any) -> bool:
    if not hasattr(value, "data_ptr") or not value.is_cuda or value.dtype.is_floating_point or value.dtype.is_complex:
        return False
    return bool(0 < value.numel() <= SMALL_ELEMENTS)


def _described(value: Any, decides: bool) -> Any:
    tensor = value.base if hasattr(value, "block_shape") else value
    if hasattr(tensor, "data_ptr"):
        dtype = str(tensor.dtype).removeprefix("torch.")
        table = {"t": dtype, "s": list(tensor.shape), "st": list(tensor.stride())}
        return table if tensor.is_cuda else {**table, "d": "cpu"}
    return value if isinstance(value, (int, bool)) and decides else None


# ---------------------------------------------------------------------- where launches are seen


def install(rank: Rank) -> None:
    """Announces launches to the tracer's library, as soon as Triton is imported."""
    launches = Launches(rank.tracer)
    wraps = {
        DRIVER: _wrap_driver,
        COMPILER: _wrap_compiler,
        STATIC: _wrap_static,
        HEURISTICS: _refuse_fast,
        CUDA: _wrap_cuda,
    }
    on_import(wraps, lambda module: wraps[module.__name__](module, launches))


def _wrap_compiler(module: ModuleType, launches: Launches) -> None:
    """The launcher of a compiled kernel knows the kernel."""
    handles = module.CompiledKernel._init_handles

    @functools.wraps(handles)
    def init_handles(self: Any) -> None:
        handles(self)
        if not hasattr(self._run, "phantora_kernel"):
            meta = self.metadata
            self._run.phantora_kernel = Kernel(
                name=self.name,
                ir=self.asm.get("ttir", ""),
                warps=meta.num_warps,
                stages=meta.num_stages,
                shared=meta.shared,
                registers=self.n_regs or 0,
                spills=self.n_spills or 0,
            )
            kinds = list(self.src.signature.values())
            self._run.phantora_places = [i for i, kind in enumerate(kinds) if kind != "constexpr"]

    module.CompiledKernel._init_handles = init_handles


def _wrap_driver(module: ModuleType, launches: Launches) -> None:
    launch = module.CudaLauncher.__call__

    @functools.wraps(launch)
    def call(self: Any, x: int, y: int, z: int, stream: Any, function: Any, *rest: Any) -> Any:
        kernel = getattr(self, "phantora_kernel", None)
        if kernel is None or x * y * z <= 0:
            return launch(self, x, y, z, stream, function, *rest)
        given = [rest[4 + place] for place in self.phantora_places if 4 + place < len(rest)]
        return launches.around(kernel, (x, y, z), given, lambda: launch(self, x, y, z, stream, function, *rest))

    module.CudaLauncher.__call__ = call


def _wrap_static(module: ModuleType, launches: Launches) -> None:
    """Inductor's launcher keeps nothing of the kernel but its code, travels between processes and lies in caches."""
    static = module.StaticallyLaunchedCudaKernel
    made, run = static.__init__, static.run

    @functools.wraps(made)
    def init(self: Any, kernel: Any) -> None:
        made(self, kernel)
        self.phantora_ir = kernel.asm.get("ttir", "")
        self.phantora_stages = kernel.metadata.num_stages

    @functools.wraps(run)
    def launch(self: Any, x: int, y: int, z: int, stream: Any, *args: Any) -> Any:
        kernel = self.__dict__.get("phantora_kernel")
        if kernel is None:
            ir = getattr(self, "phantora_ir", "") or _from_cache(self.hash, self.name)
            stages = getattr(self, "phantora_stages", 1)
            kernel = Kernel(
                name=self.name,
                ir=ir,
                warps=self.num_warps,
                stages=stages,
                shared=self.shared,
                registers=self.n_regs or 0,
                spills=self.n_spills or 0,
            )
            self.phantora_kernel = kernel
        if x * y * z <= 0:
            return run(self, x, y, z, stream, *args)
        return launches.around(kernel, (x, y, z), args, lambda: run(self, x, y, z, stream, *args))

    static.__init__, static.run = init, launch


def _refuse_fast(module: ModuleType, launches: Launches) -> None:
    """Inductor keeps the launcher of :func:`_wrap_static` where none of C can be built; torch before 2.14 has none."""
    if hasattr(module.CachingAutotuner, "_build_fast_launcher"):
        module.CachingAutotuner._build_fast_launcher = lambda self, launcher: None


def _wrap_cuda(module: ModuleType, launches: Launches) -> None:
    """Announces kernels of ``torch.cuda._compile_kernel``; torch before 2.9 has none."""
    kernel = getattr(module, "_CudaKernel", None)
    if kernel is None:
        return
    launch = kernel.__call__

    @functools.wraps(launch)
    def call(self: Any, *given: Any, **options: Any) -> Any:
        args = options.get("args") or (given[2] if len(given) > 2 else ())
        return launches.of_cuda(args or (), lambda: launch(self, *given, **options))

    kernel.__call__ = call


def _from_cache(key: str, name: str) -> str:
    """The IR in Triton's cache for a kernel that another process or run has compiled; empty: none."""
    from triton.runtime.cache import get_cache_manager

    path = get_cache_manager(key).get_file(f"{name}.ttir")
    return Path(path).read_text() if path else ""


PATCH = Patch("triton launches", When.AFTER_TORCH, install)
