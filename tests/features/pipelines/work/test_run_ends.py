"""Tests of stores that refuse, break or fill up: the run ends with a code and names; after repair it continues."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any

import pytest
from sqlalchemy import select

from features.pipelines import lifecycle, publishing, stores
from features.pipelines.external import folder
from features.pipelines.external.opening import open_store
from features.pipelines.states import RunState
from features.pipelines.tables import Run
from jobs.errors import StoreAwayError
from jobs.tables import Batch
from lab.s3_server import Mood, S3Server
from tests.features.pipelines.bucket_options import bucket_options
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


def failed(house: House, run_id: str) -> Run:
    """Return a run that has failed, with one sentence as its reason."""
    run = house.finish(run_id)
    assert run.state == RunState.FAILED
    reason = run.reason or ""
    assert "\n" not in reason
    assert "Traceback" not in reason
    assert "an unexpected error" not in reason
    assert "127.0.0.1" not in reason, "tenants see the names of stores alone"
    return run


def check_names(run: Run, beginnings: Sequence[str]) -> None:
    """Check which stores and files a reason quotes, by their beginnings: those of unfinished files are random."""
    quoted = re.findall("'([^']*)'", run.reason or "")
    assert len(quoted) == len(beginnings), run.reason
    assert all(map(str.startswith, quoted, beginnings)), run.reason


def goes_on(house: House, run_id: str) -> None:
    """Resume a run, and check that it ends as if nothing had happened."""
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run_id)
    run = house.finish(run_id)
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)


REFUSED, MISSING = "store_refused", "store_missing"
FULL = {errno.ENOSPC, errno.EDQUOT}


@pytest.mark.parametrize(
    ("call", "error", "only", "code", "names"),
    [
        ("scandir", errno.EACCES, "", REFUSED, ["documents", "in/"]),
        ("scandir", errno.EIO, "", None, ["documents"]),
        ("stat", errno.EIO, "a.jsonl", None, ["documents"]),
        ("open", errno.EACCES, "a.jsonl", REFUSED, ["documents", "in/a.jsonl"]),
        ("open", errno.ENOENT, "a.jsonl", MISSING, ["in/a.jsonl", "documents"]),
        ("open", errno.EACCES, ".part", REFUSED, ["results", "out/_temporary/"]),
        ("open", errno.ENOSPC, ".part", None, ["results"]),
        ("fdopen", errno.ENOSPC, "", None, ["results"]),
        ("fdopen", errno.EDQUOT, "", None, ["results"]),
        ("fsync", errno.ENOSPC, "", None, ["results"]),
        ("mkdir", errno.EROFS, "_temporary", None, ["results"]),
        ("rename", errno.EACCES, "", REFUSED, ["results", "out/"]),
        ("unlink", errno.EACCES, "_SUCCESS", REFUSED, ["results", "out/_SUCCESS"]),
    ],
)
def test_a_folder_that_refuses_or_fails_ends_the_run_with_its_name(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: int,
    only: str,
    code: str | None,
    names: Sequence[str],
) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    run_id = house.trigger(house.make())
    with monkeypatch.context() as patch:
        patch.setattr(folder, "os", BrokenSystem(call, error, only=only))
        run = failed(house, run_id)
    assert run.error_code == code
    check_names(run, names)
    is_cause_shown = os.strerror(error) in (run.reason or "")
    assert is_cause_shown == (code is None and error not in FULL)
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
        assert os.strerror(errno.ENOSPC) in (failed(house, run_id).reason or "")
    goes_on(house, run_id)


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
    ("mood", "methods", "key", "code", "names"),
    [
        (Mood.FORBID, "GET", "", REFUSED, ["bucket", "in/"]),
        (Mood.FORBID, "GET", "objects/in/a", REFUSED, ["bucket", "in/a.jsonl"]),
        (Mood.FORBID, "PUT POST", "objects/out", REFUSED, ["bucket", "out/_temporary/"]),
        (Mood.FORBID, "PUT", "objects/out/part", REFUSED, ["bucket", "out/_temporary/"]),
        (Mood.FORBID, "POST DELETE", "", REFUSED, ["bucket", "out/_SUCCESS"]),
        (Mood.REFUSE, "PUT POST", "objects/out", None, ["bucket"]),
    ],
)
def test_a_bucket_without_rights_ends_the_run_with_its_name(
    house: House, bucket: S3Server, mood: Mood, methods: str, key: str, code: str | None, names: Sequence[str]
) -> None:
    run_id = house.trigger(house.make(steps=[OF_BUCKET]))
    bucket.trouble(mood, methods=methods, key_prefix=key)
    run = failed(house, run_id)
    assert run.error_code == code
    check_names(run, names)
    bucket.recover()
    goes_on(house, run_id)
    assert bucket.keys() == ["objects/in/a.jsonl", "objects/out/_SUCCESS", "objects/out/part-00000.jsonl"]


def test_a_bucket_that_is_deleted_ends_the_run_with_its_name(house: House, bucket: S3Server) -> None:
    run_id = house.trigger(house.make(steps=[OF_BUCKET]))
    open_store("bucket", bucket.url, bucket_options(bucket), timeout_seconds=5).delete("in/a.jsonl")
    assert bucket.forward("DELETE", f"/{bucket.bucket}", {}, b"")[0] == 204
    run = failed(house, run_id)
    assert (run.error_code, run.reason) == (None, StoreAwayError("bucket").message)
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
    run = failed(house, run_id)
    check_names(run, ["results"])
    assert "documents" in (run.reason or ""), "the stores that there are"
    with house.maker.begin() as session:
        url = f"file://{house.results}"
        stores.add_store(session, house.tenant_id, "results", url, options={}, is_writable=True)
    goes_on(house, run_id)


def test_a_source_that_is_cut_short_or_no_table_ends_the_run_before_anything_is_spent(house: House) -> None:
    (house.documents / "in").mkdir()
    for content, place in [
        (b'{"text": "one"}\n{"text": ', "in/a.jsonl, row 2"),
        (b"\x1f\x8b\x08\x00cut", "in/a.jsonl"),
        (b'{"text": "caf\xe9"}\n', "in/a.jsonl, row 1"),
        (b"[1]\n", "in/a.jsonl, row 1"),
    ]:
        (house.documents / "in" / "a.jsonl").write_bytes(content)
        run_id = house.trigger(house.make())
        run = failed(house, run_id)
        assert run.error_code == ("invalid_source" if "row" in place else "invalid_request")
        assert place in (run.reason or "")
        assert list(house.storage.iter_objects()) == []
        (house.documents / "in" / "a.jsonl").write_bytes(b'{"text": "one"}\n')
        goes_on(house, run_id)
        house.storage = type(house.storage)("memory://")
