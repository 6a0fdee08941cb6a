"""The system's clock may be set while a run goes on: nothing of a run waits by it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.runs import command

# The clock of a process as if it had been set; monotonic clocks go on. Waits of NCCL's watchdogs by it are counted.
SET = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
atomic_long set_clock_by, watchdogs_wait_by_it;
int clock_gettime(clockid_t which, struct timespec *out) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(which, out);
  if (which == CLOCK_REALTIME) out->tv_sec += set_clock_by;
  return status;
}
static struct timespec watched(const struct timespec *deadline) {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (!strcmp(name, "pt_nccl_watchdg")) watchdogs_wait_by_it++;
  return (struct timespec){deadline->tv_sec - set_clock_by, deadline->tv_nsec};
}
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (deadline->tv_sec < 1000000000) return real(cond, mutex, deadline);  // of the monotonic clock: Python's
  struct timespec until = watched(deadline);
  return real(cond, mutex, &until);
}
int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t which,
                           const struct timespec *deadline) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  if (which != CLOCK_REALTIME) return real(cond, mutex, which, deadline);
  struct timespec until = watched(deadline);
  return real(cond, mutex, which, &until);
}
"""
PROGRAM = """
import ctypes, os, pickle, sys, time
os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "100"
os.environ["TORCH_NCCL_ENABLE_TIMING"] = "1"
import torch, torch.distributed as dist
runtime = ctypes.CDLL(None)
torch.cuda.set_device(0)
dist.init_process_group("nccl")
runtime.ph_watchdog_pulse(ctypes.c_int64(50_000_000))  # watchdogs look often in real time, too
x = torch.ones(4, device="cuda")

def round_of_the_watchdog():
    dist.all_reduce(x)
    torch.cuda.synchronize()
    begun = os.times().elapsed
    time.sleep(1)  # in virtual time: the watchdog looks, and notes how long what is done has taken
    entries = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())["entries"]
    assert all("duration_ms" in entry for entry in entries), entries
    return os.times().elapsed - begun

round_of_the_watchdog()
ctypes.c_long.in_dll(runtime, "set_clock_by").value = int(sys.argv[1])
print("seconds", round_of_the_watchdog() + round_of_the_watchdog())
print("waits", ctypes.c_long.in_dll(runtime, "watchdogs_wait_by_it").value)
dist.destroy_process_group()
print("destroyed")
"""
DAY = 86_400


@pytest.mark.parametrize("seconds", [-DAY, 365 * DAY])
def test_watchdogs_make_their_rounds_when_the_clock_is_set(tmp_path: Path, seconds: int) -> None:
    (tmp_path / "clock.c").write_text(SET)
    (tmp_path / "program.py").write_text(PROGRAM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", "clock.so", "clock.c", "-ldl"], cwd=tmp_path, check=True)
    preloads = f"{os.environ.get('LD_PRELOAD', '')} {tmp_path / 'clock.so'}"  # a sanitizer's first
    done = subprocess.run(
        command("--no-summary", "--cluster", "1", "program.py", str(seconds)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "LD_PRELOAD": preloads},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    reported = dict(line.rpartition("]: ")[2].partition(" ")[::2] for line in done.stdout.splitlines())
    assert "destroyed" in reported
    assert float(reported["seconds"]) < 4  # of a watchdog that makes no round, the run tires after five
    assert reported["waits"] == "0"
