"""Promises of docs/security.md: other users of the machine, and files that are bombs. The viewer: tests/view."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantora import cache
from phantora.cost.parquet import MOST_ROWS
from phantora.cost.table import read_table
from phantora.cost.workspaces import read_workspaces
from phantora.errors import PhantoraError
from phantora.outputs import open_output
from phantora.trace import arrow_sizes
from phantora.trace.export import export
from phantora.trace.reader import open_log
from tests.support.fakelog import small_run

ROOT = Path(__file__).parents[2]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache._checked.cache_clear()
    return tmp_path / "phantora"


# ---------------------------------------------------------------- other users


def test_caches_are_private(own_cache: Path) -> None:
    old = os.umask(0)
    try:
        made = cache.make_folder(cache.cache_directory() / "a" / "b")
    finally:
        os.umask(old)
    assert [folder.stat().st_mode & 0o777 for folder in (own_cache, made.parent, made)] == [0o700] * 3


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_cache_that_others_can_write_is_refused(own_cache: Path, mode: int) -> None:
    own_cache.mkdir()
    own_cache.chmod(mode)
    with pytest.raises(PhantoraError, match=r"can be written by other users.*chmod 700"):
        cache.cache_directory()


@AS_ROOT
def test_a_cache_of_another_user_is_refused(own_cache: Path) -> None:
    own_cache.mkdir(mode=0o700)
    os.chown(own_cache, 12345, 12345)
    with pytest.raises(PhantoraError, match=r"belongs to user 12345.*XDG_CACHE_HOME"):
        cache.cache_directory()


def test_links_in_shared_folders_are_not_followed(shared: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (shared / "run.arrow").symlink_to(precious)
    (shared / "run.perfetto.part").symlink_to(precious)
    with pytest.raises(PhantoraError, match=r"run\.arrow: cannot create the log"):
        small_run().write(shared / "run.arrow")
    log = small_run().write(tmp_path / "own.arrow")
    with pytest.raises(PhantoraError):
        export(str(log), str(shared / "run.perfetto"))
    assert precious.read_text() == "kept"
    own = tmp_path / "link"
    own.symlink_to(precious)
    os.close(open_output(own))  # in a folder of one's own they are
    assert precious.read_text() == ""


@AS_ROOT
def test_files_of_others_in_shared_folders_are_not_taken(shared: Path) -> None:
    theirs = shared / "run.arrow"
    theirs.write_text("theirs")
    os.chown(theirs, 12345, 12345)
    theirs.chmod(0o666)
    with pytest.raises(PhantoraError, match="cannot create the log"):
        small_run().write(theirs)
    assert theirs.read_text() == "theirs"


def test_nothing_has_a_name_that_others_could_find() -> None:
    """No named shared memory, pipe or socket: a memfd and a socket pair have none."""
    named = re.compile(r"shm_open|mkfifo|SharedMemory\(|sun_path|\.bind\(\s*[\"'/f]")
    sources = [path for folder in ("phantora", "stub") for path in (ROOT / folder).rglob("*") if path.is_file()]
    code = [path for path in sources if path.suffix in (".py", ".c", ".cpp", ".h")]
    assert len(code) > 300
    assert [str(path) for path in code if named.search(path.read_text())] == []


# ---------------------------------------------------------------- bombs


def messages(data: bytes) -> list[int]:
    """Begins of those messages of an Arrow file that contain data."""
    source = pa.BufferReader(data)
    source.seek(8)
    found: list[int] = []
    while True:
        begin = source.tell()
        try:
            message = pa.ipc.read_message(source)
        except (EOFError, pa.ArrowException, OSError):
            return found
        if message.type != "schema":
            found.append(begin)


def claim(path: Path, message: int, nbytes: int) -> None:
    """Makes the first compressed buffer of a message say that it unpacks to `nbytes`."""
    data = bytearray(path.read_bytes())
    body = message + 8 + struct.unpack_from("<i", data, message + 4)[0]
    at = next(at for at in range(body, body + 4096, 8) if 0 < struct.unpack_from("<q", data, at)[0] < 1 << 20)
    struct.pack_into("<q", data, at, nbytes)
    path.write_bytes(data)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("which", ["words", "rows"])
def test_a_log_that_unpacks_to_100_gb_is_refused(tmp_path: Path, which: str, whole: bool) -> None:
    path = small_run().write(tmp_path / "run.arrow")
    *words, rows, _ = messages(path.read_bytes())
    claim(path, words[0] if which == "words" else rows, 100 << 30)
    if not whole:
        path.write_bytes(path.read_bytes()[:-10])  # without the end of its footer
    with pytest.raises(PhantoraError, match=r"the log is damaged.*MiB"):
        log = open_log(path)
        log.batch(0)


def test_sizes_are_those_that_arrow_takes(tmp_path: Path) -> None:
    """For a correct file the limits see the true size."""
    path = tmp_path / "x.arrow"
    table = pa.table({"a": np.arange(100_000), "b": np.ones(100_000)})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)
    source = pa.memory_map(str(path))
    (place,) = arrow_sizes.blocks(source).batches
    assert 1_600_000 <= arrow_sizes.unpacked_size(source, place) < 1_600_000 + path.stat().st_size


def test_a_log_with_columns_of_other_types_is_refused(tmp_path: Path) -> None:
    """A run-length column unpacks to as many rows as one likes."""
    good = small_run().write(tmp_path / "good.arrow")
    schema = open_log(good).schema
    at = schema.get_field_index("start")
    odd = schema.set(at, pa.field("start", pa.run_end_encoded(pa.int32(), pa.int64())))
    path = tmp_path / "odd.arrow"
    with pa.ipc.new_file(path, odd):
        pass
    with pytest.raises(PhantoraError, match="other types"):
        open_log(path)


def test_tables_of_too_many_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    column = pa.DictionaryArray.from_arrays(np.zeros(MOST_ROWS + 1, np.int8), ["x"])
    pq.write_table(pa.table({"key": column}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    with pytest.raises(PhantoraError, match="rows, and"):
        read_table(path)
    with pytest.raises(PhantoraError, match="rows, and"):
        read_workspaces(path)


def test_tables_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phantora.cost.parquet.MOST_BYTES", 1 << 20)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"key": ["x" * (2 << 20)]}), path, compression="zstd", use_dictionary=False)
    with pytest.raises(PhantoraError, match="it takes 2 MiB"):
        read_table(path)
