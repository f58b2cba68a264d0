"""Tests of a store that answers "not there": the marker of its database shows whether it has lost an object."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.errors import NotFoundError, ServiceError
from jobs.settings import MIB
from jobs.storage import Storage, store_marker, store_owner
from jobs.storage.access import MARKER
from jobs.tables import File
from lab.s3_server import Mood, S3Server

AWAY = [Mood.NO_BUCKET, Mood.NO_ROUTE, Mood.OTHER_SITE, Mood.FORBID, Mood.REFUSE]


def marked(url: str) -> Storage:
    return Storage(url, timeout_seconds=5, max_retries=0, is_marked=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def store(maker: sessionmaker[Session], root: Path) -> Storage:
    """A folder with the marker of the test's database."""
    storage = marked(root.as_uri())
    store_marker.bind(maker, storage)
    return storage


@pytest.fixture
def bucket(maker: sessionmaker[Session], s3: S3Server) -> Storage:
    storage = marked(s3.url)
    store_marker.bind(maker, storage)
    return storage


def unmount(root: Path) -> Path:
    """Leave an empty folder in place of the store, like an unmounted mount point; return the store's new place."""
    aside = root.with_name("unmounted")
    root.rename(aside)
    root.mkdir()
    return aside


def mount(root: Path, aside: Path) -> None:
    root.rmdir()
    aside.rename(root)


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


CALLS: dict[str, Callable[[Storage], object]] = {
    "size": lambda storage: storage.size("t/a"),
    "read": lambda storage: storage.read_range("t/a", 0, 3),
    "read whole": lambda storage: b"".join(storage.iter_range("t/a", 0, 3)),
    "whole": lambda storage: storage.has_whole("t/a", 3),
    "read, async": lambda storage: asyncio.run(storage.read_range_async("t/a", 0, 3)),
    "write": lambda storage: storage.put("t/b", b"bbb"),
    "delete": lambda storage: storage.delete("t/a"),
    "delete, async": lambda storage: asyncio.run(storage.delete_async("t/a")),
    "look": lambda storage: asyncio.run(storage.access.require_marker_async()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("is_root_gone", [False, True])
def test_a_folder_that_is_not_mounted_is_away_and_nothing_is_written_below_it(
    store: Storage, root: Path, call: Callable[[Storage], object], *, is_root_gone: bool
) -> None:
    store.put("t/a", b"aaa")
    aside = unmount(root)
    if is_root_gone:
        root.rmdir()
    with pytest.raises(ServiceError):
        call(store)
    assert not root.exists() if is_root_gone else files_below(root) == []
    root.mkdir(exist_ok=True)
    mount(root, aside)
    assert store.read_range("t/a", 0, 3) == b"aaa"


@pytest.mark.parametrize("mood", AWAY)
@pytest.mark.parametrize("name", CALLS)
def test_a_bucket_that_is_gone_or_is_another_site_is_away(bucket: Storage, s3: S3Server, mood: Mood, name: str) -> None:
    if (name, mood) == ("size", Mood.OTHER_SITE):
        pytest.skip("a page has a size: who needs to know asks has_whole")
    call = CALLS[name]
    bucket.put("t/a", b"aaa")
    s3.trouble(mood)
    with pytest.raises(ServiceError):
        call(bucket)
    s3.recover()
    assert bucket.read_range("t/a", 0, 3) == b"aaa"


@pytest.mark.parametrize("kind", ["store", "bucket"])
def test_an_object_that_a_store_has_lost_is_not_found_while_its_marker_can_be_read(
    request: pytest.FixtureRequest, kind: str
) -> None:
    storage: Storage = request.getfixturevalue(kind)
    with pytest.raises(NotFoundError):
        storage.read_range("t/lost", 0, 3)
    storage.put("t/cut", b"12")
    with pytest.raises(NotFoundError):
        storage.read_whole_range("t/cut", 0, 3)
    assert not storage.has_whole("t/cut", 3)
    storage.delete("t/lost")


def test_an_ingress_that_has_no_route_to_one_object_does_not_make_the_store_away(bucket: Storage, s3: S3Server) -> None:
    bucket.put("t/a", b"aaa")
    s3.trouble(Mood.NO_ROUTE, key_prefix="objects/t/")
    with pytest.raises(NotFoundError):
        bucket.size("t/a")


def test_a_look_for_what_may_be_absent_is_one_request(bucket: Storage, s3: S3Server) -> None:
    before = s3.requests.total()
    assert bucket.find_modified_at("t/absent") is None
    assert s3.requests.total() - before == 1


def test_an_upload_to_a_folder_that_is_unmounted_midway_is_not_told_as_stored(store: Storage, root: Path) -> None:
    def content() -> Iterator[bytes]:
        yield b"a" * 100
        unmount(root)

    with pytest.raises(ServiceError):
        store.put("t/a", content())
    assert "t/a" not in files_below(root)


def test_an_upload_whose_bucket_is_another_one_by_its_end_is_not_told_as_stored(bucket: Storage, s3: S3Server) -> None:
    s3.trouble(Mood.NO_ROUTE, methods="GET")  # the new bucket has no marker
    with pytest.raises(ServiceError):
        bucket.put("t/a", b"aaa")


def test_a_store_that_answers_with_the_checksum_is_not_asked_for_the_size(bucket: Storage, s3: S3Server) -> None:
    before = s3.requests.copy()
    assert bucket.put("t/a", [b"aaa", b"bb"]) == 5
    assert {method: number for (method, _), number in (s3.requests - before).items()} == {"PUT": 1, "GET": 1}
    assert bucket.read_range("t/a", 0, 5) == b"aaabb"


@pytest.mark.parametrize("size_bytes", [8 * MIB, 8 * MIB + 1])
def test_an_upload_of_one_part_and_of_more_are_stored_whole(bucket: Storage, s3: S3Server, size_bytes: int) -> None:
    content = random.Random(5).randbytes(size_bytes)
    before = s3.requests.copy()
    bucket.put("t/a", [content[:10], content[10:]])
    assert bucket.read_range("t/a", 0, size_bytes) == content
    heads = sum(number for (method, _), number in (s3.requests - before).items() if method == "HEAD")
    assert heads == (1 if size_bytes > 8 * MIB else 0)


def test_an_upload_answered_by_another_site_is_not_stored(bucket: Storage, s3: S3Server) -> None:
    s3.trouble(Mood.OTHER_SITE, methods="PUT", key_prefix="objects/t/")
    with pytest.raises((ServiceError, NotFoundError)):
        bucket.put("t/a", b"aaa")


def test_a_store_of_another_database_stops_the_start(store: Storage, maker: sessionmaker[Session], root: Path) -> None:
    (root / MARKER).write_text("database_of_others")
    with pytest.raises(ServiceError, match="database_of_others"):
        store_marker.bind(maker, marked(root.as_uri()))


def test_a_store_that_was_marked_and_is_not_there_is_not_made_anew(
    store: Storage, maker: sessionmaker[Session], root: Path
) -> None:
    root.rename(root.with_name("unmounted"))
    with pytest.raises(ServiceError):
        store_marker.bind(maker, marked(root.as_uri()))
    assert not root.exists()
    root.mkdir()
    with pytest.raises(ServiceError):
        store_marker.bind(maker, marked(root.as_uri()))
    assert files_below(root) == []


def test_an_operator_gives_a_new_store_the_marker(store: Storage, maker: sessionmaker[Session], root: Path) -> None:
    unmount(root)
    store_owner.adopt(maker, Storage(root.as_uri()))
    bound = marked(root.as_uri())
    store_marker.bind(maker, bound)
    assert bound.access.marker == store.access.marker
    store.put("t/a", b"aaa")


def test_a_start_that_died_before_it_wrote_the_marker_is_made_up_for(maker: sessionmaker[Session], root: Path) -> None:
    with maker.begin() as session:
        session.execute(text("INSERT INTO store_marker (marker) VALUES ('database_1')"))
    for _ in range(2):  # and one that died before it recorded that
        storage = marked(root.as_uri())
        store_marker.bind(maker, storage)
        assert (storage.access.marker, (root / MARKER).read_text()) == ("database_1", "database_1")
        with maker.begin() as session:
            session.execute(text("UPDATE store_marker SET written_at = NULL"))


@pytest.mark.parametrize("is_mounted", [False, True])
def test_the_store_of_a_database_older_than_its_marker_is_known_by_its_newest_file(
    maker: sessionmaker[Session], make_file: Callable[..., File], root: Path, *, is_mounted: bool
) -> None:
    key = make_file().object_key
    if is_mounted:
        Storage(root.as_uri()).put(key, b"content")
        store_marker.bind(maker, marked(root.as_uri()))
        assert MARKER in files_below(root)
        return
    with pytest.raises(ServiceError):
        store_marker.bind(maker, marked(root.as_uri()))
    assert not root.exists()


def test_a_store_whose_marker_is_not_known_yet_is_neither_read_nor_written(root: Path) -> None:
    root.mkdir()
    unbound = marked(root.as_uri())
    for call in (CALLS["write"], CALLS["read"], CALLS["look"]):
        with pytest.raises(ServiceError):
            call(unbound)
    assert files_below(root) == []


def test_the_folder_of_a_tenants_first_object_is_synced_in_the_one_above(
    store: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("jobs.storage.local.sync", lambda path: synced.append(path.relative_to(root).as_posix()))
    store.put("tenant_1/documents/a", b"aaa")
    assert synced == [".", "tenant_1", "tenant_1/documents/a", "tenant_1/documents"]
    synced.clear()
    store.put("tenant_1/documents/b", b"bbb")
    assert synced == ["tenant_1/documents/b", "tenant_1/documents"]


def test_a_store_that_refused_a_write_for_want_of_room_is_full_until_one_passes(
    bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not bucket.access.is_full
    with pytest.raises(ServiceError), bucket.access.reported():
        raise OSError(28, "No space left on device")
    assert bucket.access.is_full
    assert bucket.find_modified_at("t/a") is None, "it can be asked meanwhile"
    bucket.put("t/a", b"aaa")
    assert not bucket.access.is_full


def test_a_folder_on_a_full_disk_is_full(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.storage.local._LEAST_FREE_BYTES", 1 << 80)
    assert store.access.is_full
