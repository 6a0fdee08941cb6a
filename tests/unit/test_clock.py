"""The virtual clock, on a rank runtime whose time the test sets. Each test is a process of its own,
since the clock changes ``time`` and ``datetime`` for good."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from phantora.wire import layout

ROOT = Path(__file__).resolve().parents[2]

# What the clock uses of stub/rank/rank.h; `fake` contains the state that a test sets.
RUNTIME = """
#include "rank/rank.h"
#include <pthread.h>
ph_header fake_header;
int64_t fake_now; int fake_connected; pthread_t fake_main;
bool ph_connected(void) { return fake_connected; }
bool ph_null_mode(void) { return fake_header.null_mode; }
const ph_header *ph_shared(void) { return &fake_header; }
int64_t ph_now(void) { return fake_now; }
void ph_advance(int64_t ns) { fake_now += ns; }
void ph_sleep(int64_t ns) { fake_now += ns; }
bool ph_moves_clock(void) { return pthread_equal(fake_main, pthread_self()); }
int64_t ph_bytes_ns(enum ph_api api, size_t bytes) { (void)api; return (int64_t)bytes; }
int64_t ph_times_ns(enum ph_api api, size_t times) { (void)api; return (int64_t)times; }
void ph_host_memory(int64_t bytes, bool pinned) { (void)bytes; (void)pinned; }
void ph_data(int64_t cpu, int64_t counted, int64_t apart) { (void)cpu; (void)counted; (void)apart; }
void ph_contend(int64_t from, int64_t planned, double first, int64_t until, double then) {
  (void)from, (void)planned, (void)first, (void)until, (void)then;
}
void ph_loader(int64_t a, int64_t b, int64_t c, int64_t d) { (void)a, (void)b, (void)c, (void)d; }
void ph_regain_interpreter(void) {}
void ph_rivals(int64_t ns, int64_t millionths) { (void)ns, (void)millionths; }
bool ph_poll(int64_t ns, const int *clocks, const int *threads, size_t count, int64_t *ended, int64_t delayed[2]) {
  (void)ns, (void)clocks, (void)threads, (void)count, (void)ended, (void)delayed;
  return false;
}
void ph_delayed(const int *threads, size_t count, int64_t delayed[2]) { (void)threads, (void)count, (void)delayed; }
bool ph_asking(void) { return false; }
void ph_apart_begin(bool charged) { (void)charged; }
int64_t ph_apart_end(void) { return 0; }
void ph_apart_from(int64_t at, int64_t length) { (void)at, (void)length; }
void ph_enter(void) { fake_now += 1000; }
void ph_leave(void) {}
enum ph_front ph_follows(void) { return PH_FRONT_REAL; }
int64_t ph_latest_clock(void) { return fake_now; }
int64_t ph_epoch(void) { return fake_header.epoch_ns; }
void ph_reach(int64_t time) { fake_now = time; }
void fake_connect(int64_t now, int null_mode, int mode) {
  fake_now = now; fake_connected = 1; fake_main = pthread_self();
  fake_header.null_mode = null_mode; fake_header.host_mode = mode;
  fake_header.epoch_ns = 1700000000LL * 1000000000LL;
}
"""

PRELUDE = """
import ctypes, sys, time
real_monotonic, real_time = time.monotonic, time.time
from pathlib import Path
from phantora.rank import clock
rank = ctypes.CDLL(sys.argv[1] + "/librank.so", mode=ctypes.RTLD_GLOBAL)
rank.fake_connect.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_int]
clock.install(Path(sys.argv[1]) / clock.LIBRARY, rank)
SECOND = 10**9
EPOCH = 1_700_000_000
def connect(now=0, null=0, mode=0): rank.fake_connect(now, null, mode)
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("clock")
    (directory / "phantora_wire.h").write_text(layout.c_header())
    (directory / "rank.c").write_text(RUNTIME)
    for source, library in (
        (directory / "rank.c", "librank.so"),
        (ROOT / "stub/clock/clock.c", "libphantora_clock.so"),
    ):
        options = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-shared", "-fPIC"]
        include = [f"-I{ROOT / 'stub'}", f"-I{directory}"]
        subprocess.run(["gcc", *options, *include, str(source), "-o", str(directory / library)], check=True)
    return directory


def run(libraries: Path, body: str) -> None:
    script = PRELUDE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", script, str(libraries)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_real_time_until_connected(libraries: Path) -> None:
    run(
        libraries,
        """
        import datetime
        assert abs(time.time() - real_time()) < 1 and abs(time.monotonic() - real_monotonic()) < 1
        assert abs(datetime.datetime.now().timestamp() - real_time()) < 1
        assert abs(datetime.datetime.now(datetime.timezone.utc).timestamp() - real_time()) < 1
        begin = real_monotonic(); time.sleep(0.05)
        assert real_monotonic() - begin >= 0.05
        connect(null=1)
        assert abs(time.time() - real_time()) < 1 and abs(time.perf_counter() - real_monotonic()) < 1
        """,
    )


def test_all_clocks_follow_the_rank(libraries: Path) -> None:
    run(
        libraries,
        """
        connect(5 * SECOND)
        near = lambda value, expected: abs(value - expected) < 1e-3
        base = time.monotonic()
        assert near(time.time(), EPOCH + 5) and near(time.time_ns() / SECOND, EPOCH + 5)
        rank.fake_connect(7 * SECOND, 0, 0)
        assert near(time.monotonic() - base, 2) and near(time.perf_counter() - base, 2)
        assert near(time.monotonic_ns() / SECOND - base, 2)
        assert near(time.perf_counter_ns() / SECOND - base, 2)
        assert near(time.clock_gettime(time.CLOCK_REALTIME), EPOCH + 7)
        assert near(time.clock_gettime_ns(time.CLOCK_MONOTONIC) / SECOND - base, 2)
        assert time.gmtime() == time.gmtime(EPOCH + 7) and time.localtime() == time.localtime(EPOCH + 7)
        assert time.ctime() == time.ctime(EPOCH + 7) == time.asctime()
        assert time.strftime("%s") == str(EPOCH + 7)
        assert time.gmtime(0).tm_year == 1970 and time.strftime("%Y", time.gmtime(0)) == "1970"
        assert isinstance(time.time_ns(), int) and isinstance(time.time(), float)
        assert time.process_time() < 60 and time.get_clock_info("time")
        """,
    )


def test_datetime_is_virtual_and_stays_itself(libraries: Path) -> None:
    run(
        libraries,
        """
        import datetime as d, pickle
        connect(5 * SECOND)
        utc = d.timezone.utc
        moment = d.datetime.fromtimestamp(EPOCH + 5)
        for value in (d.datetime.now(), d.datetime.today()):
            assert type(value) is d.datetime and abs(value - moment) < d.timedelta(milliseconds=1)
        assert abs(d.datetime.now(utc) - moment.astimezone(utc)) < d.timedelta(milliseconds=1)
        assert abs(d.datetime.now(tz=utc) - moment.astimezone(utc)) < d.timedelta(milliseconds=1)
        naive = moment.astimezone(utc).replace(tzinfo=None)
        assert abs(d.datetime.utcnow() - naive) < d.timedelta(milliseconds=1)
        assert d.date.today() == moment.date()
        class Mine(d.datetime): pass
        assert type(Mine.now()) is Mine
        value = d.datetime.now()
        assert pickle.loads(pickle.dumps(value)) == value
        """,
    )


def test_sleep_costs_no_real_time(libraries: Path) -> None:
    run(
        libraries,
        """
        connect()
        begin, before = real_monotonic(), time.time()
        time.sleep(100)
        assert real_monotonic() - begin < 1 and 100 <= time.time() - before < 100.1
        for bad, error in ((-1, ValueError), ("1", TypeError), (None, TypeError), (float("nan"), ValueError)):
            try: time.sleep(bad)
            except error: pass
            else: raise AssertionError(bad)
        """,
    )


def test_polling_loop_does_not_run_away(libraries: Path) -> None:
    run(
        libraries,
        """
        import threading
        from phantora.rank.clock import POLL_SLEEPS
        connect()
        done = threading.Event()
        threading.Timer(0.3, done.set).start()
        while not done.is_set():
            time.sleep(0.01)
        assert time.monotonic() < 1.0 + 0.3 + 0.2 + POLL_SLEEPS * 0.01
        """,
    )


def test_waiting_for_a_moment_ends(libraries: Path) -> None:
    run(
        libraries,
        """
        connect()
        deadline = time.perf_counter() + 0.01
        while time.perf_counter() < deadline: pass
        """,
    )


def test_threads_and_queues_keep_real_time(libraries: Path) -> None:
    run(
        libraries,
        """
        connect()
        import queue, threading, concurrent.futures, subprocess, socket, selectors, asyncio
        import multiprocessing.connection as connection
        begin = real_monotonic()
        try: queue.Queue().get(timeout=0.05)
        except queue.Empty: pass
        assert not threading.Event().wait(0.05)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            helper = pool.submit(lambda: (time.sleep(0.05), rank.ph_moves_clock()))
            helper.result()
        asyncio.run(asyncio.sleep(0.05))
        assert 0.2 <= real_monotonic() - begin < 5
        assert rank.ph_now() / SECOND < 0.01  # none of it moved the rank's clock
        assert connection.time.monotonic is not time.monotonic and concurrent.futures._base.time is not time
        try: subprocess.run([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.05)
        except subprocess.TimeoutExpired: pass
        """,
    )


def test_modules_imported_later_keep_real_time(libraries: Path) -> None:
    run(
        libraries,
        """
        connect()
        assert "multiprocessing.managers" not in sys.modules
        import multiprocessing.managers as managers, importlib.util, timeit
        assert managers.time is not time and managers.time.monotonic is not time.monotonic
        assert managers.__loader__ is managers.__spec__.loader
        assert type(managers.__loader__).__name__ == "SourceFileLoader"
        assert timeit.default_timer is time.perf_counter  # and all others have virtual time
        """,
    )


def test_measured_mode_asks_the_runtime(libraries: Path) -> None:
    run(
        libraries,
        """
        connect(mode=1)
        first, second = time.perf_counter_ns(), time.perf_counter_ns()
        assert second - first == 1000  # what the runtime says has passed, and nothing else
        """,
    )


def test_reading_the_clock_is_cheap(libraries: Path) -> None:
    """Side by side with a system call of Python's, the best of ten each: a busy machine is no failure."""
    run(
        libraries,
        """
        import os
        connect()
        def best(call):
            times = []
            for _ in range(10):
                begin = real_monotonic()
                for _ in range(10_000): call()
                times.append(real_monotonic() - begin)
            return min(times)
        assert best(time.perf_counter) < 4 * best(os.getppid)
        """,
    )
