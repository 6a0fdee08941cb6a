"""Autotuners take place on virtual time, without their repetitions, and compilation is shared by ranks.

Prices do not scatter, so one run of a candidate suffices. The time that the others would have taken
passes on the host's clock. All of it lies in an annotation, `TUNING`: analysis leaves it out. What tuning finds
goes into no cache on disk: it is valid for simulated GPUs only, and each rank must log the same whichever came first.

One rank compiles a kernel, in a thread that moves no clock; others wait and read the result from Triton's cache.
Inductor's candidates are compiled side by side before they are tried: it compiles them in worker processes, which a
rank must not have.
"""

from __future__ import annotations

import _thread
import ctypes
import fcntl
import functools
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from phantora import process
from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.wire.names import ASIDE, COMPILED, COMPILING, TUNING

TESTING, AUTOTUNER, COMPILER = "triton.testing", "triton.runtime.autotuner", "triton.compiler.compiler"
DRIVER = "triton.backends.nvidia.driver"
INDUCTOR = "torch._inductor.runtime.benchmarking"
HEURISTICS, CHOICES = "torch._inductor.runtime.triton_heuristics", "torch._inductor.select_algorithm"
DYNAMO = "torch._dynamo.callback"
_cores_here = os.sched_getaffinity  # of this machine, which a patch takes the place of
ESTIMATES = 5  # runs by which Triton and Inductor first learn how long one takes
_benches = 0  # that are under way
_ahead: dict[int, tuple[Any, Any]] = {}
"""Results of `compile_ahead` that were not asked for yet, by a form's identity."""
_reading = _thread.allocate_lock()
"""Source of a kernel is read and made IR by one thread at a time: it is Python, which is no faster in several, and the
parser of CPython before 3.11.9 fails in several (its issue 106905)."""


def at_work() -> bool:
    """True while a candidate is tried."""
    return _benches > 0


def install(_: Rank) -> None:
    """Replaces the benchmarks of Triton and Inductor as soon as these are imported."""
    changes: dict[str, Callable[[ModuleType], None]] = {
        TESTING: _testing,
        AUTOTUNER: _autotuner,
        COMPILER: _compiler,
        DRIVER: _driver,
        INDUCTOR: _inductor,
        HEURISTICS: _heuristics,
        CHOICES: _choices,
        DYNAMO: _dynamo,
    }
    on_import(changes, lambda module: changes[module.__name__](module))


def bench(call: Callable[[], Any], warmup: float, rep: float, grad_to_none: Sequence[Any] | None = None) -> float:
    """ms of one `call`, run twice: once to compile, once timed behind a kernel that hides its launch.

    The host's clock then moves by the `warmup` and `rep` ms that repetitions would have taken.
    """
    import torch

    with torch.profiler.record_function(TUNING), _counted():
        call()
        torch.cuda.synchronize()
        for tensor in grad_to_none or ():
            tensor.grad = None
        cache = torch.empty(_l2_bytes(), dtype=torch.int8, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        cache.zero_()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        ms = float(start.elapsed_time(end))
        runs = ESTIMATES + max(1, int(warmup / max(ms, 1e-3))) + max(1, int(rep / max(ms, 1e-3)))
        _advance(runs * ms)
    return ms


@contextmanager
def _counted() -> Iterator[None]:
    global _benches
    _benches += 1
    try:
        yield
    finally:
        _benches -= 1


def _l2_bytes() -> int:
    import torch

    return 2 * int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def _advance(ms: float) -> None:
    runtime = ctypes.CDLL(None)
    runtime.ph_moves_clock.restype = ctypes.c_bool
    if runtime.ph_moves_clock():
        runtime.ph_advance.argtypes = [ctypes.c_int64]
        runtime.ph_advance.restype = None
        runtime.ph_advance(int(ms * 1e6))


def _answer(ms: float, quantiles: Sequence[float] | None, mode: str) -> Any:
    """Result in the form of ``triton.testing.do_bench``: all statistics of equal times are that time."""
    if quantiles is not None:
        return [ms] * len(quantiles) if len(quantiles) > 1 else ms
    return [ms] if mode == "all" else ms


def _testing(module: Any) -> None:
    @functools.wraps(module.do_bench)
    def do_bench(
        fn: Callable[[], Any],
        warmup: float = 25,
        rep: float = 100,
        grad_to_none: Any = None,
        quantiles: Any = None,
        return_mode: str = "mean",
    ) -> Any:
        return _answer(bench(fn, warmup, rep, grad_to_none), quantiles, return_mode)

    @functools.wraps(module.do_bench_cudagraph)
    def do_bench_cudagraph(
        fn: Callable[[], Any],
        rep: float = 20,
        grad_to_none: Any = None,
        quantiles: Any = None,
        return_mode: str = "mean",
    ) -> Any:
        return _answer(bench(fn, 0.0, rep, grad_to_none), quantiles, return_mode)

    module.do_bench, module.do_bench_cudagraph = do_bench, do_bench_cudagraph


def _autotuner(module: Any) -> None:
    def check_disk_cache(self: Any, key: Any, configs: Any, bench_fn: Callable[[], Any]) -> bool:
        bench_fn()
        return False

    module.Autotuner.check_disk_cache = check_disk_cache


def _inductor(module: Any) -> None:
    real = module.InductorBenchmarker.benchmark_gpu

    @functools.wraps(real)
    def benchmark_gpu(
        self: Any,
        _callable: Callable[[], Any],
        max_benchmark_duration: int = 25,
        return_mode: str = "min",
        grad_to_none: Any = None,
        **options: Any,
    ) -> Any:
        return _answer(bench(_callable, 0.0, max_benchmark_duration, grad_to_none), None, return_mode)

    module.InductorBenchmarker.benchmark_gpu = benchmark_gpu


# ---------------------------------------------------------------------- compilation


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """One process of this machine at a time."""
    from triton import knobs

    folder = Path(knobs.cache.dir) / "phantora-locks"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / key, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiler(module: Any) -> None:
    compile_one = module.compile

    make_ir = module.ASTSource.make_ir

    @functools.wraps(make_ir)
    def alone(*args: Any, **options: Any) -> Any:
        with _reading:
            return make_ir(*args, **options)

    module.ASTSource.make_ir = alone

    def under_lock(src: Any, target: Any, options: Any, rest: Mapping[str, Any]) -> Any:
        with _reading:
            src.hash()  # reads the kernel's source, and keeps what it has found
        text = f"{src.hash()} {target} {sorted((options or {}).items(), key=str)}"
        with _alone(hashlib.sha256(text.encode()).hexdigest()[:24]):
            return compile_one(src, target=target, options=options, **rest)

    @functools.wraps(compile_one)
    def compile_(src: Any, target: Any = None, options: Any = None, **rest: Any) -> Any:
        if not hasattr(src, "hash") or int(os.environ.get("WORLD_SIZE", "1")) <= 1:
            return excluded(lambda: compile_one(src, target=target, options=options, **rest))
        return excluded(lambda: under_lock(src, target, options, rest))

    module.compile = compile_
    for package in (sys.modules.get("triton.compiler"), sys.modules.get("triton")):  # Inductor calls triton.compile
        if package is not None and getattr(package, "compile", None) is compile_one:
            package.compile = compile_  # type: ignore[attr-defined]


def _heuristics(module: Any) -> None:
    tuner = module.CachingAutotuner
    all_forms, one_form = tuner._precompile_worker, tuner._precompile_config

    @functools.wraps(all_forms)
    def precompile_worker(self: Any) -> Any:
        compile_ahead([self])
        return all_forms(self)

    @functools.wraps(one_form)
    def precompile_config(self: Any, form: Any) -> Any:
        _, made = _ahead.pop(id(form), (None, None))
        return one_form(self, form) if made is None else made

    tuner._precompile_worker, tuner._precompile_config = precompile_worker, precompile_config


def _choices(module: Any) -> None:
    selector = module.AlgorithmSelectorCache
    real = selector.benchmark_choices

    @functools.wraps(real)
    def benchmark_choices(choices: Sequence[Any], *args: Any, **options: Any) -> Any:
        requests = [choice.bmreq for choice in choices if isinstance(choice, module.TritonTemplateCaller)]
        compile_ahead([_kernel_of(module, request) for request in requests])
        return real(choices, *args, **options)

    selector.benchmark_choices = benchmark_choices


def _kernel_of(module: Any, request: Any) -> Any:
    """A candidate's kernel, as the candidate itself will look for it."""
    source = module.PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    return getattr(source, request.kernel_name)


def compile_ahead(kernels: Sequence[Any]) -> None:
    """Compiles all forms of Inductor's `kernels`, as many at a time as there are CPUs.

    One that cannot be compiled is left to who asks for it, and says to them why.
    """
    left = [
        (kernel, form)
        for kernel in kernels
        if not getattr(kernel, "compile_results", None)
        for form in kernel.configs or ()
        if id(form) not in _ahead
    ]
    if len(left) < 2:
        return
    left.reverse()

    def work() -> None:
        while True:
            try:
                kernel, form = left.pop()
            except IndexError:
                return
            with suppress(Exception):
                _ahead[id(form)] = form, kernel._precompile_config(form)

    waiting = [start_excluded(work) for _ in range(min(len(left), len(_cores_here(0))))]
    for done in waiting:
        done()


def _dynamo(module: Any) -> None:
    opened: list[tuple[Any, str]] = []

    def begin(*_: Any) -> None:
        import torch

        span: Any = torch.profiler.record_function(COMPILING)
        span.__enter__()
        opened.append((span, _compiled()))

    def end(*_: Any) -> None:
        import torch

        if not opened:
            return
        span, what = opened.pop()
        span.__exit__(None, None, None)
        if what:
            with torch.profiler.record_function(COMPILED + what):
                pass

    module.callback_handler.register_start_callback(begin)
    module.callback_handler.register_end_callback(end)


def _compiled() -> str:
    """What is compiled and why again: ``step at train.py:6: tensor 'x' size mismatch at index 0. expected 8, actual
    16``; "" for a backward pass, which a frame before it has caused."""
    from torch._dynamo.utils import get_metrics_context

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("convert_frame.py"):
        frame = frame.f_back
    code = frame.f_locals.get("code") if frame is not None else None
    if not isinstance(code, CodeType):
        return ""
    reason = str(getattr(get_metrics_context(), "_metrics", {}).get("recompile_reason") or "")
    why = re.sub(r"^\d+/\d+: ", "", reason.partition("\n")[0])
    what = f"{code.co_name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return f"{what}: {why}" if why else what


def _driver(module: Any) -> None:
    """Launchers are C, compiled when a signature is first met; from Triton 3.8 on one is for all."""
    for name in ("compile_module_from_src", "compile_module_from_file"):
        build = getattr(module, name, None)
        if build is not None:
            setattr(module, name, _built_excluded(build))


def _built_excluded(build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def built(*args: Any, **options: Any) -> Any:
        return excluded(lambda: build(*args, **options))

    return built


def excluded(call: Callable[[], Any]) -> Any:
    """Runs `call` in a thread of its own, whose work moves no clock."""
    return start_excluded(call)()


def start_excluded(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begins `call` in a thread of its own, whose work moves no clock. What is returned waits for its result.

    A bare thread and lock: those of ``threading`` run more or less Python here by how fast the thread is. Its name
    shows the simulator that the rank is at work, though its own thread sleeps.
    """
    found: list[Any] = []
    failed: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def work() -> None:
        process.name_thread(ASIDE)
        try:
            found.append(call())
        except BaseException as error:
            failed.append(error)
        finally:
            done.release()

    def result() -> Any:
        done.acquire()
        if failed:
            raise failed[0]
        return found[0]

    _thread.start_new_thread(work, ())
    return result


PATCH = Patch("tuning", When.AFTER_TORCH, install)
