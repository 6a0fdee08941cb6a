"""The faults of `faults.py`: what is done to a run, and how it must end."""

from __future__ import annotations

import json
import os
import pty
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA
from tests.robustness.fault_places import Clock, Disk, FailingDisk, Limit
from tests.support.disturbed import Scene, lives

PLAIN = ("fsdp2",)
OWN = ("fsdp2", "deepspeed", "torchtitan")  # whose ranks are our own children
TORCHRUN = ("torchrun",)
ALL = (*OWN, *TORCHRUN)


@dataclass
class Run:
    """A run to be disturbed."""

    scene: Scene
    words: tuple[str, ...]
    cpu: float
    """Seconds of CPU that an undisturbed run takes."""
    chooser: random.Random
    reference: Path
    """The log of the undisturbed run."""
    log: Path = field(init=False)
    undone: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.scene.log

    def begin(self, output: str | None = None, **options: Any) -> None:
        """Starts it."""
        self.scene.start("trace", "-o", output or str(self.log), "--no-summary", *self.words, **options)

    def at_a_moment(self, role: str = "top") -> int | None:
        """Waits for the process of this role, and then for a moment of its life; None if it has ended by then."""
        pid = self.scene.wait_for(role)  # kept: when rank 0 has ended, rank 1 stands in its place
        if pid is None:
            return None
        moment = self.chooser.uniform(self.scene.cpu_seconds(), 0.97 * self.cpu)
        while self.scene.cpu_seconds() < moment:
            if self.scene.process.poll() is not None:
                return None
            time.sleep(0.01)
        return pid if self.scene.process.poll() is None and lives(pid) else None

    def undo(self) -> None:
        """Removes disks and limits."""
        for action in reversed(self.undone):
            action()

    def on_failing_disk(self) -> FailingDisk:
        """The log lies on a disk that can be made to fail."""
        disk = FailingDisk(self.scene.folder / "disk")
        self.undone.append(disk.undo)
        self.log = self.scene.folder / "disk" / "run.arrow"
        return disk

    def on_disk(self, size: int, options: str = "rw") -> None:
        """The log lies on a disk of its own."""
        disk = Disk(self.scene.folder / "disk", size, options)
        self.undone.append(disk.undo)
        self.log = self.scene.folder / "disk" / "run.arrow"


@dataclass(frozen=True)
class Case:
    """A fault. `act` does it, and says False if the run had ended before."""

    name: str
    act: Callable[[Run], bool]
    status: tuple[int, ...]
    said: str = "$^"
    """A pattern of the one message."""
    workloads: tuple[str, ...] = OWN
    log: bool = True
    same: bool = False
    """If it ends well, its log is that of the undisturbed run."""
    speaks: bool = False
    """torchrun may say itself what happened, instead of us."""
    may_leave: str = "pymp-"
    """Names of files in TMPDIR that stay, and are not ours: multiprocessing's, of ranks that were killed."""
    random: bool = True
    """True if the moment, or a size, differs from try to try."""


def disturb(role: str, do: Callable[[int], object]) -> Callable[[Run], bool]:
    """Calls `do` with one process's id at a random moment; the fault did not happen if there is no such process."""

    def act(run: Run) -> bool:
        run.begin()
        pid = run.at_a_moment(role)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            do(pid)
            return True
        return False

    return act


def send(role: str, number: int) -> Callable[[Run], bool]:
    """A signal to one process."""
    return disturb(role, lambda pid: os.kill(pid, number))


def halt(role: str) -> Callable[[Run], bool]:
    """SIGSTOP, and SIGCONT a second later."""

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(pid, signal.SIGCONT)

    return disturb(role, stop)


def full_disk(run: Run) -> bool:
    run.on_disk(int(run.chooser.uniform(0.01, 0.9) * run.reference.stat().st_size))
    run.begin()
    return True


def full_disk_of_the_export(run: Run) -> bool:
    run.on_disk(int(run.chooser.uniform(1.1, 2.0) * run.reference.stat().st_size))
    run.begin(str(run.log.with_suffix(".perfetto")))
    return True


def read_only_disk(run: Run) -> bool:
    run.on_disk(1 << 20, "ro")
    run.begin()
    return True


def disk_fails(run: Run) -> bool:
    """It becomes read-only while the log is open."""
    disk = run.on_failing_disk()
    run.begin()
    if run.at_a_moment() is None:
        return False
    disk.fail()
    return True


def others_fill_the_disk(run: Run) -> bool:
    """Somebody else's file takes what is left while the log is open."""
    run.on_disk(16 << 20)
    run.begin()
    if run.at_a_moment() is None:
        return False
    with suppress(OSError), open(run.log.parent / "others", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return run.scene.process.poll() is None


def full_output(run: Run) -> bool:
    with open("/dev/full", "wb") as full:
        run.begin(stdout=full)
    return True


def small_shm(run: Run) -> bool:
    """Fills the disk of shared memory, except some pages."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm"], check=True)
    run.undone.append(lambda: subprocess.run(["umount", "--lazy", "/dev/shm"], check=True))
    run.begin()
    return True


def limited(controller: str, low: int, high: int) -> Callable[[Run], bool]:
    """A control group with a limit between `low` and `high`."""

    def act(run: Run) -> bool:
        limit = Limit(controller, run.chooser.randrange(low, high))
        run.undone.append(limit.undo)
        run.begin(preexec_fn=limit.enter)
        return True

    return act


def few_descriptors(run: Run) -> bool:
    count = run.chooser.randrange(8, 120)
    run.begin(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count)))
    return True


def clock_set(seconds: int) -> Callable[[Run], bool]:
    """The system's clock jumps by so much."""

    def act(run: Run) -> bool:
        clock = Clock(run.scene.folder)
        run.begin(environment=clock.environment)
        if run.at_a_moment() is None:
            return False
        clock.set(seconds)
        return True

    return act


def without(*descriptors: int) -> Callable[[Run], bool]:
    """These are closed from the start."""

    def act(run: Run) -> bool:
        def close() -> None:
            for fd in descriptors:
                os.close(fd)

        run.begin(preexec_fn=close)
        return True

    return act


def terminal_goes(run: Run) -> bool:
    ours, theirs = pty.openpty()
    run.begin(stdin=theirs, stdout=theirs, preexec_fn=lambda: _own_terminal(theirs))
    os.close(theirs)
    try:
        os.set_blocking(ours, False)
        if run.scene.wait_for("top") is None:
            return False
        moment = run.chooser.uniform(0.1, 0.9) * run.cpu
        while run.scene.cpu_seconds() < moment and run.scene.process.poll() is None:
            with suppress(BlockingIOError):
                os.read(ours, 65536)
            time.sleep(0.01)
        return run.scene.process.poll() is None
    finally:
        os.close(ours)


def _own_terminal(fd: int) -> None:
    os.setsid()
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


def two_runs(run: Run) -> bool:
    """The second is reported; the first goes on."""
    run.begin()
    if run.at_a_moment("rank0") is None:
        return False
    command = [*PHANTORA, "trace", "-o", str(run.log), "--no-summary", *run.words]
    second = subprocess.run(
        command, cwd=run.log.parent, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    if run.scene.process.poll() is not None and not second.returncode:
        return False
    lines = [line for line in second.stderr.splitlines() if line.startswith("phantora: ")]
    if second.returncode != 1 or len(lines) != 1 or "another run is writing it" not in lines[0]:
        raise AssertionError(f"the second run ended with {second.returncode}: {second.stderr}")
    return True


def log_deleted(run: Run) -> bool:
    run.begin()
    if run.at_a_moment("rank0") is None:
        return False
    with suppress(FileNotFoundError):
        run.log.unlink()
        return True
    return False


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phantora"


def cache_of_another_user(run: Run) -> bool:
    """Runs as nobody with a cache of root."""
    place = run.scene.folder / "cache"
    (place / "phantora").mkdir(parents=True)
    for folder in (run.scene.folder, run.scene.temporary, *run.scene.folder.parents[:2]):
        folder.chmod(0o777)
    place.chmod(0o700)
    run.scene.log.parent.mkdir()
    run.scene.log.parent.chmod(0o777)
    try:
        run.begin(environment={"XDG_CACHE_HOME": str(place), "HOME": str(run.scene.folder)}, user=65534, group=65534)
    except PermissionError as error:
        print(f"  not done: nobody may not run {error.filename}", flush=True)
        return False
    return True


def cache_half_written(run: Run) -> bool:
    """One library is cut short, as after a power failure."""
    place = run.scene.folder / "cache"
    shutil.copytree(_cache(), place / "phantora", symlinks=True)
    libraries = sorted((place / "phantora").glob("torch-*/*.so*"))
    chosen = run.chooser.choice(libraries)
    os.truncate(chosen, int(chosen.stat().st_size * run.chooser.random()))
    run.begin(environment={"XDG_CACHE_HOME": str(place)})
    return True


def cache_built_twice(run: Run) -> bool:
    """Two runs find an empty cache, with what a killed build has left."""
    place = run.scene.folder / "cache"
    (place / "phantora" / "building-old").mkdir(parents=True)
    environment = {"XDG_CACHE_HOME": str(place)}
    other = subprocess.Popen(
        [*PHANTORA, "trace", "--no-summary", "-o", str(run.scene.folder / "other.arrow"), *run.words],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    run.begin(environment=environment)
    _, err = other.communicate()
    if other.returncode:
        raise AssertionError(f"the other run ended with {other.returncode}: {err}")
    run.scene.process.wait()
    names = [path.name for path in (place / "phantora").iterdir()]
    if any(name.startswith("building-") for name in names):
        raise AssertionError(f"left in the cache: {names}")
    return True


def exporting(number: int) -> Callable[[Run], bool]:
    """A signal to `phantora export`. What it had written is taken away, unless it was killed."""

    def act(run: Run) -> bool:
        target = run.scene.folder / "out" / "x.json"
        run.scene.start("export", str(run.reference), "-o", str(target))
        moment = run.chooser.uniform(0.2, 3)  # of CPU time: before, Python itself starts, with tracebacks of its own
        while run.scene.cpu_seconds() < moment:
            if run.scene.process.poll() is not None:
                return False
            time.sleep(0.01)
        run.scene.process.send_signal(number)
        status = run.scene.process.wait()
        names = os.listdir(target.parent)
        if names == [target.name]:  # it was ready: renamed when all was written
            json.loads(target.read_bytes())
        elif status not in (0, -signal.SIGKILL) and names:
            raise AssertionError(f"left by the export: {names}")
        return status != 0

    return act


def export_on_failing_disk(run: Run) -> bool:
    """It becomes read-only while the timeline is written."""
    disk = run.on_failing_disk()
    run.scene.start("export", str(run.reference), "-o", str(run.log.with_name("x.json")))
    return _fails(run, disk, run.chooser.uniform(0.2, 3), run.scene.cpu_seconds)


def _fails(run: Run, disk: FailingDisk, moment: float, now: Callable[[], float]) -> bool:
    while now() < moment:
        if run.scene.process.poll() is not None:
            return False
        time.sleep(0.01)
    disk.fail()
    return run.scene.process.poll() is None


def _sweep(run: Run, folder: Path) -> None:
    space = run.scene.folder / "sweep.toml"
    target = [run.words[2], "--steps", "4"]
    space.write_text(f"target = {target}\n[matrix]\nkernels = [10, 20]\n[arguments]\nkernels = '--kernels'\n")
    run.scene.start("sweep", str(space), "-o", str(folder), "--jobs", "1", *run.words[:2])


def sweeping(role: str, number: int) -> Callable[[Run], bool]:
    """A signal while a sweep of two points runs."""

    def act(run: Run) -> bool:
        _sweep(run, run.scene.folder / "sweep")
        deadline = time.monotonic() + run.chooser.uniform(1, 12)
        while time.monotonic() < deadline:
            if run.scene.process.poll() is not None:
                return False
            time.sleep(0.05)
        run.scene.process.send_signal(number)
        return True

    return act


def sweep_on_full_disk(run: Run) -> bool:
    run.on_disk(int(run.chooser.uniform(4096, 60_000)))
    _sweep(run, run.log.parent / "sweep")
    return True


def sweep_on_failing_disk(run: Run) -> bool:
    """It becomes read-only while a point runs."""
    disk = run.on_failing_disk()
    _sweep(run, run.log.parent / "sweep")
    begin = time.monotonic()
    return _fails(run, disk, run.chooser.uniform(1, 12), lambda: time.monotonic() - begin)


plain = partial(Case, workloads=PLAIN)
INTERRUPTED = "interrupted by SIG(INT|TERM|HUP)$"
NO_ROOM = r"limit of processes is reached|rank \d .*(exited with status 1|SIGABRT)|store"
READ_ONLY = ".*(Read-only file system|Input/output error)"
STORE = "process that hosts the TCPStore ended"
TOP = [
    Case("kill -9 of phantora", send("top", signal.SIGKILL), (-9,), workloads=ALL),
    Case("SIGINT to phantora", send("top", signal.SIGINT), (130, -2), INTERRUPTED, ALL),
    Case("SIGTERM to phantora", send("top", signal.SIGTERM), (143, -15), INTERRUPTED, ALL),
    Case("SIGSTOP, SIGCONT of phantora", halt("top"), (0,), same=True),
]
SERVER = [  # killed when the ranks have ended: 0, and the log is whole
    *(
        Case(name, send("server", number), (128 + number, 0), f"fork server .*{number.name}", same=True)
        for name, number in (
            ("kill -9 of the fork server", signal.SIGKILL),
            ("SIGINT to the fork server", signal.SIGINT),
            ("SIGTERM to the fork server", signal.SIGTERM),
        )
    ),
    Case("SIGSTOP, SIGCONT of the fork server", halt("server"), (0,), same=True),
    Case("kill -9 of the store", send("store", signal.SIGKILL), (0, 1), STORE),
    Case("SIGSTOP, SIGCONT of the store", halt("store"), (0,), same=True),
]
RANKS = [
    Case("kill -9 of rank 0", send("rank0", signal.SIGKILL), (137,), "rank 0 .*SIGKILL"),
    Case("kill -9 of rank 1", send("rank1", signal.SIGKILL), (137,), "rank 1 .*SIGKILL"),
    Case("SIGINT to rank 1", send("rank1", signal.SIGINT), (0, 130), "rank 1 .*SIGINT"),  # finalizers drop it: 0
    Case("SIGTERM to rank 1", send("rank1", signal.SIGTERM), (143,), "rank 1 .*SIGTERM"),
    Case("SIGSTOP, SIGCONT of rank 0", halt("rank0"), (0,), same=True),
    Case("SIGSTOP, SIGCONT of rank 1", halt("rank1"), (0,), same=True),
    plain("kill -9 of a DataLoader worker", send("worker", signal.SIGKILL), (0, 1), r"rank \d .*exited with status 1"),
    plain("SIGTERM to a DataLoader worker", send("worker", signal.SIGTERM), (0, 1), r"rank \d .*exited with status 1"),
    plain("SIGSTOP, SIGCONT of a DataLoader worker", halt("worker"), (0,), same=True),
]
AGENT = [
    Case("kill -9 of torchrun's agent", send("agent", signal.SIGKILL), (137,), "was killed by SIGKILL", TORCHRUN),
    Case("SIGTERM to torchrun's agent", send("agent", signal.SIGTERM), (1, 143), "", TORCHRUN, speaks=True),
    Case("kill -9 of a rank of torchrun", send("rank1", signal.SIGKILL), (1,), "", TORCHRUN, speaks=True),
    Case("SIGSTOP, SIGCONT of torchrun's agent", halt("agent"), (0,), same=True, workloads=TORCHRUN),
]
PLACES = [
    Case("disk full while logging", full_disk, (1,), "cannot write the log: No space left on device"),
    plain("disk full while exporting", full_disk_of_the_export, (1,), "cannot write the timeline .*No space left"),
    Case("disk filled by others while logging", others_fill_the_disk, (1,), "cannot write .*No space left on device"),
    Case("disk becomes read-only while logging", disk_fails, (0, 1), f"cannot (write|create) {READ_ONLY}"),
    Case("read-only disk", read_only_disk, (1,), "cannot write .*Read-only file system", random=False),
    Case("standard output on a full disk", full_output, (1,), "cannot write standard output.*No space", random=False),
    Case("/dev/shm of 64 KiB", small_shm, (1, 0), r"rank \d .*exited with status 1", random=False),
    Case("memory limit", limited("memory", 100 << 20, 1500 << 20), (0, 1, 137, -9), "SIGKILL|memory|store"),
    Case("limit of processes", limited("pids", 2, 60), (0, 1, 134), NO_ROOM),  # torch aborts without its threads
    Case("limit of descriptors", few_descriptors, (0, 1), "open files"),
    Case("clock set back by a day", clock_set(-86_400), (0,), same=True),
    Case("clock set forward by a year", clock_set(31_536_000), (0,), same=True),
    Case("stdin closed", without(0), (0,), same=True, random=False),
    Case("stdin, stdout and stderr closed", without(0, 1, 2), (0,), same=True, random=False),
    Case("the terminal goes away", terminal_goes, (129,), INTERRUPTED),
    Case("two runs into one file", two_runs, (0,), same=True),
    Case("log deleted while it is written", log_deleted, (1,), "was deleted while the run wrote it"),
    plain("stub cache of another user", cache_of_another_user, (1,), "cannot build the stub libraries", random=False),
    plain("stub cache half-written", cache_half_written, (0,), same=True),
    plain("stub cache built by two runs", cache_built_twice, (0,), same=True, random=False),
    plain("SIGTERM while exporting", exporting(signal.SIGTERM), (143, -15), INTERRUPTED, log=False),
    plain("SIGINT while exporting", exporting(signal.SIGINT), (130, -2), INTERRUPTED, log=False),
    plain("kill -9 of a sweep", sweeping("top", signal.SIGKILL), (-9,), log=False),
    plain("SIGTERM to a sweep", sweeping("top", signal.SIGTERM), (0, 130, 143, -15), "rrupted|goes on", log=False),
    plain("disk becomes read-only while exporting", export_on_failing_disk, (0, 1), f"cannot {READ_ONLY}", log=False),
    plain("disk becomes read-only while sweeping", sweep_on_failing_disk, (0, 1), READ_ONLY, log=False),
    plain("disk full while sweeping", sweep_on_full_disk, (0, 1), "No space left on device", log=False),
]
CASES = [*TOP, *SERVER, *RANKS, *AGENT, *PLACES]
