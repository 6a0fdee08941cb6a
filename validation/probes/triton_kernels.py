"""Triton kernels of any origin on a real GPU, with all that a price of them needs. Writes two files into the folder given.

    python -m validation.probes.triton_kernels OUT [--sections own,liger,fla,flex,inductor,tune,tiles,fed,mamba,more,masked] [--budget 140]

`triton.jsonl`: a line per case with its kernels in order: name, ns with cold and with warm L2 (medians of CUPTI's times),
and of each Triton kernel its launch: grid, warps, stages, registers, shared memory, arguments. In section `tune` a line per
candidate of Inductor's max-autotune: its kernels' ns, and what Inductor's benchmark, which waits for the host, said. `triton_ir.xz`: JSON of the Triton IR by the key that
launches name (`ir`), and of the integer tensors that launches read (`data`, base64), compressed.

Needs torch and Triton; sections `liger` and `fla` also the wheels liger-kernel 0.8.5, flash-linear-attention 0.6.0, fla-core 0.6.0
and einops, section `mamba` mamba-ssm (pure Python; ``pip install --no-deps --target DIR`` and PYTHONPATH=DIR; without them the section is left out).
Kernels are compiled by processes of their own first, so that the measuring one finds them in Triton's cache.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE", "0")

import torch
import triton
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner

from validation.gpu_work import work_of

Case = tuple[str, Callable[[], Any]]
REPEATS = 5
DATA_ELEMENTS = 1 << 20
START = time.time()


class Recorder:
    """Sees every launch of a Triton kernel while `launches` is a list."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] | None = None
        self.texts: dict[str, str] = {}

    def key(self, kind: str, text: str) -> str:
        name = kind + hashlib.sha256(text.encode()).hexdigest()[:16]
        self.texts[name] = text
        return name

    def launch(self, ir: str, about: dict[str, Any], grid: tuple[int, ...], arguments: list[Any]) -> None:
        if self.launches is None:
            return
        text = re.sub(r"^#loc.*\n", "", re.sub(r" loc\((?:[^()]|\([^()]*\))*\)", "", ir), flags=re.M)
        described = [self.describe(a) for a in arguments]
        self.launches.append({"ir": self.key("i", text), **about, "grid": list(grid), "args": described})

    def describe(self, a: Any) -> Any:
        if hasattr(a, "block_shape"):  # a descriptor
            return {"block": list(a.block_shape), **self.describe(a.base), "s": list(a.shape), "st": list(a.strides)}
        if not hasattr(a, "data_ptr"):
            return a if isinstance(a, (int, float, bool)) else None
        table = {
            "t": str(a.dtype).removeprefix("torch."),
            "s": list(a.shape),
            "st": list(a.stride()),
            "p": a.data_ptr(),
        }
        if not a.dtype.is_floating_point and a.numel() <= DATA_ELEMENTS and a.dtype in (torch.int32, torch.int64):
            raw = a.detach().contiguous().cpu().numpy().tobytes()
            table["data"] = self.key("d", base64.b64encode(raw).decode())
        return table


RECORDER = Recorder()


def install() -> None:
    from validation.probes import triton_cases

    handles, launch = CompiledKernel._init_handles, CudaLauncher.__call__

    def with_kernel(self: Any) -> None:
        handles(self)
        self._run.kernel = self

    def call(self: Any, x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> Any:
        kernel = getattr(self, "kernel", None)
        if kernel is not None and RECORDER.launches is not None:
            meta = kernel.metadata
            types = list(kernel.src.signature.values())
            given = [a for a, kind in zip(rest[4:], types, strict=False) if kind != "constexpr"]
            about = {
                "name": kernel.name, "warps": meta.num_warps, "stages": meta.num_stages, "shared": meta.shared,
                "ctas": meta.num_ctas, "regs": kernel.n_regs, "spills": kernel.n_spills,
            }
            RECORDER.launch(kernel.asm["ttir"], about, (x, y, z), given)
        return launch(self, x, y, z, stream, function, *rest)

    CompiledKernel._init_handles = with_kernel
    CudaLauncher.__call__ = call
    tune = Autotuner.run

    def one(self: Any, *args: Any, **kwargs: Any) -> Any:
        """One configuration, the middle one if a case asks for no other: the choice of tuning does not matter here."""
        every = self.__dict__.setdefault("every", self.configs)
        self.configs = [every[int(triton_cases.CONFIGURATION["place"] * len(every))]]
        return tune(self, *args, **kwargs)

    Autotuner.run = one
    from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel as Static

    made, run = Static.__init__, Static.run

    def make(self: Any, kernel: Any) -> None:
        made(self, kernel)
        self.ttir = kernel.asm["ttir"]
        self.stages = kernel.metadata.num_stages

    def static(self: Any, x: int, y: int, z: int, stream: int, *args: Any) -> Any:
        about = {
            "name": self.name, "warps": self.num_warps, "stages": self.stages, "shared": self.shared, "ctas": 1,
            "regs": self.n_regs, "spills": self.n_spills,
        }
        RECORDER.launch(self.ttir, about, (x, y, z), list(args))
        return run(self, x, y, z, stream, *args)

    for name, replacement in (("__init__", make), ("run", static)):
        setattr(Static, name, replacement)


# ---------------------------------------------------------------------- measuring


def kernel_times(call: Callable[[], Any], flush: torch.Tensor) -> list[tuple[str, int, int]]:
    """Name, cold and warm ns of each kernel of `call`: medians. Kernels of our own mark where a round begins."""
    from torch.profiler import ProfilerActivity, profile

    from validation.probes.triton_sources import mark_cold, mark_flush, mark_warm

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(REPEATS):
            mark_flush[(1,)](flush)
            flush.zero_()
            mark_cold[(1,)](flush)
            call()
            torch.cuda.synchronize()
            mark_warm[(1,)](flush)
            call()
            torch.cuda.synchronize()
    events = work_of(found)
    rounds: dict[str, list[list[Any]]] = {"mark_flush": [], "mark_cold": [], "mark_warm": []}
    current: list[Any] = []
    for e in sorted(events, key=lambda e: e.start_ns()):
        if e.name() in rounds:
            current = []
            rounds[e.name()].append(current)
        elif not e.name().startswith(("Memset", "Memcpy")):
            current.append(e)
    cold, warm = rounds["mark_cold"], rounds["mark_warm"]
    names = [e.name() for e in warm[0]] if warm else []
    if len(cold) != REPEATS or not names or any([e.name() for e in r] != names for r in (*cold, *warm)):
        raise RuntimeError(f"rounds of {[len(r) for r in (*cold, *warm)]} kernels")
    middle = [[int(median(r[i].duration_ns() for r in kind)) for i in range(len(names))] for kind in (cold, warm)]
    return list(zip(names, *middle, strict=True))


def measure(section: str, label: str, call: Callable[[], Any], flush: torch.Tensor | None) -> dict[str, Any]:
    """The line of a case; without times if there is nothing to flush L2 with."""
    call()
    torch.cuda.synchronize()
    launches: list[Any] = []
    RECORDER.launches = launches
    call()
    torch.cuda.synchronize()
    RECORDER.launches = None
    if flush is None:
        kernels = [{"name": entry["name"], "launch": entry} for entry in launches]
        return {"section": section, "case": label, "kernels": kernels}
    waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in launches:
        waiting[entry["name"]].append(entry)
    kernels = []
    for name, cold, warm in kernel_times(call, flush):
        kernels.append({"name": name, "cold": cold, "warm": warm})
        if waiting[name]:
            kernels[-1]["launch"] = waiting[name].pop(0)
    if missing := [name for name, rest in waiting.items() if rest]:
        raise RuntimeError(f"launches without a time: {missing}")
    return {"section": section, "case": label, "kernels": kernels}


def timed_out(*_: Any) -> None:
    raise TimeoutError


def run_cases(section: str, cases: Iterator[Case], out: Any, until: float, only_compile: bool, times: bool) -> None:
    flush = None if only_compile or not times else torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    signal.signal(signal.SIGALRM, timed_out)
    while True:
        left = int(until - time.time())
        if left <= 0:
            print(f"{section}: out of time", file=sys.stderr)
            return
        label = "(making)"
        signal.alarm(min(left + 1, 60))
        try:
            case = next(cases, None)
            if case is None:
                return
            label, call = case
            began = time.time()
            if only_compile:
                call()
            else:
                line = measure(section, label, call, flush)
                line["wall"] = round(time.time() - began, 2)
                print(json.dumps(line), file=out, flush=True)
        except Exception as error:  # one case more or less
            signal.alarm(0)
            RECORDER.launches = None
            print(f"{section} {label}: {type(error).__name__} {str(error)[:300]}", file=sys.stderr, flush=True)
            if label == "(making)":
                return
        finally:
            signal.alarm(0)


# ---------------------------------------------------------------------- max-autotune's candidates


def tune(out: Any, until: float) -> None:
    """Each candidate of ten products: what it launches, the ns of its kernels by CUPTI, the ms of Inductor's own benchmark."""
    import torch._inductor.config as config
    from torch._inductor import select_algorithm as selection
    from torch._inductor.runtime.benchmarking import benchmarker

    from validation.probes.triton_cases import tuned_products

    config.max_autotune_gemm_backends = "ATEN,TRITON"
    signal.signal(signal.SIGALRM, timed_out)
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    about: dict[str, Any] = {}
    kind = type(benchmarker)
    own = kind.benchmark_gpu

    def benchmark_gpu(self: Any, call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        ms = own(self, call, *args, **kwargs)
        if "choice" not in about:
            return ms
        launches: list[Any] = []
        RECORDER.launches = launches
        try:
            call()
            torch.cuda.synchronize()
        finally:
            RECORDER.launches = None
        kernels = kernel_times(call, flush)
        line = {
            "section": "tune",
            **about,
            "ms": ms,
            "cold": sum(k[1] for k in kernels),
            "warm": sum(k[2] for k in kernels),
        }
        if launches:
            line |= {"launch": launches[-1], "kernels_a_call": len({x["name"] for x in launches})}
        print(json.dumps(line), file=out, flush=True)
        return ms

    kind.benchmark_gpu = benchmark_gpu  # type: ignore[method-assign]

    def named(cls: Any) -> None:
        real = cls.benchmark

        def benchmark(self: Any, *args: Any, **kwargs: Any) -> float:
            about.update(choice=self.name, aten=cls is selection.ExternKernelCaller)
            try:
                return real(self, *args, **kwargs)
            finally:
                del about["choice"]

        cls.benchmark = benchmark

    named(selection.TritonTemplateCaller)
    named(selection.ExternKernelCaller)
    for label, call in tuned_products():
        if time.time() > until:
            print("tune: out of time", file=sys.stderr)
            return
        about["case"] = label
        signal.alarm(60)
        try:
            torch._dynamo.reset()
            call()
        except Exception as error:
            signal.alarm(0)
            RECORDER.launches = None
            print(f"tune {label}: {type(error).__name__} {str(error)[:300]}", file=sys.stderr, flush=True)
        finally:
            signal.alarm(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--sections", default="own,flex,liger,inductor,fla,tune")
    parser.add_argument("--budget", type=float, default=140.0, help="seconds for everything")
    parser.add_argument("--compile", action="store_true", help="only call each case once")
    parser.add_argument("--no-times", action="store_true", help="only the launches: where there is no profiler")
    parser.add_argument("--no-prepare", action="store_true", help="do not compile in other processes first")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from validation.probes import triton_cases

    options.out.mkdir(parents=True, exist_ok=True)
    sections = options.sections.split(",")
    until = START + options.budget
    if not options.compile and not options.no_prepare:
        command = [
            sys.executable,
            __file__,
            str(options.out),
            "--compile",
            "--budget",
            str(0.42 * options.budget),
            "--sections",
        ]
        parts = [(s, part) for s in sections if s != "tune" for part in range(triton_cases.PARTS.get(s, 1))]
        children = [subprocess.Popen([*command, s], env={**os.environ, "PART": str(part)}) for s, part in parts]
        for child in children:
            try:
                child.wait(max(1.0, START + 0.45 * options.budget - time.time()))
            except subprocess.TimeoutExpired:
                child.kill()
        print(f"compiled after {time.time() - START:.0f} s", file=sys.stderr)
    install()
    torch.manual_seed(0)
    with open(os.devnull if options.compile else options.out / "triton.jsonl", "w") as out:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
        print(json.dumps({"kind": "triton kernels", **about}), file=out)
        for section in sections:
            share = (
                until if options.compile else time.time() + (until - time.time()) * triton_cases.SHARE.get(section, 1.0)
            )
            print(f"{section} at {time.time() - START:.0f} s", file=sys.stderr)
            if section == "tune":
                tune(out, share)
                continue
            cases = triton_cases.SECTIONS[section]()
            if options.compile:
                mine, count = int(os.environ.get("PART", "0")), triton_cases.PARTS.get(section, 1)
                cases = (case for n, case in enumerate(cases) if n % count == mine)
            run_cases(section, cases, out, share, options.compile, not options.no_times)
    if not options.compile:
        (options.out / "triton_ir.xz").write_bytes(lzma.compress(json.dumps(RECORDER.texts).encode(), preset=9))
    print(f"done after {time.time() - START:.0f} s", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
