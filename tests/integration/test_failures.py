"""Scripts that fail: the last line names the failure, the status is not zero, and no log is lost."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.trace.reader import open_log
from tests.support import runs

ON_GPU = "import torch\nx = torch.ones(64, 64, device='cuda')\nx @ x\ntorch.cuda.synchronize()\n"
KINDS = {
    "exception": ("def f():\n    raise ValueError('bad\\nthing')\nf()\n", "rank 0 at train.py:6: ValueError: bad"),
    "library": ("import json\njson.loads('{')\n", "rank 0 at train.py:6: JSONDecodeError: Expecting property name"),
    "import": ("import no_such_module\n", "rank 0 at train.py:5: ModuleNotFoundError: No module named"),
    "name": ("model.cuda()\n", "rank 0 at train.py:5: NameError: name 'model' is not defined"),
    "exit status": ("import sys\nsys.exit(3)\n", "rank 0 at train.py:6: SystemExit: 3"),
    "exit message": ("raise SystemExit('no data here')\n", "rank 0 at train.py:5: SystemExit: no data here"),
    "hard exit": ("import os\nos._exit(7)\n", "rank 0 exited with status 7"),
    "killed": ("import os\nos.kill(os.getpid(), 9)\n", "rank 0 was killed by SIGKILL"),
    "abort": ("import os\nos.abort()\n", "rank 0 was killed by SIGABRT"),
    "out of memory": ("torch.empty(1 << 40, device='cuda')\n", "out of memory on rank 0 at train.py:5: 4096.00 GiB"),
    "shapes": ("x @ torch.ones(3, 3, device='cuda')\n", "rank 0 at train.py:5: RuntimeError: mat1 and mat2 shapes"),
    "no computed loss": (
        "y = torch.nn.Linear(1024, 1024).cuda()(torch.randn(1024, 1024, device='cuda'))\n"
        "print(1 / torch.nn.functional.mse_loss(y, torch.randn_like(y)).item())\n",
        "rank 0 at train.py:6: ZeroDivisionError: float division by zero; numbers that are not computed read as 0: "
        "--assume loss=1, or iterations=2@train.py:6",
    ),
    "thread": (
        "from concurrent.futures import ThreadPoolExecutor as P\nP(1).submit(lambda: 1 / 0).result()\n",
        "rank 0 at train.py:6: ZeroDivisionError: division by zero",
    ),
    "worker": (
        "class D(torch.utils.data.Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, i): raise KeyError('sample')\n"
        "for _ in torch.utils.data.DataLoader(D(), num_workers=1): pass\n",
        "rank 0 at train.py:8: KeyError: ",
    ),
}


def last_line(err: str) -> str:
    return err.strip().splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_line_names_the_failure(tmp_path: Path, kind: str) -> None:
    text, failure = KINDS[kind]
    (tmp_path / "train.py").write_text(ON_GPU + text)
    done = runs.phantora("trace", "train.py", cwd=tmp_path)
    assert done.returncode not in (0, 70), done.stderr
    assert last_line(done.stderr).startswith(f"FAILED: {failure}"), done.stderr
    printed = done.stderr + done.stdout
    assert ("\nMEMORY  " in printed) == (kind == "out of memory"), "only memory is worth a report"
    assert printed.count("4096.00 GiB") <= 2, "torch's error, and one verdict"


def test_the_rank_that_failed_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch\nimport torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('only here')\n"
        "dist.all_reduce(torch.ones(4, device='cuda'))\ntorch.cuda.synchronize()\n"
    )
    run = runs.trace(tmp_path, "--cluster", "2", "train.py", check=False)
    assert run.status == 1 and last_line(run.err) == "FAILED: rank 1 at train.py:5: ValueError: only here"


def test_a_command_names_the_failure_of_its_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ON_GPU + "raise ValueError('inside')\n")
    run = runs.trace(tmp_path, "--", sys.executable, "train.py", check=False)
    assert run.status == 1 and "at train.py:5: ValueError: inside" in last_line(run.err)


def test_a_syntax_error_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nx = (1\ny = 2\n")
    run = runs.trace(tmp_path, "train.py", check=False)
    assert run.status == 1 and run.err == "phantora: train.py:2: SyntaxError: '(' was never closed: x = (1\n"


def test_no_log_is_lost(tmp_path: Path) -> None:
    def trace(*words: str) -> subprocess.CompletedProcess[str]:
        return runs.phantora("trace", "--no-summary", *words, cwd=tmp_path)

    def logs() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("*.arrow"))

    (tmp_path / "train.py").write_text(ON_GPU)
    (tmp_path / "cpu.py").write_text("import torch\ntorch.ones(4).sum()\n")
    assert trace("train.py").returncode == trace("train.py").returncode == 0
    assert logs() == ["train-2.arrow", "train.arrow"]
    kept = (tmp_path / "train.arrow").read_bytes()
    for force in ((), ("--force",)):
        empty = trace("-o", "train.arrow", *force, "cpu.py")
        assert empty.returncode == 1 and last_line(empty.stderr).startswith("FAILED: cpu.py put nothing on a GPU")
        assert "train.arrow is kept" in empty.stderr and (tmp_path / "train.arrow").read_bytes() == kept
    assert trace("cpu.py").returncode == 1 and logs() == ["train-2.arrow", "train.arrow"]
    again = trace("-o", "train.arrow", "train.py")
    assert again.returncode == 0 and "train.arrow replaces the log of an earlier run" in again.stderr


@pytest.mark.parametrize(
    ("before", "named"), [("", ""), (ON_GPU, "; partial log train.arrow has no steps")], ids=["nothing", "a product"]
)
def test_ctrl_c_prints_one_line(tmp_path: Path, before: str, named: str) -> None:
    """The rank blocks in real time: a sleep would pass in virtual time, and the run might end first."""
    (tmp_path / "train.py").write_text(before + "import os\nprint('here', flush=True)\nos.read(os.pipe()[0], 1)\n")
    process = subprocess.Popen(
        runs.command("train.py"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=runs.environment(shared=True),
    )
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"phantora: interrupted by SIGINT{named}\n"


INTERRUPTED = """
import phantora.runs.sensitivity as sensitivity
from phantora.runs.local import run
from phantora.spec import OutputSpec, RunSpec


def interrupted(*_, **__):
    raise KeyboardInterrupt


sensitivity.simulated_again = interrupted
found = run(RunSpec("train.py", cluster="1x1xH100", output=OutputSpec("train.arrow")))
print(found.status, found.message)
"""


def test_ctrl_c_behind_the_last_step_keeps_the_log(tmp_path: Path) -> None:
    """The settled step and other hosts are simulated then."""
    (tmp_path / "train.py").write_text(ON_GPU)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=runs.environment(shared=True),
        check=False,
    )
    assert done.stdout == "130 interrupted by SIGINT\n", done.stderr
    log = open_log(tmp_path / "train.arrow")
    assert log.complete and log.num_rows and log.trailer["status"] == 130


def test_ctrl_c_names_the_partial_log_and_its_steps(tmp_path: Path) -> None:
    loop = (
        "layer = torch.nn.Linear(64, 64, device='cuda')\noptimizer = torch.optim.SGD(layer.parameters(), 0.1)\n"
        "for step in range(1 << 30):\n    layer(x).mean().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
        "    if step == 99: print('here', flush=True)\n"
    )
    (tmp_path / "train.py").write_text(ON_GPU + loop)
    process = subprocess.Popen(
        runs.command("train.py"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=runs.environment(shared=True),
    )
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    named = re.fullmatch(
        r"phantora: interrupted by SIGINT; partial log train\.arrow has (\d+) steps", err.splitlines()[-1]
    )
    assert named is not None and int(named[1]) >= 90, err
