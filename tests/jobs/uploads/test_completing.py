"""Tests of uploads whose process dies between two steps: no file is lost, and no object stays forever."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import file_room, files
from jobs.accounts.limits import Limits, limits_of
from jobs.database import transaction
from jobs.errors import ConflictError, FencedOutError
from jobs.retention import purging
from jobs.settings import Settings
from jobs.states import UploadState
from jobs.storage import Storage, store_owner
from jobs.storage.access import MARKER
from jobs.tables import File, Tenant, Upload, UploadPart
from jobs.uploads import completing, records
from jobs.uploads.completing import Completion
from jobs.uploads.part_counts import PartCounter
from jobs.uploads.records import NewPart, NewUpload

PARTS = [b'{"a"', b": 1}\n{}\n", b"{}"]
WHOLE = b"".join(PARTS)


@dataclass
class Uploads:
    """The steps of an upload, each by a process that may die after it."""

    maker: sessionmaker[Session]
    storage: Storage
    tenant: Tenant
    limits: Limits

    def begin(self) -> str:
        new = NewUpload(
            filename="in.jsonl", purpose="batch", mime_type="", size_bytes=len(WHOLE), expires_after_seconds=None
        )
        with transaction(self.maker) as session:
            return records.create(session, self.tenant.id, new, self.limits).id

    def store_part(self, content: bytes) -> NewPart:
        key, counter = files.new_object_key(self.tenant.id), PartCounter(default_max_tokens=16)
        self.storage.put(key, content)
        counter.feed(content)
        return NewPart(object_key=key, size_bytes=len(content), md5="0" * 32, count=counter.finish())

    def name_part(self, upload_id: str, part: NewPart) -> str:
        with transaction(self.maker) as session:
            return records.add_part(session, self.tenant.id, upload_id, part, self.limits).id

    def send(self, upload_id: str) -> list[str]:
        return [self.name_part(upload_id, self.store_part(part)) for part in PARTS]

    def claim(self, upload_id: str, part_ids: list[str]) -> Upload | Completion | None:
        with transaction(self.maker) as session:
            return completing.begin(session, self.tenant.id, upload_id, part_ids)

    def put_together(self, found: Upload | Completion | None) -> files.NewFile:
        assert isinstance(found, Completion)
        return completing.put_together(self.maker, self.storage, found, md5=None, default_max_tokens=16)

    def finish(self, found: Upload | Completion | None, new: files.NewFile) -> Upload:
        assert isinstance(found, Completion)
        with transaction(self.maker) as session:
            return completing.finish(session, found, new, self.limits)

    def complete(self, upload_id: str, part_ids: list[str]) -> Upload:
        found = self.claim(upload_id, part_ids)
        return self.finish(found, self.put_together(found))

    def age(self, upload_id: str, **values: Any) -> None:
        with transaction(self.maker) as session:
            session.execute(update(Upload).where(Upload.id == upload_id).values(values))

    def tidy(self) -> set[str]:
        """Clean up as control workers do, with everything in the store old; return what it still has."""
        purging.purge_uploads(self.maker, self.storage)
        purging.sweep_objects(self.maker, self.storage, age=timedelta(seconds=-60), unused=timedelta(days=30))
        return {found.name for found in self.storage.iter_objects()} - {store_owner.MARK, MARKER}


@pytest.fixture
def uploads(maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path) -> Uploads:
    storage = Storage(tmp_path.as_uri())
    store_owner.adopt(maker, storage)
    return Uploads(maker=maker, storage=storage, tenant=tenant, limits=limits_of(tenant, Settings()))


def keys(session: Session) -> set[str]:
    return {*session.scalars(select(UploadPart.object_key)), *session.scalars(select(File.object_key))}


def test_a_stored_part_that_no_row_names_is_swept(uploads: Uploads) -> None:
    uploads.begin()
    uploads.store_part(b"x")
    assert uploads.tidy() == set()


def test_parts_of_a_pending_upload_are_not_swept_and_those_of_an_expired_one_go(
    uploads: Uploads, session: Session
) -> None:
    upload_id = uploads.begin()
    uploads.send(upload_id)
    assert uploads.tidy() == keys(session)
    uploads.age(upload_id, expires_at=func.now())
    assert uploads.tidy() == set()
    session.rollback()
    assert session.get_one(Upload, upload_id).state == UploadState.EXPIRED
    assert file_room.kept_files(session, uploads.tenant.id) == (0, 0)


def test_a_process_that_dies_with_its_claim_is_followed_by_another(uploads: Uploads, session: Session) -> None:
    upload_id = uploads.begin()
    part_ids = uploads.send(upload_id)
    first = uploads.claim(upload_id, part_ids)
    assert uploads.claim(upload_id, part_ids) is None, "it may still be at it"
    uploads.age(upload_id, claimed_until=func.now() - timedelta(seconds=1))
    second = uploads.claim(upload_id, part_ids)
    done = uploads.finish(second, uploads.put_together(second))
    with pytest.raises(FencedOutError):
        uploads.put_together(first)
    assert uploads.tidy() == {session.get_one(File, done.file_id).object_key}


def test_a_process_that_dies_with_the_whole_file_stored_leaves_an_object_that_is_swept(
    uploads: Uploads, session: Session
) -> None:
    upload_id = uploads.begin()
    part_ids = uploads.send(upload_id)
    first = uploads.claim(upload_id, part_ids)
    lost = uploads.put_together(first)
    assert uploads.storage.exists(lost.object_key)
    uploads.age(upload_id, claimed_until=func.now() - timedelta(seconds=1))
    done = uploads.complete(upload_id, part_ids)
    with pytest.raises(FencedOutError):
        uploads.finish(first, lost)
    file = session.get_one(File, done.file_id)
    assert uploads.tidy() == {file.object_key}
    assert uploads.storage.read_range(file.object_key, 0, 100) == WHOLE
    assert (file.num_requests, file.size_bytes) == (3, len(WHOLE))


def test_a_part_that_a_broken_copy_had_begun_is_swept(uploads: Uploads) -> None:
    upload_id = uploads.begin()
    found = uploads.claim(upload_id, uploads.send(upload_id))
    assert isinstance(found, Completion)
    uploads.storage.delete(found.parts[2].object_key)
    with pytest.raises(ConflictError, match="is lost"):
        uploads.put_together(found)
    with transaction(uploads.maker) as session:
        completing.give_up(session, found)
    assert uploads.tidy() == {part.object_key for part in found.parts[:2]}


def test_an_upload_whose_file_is_being_made_does_not_expire(uploads: Uploads, session: Session) -> None:
    upload_id = uploads.begin()
    found = uploads.claim(upload_id, uploads.send(upload_id))
    uploads.age(upload_id, expires_at=func.now())
    new = uploads.put_together(found)
    purging.purge_uploads(uploads.maker, uploads.storage)
    assert uploads.finish(found, new).state == UploadState.COMPLETED


def test_a_cancelled_upload_is_not_completed_by_whoever_was_at_it(uploads: Uploads, session: Session) -> None:
    upload_id = uploads.begin()
    found = uploads.claim(upload_id, uploads.send(upload_id))
    new = uploads.put_together(found)
    with transaction(uploads.maker) as other:
        records.cancel(other, uploads.tenant.id, upload_id, by="key_1")
    with pytest.raises(FencedOutError):
        uploads.finish(found, new)
    assert uploads.tidy() == set()
    assert session.scalar(select(func.count()).select_from(File)) == 0


def test_uploads_that_ended_long_ago_are_forgotten(uploads: Uploads, session: Session) -> None:
    old, young = uploads.begin(), uploads.begin()
    for upload_id in (old, young):
        uploads.complete(upload_id, uploads.send(upload_id))
    uploads.age(old, ended_at=func.now() - records.KEPT)
    uploads.tidy()
    assert session.scalars(select(Upload.id)).all() == [young]
    assert session.scalar(select(func.count()).select_from(File)) == 2


def test_the_ends_of_parts_alone_are_read_for_the_count(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_id = uploads.begin()
    found = uploads.claim(upload_id, uploads.send(upload_id))
    assert isinstance(found, Completion)
    read: list[int] = []
    original = uploads.storage.read_range

    def noted(key: str, start: int, end: int) -> bytes:
        read.append(end - start)
        return original(key, start, end)

    monkeypatch.setattr(uploads.storage, "read_range", noted)
    assert uploads.put_together(found).estimate is not None
    assert sum(read) == len(PARTS[0]) + len(b": 1}\n") + len(PARTS[2])


@pytest.mark.parametrize("has_kernel_copy", [True, False])
def test_a_local_store_joins_objects(uploads: Uploads, monkeypatch: pytest.MonkeyPatch, has_kernel_copy: bool) -> None:
    if not has_kernel_copy:
        monkeypatch.delattr(os, "copy_file_range")
    *parts, whole = (files.new_object_key(uploads.tenant.id) for _ in range(len(PARTS) + 1))
    for key, content in zip(parts, PARTS, strict=True):
        uploads.storage.put(key, content)
    uploads.storage.join(whole, parts)
    assert uploads.storage.read_range(whole, 0, 100) == WHOLE


def test_a_completion_is_its_owners_only_whatever_the_fence(uploads: Uploads, session: Session) -> None:
    """A restored database issues the same fence again."""
    upload_id = uploads.begin()
    part_ids = uploads.send(upload_id)
    lost = uploads.claim(upload_id, part_ids)
    new = uploads.put_together(lost)
    uploads.age(upload_id, claim_fence=0, claimed_until=None, claimed_by=None)
    claimed = uploads.claim(upload_id, part_ids)
    assert isinstance(lost, Completion)
    assert isinstance(claimed, Completion)
    assert claimed.fence == lost.fence
    completing.give_up(session, lost)
    session.commit()
    assert uploads.claim(upload_id, part_ids) is None, "the other one's claim is as it was"
    for use in (lambda: uploads.put_together(lost), lambda: uploads.finish(lost, new)):
        with pytest.raises(FencedOutError):
            use()
    assert uploads.finish(claimed, uploads.put_together(claimed)).state == "completed"
