"""Tests of the object store over HTTP: reads return what was written, and a failing store costs bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from jobs.errors import NotFoundError, ServiceError
from jobs.settings import MIB
from jobs.storage import Storage
from lab.s3_server import Mood, S3Server

RETRIES = 2


@pytest.fixture
def storage(s3: S3Server) -> Storage:
    return Storage(s3.url, timeout_seconds=2, max_retries=RETRIES)  # a busy machine answers within that


def test_objects_are_written_read_and_deleted(s3: S3Server) -> None:
    storage = Storage(s3.url)
    assert storage.put("t/small", b"0123456789") == 10
    assert storage.put("t/large", (b"x" * MIB for _ in range(20))) == 20 * MIB
    assert storage.read_range("t/small", 2, 5) == b"234"
    assert storage.read_range("t/small", 10, 12) == b""
    assert sum(map(len, storage.iter_chunks("t/large"))) == 20 * MIB
    storage.delete("t/small")
    assert s3.keys() == ["objects/t/large"]
    with pytest.raises(NotFoundError):
        storage.size("t/small")


def test_an_upload_that_fails_leaves_no_parts(s3: S3Server, storage: Storage) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x" * 20 * MIB
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        storage.put("t/half", parts())
    assert (s3.keys(), s3.unfinished_uploads()) == ([], [])


Call = Callable[[Storage], object]
CALLS: dict[str, Call] = {
    "read": lambda storage: storage.read_range("t/a", 0, 3),
    "size": lambda storage: storage.size("t/a"),
    "write": lambda storage: storage.put("t/b", b"bbb"),
    "delete": lambda storage: storage.delete("t/a"),
}


@pytest.mark.parametrize("mood", [Mood.REFUSE, Mood.HANG])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_store_that_is_away_is_a_service_error(s3: S3Server, storage: Storage, call: Call, mood: Mood) -> None:
    storage.put("t/a", b"aaa")
    before = s3.requests.total()
    s3.trouble(mood)
    with pytest.raises(ServiceError, match=f"the object store {s3.url} failed"):
        call(storage)
    assert s3.requests.total() - before <= 1 + RETRIES
    s3.recover()
    assert storage.read_range("t/a", 0, 3) == b"aaa", "and is used again once it answers"


def test_an_answer_that_breaks_off_is_a_service_error(s3: S3Server, storage: Storage) -> None:
    storage.put("t/a", b"a" * 1000)
    s3.trouble(Mood.BREAK_OFF, methods="GET")
    with pytest.raises(ServiceError):
        storage.read_range("t/a", 0, 1000)


def test_a_hanging_store_stops_no_other_thread(s3: S3Server) -> None:
    """The GIL is released while a request waits: this test's own thread ends the trouble."""
    storage = Storage(s3.url, timeout_seconds=60)
    storage.put("t/a", b"aaa")
    s3.trouble(Mood.HANG)
    sizes: list[int] = []
    thread = threading.Thread(target=lambda: sizes.append(storage.size("t/a")))
    thread.start()
    s3.wait_for_hanging()
    s3.recover()
    thread.join(60)
    assert sizes == [3], "the broken request was sent again"
