from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from jobs.errors import InputError, NotFoundError, ServiceError, StorageFullError
from jobs.storage import Storage
from jobs.storage.connection import store_failure

MIB = 1024 * 1024


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage("memory://" if request.param == "memory" else f"file://{tmp_path}/objects")


def visible(storage: Storage, root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("size", [0, 1, 8 * MIB, 8 * MIB + 1, 20 * MIB])
def test_an_object_reads_back_as_it_was_written(storage: Storage, size: int) -> None:
    content = os.urandom(min(size, 4096)) * (size // 4096 + 1)
    content = content[:size]
    parts = [content[start : start + 700_001] for start in range(0, size, 700_001)]
    assert storage.put("t/a", parts) == size
    assert b"".join(storage.iter_chunks("t/a", chunk_bytes=3 * MIB)) == content
    assert storage.size("t/a") == size


def test_ranges_are_exact_and_end_with_the_object(storage: Storage) -> None:
    storage.put("k", b"0123456789")
    assert storage.read_range("k", 2, 5) == b"234"
    assert storage.read_range("k", 8, 99) == b"89"
    assert storage.read_range("k", 10, 99) == b""
    assert storage.read_range("k", 4, 4) == b""
    assert b"".join(storage.iter_chunks("k", 3, end=8, chunk_bytes=2)) == b"34567"


def test_a_reader_is_a_seekable_file(storage: Storage) -> None:
    storage.put("k", b"one\ntwo\n")
    reader = storage.open_reader("k")
    assert bytes(reader.readline()) == b"one\n"
    reader.seek(1)
    assert bytes(reader.read(3)) == b"ne\n"


@pytest.mark.parametrize("size", [100, 30 * MIB])
def test_a_write_that_fails_halfway_leaves_nothing(tmp_path: Path, size: int) -> None:
    storage = Storage(f"file://{tmp_path}/objects")

    def parts() -> Iterator[bytes]:
        yield b"x" * size
        raise ConnectionResetError("the client went away")

    with pytest.raises(ConnectionResetError):
        storage.put("t/half", parts())
    assert not storage.exists("t/half")
    assert visible(storage, tmp_path) == []


def test_an_object_is_not_visible_before_its_writer_ends(storage: Storage) -> None:
    with storage.writer("k") as writer:
        writer.write(b"x" * 20 * MIB)
        assert not storage.exists("k")
    assert storage.exists("k")
    assert writer.size_bytes == 20 * MIB


def test_a_missing_object_is_not_found_and_deleting_it_is_no_error(storage: Storage) -> None:
    for read in (storage.size, storage.open_reader, lambda key: storage.read_range(key, 0, 1)):
        with pytest.raises(NotFoundError, match="no object 'gone'"):
            read("gone")
    storage.delete("gone")


def test_a_deleted_object_is_gone(storage: Storage) -> None:
    storage.put("k", b"x")
    storage.delete("k")
    assert not storage.exists("k")


@pytest.mark.parametrize("url", ["", "/data", "ftp://host/x", "file://relative/dir"])
def test_a_wrong_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(InputError, match=r"TOKENMILL_STORAGE_URL is .*file:///"):
        Storage(url)


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ServiceError, match="check TOKENMILL_STORAGE_URL"):
        Storage(f"file://{tmp_path}/file/objects").check()


def test_check_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = Storage(f"file://{tmp_path}/objects")
    storage.check()
    assert visible(storage, tmp_path) == []


def in_a_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_write_that_the_disk_refuses_is_a_service_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the kernel refuses the write either way."""
    code = """
import resource, signal, sys
from jobs.errors import ServiceError
from jobs.storage import Storage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
storage = Storage(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 20, 10 << 20))
try:
    storage.put("big", (b"x" * (1 << 20) for _ in range(64)))
except ServiceError as error:
    print(error.message)
print(storage.exists("big"))
"""
    done = in_a_process(code, f"file://{tmp_path}/objects")
    assert "the object store file://" in done.stdout, done.stderr
    assert "File too large" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    "cause",
    [
        GenericError("Generic: No space left on device (os error 28)"),
        GenericError("Generic: Disk quota exceeded (os error 122)"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    ],
)
def test_a_full_disk_is_named_as_such(cause: Exception) -> None:
    error = store_failure("file:///data", cause)
    assert isinstance(error, StorageFullError)
    assert error.code == "storage_full"
    assert "file:///data is full; free some space" in error.message


def test_a_gibibyte_streams_in_bounded_memory(tmp_path: Path) -> None:
    code = """
import resource, sys
from jobs.storage import Storage
storage = Storage(sys.argv[1])
part = b"x" * (1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(storage.put("big", (part for _ in range(1024))))
print(sum(len(chunk) for chunk in storage.iter_chunks("big")))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = in_a_process(code, f"file://{tmp_path}/objects")
    written, read, grown_kib = map(int, done.stdout.split())
    assert written == read == 1024 * MIB
    assert grown_kib < 100 * 1024
