"""Output of a rank that a signal ends."""

from __future__ import annotations

import io
import os
from typing import cast
from unittest.mock import Mock

import pytest

from phantora.launch.command import run_command
from phantora.launch.ending import SharedArea
from phantora.launch.output import Console, Stream
from phantora.launch.printed_mfu import PrintedMfu


def test_the_message_of_an_uncaught_exception_is_found_behind_its_stack() -> None:
    reader, writer = os.pipe()
    limit = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"
    frames = "".join(f"frame #{number}: c10d::Watchdog::run() + 0xb7 ({'x' * 100})\n" for number in range(20))
    os.write(writer, f"terminate called\n  what():  {limit}\n{frames}".encode())
    stream = Stream(
        fd=reader,
        number=2,
        prefix=b"[rank0]: ",
        to_console=False,
        leaves_out=lambda _: False,
        file=None,
        path=None,
        mfu=PrintedMfu(),
    )
    stream.pump(Console(io.BytesIO(), io.BytesIO(), status=False))
    assert stream.last_words == limit
    os.close(writer)
    stream.close()


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("step 2  482.4 ms  16,901 tokens/s  MFU 39.4%  memory 58.86 GiB\n", 0.394),
        ("iter 4: loss 2.1, time 11.2ms, mfu 12.34%\n", 0.1234),
        ("\x1b[31mstep:  1  \x1b[35mmfu: 41.20%\x1b[39m\n", 0.412),
        ('{"mfu": 0.3956431358367362, "params": 1}\n', 0.3956431358367362),
        ("MFU (%): 41.0\n", 0.41),
        ("mfu -100.00%\nmfu 20.0%\nmfu 30.0%\nmfu 31.0%\n", 0.30),
        ("MFU of the H100s is printed below\nmfuture 7\n", None),
    ],
)
def test_a_printed_mfu_is_read(text: str, share: float | None) -> None:
    found = PrintedMfu()
    for byte in text.encode():
        found.read(1, bytes([byte]))
    value = found.value()
    assert (value and value[0]) == (share if share is None else pytest.approx(share))


def test_the_mfu_that_a_command_prints_is_read_on_its_way_to_the_console() -> None:
    out, err = io.BytesIO(), io.BytesIO()
    words = ["sh", "-c", "echo mfu: 41.2%; echo mfu: 41.4% >&2; exit 3"]
    outcome = run_command(words, os.environ, cast(SharedArea, Mock()), None, Console(out, err, status=False))
    assert outcome.status == 3 and outcome.printed_mfu is not None
    assert outcome.printed_mfu == pytest.approx((0.414, 0.0005))
    assert (out.getvalue(), err.getvalue()) == (b"mfu: 41.2%\n", b"mfu: 41.4%\n")
