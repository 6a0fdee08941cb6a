"""Disks, limits and clocks of runs that are disturbed: they need root and a mount namespace (see `faults.py`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

CLOCK_VARIABLE = "PHANTORA_CLOCK_FILE"
_CLOCK_SOURCE = r"""
/* The system's clock (CLOCK_REALTIME) as if it had been set: seconds to add are read from a file. The monotonic clocks
   go on, as they do when a clock is set. Waits until a moment of this clock end by it, as the kernel's do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) {
    static volatile long *seconds;
    if (!seconds) {
        const char *path = getenv("PHANTORA_CLOCK_FILE");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *at = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        if (at == MAP_FAILED) return 0;
        seconds = at;
    }
    return *seconds;
}
int clock_gettime(clockid_t which, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(which, out);
    if (status == 0 && which == CLOCK_REALTIME) out->tv_sec += shift();
    return status;
}
int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
/* The true moment until which to wait now: that of `deadline`, or 50 ms from now, since the clock may be set meanwhile.
   1: it has passed. */
static int slice(const struct timespec *deadline, struct timespec *until) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    long left = (deadline->tv_sec - now.tv_sec) * 1000000000L + deadline->tv_nsec - now.tv_nsec;
    if (deadline->tv_sec - now.tv_sec > 1 || left > 50000000) left = 50000000;
    now.tv_sec -= shift();
    now.tv_nsec += left > 0 ? left : 0;
    until->tv_sec = now.tv_sec + now.tv_nsec / 1000000000;
    until->tv_nsec = now.tv_nsec % 1000000000;
    return left <= 0;
}
int sem_timedwait(sem_t *sem, const struct timespec *deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec until;
    for (;;) {
        int passed = slice(deadline, &until);
        if (real(sem, &until) == 0) return 0;
        if (errno != ETIMEDOUT || passed) return -1;
    }
}
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (deadline->tv_sec < 1000000000) return real(cond, mutex, deadline);  /* of the monotonic clock */
    struct timespec until;
    int passed = slice(deadline, &until), status = real(cond, mutex, &until);
    return status == ETIMEDOUT && !passed ? 0 : status;  /* may wake without a reason */
}
int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t which,
                           const struct timespec *deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    if (which == CLOCK_REALTIME) return pthread_cond_timedwait(cond, mutex, deadline);
    return real(cond, mutex, which, deadline);
}
"""


def prepare(home: Path) -> None:
    """Makes the folder of all scenes, and in it the library that moves the clock."""
    home.mkdir(parents=True)
    source = home / "clock.c"
    source.write_text(_CLOCK_SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(home / "clock.so"), str(source), "-ldl"], check=True)


class Clock:
    """A clock that is set while a run goes on."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)
        self.environment = {"LD_PRELOAD": str(folder.parents[1] / "clock.so"), CLOCK_VARIABLE: str(self._file)}

    def set(self, seconds: int) -> None:
        """Moves it so far from the true time."""
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))


class Disk:
    """A file system of `size` bytes at `place`."""

    def __init__(self, place: Path, size: int, options: str = "rw") -> None:
        self._place = place
        place.mkdir(parents=True)
        words = f"size={max(4096, size)},{options}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", words, "tmpfs", str(place)], check=True)

    def undo(self) -> None:
        """Unmounts it."""
        subprocess.run(["umount", "--lazy", str(self._place)], check=True)


class FailingDisk:
    """A file system on a file, which its kernel makes read-only when it detects damage."""

    def __init__(self, place: Path, megabytes: int = 64) -> None:
        self._place, self._image = place, place.with_suffix(".image")
        place.mkdir(parents=True)
        with open(self._image, "wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(place)], check=True)
        shutil.rmtree(place / "lost+found")

    def fail(self) -> None:
        """Lets all further writes end with EROFS, those to open files too."""
        subprocess.run(["mount", "-o", "remount,abort", str(self._place)], check=True)

    def undo(self) -> None:
        """Unmounts it."""
        subprocess.run(["umount", "--lazy", str(self._place)], check=True)


class Limit:
    """A control group (version 1 or 2) below that of this process: `controller` memory or pids."""

    def __init__(self, controller: str, value: int) -> None:
        own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        old = Path("/sys/fs/cgroup") / controller
        parent = old / own[controller].lstrip("/") if controller in own else Path("/sys/fs/cgroup" + own[""])
        self._group = parent / f"phantora-faults-{os.getpid()}-{time.monotonic_ns()}"
        self._group.mkdir()
        names = (
            {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
            if controller in own
            else {"memory": "memory.max", "pids": "pids.max"}
        )
        (self._group / names[controller]).write_text(str(value))

    def enter(self) -> None:
        """Puts the calling process, and what it will start, under the limit."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def undo(self) -> None:
        """Removes the group, once its processes are gone."""
        for _ in range(100):
            with suppress(OSError):
                self._group.rmdir()
                return
            time.sleep(0.1)
        self._group.rmdir()
