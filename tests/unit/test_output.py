"""Output of a rank that a signal ends."""

from __future__ import annotations

import io
import os

from phantora.launch.output import Console, Stream


def test_the_message_of_an_uncaught_exception_is_found_behind_its_stack() -> None:
    reader, writer = os.pipe()
    limit = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"
    frames = "".join(f"frame #{number}: c10d::Watchdog::run() + 0xb7 ({'x' * 100})\n" for number in range(20))
    os.write(writer, f"terminate called\n  what():  {limit}\n{frames}".encode())
    stream = Stream(
        fd=reader, number=2, prefix=b"[rank0]: ", to_console=False, leaves_out=lambda _: False, file=None, path=None
    )
    stream.pump(Console(io.BytesIO(), io.BytesIO(), status=False))
    assert stream.last_words == limit
    os.close(writer)
    stream.close()
