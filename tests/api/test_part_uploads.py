"""Tests of files uploaded in parts, through the official client: in any order, concurrently, and only once per file."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Upload
from sqlalchemy import update
from sqlalchemy.orm import Session

from jobs import file_room, tables
from jobs.accounts.keys import authenticate, create_key
from jobs.accounts.limits import set_limits
from jobs.accounts.tenants import create_tenant
from jobs.database import connect, sessions
from jobs.retention.purging import purge_uploads
from jobs.storage import Storage
from jobs.uploads import records

MIB = 1024 * 1024


def begin(client: OpenAI, content: bytes, *, purpose: Any = "batch", **fields: Any) -> Upload:
    return client.uploads.create(
        bytes=len(content), filename="in.jsonl", mime_type="text/jsonl", purpose=purpose, **fields
    )


def cut(content: bytes, count: int) -> list[bytes]:
    """Cut content into parts of several sizes, through its lines."""
    places = sorted(random.Random(count).sample(range(1, len(content)), count - 1))
    return [content[start:end] for start, end in zip([0, *places], [*places, len(content)], strict=True)]


def send(client: OpenAI, upload: Upload, parts: list[bytes]) -> list[str]:
    return [client.uploads.parts.create(upload.id, data=part).id for part in parts]


def looked_at(client: OpenAI, upload_id: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/uploads/{upload_id}", cast_to=dict[str, Any])
    return found


def row_of(deployment: Any, file_id: str) -> tables.File:
    with Session(deployment.engine) as session:
        return session.get_one(tables.File, file_id)


def refusal(call: Callable[[], object]) -> tuple[int, str | None, str | None]:
    with pytest.raises(openai.APIStatusError) as caught:
        call()
    return caught.value.status_code, caught.value.code, caught.value.param


def purge(deployment: Any) -> int:
    return purge_uploads(sessions(deployment.engine), Storage.of(deployment.settings))


@pytest.fixture
def content(input_lines: Callable[..., bytes]) -> bytes:
    return input_lines(200)


def test_the_clients_own_chunked_upload_gives_the_file(
    client: OpenAI, content: bytes, tmp_path: Path, deployment: Any
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    digest = hashlib.md5(content).hexdigest()
    done = client.uploads.upload_file_chunked(
        file=path, mime_type="text/jsonl", purpose="batch", part_size=len(content) // 3, md5=digest
    )
    assert (done.status, done.object, done.bytes, done.filename) == ("completed", "upload", len(content), "in.jsonl")
    assert done.file is not None
    assert client.files.content(done.file.id).read() == content
    whole = client.files.create(file=("in.jsonl", content), purpose="batch")
    counted = [
        (row.num_requests, row.estimated_input_tokens, row.estimated_output_tokens)
        for row in (row_of(deployment, file_id) for file_id in (done.file.id, whole.id))
    ]
    assert counted[0] == counted[1]
    assert counted[0][0] == 200


def test_parts_come_in_any_order_and_beside_one_another(client: OpenAI, content: bytes, deployment: Any) -> None:
    upload, parts = begin(client, content), cut(content, 9)
    assert (upload.status, upload.file, upload.purpose) == ("pending", None, "batch")
    assert upload.expires_at - upload.created_at == 3600
    shuffled = random.Random(1).sample(range(9), 9)
    with ThreadPoolExecutor(4) as threads:
        ids = dict(zip(shuffled, threads.map(lambda at: send(client, upload, [parts[at]])[0], shuffled), strict=True))
    done = client.uploads.complete(upload.id, part_ids=[ids[at] for at in range(9)])
    assert done.file is not None
    assert client.files.content(done.file.id).read() == content
    assert row_of(deployment, done.file.id).num_requests == 200


def test_a_part_is_the_clients_part_and_is_listed_with_its_checksum(client: OpenAI, content: bytes) -> None:
    upload, parts = begin(client, content), cut(content, 2)
    first = client.uploads.parts.create(upload.id, data=parts[0])
    assert (first.object, first.upload_id) == ("upload.part", upload.id)
    found = looked_at(client, upload.id)
    assert [(part["id"], part["bytes"], part["md5"]) for part in found["parts"]] == [
        (first.id, len(parts[0]), hashlib.md5(parts[0]).hexdigest())
    ]
    assert (found["status"], found["file"]) == ("pending", None)


def test_a_completed_upload_leaves_the_file_alone(
    client: OpenAI, content: bytes, deployment: Any, stored_objects: Callable[[], set[str]]
) -> None:
    purge(deployment)
    before = stored_objects()
    upload = begin(client, content)
    done = client.uploads.complete(upload.id, part_ids=send(client, upload, cut(content, 3)))
    assert done.file is not None
    purge(deployment)
    assert stored_objects() - before == {row_of(deployment, done.file.id).object_key}
    found = looked_at(client, upload.id)
    assert (found["status"], found["file"]["id"], found["parts"]) == ("completed", done.file.id, [])


def test_a_single_part_is_the_file_without_a_copy(
    client: OpenAI, content: bytes, deployment: Any, stored_objects: Callable[[], set[str]]
) -> None:
    purge(deployment)
    before = stored_objects()
    upload = begin(client, content)
    (part_id,) = send(client, upload, [content])
    (key,) = stored_objects() - before
    digest = hashlib.md5(content).hexdigest()
    done = client.uploads.complete(upload.id, part_ids=[part_id], md5=digest.upper())
    purge(deployment)
    assert done.file is not None
    assert stored_objects() - before == {key}
    assert client.files.content(done.file.id).read() == content


def test_a_completion_that_is_sent_again_gives_the_same_file(client: OpenAI, content: bytes) -> None:
    upload = begin(client, content)
    ids = send(client, upload, cut(content, 3))
    first, again = (client.uploads.complete(upload.id, part_ids=ids) for _ in range(2))
    assert first == again
    assert refusal(lambda: client.uploads.complete(upload.id, part_ids=ids[:2]))[:2] == (400, "upload_not_pending")


def test_completions_at_once_give_one_file(client: OpenAI, content: bytes) -> None:
    upload = begin(client, content)
    ids = send(client, upload, cut(content, 5))
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: client.uploads.complete(upload.id, part_ids=ids), range(4)))
    assert len({one.file.id for one in done if one.file}) == 1
    assert len(client.files.list().data) == 1


def test_what_is_not_the_whole_file_is_refused_and_can_be_mended(client: OpenAI, content: bytes) -> None:
    upload = begin(client, content)
    ids = send(client, upload, cut(content, 3))
    for part_ids in (ids[:2], [*ids[:2], ids[0]], [*ids, "part_none"]):
        complete = partial(client.uploads.complete, upload.id, part_ids=part_ids)
        assert refusal(complete) == (400, "invalid_value", "part_ids")
    digest = hashlib.md5(content).hexdigest()
    swapped = [ids[1], ids[0], ids[2]]
    assert refusal(lambda: client.uploads.complete(upload.id, part_ids=swapped, md5=digest)) == (
        400, "md5_mismatch", "md5",
    )  # fmt: skip
    assert refusal(lambda: client.uploads.complete(upload.id, part_ids=ids, md5="abc"))[2] == "md5"
    assert client.uploads.complete(upload.id, part_ids=ids, md5=digest).status == "completed"


def test_a_cancelled_upload_frees_its_parts_and_takes_no_more(
    client: OpenAI, content: bytes, deployment: Any, stored_objects: Callable[[], set[str]]
) -> None:
    purge(deployment)
    before = stored_objects()
    upload = begin(client, content)
    ids = send(client, upload, cut(content, 3))
    assert [client.uploads.cancel(upload.id).status for _ in range(2)] == ["cancelled", "cancelled"]
    assert looked_at(client, upload.id)["parts"] == []
    purge(deployment)
    assert stored_objects() == before
    assert refusal(lambda: send(client, upload, [b"x"]))[:2] == (400, "upload_not_pending")
    assert refusal(lambda: client.uploads.complete(upload.id, part_ids=ids))[:2] == (400, "upload_not_pending")


def test_an_upload_expires_an_hour_after_its_newest_part(client: OpenAI, content: bytes, deployment: Any) -> None:
    upload = begin(client, content)
    _age(deployment, upload.id, timedelta(minutes=59))
    send(client, upload, [content])
    _age(deployment, upload.id, timedelta(minutes=59))
    assert looked_at(client, upload.id)["status"] == "pending"
    _age(deployment, upload.id, timedelta(minutes=2))
    found = looked_at(client, upload.id)
    assert (found["status"], found["parts"]) == ("expired", [])
    assert refusal(lambda: send(client, upload, [b"x"]))[:2] == (400, "upload_not_pending")


def _age(deployment: Any, upload_id: str, age: timedelta) -> None:
    with Session(deployment.engine) as session, session.begin():
        older = {"expires_at": tables.Upload.expires_at - age}
        session.execute(update(tables.Upload).where(tables.Upload.id == upload_id).values(older))


def test_parts_count_against_what_a_tenant_may_keep_until_they_are_a_file(
    client: OpenAI, content: bytes, deployment: Any
) -> None:
    with Session(deployment.engine) as session, session.begin():
        tenant_id = authenticate(session, client.api_key).owner().id
        set_limits(session, tenant_id, {"stored_bytes": 2 * len(content), "files": 2})
    upload = begin(client, content)
    ids = send(client, upload, cut(content, 2))
    second = begin(client, content)
    assert refusal(lambda: begin(client, b"x"))[:2] == (413, "too_many_files")
    send(client, second, [content[1:]])
    assert refusal(lambda: send(client, second, [b"xy"]))[:2] == (413, "stored_bytes_exceeded")
    client.uploads.complete(upload.id, part_ids=ids)
    client.uploads.cancel(second.id)
    with Session(deployment.engine) as session:
        assert file_room.kept_files(session, tenant_id) == (1, len(content))


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"bytes": 0}, 400, "bytes"),
        ({"bytes": 9 * 1024 * MIB}, 413, "bytes"),
        ({"purpose": "vision"}, 400, "purpose"),
        ({"filename": "a\nb"}, 400, "filename"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "expires_after.seconds"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_a_wrong_upload_is_refused_by_name(client: OpenAI, fields: dict[str, Any], status: int, param: str) -> None:
    body = {"bytes": 5, "filename": "a", "mime_type": "text/plain", "purpose": "batch"} | fields
    assert refusal(lambda: client.post("/uploads", cast_to=Upload, body=body))[::2] == (status, param)


def test_a_part_over_the_limit_and_an_empty_one_are_refused(http: httpx.Client, client: OpenAI) -> None:
    upload = begin(client, b"x" * 10)
    too_long = refusal(lambda: send(client, upload, [b"x" * (records.MAX_PART_BYTES + 1)]))
    assert too_long == (413, "part_too_large", "data")
    assert refusal(lambda: send(client, upload, [b""]))[2] == "data"
    assert looked_at(client, upload.id)["parts"] == []


def test_another_tenants_upload_is_not_found(client: OpenAI, new_client: Callable[..., OpenAI], content: bytes) -> None:
    upload, other = begin(client, content), new_client()
    ids = send(client, upload, [content])
    calls: list[Callable[[], object]] = [
        lambda: looked_at(other, upload.id),
        lambda: send(other, upload, [b"x"]),
        lambda: other.uploads.cancel(upload.id),
        lambda: other.uploads.complete(upload.id, part_ids=ids),
    ]
    assert [refusal(call)[0] for call in calls] == [404] * 4


def test_the_file_expires_as_the_upload_said(client: OpenAI, content: bytes) -> None:
    upload = begin(client, content, purpose="user_data", expires_after={"anchor": "created_at", "seconds": 7200})
    done = client.uploads.complete(upload.id, part_ids=send(client, upload, cut(content, 2)))
    assert done.file is not None
    assert done.file.expires_at == done.file.created_at + 7200
    assert done.file.purpose == "user_data"


def test_parts_in_an_s3_become_one_object(
    s3: Any, database_url: str, serve: Callable[..., str], content: bytes
) -> None:
    url = serve(database_url=database_url, storage_url=s3.url)
    with _tenant_of(database_url, url) as client:
        upload = begin(client, content)
        done = client.uploads.complete(upload.id, part_ids=send(client, upload, cut(content, 4)))
        assert done.file is not None
        assert client.files.content(done.file.id).read() == content


def _tenant_of(database_url: str, url: str) -> OpenAI:
    engine = connect(database_url)
    with Session(engine) as session, session.begin():
        key = create_key(session, create_tenant(session, "acme").id)[1]
    engine.dispose()
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
