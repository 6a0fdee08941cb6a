"""The line that names how a script failed."""

from __future__ import annotations

import gzip
import runpy
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from phantora.errors import PhantoraError, Reason, cause_of, reason_of
from phantora.launch.ending import Outcome
from phantora.rank.failures import Failure, message_of
from phantora.runs.prepare import check_script

IN_ANOTHER_PROCESS = """

-- Process 0 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 9, in run
    wait_all(futures)
RuntimeError: AcceleratorError: On WorkerInfo(id=1, name=trainer1):
Traceback (most recent call last):
  File "train.py", line 3, in step
    model.cuda()
torch.AcceleratorError: CUDA error: device is busy
Compile with TORCH_USE_CUDA_DSA

At:
  /lib/rpc/internal.py(236): _handle_exception
"""


NOT_COMPILED = """Error building extension 'wkv': [1/3] nvcc -o wkv.cuda.o wkv.cu
FAILED: [code=1] wkv.o
c++ -o wkv.o wkv.cpp
wkv.cpp:2:10: fatal error: cuda_bf16.h: No such file or directory
    2 | #include <cuda_bf16.h>
ninja: build stopped: subcommand failed.
"""


def _exits_after(cause: Exception) -> NoReturn:
    try:
        raise cause
    except Exception:
        raise SystemExit(3)  # noqa: B904 (as scripts do)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda: ArgumentParser(prog="train.py").parse_args(["--steps"]), "2, unrecognized arguments: --steps"),
        (lambda: _exits_after(ValueError("no data\nin train/")), "3, no data"),
        (lambda: exit(4), "4"),
        (lambda: exit("no data\nat all"), "no data"),
    ],
)
def test_an_exit_has_its_reason(program: object, message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        program()  # type: ignore[operator]
    assert message_of(caught.value) == message


def test_an_error_of_another_process_is_its_last_exception() -> None:
    assert message_of(RuntimeError(IN_ANOTHER_PROCESS)) == "torch.AcceleratorError: CUDA error: device is busy"
    assert message_of(RuntimeError("\n=====\ntrain.py FAILED\n-----\n")) == "train.py FAILED"
    assert message_of(RuntimeError()) == ""


def test_an_extension_that_does_not_compile_has_the_compilers_error() -> None:
    assert message_of(RuntimeError(NOT_COMPILED)) == "wkv.cpp:2:10: fatal error: cuda_bf16.h: No such file or directory"


OOM = (
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which 921.19 MiB is "
    "free. Including non-PyTorch memory, this process has 78.28 GiB memory in use."
)
DUPLICATE = """NCCL error in: NCCLUtils.cpp:93, invalid usage, NCCL version 2.28.9
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0"""


def test_a_failure_for_want_of_memory_names_line_and_bytes() -> None:
    failure = Failure(rank=0, kind="OutOfMemoryError", message=OOM, place="train.py:28", reason=Reason.OUT_OF_MEMORY)
    assert str(failure) == "out of memory on rank 0 at train.py:28: 1.00 GiB asked, 921.19 MiB free"
    failure = replace(failure, allocation="backward of train.py:12")
    assert str(failure).startswith("out of memory on rank 0 at train.py:28, in the backward of train.py:12: 1.00")
    failure = replace(failure, message="CUDA error: out of memory", allocation="")
    assert str(failure) == "out of memory on rank 0 at train.py:28: CUDA error: out of memory"


def test_an_error_of_nccl_has_its_cause_and_what_to_do() -> None:
    assert message_of(RuntimeError(DUPLICATE)) == (
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0; "
        "torch.cuda.set_device(LOCAL_RANK) in each rank"
    )


def test_an_error_that_a_worker_raised_is_named_once() -> None:
    text = "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    assert (
        message_of(ValueError(text + '  File "train.py", line 3, in __getitem__\nValueError: no sample\n'))
        == "no sample"
    )


def test_a_failure_names_the_call_that_is_not_simulated() -> None:
    failure = Failure(
        rank=0,
        kind="RuntimeError",
        message="no memory",
        place="train.py:8",
        reason=Reason.SCRIPT_FAILED,
        refused="cuArrayCreate",
    )
    assert str(failure) == (
        "rank 0 at train.py:8: RuntimeError: no memory; not simulated, with an error: cuArrayCreate"
    )


def test_a_command_without_ranks_names_the_error_of_its_process() -> None:
    outcome = Outcome(status=1, reason=Reason.NO_GPU_WORK, message="no process of bash used a GPU")
    failure = Failure(
        rank=-1,
        kind="ModuleNotFoundError",
        message="No module named 'mpi4py'",
        place="train.py:2",
        reason=Reason.SCRIPT_FAILED,
    )
    assert outcome.why([]) == outcome
    assert outcome.why([failure]).message == (
        "the command at train.py:2: ModuleNotFoundError: No module named 'mpi4py'; no process of bash used a GPU"
    )


def test_an_assertion_without_a_text_is_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("steps = 0\nassert steps > 0\n")
    with pytest.raises(AssertionError) as caught:
        runpy.run_path(str(tmp_path / "train.py"))
    assert message_of(caught.value) == "assert steps > 0"
    assert message_of(AssertionError("too few")) == "too few" and message_of(AssertionError()) == ""


def test_an_error_without_a_line_or_a_number_reads_without_none(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"import torch\nx = 1\x00\n")
    with pytest.raises(PhantoraError) as refused:
        check_script(str(script))
    assert str(refused.value) == f"{script}: SyntaxError: source code string cannot contain null bytes"
    with pytest.raises(OSError) as unread:
        gzip.decompress(b"no archive")
    assert unread.value.strerror is None and cause_of(unread.value) == "Not a gzipped file (b'no')"
    assert cause_of(FileNotFoundError(2, "")) == "No such file or directory"


def test_a_library_that_finds_no_memory_is_out_of_memory() -> None:
    text = "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_{}_ALLOCATION_FAILED"
    assert reason_of(RuntimeError(text.format("DEVICE"))) == Reason.OUT_OF_MEMORY
    assert reason_of(RuntimeError(text.format("HOST"))) == Reason.SCRIPT_FAILED
