"""Tests of stores that refuse, break or fill up: the run ends with one sentence; after repair it continues."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from typing import IO, Any

import pytest
from sqlalchemy import select

from features.pipelines import lifecycle, publishing, stores
from features.pipelines.external import folder
from features.pipelines.external.opening import open_store
from features.pipelines.states import RunState
from jobs.errors import StoreAwayError
from jobs.tables import Batch
from lab.s3_server import Mood, S3Server
from tests.features.pipelines.work.run_builders import House, step

pytestmark = pytest.mark.long


class BrokenFile:
    """A file on a full disk."""

    def __init__(self, file: IO[bytes], error: OSError) -> None:
        self._file, self._error = file, error

    def __enter__(self) -> BrokenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: bytes) -> int:
        raise self._error


class BrokenSystem:
    """The module `os`, except for one call that fails."""

    def __init__(self, call: str, error: int, *, only: str) -> None:
        self._call, self._error, self._only = call, OSError(error, os.strerror(error)), only

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name != self._call:
            return found
        return self._written if name == "fdopen" else partial(self._fail, found)

    def _fail(self, call: Callable[..., Any], *given: Any, **options: Any) -> Any:
        if self._only and not any(self._only in str(each) for each in given):
            return call(*given, **options)
        raise self._error

    def _written(self, descriptor: int, mode: str) -> Any:
        file = os.fdopen(descriptor, mode)
        return BrokenFile(file, self._error) if "w" in mode else file


def failed(house: House, run_id: str) -> str:
    """Return the one sentence with which a run has failed."""
    run = house.finish(run_id)
    assert run.state == RunState.FAILED
    reason = run.reason or ""
    assert "\n" not in reason
    assert "Traceback" not in reason
    assert "an unexpected error" not in reason
    assert "127.0.0.1" not in reason, "tenants see the names of stores alone"
    return reason


def goes_on(house: House, run_id: str) -> None:
    """Resume a run, and check that it ends as if nothing had happened."""
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run_id)
    run = house.finish(run_id)
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)


@pytest.mark.parametrize(
    ("call", "error", "only", "said"),
    [
        ("scandir", errno.EACCES, "", "The store 'documents' gives no right to 'in/'; ask your operator for it."),
        ("scandir", errno.EIO, "", "the store 'documents' failed: Input/output error"),
        ("stat", errno.EIO, "a.jsonl", "the store 'documents' failed: Input/output error"),
        ("open", errno.EACCES, "a.jsonl", "The store 'documents' gives no right to 'in/a.jsonl'; ask your operator"),
        ("open", errno.ENOENT, "a.jsonl", "There is no 'in/a.jsonl' in the store 'documents'."),
        ("open", errno.EACCES, ".part", "The store 'results' gives no right to 'out/_temporary/"),
        ("open", errno.ENOSPC, ".part", "the store 'results' is full; free some space"),
        ("fdopen", errno.ENOSPC, "", "the store 'results' is full; free some space"),
        ("fdopen", errno.EDQUOT, "", "the store 'results' is full; free some space"),
        ("fsync", errno.ENOSPC, "", "the store 'results' is full; free some space"),
        ("mkdir", errno.EROFS, "_temporary", "the store 'results' failed: Read-only file system"),
        ("rename", errno.EACCES, "", "The store 'results' gives no right to 'out/"),
        ("unlink", errno.EACCES, "_SUCCESS", "The store 'results' gives no right to 'out/_SUCCESS'"),
    ],
)
def test_a_folder_that_refuses_or_fails_ends_the_run_with_a_sentence(
    house: House, monkeypatch: pytest.MonkeyPatch, call: str, error: int, only: str, said: str
) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    run_id = house.trigger(house.make())
    with monkeypatch.context() as patch:
        patch.setattr(folder, "os", BrokenSystem(call, error, only=only))
        assert said in failed(house, run_id)
    assert not (house.results / "out" / "_SUCCESS").exists()
    goes_on(house, run_id)
    assert [len(rows) for rows in house.out().values()] == [2]
    assert [path.name for path in sorted((house.results / "out").iterdir())] == [
        "_SUCCESS",
        "_temporary",
        "part-00000.jsonl",
    ]
    with house.maker() as session:
        assert len(session.scalars(select(Batch.id)).all()) == 1, "what was paid for is not computed anew"


def test_a_control_worker_without_room_for_its_own_files_says_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        @staticmethod
        def TemporaryFile() -> BrokenFile:
            return BrokenFile(tempfile.TemporaryFile(), OSError(errno.ENOSPC, "No space left on device"))

    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "tempfile", FullDisk)
        assert failed(house, run_id) == (
            "the control worker has no room for the output in its folder for temporary files: No space left on device"
        )
    goes_on(house, run_id)


def bucket_options(s3: S3Server) -> dict[str, str]:
    found = s3.environment
    return {
        "endpoint": found["AWS_ENDPOINT_URL"],
        "access_key_id": "test",
        "secret_access_key": "test",
        "region": "us-east-1",
        "allow_http": "true",
    }


@pytest.fixture
def bucket(house: House, s3: S3Server) -> S3Server:
    """A bucket beside the tenant's folders, as the store `bucket`, readable and writable."""
    with house.maker.begin() as session:
        stores.add_store(session, house.tenant_id, "bucket", s3.url, options=bucket_options(s3), is_writable=True)
    s3.forward("PUT", f"/{s3.bucket}/objects/in/a.jsonl", {}, b'{"text": "one"}\n{"text": "three"}\n')
    house.settings = house.settings.model_copy(update={"storage_timeout_seconds": 1})
    return s3


OF_BUCKET = step(
    source={"store": "bucket", "keys": "in/*.jsonl"}, output={"store": "bucket", "keys": "out/part-{n}.jsonl"}
)


@pytest.mark.parametrize(
    ("mood", "methods", "key", "said"),
    [
        (Mood.FORBID, "GET", "", "The store 'bucket' gives no right to 'in/'"),
        (Mood.FORBID, "GET", "objects/in/a", "The store 'bucket' gives no right to 'in/a.jsonl'"),
        (Mood.FORBID, "PUT POST", "objects/out", "The store 'bucket' gives no right to 'out/_temporary/"),
        (Mood.FORBID, "PUT", "objects/out/part", "The store 'bucket' gives no right to 'out/_temporary/"),
        (Mood.FORBID, "POST DELETE", "", "The store 'bucket' gives no right to 'out/_SUCCESS'"),
        (Mood.REFUSE, "PUT POST", "objects/out", "the store 'bucket' failed"),
    ],
)
def test_a_bucket_without_rights_ends_the_run_with_a_sentence(
    house: House, bucket: S3Server, mood: Mood, methods: str, key: str, said: str
) -> None:
    run_id = house.trigger(house.make(steps=[OF_BUCKET]))
    bucket.trouble(mood, methods=methods, key_prefix=key)
    assert said in failed(house, run_id)
    bucket.recover()
    goes_on(house, run_id)
    assert bucket.keys() == ["objects/in/a.jsonl", "objects/out/_SUCCESS", "objects/out/part-00000.jsonl"]


def test_a_bucket_that_is_deleted_ends_the_run_with_a_sentence(house: House, bucket: S3Server) -> None:
    run_id = house.trigger(house.make(steps=[OF_BUCKET]))
    open_store("bucket", bucket.url, bucket_options(bucket), timeout_seconds=5).delete("in/a.jsonl")
    assert bucket.forward("DELETE", f"/{bucket.bucket}", {}, b"")[0] == 204
    assert failed(house, run_id) == StoreAwayError("bucket").message
    bucket.make_bucket()
    bucket.forward("PUT", f"/{bucket.bucket}/objects/in/a.jsonl", {}, b'{"text": "one"}\n')
    goes_on(house, run_id)


def test_a_store_that_is_taken_away_while_a_run_goes_on_ends_it_and_registered_again_it_goes_on(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    with house.maker.begin() as session:
        stores.remove_store(session, house.tenant_id, "results")
    assert re.search("There is no store 'results' for you; there are: documents", failed(house, run_id))
    with house.maker.begin() as session:
        url = f"file://{house.results}"
        stores.add_store(session, house.tenant_id, "results", url, options={}, is_writable=True)
    goes_on(house, run_id)


def test_a_source_that_is_cut_short_or_no_table_ends_the_run_before_anything_is_spent(house: House) -> None:
    (house.documents / "in").mkdir()
    for content, said in [
        (b'{"text": "one"}\n{"text": ', "in/a.jsonl, row 2: it is not JSON"),
        (b"\x1f\x8b\x08\x00cut", "cannot unpack in/a.jsonl"),
        (b'{"text": "caf\xe9"}\n', "in/a.jsonl, row 1: it is not JSON"),
        (b"[1]\n", "in/a.jsonl, row 1: it is not a JSON object"),
    ]:
        (house.documents / "in" / "a.jsonl").write_bytes(content)
        run_id = house.trigger(house.make())
        assert said in failed(house, run_id)
        assert list(house.storage.iter_objects()) == []
        (house.documents / "in" / "a.jsonl").write_bytes(b'{"text": "one"}\n')
        goes_on(house, run_id)
        house.storage = type(house.storage)("memory://")
