"""Starting, watching and ending ranks, through the command line, with real processes."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phantora.run_process import PHANTORA
from tests.support import runs

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120.0


class Workplace:
    """A directory with scripts, from which `phantora` is run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[str]] = []

    def script(self, text: str, name: str = "train.py") -> str:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return name

    def start(self, *arguments: str, shared: bool = False) -> subprocess.Popen[str]:
        """`shared`: forked by the server of all tests, which has imported torch; `processes` does not see it then."""
        paths = f"{self.path}{os.pathsep}{ROOT}"
        own = {"PYTHONPATH": paths, "PHANTORA_TEST": str(self.path), "TMPDIR": str(self.path)}
        environment = runs.environment(shared=True) if shared else {**os.environ, **own}
        process = subprocess.Popen(
            [*PHANTORA, "trace", *arguments],
            cwd=self.path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def trace(self, *arguments: str, shared: bool = False) -> subprocess.CompletedProcess[str]:
        if shared:
            return runs.phantora("trace", *arguments, cwd=self.path, timeout=TIMEOUT)
        process = self.start(*arguments)
        out, err = process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self) -> list[int]:
        """Living processes that carry this workplace in their environment."""
        marker = f"PHANTORA_TEST={self.path}".encode()
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker in environment:
                found.append(int(entry))
        return found

    def wait_for(self, name: str, count: int) -> list[int]:
        """Waits until `count` files called name.* exist, and returns the numbers in them."""

        def there() -> list[Path]:
            return [file for file in self.path.glob(f"{name}.*") if file.read_text().endswith("\n")]

        eventually(lambda: len(there()) >= count)
        return [int(file.read_text()) for file in sorted(there())]


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Workplace]:
    place = Workplace(tmp_path)
    yield place
    for process in place.started:
        process.kill()
        process.communicate()
    eventually(lambda: not place.processes(), 10)  # no test may leave a process behind


REPORT = """
import json, os, sys
names = [n for n in os.environ if n.startswith("TORCHELASTIC_")] + [
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PHANTORA"]
print(json.dumps(dict(
    env={n: os.environ[n] for n in names}, argv=sys.argv, path0=sys.path[0], file=__file__, name=__name__,
    cwd=os.getcwd(), stdin=sys.stdin.read(), package=__package__, main=sys.modules["__main__"].__file__,
    cuda="CUDA_VISIBLE_DEVICES" in os.environ)))
"""


def by_rank(output: str) -> dict[int, str]:
    """Lines of each rank, prefix removed."""
    lines: dict[int, str] = {}
    for line in output.splitlines():
        match = re.fullmatch(r"\[rank(\d+)\]: (.*)", line)
        assert match, f"no prefix: {line!r}"
        lines[int(match[1])] = lines.get(int(match[1]), "") + match[2] + "\n"
    return lines


def test_environment_of_torchrun(work: Workplace) -> None:
    work.script(REPORT, "sub/train.py")
    done = work.trace(
        "--null",
        "--cluster",
        "2x2xH100",
        "-o",
        "r.arrow",
        "--rdzv-id",
        "job",
        "sub/train.py",
        "--lr",
        "1",
        "-o",
        "x",
        "--",
    )
    assert done.returncode == 0, done.stderr
    reports = {rank: json.loads(text) for rank, text in by_rank(done.stdout).items()}
    assert sorted(reports) == [0, 1, 2, 3]
    for rank, report in reports.items():
        environment = report["env"]
        port = environment.pop("MASTER_PORT")
        assert 0 < int(port) < 65536 and port == reports[0]["env"].get("MASTER_PORT", port)
        assert environment == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2),
            "GROUP_WORLD_SIZE": "2",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "4",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
            "PHANTORA": "1",
        }
        assert report["argv"] == ["sub/train.py", "--lr", "1", "-o", "x", "--"]
        assert report["path0"] == str(work.path / "sub") and report["cwd"] == str(work.path)
        assert report["name"] == "__main__" and report["package"] is None and report["stdin"] == ""
        assert report["file"] == report["main"] == str(work.path / "sub/train.py")
        assert not report["cuda"]


def test_module(work: Workplace) -> None:
    work.script("", "pkg/__init__.py")
    work.script(REPORT, "pkg/train.py")
    done = work.trace("--null", "-m", "pkg.train", "a", shared=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # one rank: no prefix
    assert report["argv"] == [str(work.path / "pkg/train.py"), "a"] and report["path0"] == str(work.path)
    assert report["package"] == "pkg" and report["name"] == "__main__"
    missing = work.trace("--null", "-m", "pkg.absent", shared=True)
    assert missing.returncode == 1 and "No module named pkg.absent" in missing.stderr


def test_ranks_meet_and_end_as_python_does(work: Workplace) -> None:
    script = work.script("""
import atexit, os, random, sys, threading, time, weakref
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
sys.gone = weakref.proxy(type("Gone", (), {})())
dist.init_process_group("gloo")
value = torch.ones(2) * rank
dist.all_reduce(value)
names = [None, None]
dist.all_gather_object(names, f"rank{rank}")
print(value.tolist(), names)
atexit.register(print, "atexit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
class Last:
    def __del__(self): print("destroyed")
last = Last()
file = open(f"file{rank}", "w")
file.write("not flushed")
print(random.random(), file=open(f"random{rank}", "w"))
sys.stdout.write("no newline")
""")
    done = work.trace("--null", "--cluster", "2", script)
    assert done.returncode == 0, done.stderr
    expected = "[1.0, 1.0] ['rank0', 'rank1']\nno newlinethread\natexit\ndestroyed\n"
    assert by_rank(done.stdout) == {0: expected, 1: expected}
    assert [(work.path / f"file{r}").read_text() for r in (0, 1)] == ["not flushed"] * 2
    first = [(work.path / f"random{r}").read_text() for r in (0, 1)]
    assert first[0] != first[1]
    work.trace("--null", "--cluster", "2", script, shared=True)
    assert [(work.path / f"random{r}").read_text() for r in (0, 1)] == first


@pytest.mark.parametrize(
    ("ending", "status", "stderr"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('bad luck')", 1, "bad luck"),
        ("sys.exit()", 0, ""),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("os._exit(9)", 9, ""),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV, ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_exit_status(work: Workplace, ending: str, status: int, stderr: str) -> None:
    script = work.script(f"import os, signal, sys\ndef run():\n  {ending}\nrun()\n")
    done = work.trace("--null", script, shared=True)
    assert done.returncode == status, done.stderr
    assert stderr in done.stderr
    if status == 1 and "Error" in stderr:
        trace = done.stderr[done.stderr.index("Traceback") :].splitlines()
        assert [line.strip() for line in trace if "File" in line] == [
            f'File "{work.path}/train.py", line 4, in <module>',
            f'File "{work.path}/train.py", line 3, in run',
        ]
    if status > 1:
        assert "rank 0" in done.stderr


def test_failing_rank_ends_the_others(work: Workplace) -> None:
    script = work.script("""
import os, sys, time
if os.environ["RANK"] == "2":
    print("about to fail", file=sys.stderr)
    sys.exit(5)
import threading
threading.Event().wait(60)
""")
    begin = time.monotonic()
    done = work.trace("--null", "--cluster", "2x2xH100", "--log-dir", "logs", "--rdzv-id", "x", script)
    assert done.returncode == 5
    assert "FAILED: rank 2 at train.py:5: SystemExit: 5" in done.stderr
    log = work.path / "logs/x/attempt_0/2/stderr.log"
    assert "logs/x/attempt_0/2/stderr.log" in done.stderr and log.read_text() == "about to fail\n"
    assert time.monotonic() - begin < 30


# As under a limit of processes, but always at the same one: of the process that asks torch about CUDA, that of the
# store, those of the ranks.
FEW_FORKS = """
import errno, os
fork, left = os.fork, {}

def limited():
    global left
    if not left:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    left -= 1
    return fork()

os.fork = limited
"""


@pytest.mark.parametrize("forks", range(4))
@pytest.mark.parametrize("options", [("--null",), ("--no-summary", "-o", "run.arrow")])
def test_a_process_that_cannot_be_forked_ends_the_run(work: Workplace, forks: int, options: tuple[str, ...]) -> None:
    work.script(FEW_FORKS.format(forks), "sitecustomize.py")
    done = work.trace(*options, "--cluster", "3", work.script("import time; time.sleep(60)"))
    lines = [line for line in done.stderr.splitlines() if line.startswith(("phantora: ", "FAILED: "))]
    assert done.returncode == 1 and len(lines) == 1
    assert "cannot start a process: the limit of processes is reached" in lines[0]
    eventually(lambda: not work.processes())


def test_log_dir_tee_redirects_and_filter(work: Workplace) -> None:
    script = work.script("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    done = work.trace(
        "--null", "--cluster", "2", "--log-dir", "l", "--rdzv-id", "a", "-r", "0:1", "-t", "1:3", script, shared=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[rank1]: out\n"
    assert {"[rank0]: err", "[rank1]: err"} <= set(done.stderr.splitlines())
    logs = work.path / "l/a/attempt_0"
    files = {str(f.relative_to(logs)): f.read_text() for f in logs.rglob("*.log")}
    assert files == {"0/stdout.log": "out\n", "1/stdout.log": "out\n", "1/stderr.log": "err\n"}
    quiet = work.trace("--null", "--cluster", "2", "--local-ranks-filter", "1", "-q", script, shared=True)
    assert (quiet.stdout, quiet.stderr) == ("[rank1]: out\n", "[rank1]: err\n")


def test_prefix_keeps_lines_of_progress_bars(work: Workplace) -> None:
    script = work.script("import sys\nsys.stdout.write('10%\\r20%\\r\\nend')\n")
    process = work.start("--null", "--cluster", "2", "--local-ranks-filter", "0", script, shared=True)
    assert isinstance(process.stdout, io.TextIOWrapper)
    assert process.stdout.buffer.read().decode() == "[rank0]: 10%\r[rank0]: 20%\r\n[rank0]: end\n"


SLEEPER = """
import multiprocessing, os, signal, sys, threading
def write(name, number):
    with open(f"{name}.{os.environ['RANK']}", "w") as file:
        file.write(f"{number}\\n")
def worker():
    write("worker", os.getpid())
    threading.Event().wait(60)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
multiprocessing.get_context("fork").Process(target=worker).start()
write("server", os.getppid())
write("rank", os.getpid())
threading.Event().wait(60)
"""


@pytest.mark.parametrize("victim", ["rank", "server", "phantora"])
def test_kill_9_leaves_nothing(work: Workplace, victim: str) -> None:
    process = work.start("--null", "--cluster", "2", work.script(SLEEPER))
    work.wait_for("worker", 2)
    pid = process.pid if victim == "phantora" else work.wait_for(victim, 2)[1]
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=TIMEOUT)
    eventually(lambda: not work.processes(), 10)
    assert process.returncode == (-9 if victim == "phantora" else 137)
    if victim == "rank":
        assert "rank 1 (host 0, GPU 1) was killed by SIGKILL" in err
    if victim == "server":
        assert "fork server was killed by SIGKILL" in err
    assert not [p for p in work.path.iterdir() if "phantora" in p.name]


KILLED_IN = """
import importlib, os, signal, sys
sys.argv = sys.argv[1:]
module, _, name = sys.argv.pop(1).rpartition(".")
setattr(importlib.import_module(module), name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
from phantora.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("phantora.trace.analysis.steps.find_steps", ("--cluster", "1")),  # looks at steps on other hosts
        ("phantora.runs.fold._alone", ("--cluster", "2", "--fold", "auto", "--real-ranks", "1")),
        ("phantora.runs.fold._alone", ("--cluster", "8", "--fold", "dp=8:uneven")),
    ],
)
def test_kill_9_leaves_no_files_next_to_the_log(work: Workplace, where: str, options: tuple[str, ...]) -> None:
    script = work.script("import torch\ntorch.ones(4, device='cuda').sum().item()\n")
    (work.path / "tmp").mkdir()
    words = ("trace", "-o", str(work.path / "run.arrow"), "--no-summary", *options, script)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IN, "phantora", where, *words],
        cwd=work.path,
        capture_output=True,
        text=True,
        env={**runs.environment(shared=True), "PYTHONPATH": str(ROOT), "TMPDIR": str(work.path / "tmp")},
        timeout=2 * TIMEOUT,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    assert not [p for p in (work.path / "tmp").iterdir() if "phantora" in p.name]


@pytest.mark.parametrize(
    ("number", "stubborn"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGINT, True)]
)
def test_signals_end_everything(work: Workplace, number: int, stubborn: bool) -> None:
    process = work.start("--null", "--cluster", "2", work.script(SLEEPER), *(["stubborn"] if stubborn else []))
    work.wait_for("worker", 2)
    work.wait_for("rank", 2)
    begin = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + number and "interrupted" in err and "Traceback" not in err
    assert not work.processes()
    assert (time.monotonic() - begin > 2) == stubborn  # SIGKILL comes three seconds after SIGTERM


def test_signal_while_starting(work: Workplace) -> None:
    process = work.start("--null", work.script("print('ran')"))
    eventually(lambda: len(work.processes()) > 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode in (130, -signal.SIGINT) and out == "" and "Traceback" not in err


def test_a_terminal_that_has_gone_ends_the_run(work: Workplace) -> None:
    ours, theirs = pty.openpty()
    work.script("import time\nfor i in range(3000):\n    print(i, flush=True)\n    time.sleep(0.02)\n")
    process = subprocess.Popen(
        [*PHANTORA, "trace", "--null", "train.py"],
        cwd=work.path,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
    )
    work.started.append(process)
    os.close(theirs)
    assert os.read(ours, 1) == b"0"
    os.close(ours)  # it is not its controlling terminal: no SIGHUP comes, and a write tells
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGHUP and err.strip() == "phantora: interrupted by SIGHUP"


def test_closed_output_ends_the_run(work: Workplace) -> None:
    process = work.start("--null", "--no-summary", work.script("while True: print('x' * 1000)"))
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(TIMEOUT) == 141
    assert "Traceback" not in (process.stderr.read() if process.stderr else "")


def test_ranks_share_the_memory_of_the_fork_server(work: Workplace) -> None:
    script = work.script("""
import re, torch
text = open("/proc/self/smaps_rollup").read()
print(sum(int(n) for n in re.findall(r"Private_(?:Clean|Dirty): +(\\d+)", text)))
""")
    done = work.trace("--null", "--cluster", "1x8xH100", script)
    private = [int(text) / 1024 for text in by_rank(done.stdout).values()]
    assert len(private) == 8 and max(private) < 30, private  # MiB; a process of its own has over 160


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "no script 'absent.py'"),
        (["torchrun", "train.py"], "phantora trace -- torchrun"),
        (["--nproc-per-node", "4", "train.py"], "--cluster"),
        (["--nnodes", "2", "train.py"], "--cluster"),
        (["--nproc-per-node", "many", "train.py"], "not a number"),
        (["--cluster", "1x1xABACUS", "train.py"], "ABACUS"),
        (["-o", "run.txt", "train.py"], "suffix"),
        (["-o", "no/such/dir/run.arrow", "train.py"], "cannot write no/such/dir/run.arrow"),
        (["--redirects", "9", "--null", "train.py"], "--redirects '9'"),
        (["--no-python", "train.py"], "phantora trace -- PROGRAM"),
        (["--frobnicate", "train.py"], "--frobnicate"),
        ([], "name a script"),
        (["--null", "--preload", "no_such_module", "train.py"], "cannot import no_such_module"),
    ],
)
def test_mistakes_are_told_before_anything_runs(work: Workplace, arguments: list[str], message: str) -> None:
    work.script("open('ran', 'w')")
    done = work.trace(*arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr and done.stderr.startswith(("phantora: ", "FAILED: "))
    assert "Traceback" not in done.stderr and not (work.path / "ran").exists()


def test_ignored_options_are_named(work: Workplace) -> None:
    script = work.script("print('ran')")
    done = work.trace("--null", "--standalone", "--rdzv_backend=c10d", "--rdzv-endpoint", "h:1", script, shared=True)
    assert done.stdout == "ran\n" and done.returncode == 0
    assert "--rdzv-backend, --rdzv-endpoint, --standalone: ignored" in done.stderr


def test_json_report(work: Workplace) -> None:
    done = work.trace("--null", "--json", "-q", work.script("print('from the script')"), shared=True)
    assert done.stderr == "from the script\n"  # nothing else stands on stdout than JSON
    report = json.loads(done.stdout)
    assert report["status"] == 0 and report["ranks"] == 1 and 0 < report["startup_seconds"] <= report["wall_seconds"]


def test_launcher_starts_the_ranks(work: Workplace) -> None:
    script = work.script("""
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1); dist.all_reduce(value)
os.write(1, f"rank {dist.get_rank()} {value.item()} {torch.cuda.device_count()}\\n".encode())  # whole: not mixed
dist.destroy_process_group()
""")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = work.trace("--null", "--cluster", "1x2xH100", "--", *torchrun, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 2.0 2", "rank 1 2.0 2"]
    wrong = work.trace("--null", "--cluster", "1x4xH100", "--", *torchrun, script)
    assert wrong.returncode != 0 and "started 2 ranks, but 4 GPUs are simulated" in wrong.stderr


def test_launcher_that_is_no_python_program(work: Workplace) -> None:
    done = work.trace("--null", "--", "true")
    assert done.returncode == 1 and "no process of true used a GPU" in done.stderr
    assert work.trace("--null", "--", "sh", "-c", "exit 3").returncode == 3
    assert "cannot run 'no-such-command'" in work.trace("--null", "--", "no-such-command").stderr
