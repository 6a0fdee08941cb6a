"""Damaged and hostile files against everything that reads one.

    python -m tests.robustness.fuzz [TARGET ...] [--seconds 60] [--seed 0] [--keep FOLDER]
    python -m tests.robustness.fuzz [TARGET ...] --guided [--corpus FOLDER] [--engine-fuzzer FILE]

A target takes a file that Phantora or a user writes, changes some of its bytes (flips, numbers at the edge of their
type, cuts, repeats, pieces of its own or of another seed), and gives it to the reader. The reader may accept it or
raise PhantoraError. Any other exception, a crash, a second per MB and more, or more than 4 GiB of memory is a
finding: the file is kept and the reason printed. Each target works in a child process, so that a crash ends one
child.

The command prints a table: target, CPU seconds, inputs, accepted, refused, findings. It ends with status 1 if there are
any. SIGTERM ends it after the input under way; the table counts what was done.

Inputs start from the target's seeds and its inputs in tests/robustness/corpora.zip. With --guided, coverage chooses
which inputs are changed further (fuzz_guided.py): atheris in Python, libFuzzer in the engine. The table then also has
the size of the corpus and the edges that are reached at the start and at the end. --corpus keeps what was found;
fuzz_merge.py makes tests/robustness/corpora.zip of it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from phantora.errors import PhantoraError
from tests.robustness import fuzz_calls, fuzz_corpora, fuzz_engine, fuzz_guided, fuzz_http

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 4 << 30
SECONDS_PER_MB = 1.0
LEAST_SECONDS = 2.0  # for small files: analyses take some time however few rows there are
EDGES = [b"\x00" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + b"\x00" * 7, b"\xff" * 4, b"\x01\x00\x00\x00"]
ENDED = threading.Event()  # by SIGTERM
WORDS = [b"nan", b"inf", b"-1", b"0", b"1e308", b"99999999999999999999", b"[", b"]", b"{", b'"', b"null", b"\n"]


@dataclass(frozen=True)
class Target:
    """Files that are right, and what reads one. `suffix` is that of the file."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    suffix: str
    text: bool = False


def files(*patterns: str, most: int = 1 << 20) -> Callable[[], list[bytes]]:
    def load() -> list[bytes]:
        found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        contents = [path.read_bytes() for path in found if path.stat().st_size <= most]
        if not contents:
            raise SystemExit(f"no file matches {patterns}")
        return contents

    return load


def _analyze(path: Path) -> None:
    from phantora.trace.analysis.analyze import analyze
    from phantora.trace.reader import open_log

    analyze(open_log(path))


def _export(path: Path) -> None:
    from phantora.trace.export import export

    for kind in ("x.json", "x.perfetto"):
        export(path, str(path.with_name(kind)))


def _diff(path: Path) -> None:
    from phantora.trace.analysis.analyze import Filters
    from phantora.trace.diff.compare import compare, gather
    from phantora.trace.reader import open_log

    compare(gather(open_log(ROOT / "tests/golden/small.arrow"), Filters()), gather(open_log(path), Filters()))


def _recording(path: Path) -> None:
    from phantora.trace.reader import open_log
    from phantora.trace.recording import decode

    for chunk in open_log(path).recording():
        decode(chunk)


def _cluster(path: Path) -> None:
    from phantora.hardware import load_cluster

    load_cluster(str(path))


def _gpu(path: Path) -> None:
    from phantora.hardware.gpus import load_gpu

    load_gpu.__wrapped__(str(path))  # without its cache


def _host(path: Path) -> None:
    from phantora.hardware import hosts

    hosts._from_file.__wrapped__(path)  # without its cache


def _sweep(path: Path) -> None:
    from phantora.sweeps.plan import combinations, make_plan
    from phantora.sweeps.space import read_space

    space = read_space(path)
    if combinations(space) <= 1000:
        make_plan(space)


def _table(path: Path) -> None:
    from phantora.cost.table import read_table

    read_table(path)


def _workspaces(path: Path) -> None:
    from phantora.cost.workspaces import read_workspaces

    read_workspaces(path)


def _journal(path: Path) -> None:
    from phantora.sweeps.journal import read

    read(path)


def _wanted(path: Path) -> None:
    from phantora.cost.wanted import read_wanted

    read_wanted(path)


def _signature(path: Path) -> None:
    from phantora.cost.parse import parse_library, read_signature

    for line in path.read_bytes().splitlines():
        read_signature(line)
        parse_library(line)


def _routing(path: Path) -> None:
    from phantora.rank.routing import parse_routing

    parse_routing.__wrapped__(str(path)).counts(0, 8, 1024, 2)


def _why(path: Path) -> None:
    from phantora.dumps.why import why

    str(why([str(path)]))


def _snapshots(path: Path) -> None:
    from phantora.dumps.why import differs

    str(differs([str(path), str(ROOT / "tests/golden/dumps/leak/oom.pickle")]))
    _why(path)


def _step_lines(path: Path) -> None:
    from phantora.framework_logs import read_step_log
    from phantora.framework_logs.statistics import steady

    steady(read_step_log(str(path))).findings()


def _import(path: Path) -> None:
    from phantora.importers import import_traces

    import_traces([str(path)], str(path.with_name("imported.arrow")))


def _run(path: Path) -> None:
    """The first message of a run to a shared fork server."""
    from phantora.launch.shared_forkserver import wanted

    run = wanted(path.read_bytes())
    assert run.key
    for name, value in run.environment.items():
        os.putenv(name, value)


def first_messages() -> list[bytes]:
    load = {"do": "load", "stubs": "/stubs", "devices": 2, "argv": ["a.py"], "imports": ["torch"], "shared": ["a:b"]}
    here = {"folder": "/tmp", "environment": {"HOME": "/home", "LANG": "C"}, "of_shell": {"PWD": "/tmp"}}
    return [json.dumps(message | here).encode() for message in (load, load | {"stubs": None, "shared": []})]


SIGNATURES = [
    b"aten::mm(bf16[8192,4096], bf16[4096,4096]) -> bf16[8192,4096]",
    b"aten::add_.Tensor(fp32[16,3]t, fp32[16,3], 1)",
    b"aten::convolution(fp32[8,3,224,224]cl, fp32[64,3,7,7], None, [2,2], [3,3], [1,1], False, [0,0], 1)",
]
STEP_LINES = [
    b"iteration 1/ 9 | elapsed time per iteration (ms): 10.0 | global batch size: 8 |\n" * 9 + b" seq_length .... 64\n",
    b"[titan] 2026-01-01 10:00:00,123 - step: 1  memory: 1.5GiB(2%)  tps: 1,000\n"
    b"[titan] 2026-01-01 10:00:09,123 - step: 9  memory: 1.5GiB(2%)  tps: 1,000\n",
    b"train_batch_size .... 8\nglobal_step=1, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=2.5, "
    b"MaxMemAllocated=1.0GB\n",
    b"{'loss': '1.0'}\r 10%|#  | 1/10 [00:01<00:09, 1.20s/it]\r 20%|#  | 2/10 [00:02<00:08, 2.00it/s]\n",
    b"Epoch 0:  10%|#  | 1/10 [00:01<00:09, 1.20it/s]\rEpoch 1:  90%|#  | 9/10 [00:02<00:08, 2.00it/s]\n",
]
KERNEL_TRACES = [
    b"Agent_Id,Queue_Id,Kernel_Name,Start_Timestamp,End_Timestamp,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,"
    b"Grid_Size_X,Grid_Size_Y,Grid_Size_Z\n"
    + b"".join(b"Agent 4,1,k%d,%d,%d,64,1,1,256,1,1\n" % (n, n, n) for n in range(9))
]
XLA_TRACES = [
    b'{"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},'
    b'{"ph": "M", "pid": 1, "tid": 14, "name": "thread_name", "args": {"name": "Stream #14"}},'
    b'{"ph": "X", "pid": 1, "tid": 14, "ts": 5, "dur": 2, "name": "MemcpyH2D", "args": {"memcpy_details": "size:8"}},'
    b'{"ph": "X", "pid": 1, "tid": 14, "ts": 9, "dur": 2.5, "name": "k", "args": {"kernel_details": '
    b'"grid:1,1,1 block:1,1,1"}},'
    b'{"ph": "X", "pid": 9, "tid": 1, "ts": 1, "dur": 20, "name": "train", "args": {"step_num": "3"}}]}'
]
ROUTINGS = [b'{"*": [1, 1, 2, 4, 1, 1, 1, 1]}', b'{"0": [0.5, 0.5, 0, 0, 0, 0, 0, 1e3], "7": [1, 2]}']


def sweeps() -> list[bytes]:
    found = re.findall(r"```toml\n(target = .*?)```", (ROOT / "docs/sweeps.md").read_text(), re.DOTALL)
    return [text.encode() for text in found]


def wanted() -> list[bytes]:
    from phantora.cost.wanted import Wanted, write_wanted

    signature = '{"op": "aten::mm", "in": [{"shape": [8, 8], "dtype": "bf16"}]}'
    with tempfile.NamedTemporaryFile() as file:
        write_wanted(Path(file.name), [Wanted(signature=signature)], gpu="H100")
        return [Path(file.name).read_bytes()]


def tables() -> list[bytes]:
    """The tables that come with the package, whole, and their first rows: libFuzzer changes no file of megabytes."""
    from pyarrow import BufferOutputStream, Table, parquet

    found = []
    for path in sorted(ROOT.glob("phantora/cost/data/*.parquet")):
        sink, whole = BufferOutputStream(), parquet.read_table(path)
        rows = whole.slice(0, 40).to_pylist()  # without the texts of all others
        parquet.write_table(Table.from_pylist(rows, schema=whole.schema), sink)
        found += [path.read_bytes(), sink.getvalue().to_pybytes()]
    return found


LOGS = files("tests/golden/*.arrow")
TARGETS = {
    "log, analysed": Target(LOGS, _analyze, ".arrow"),
    "log, exported": Target(LOGS, _export, ".arrow"),
    "log, compared": Target(LOGS, _diff, ".arrow"),
    "log, replayed": Target(LOGS, _recording, ".arrow"),
    "cluster": Target(files("phantora/hardware/data/clusters/*.toml"), _cluster, ".toml", True),
    "GPU": Target(files("phantora/hardware/data/gpus/*.toml"), _gpu, ".toml", True),
    "host": Target(files("phantora/hardware/data/hosts/*.toml"), _host, ".toml", True),
    "sweep": Target(sweeps, _sweep, ".toml", True),
    "table": Target(tables, _table, ".parquet"),
    "workspaces": Target(files("phantora/cost/data/workspaces/*", most=8 << 20), _workspaces, ".parquet"),
    "journal": Target(lambda: [b'{"phantora sweep": 1}\n{"key": "a", "status": "done"}\n'], _journal, ".jsonl", True),
    "wanted": Target(wanted, _wanted, ".jsonl", True),
    "signature": Target(lambda: SIGNATURES, _signature, ".txt", True),
    "ranks": Target(fuzz_engine.scenarios, fuzz_engine.read_live, ".records"),
    "ranks, replayed": Target(fuzz_engine.scenarios, fuzz_engine.read_played, ".records"),
    "CUDA and NCCL": Target(fuzz_calls.seeds, fuzz_calls.call, ".calls"),
    "viewer": Target(fuzz_http.requests, fuzz_http.ask, ".http", True),
    "fork server": Target(first_messages, _run, ".json", True),
    "flight recorder": Target(files("tests/golden/dumps/*/nccl*"), _why, "_trace_rank_0"),
    "memory snapshot": Target(files("tests/golden/dumps/*/*.pickle"), _snapshots, ".pickle"),
    "step lines": Target(lambda: STEP_LINES, _step_lines, ".txt", True),
    "kernel trace": Target(lambda: KERNEL_TRACES, _import, "_kernel_trace.csv", True),
    "XLA trace": Target(lambda: XLA_TRACES, _import, ".trace.json", True),
    "routing": Target(lambda: ROUTINGS, _routing, ".json", True),
}


def first_inputs(name: str) -> list[bytes]:
    """Seeds of a target, and what is kept of earlier runs."""
    return [*TARGETS[name].seeds(), *fuzz_corpora.kept(name)]


def mutated(data: bytearray, seeds: list[bytes], text: bool, chance: random.Random) -> bytes:
    """`data` with one to eight changes, some of them by pieces of `seeds`."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        if not data:
            break
        at = chance.randrange(len(data))
        length = min(len(data) - at, chance.choice((1, 2, 4, 8, 64, 1024)))
        kind = chance.randrange(7)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            piece = chance.choice(WORDS if text else EDGES)
            data[at : at + (chance.choice((0, length)) if text else len(piece))] = piece
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            times = chance.choice((1, 2, 20_000) if text and length <= 2 else (1, 2))  # many: nesting without end
            data[at:at] = data[at : at + length] * times
        elif kind == 4:
            other = chance.choice(seeds)
            begin = chance.randrange(max(1, len(other)))
            data[at : at + length] = other[begin : begin + length]
        elif kind == 5:
            data[at : at + length] = chance.randbytes(length)
        else:
            del data[at:]
    return bytes(data)


def give(target: Target, path: Path, data: bytes, sink: StringIO) -> bytes:
    """The letter a if the reader accepts an input, r if it refuses it. Raises what is a finding."""
    path.write_bytes(data)
    limit = max(LEAST_SECONDS, SECONDS_PER_MB * len(data) / 1e6)
    signal.setitimer(signal.ITIMER_PROF, 10 * limit)  # of CPU: ends a loop without end
    begin = time.process_time()
    try:
        with redirect_stdout(sink), redirect_stderr(sink):
            target.read(path)
        letter = b"a"
    except PhantoraError:
        letter = b"r"
    seconds = time.process_time() - begin
    sink.truncate(0)
    if seconds > limit:
        raise TimeoutError(f"{seconds:.1f} s of CPU for {len(data)} bytes")
    return letter


def reported(error: BaseException) -> str:
    """A finding in a line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"[:300]


def work(name: str, path: Path, seed: int, until: float, report: int) -> None:
    """Runs in a child. Writes a letter to `report` for each input (a accepted, r refused); ends at the first
    finding."""
    if "ASAN_OPTIONS" not in os.environ:  # whose shadow takes terabytes of addresses
        fuzz_guided.limit_memory(MEMORY)
    target = TARGETS[name]
    chance, seeds, sink = random.Random(seed), first_inputs(name), StringIO()
    while time.process_time() < until and not ENDED.is_set():
        data = mutated(bytearray(chance.choice(seeds)), seeds, target.text, chance)
        os.write(report, give(target, path, data, sink))


def give_all(name: str, inputs: list[bytes], path: Path, report: int) -> None:
    """As :func:`work` for these inputs."""
    fuzz_guided.limit_memory(MEMORY)
    sink = StringIO()
    for data in inputs:
        os.write(report, give(TARGETS[name], path, data, sink))


def in_child(task: Callable[[int], None], seconds: float) -> tuple[int, int, float, str]:
    """Inputs accepted and refused, CPU seconds, and how it ended if there is a finding. `task` gets where to write
    letters, and the seconds of CPU that it is meant to take."""
    out, into = os.pipe()
    tell, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        os.close(tell)
        try:
            signal.alarm(round(seconds * 20) + 120)  # a wait that burns no CPU
            task(into)
            os._exit(0)
        except BaseException as error:
            os.write(tells, reported(error).encode())
            os._exit(1)
    os.close(into)
    os.close(tells)
    accepted = refused = 0
    while piece := os.read(out, 1 << 16):
        accepted += piece.count(b"a")
        refused += piece.count(b"r")
    _, status, usage = os.wait4(pid, 0)
    text = os.read(tell, 4096).decode()
    os.close(out)
    os.close(tell)
    if os.WIFSIGNALED(status):
        text = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return accepted, refused, usage.ru_utime + usage.ru_stime, text


def run(name: str, seconds: float, seed: int, keep: Path) -> int:
    target = TARGETS[name]
    accepted = refused = 0
    spent = 0.0
    findings: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{target.suffix}"
        while spent < seconds and not ENDED.is_set():
            left = seconds - spent
            a, r, used, text = in_child(functools.partial(work, name, path, seed, left), left)
            accepted, refused, spent, seed = accepted + a, refused + r, spent + used, seed + 1
            if text and (last := path.with_suffix(".call")).exists():
                text += f" in {last.read_text().strip()}"
            if text and text not in findings:
                keep.mkdir(parents=True, exist_ok=True)
                findings[text] = keep / f"{fuzz_corpora.file_name(name)}-{seed}{target.suffix}"
                findings[text].write_bytes(path.read_bytes())
    print(f"{name:16} {spent:8.0f} s {accepted + refused:8} {accepted:8} {refused:8} {len(findings):8}", flush=True)
    for text, kept in findings.items():
        print(f"    {text}  {kept}", flush=True)
    return len(findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--guided", action="store_true", help="by coverage")
    parser.add_argument("--corpus", type=Path, help="guided: keep what was found of each target in a folder in here")
    parser.add_argument("--engine-fuzzer", type=Path, help="guided: the program that fuzzes the engine, made elsewhere")
    given = parser.parse_args()
    names = given.targets or list(TARGETS)
    signal.signal(signal.SIGTERM, lambda *_: ENDED.set())
    head = f"{'target':16} {'CPU':>10} {'inputs':>8} {'accepted':>8} {'refused':>8} {'findings':>8}"
    if given.guided:
        program = (given.engine_fuzzer or fuzz_guided.engine_program()).absolute()
        options = fuzz_guided.Options(given.seconds, given.seed, given.keep, given.corpus, program, ENDED)
        fuzz_guided.check(names, options)
        print(f"{head} {fuzz_guided.HEAD}", flush=True)
        counts = [fuzz_guided.run(name, TARGETS[name], first_inputs(name), options) for name in names]
    else:
        print(head)
        counts = [run(name, given.seconds, given.seed, given.keep) for name in names]
    return 1 if sum(counts) else 0


if __name__ == "__main__":
    sys.exit(main())
