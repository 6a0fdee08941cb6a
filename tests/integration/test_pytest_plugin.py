"""The pytest plugin, in a session of its own."""

from __future__ import annotations

import pytest

from phantora.cache import cache_directory

pytest_plugins = ["pytester"]
CACHE = cache_directory().parent  # before pytester makes another home, where the libraries would be compiled again

SCRIPT = """
import torch
layer = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(3):
    layer(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
LEAKS = """
import torch
layer, outs = torch.nn.Linear(256, 256, device="cuda"), []
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(100):
    outs.append(layer(torch.zeros(1 << 23, 256, device="cuda")))
    outs[-1].sum().backward()
    optimizer.step()
"""
TESTS = """
import pytest

@pytest.mark.phantora("train.py", cluster="1x1xH100", max_memory="1GiB", max_step="1s")
def test_fits(phantora_run):
    assert phantora_run.summary()["step_time_ns"] > 0

@pytest.mark.phantora("train.py", max_memory="1MiB", max_step="1us")
def test_too_large(phantora_run): pass

@pytest.mark.phantora("fails.py")
def test_fails(phantora_run): pass

@pytest.mark.phantora("leaks.py")
def test_leaks(phantora_run): pass

@pytest.mark.phantora("train.py", max_memry="1GiB")
def test_no_limit(phantora_run): pass

@pytest.mark.phantora("train.py", cluster="1x8xH1000")
def test_no_gpu(phantora_run): pass

@pytest.mark.phantora("cpu.py", max_step="1s")
def test_no_work(phantora_run): pass

@pytest.mark.phantora("train.py", max_step="1 parsec")
def test_no_unit(phantora_run): pass

def test_no_mark(phantora_run): pass
"""


def test_marks_are_limits(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    (pytester.path / "train.py").write_text(SCRIPT)
    (pytester.path / "fails.py").write_text("raise ValueError('no data')\n")
    (pytester.path / "leaks.py").write_text(LEAKS)
    (pytester.path / "cpu.py").write_text(SCRIPT.replace(', device="cuda"', ""))
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "phantora.pytest_plugin", "-n", "0", "-q")
    result.assert_outcomes(passed=1, failed=5, errors=3)
    for text in (
        "memory that torch reserves takes * GiB, more than 0.0009766 GiB: Memory: rank 0 peaks at *parameters*",
        "a step takes * ms, more than 0.001 ms: HELD UP * %*",
        "leaks.py: out of memory *: Memory: rank 0 peaks at * GROWS * an iteration, kept by leaks.py:6 (outs)*",
        "fails.py: rank 0 at fails.py:1: ValueError: no data",
        "no limit max_memry; did you mean max_memory?",
        "train.py: unknown GPU 'H1000'*",
        "no step to compare with max_step: none: the script gave the GPU no work*",
        "max_step='1 parsec': give a time such as 250ms",
        "phantora_run needs @pytest.mark.phantora(*",
    ):
        result.stdout.fnmatch_lines([f"*{text}*"])
    result.stdout.no_fnmatch_line("*Traceback*")
