"""Tests of files through the official client: every call, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import httpx
import openai
import pytest
from obstore.exceptions import GenericError
from openai import OpenAI
from openai.types import FileObject, FilePurpose
from openai.types.file_create_params import ExpiresAfter

DAY = 86_400


def test_an_uploaded_file_is_described_and_comes_back_byte_for_byte(client: OpenAI) -> None:
    content = b'\xef\xbb\xbf{"custom_id": "a"}\r\n\r\n{"b": 1}'
    file = client.files.create(file=("my input.jsonl", content), purpose="batch")
    assert (file.object, file.bytes, file.filename) == ("file", len(content), "my input.jsonl")
    assert (file.purpose, file.status, file.expires_at) == ("batch", "processed", None)
    assert file._request_id is not None
    assert file._request_id.startswith("req_")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content


def test_an_empty_file_can_be_stored(client: OpenAI) -> None:
    file = client.files.create(file=("empty.jsonl", b""), purpose="batch")
    assert file.bytes == 0
    assert client.files.content(file.id).read() == b""


def test_a_file_expires_when_it_was_told_to(client: OpenAI) -> None:
    expiry: ExpiresAfter = {"anchor": "created_at", "seconds": DAY}
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch", expires_after=expiry)
    assert file.expires_at == file.created_at + DAY


@pytest.mark.parametrize("seconds", [3599, 2_592_001])
def test_an_expiry_out_of_range_is_refused_with_the_range(client: OpenAI, seconds: int) -> None:
    with pytest.raises(openai.BadRequestError, match="3600 to 2592000") as caught:
        client.files.create(
            file=("in.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": seconds}
        )
    assert (caught.value.param, caught.value.code) == ("expires_after[seconds]", "invalid_value")


def test_a_purpose_we_do_not_serve_is_refused_with_the_list(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="batch and user_data") as caught:
        client.files.create(file=("in.jsonl", b"{}"), purpose="fine-tune")
    assert (caught.value.param, caught.value.code) == ("purpose", "invalid_value")


def test_the_client_pages_through_all_files_in_both_orders(client: OpenAI) -> None:
    made = [client.files.create(file=(f"{n}.jsonl", b"{}"), purpose="batch").id for n in range(5)]
    client.files.create(file=("notes.txt", b"x"), purpose="user_data")
    oldest_first = client.files.list(limit=2, order="asc", purpose="batch")
    assert oldest_first.has_more
    assert [file.id for file in oldest_first] == made
    assert [file.id for file in client.files.list(limit=2, purpose="batch")] == made[::-1]
    assert len(list(client.files.list())) == 6


@pytest.mark.parametrize(
    "purpose", sorted({*get_args(FilePurpose), *get_args(FileObject.model_fields["purpose"].annotation)})
)
def test_files_of_every_purpose_that_the_client_knows_can_be_asked_for(client: OpenAI, purpose: str) -> None:
    made = {kind: client.files.create(file=("in.jsonl", b"{}"), purpose=kind).id for kind in ("batch", "user_data")}
    page = client.files.list(purpose=purpose)
    assert [file.id for file in page] == ([made[purpose]] if purpose in made else [])
    assert not page.has_more


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"limit": 0}, "limit", "invalid_value"),
        ({"limit": 10_001}, "limit", "invalid_value"),
        ({"order": "sideways"}, "order", "invalid_value"),
        ({"purpose": "nonsense"}, "purpose", "invalid_value"),
        ({"after": "file-nowhere"}, "after", "invalid_value"),
        ({"page": 2}, "page", "unknown_parameter"),
    ],
)
def test_a_wrong_list_query_is_refused_by_name(client: OpenAI, query: dict[str, object], param: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.list(extra_query=query)
    assert (caught.value.param, caught.value.code) == (param, code)
    if param == "limit":
        bound = 1 if query["limit"] == 0 else 10_000
        assert str(bound) in caught.value.message


def test_a_deleted_file_is_gone_with_its_content(client: OpenAI, stored_objects: Callable[[], set[str]]) -> None:
    before = stored_objects()
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    assert len(stored_objects() - before) == 1
    assert client.files.delete(file.id).deleted is True
    for call in (client.files.retrieve, client.files.delete, client.files.content):
        with pytest.raises(openai.NotFoundError) as caught:
            call(file.id)
        assert caught.value.code == "not_found"
    assert stored_objects() == before


def test_a_tenant_never_sees_the_files_of_another(client: OpenAI, new_client: Callable[..., OpenAI]) -> None:
    file, other = client.files.create(file=("in.jsonl", b"{}"), purpose="batch"), new_client()
    for call in (other.files.retrieve, other.files.delete, other.files.content):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    assert other.files.list().data == []
    with pytest.raises(openai.BadRequestError):
        other.files.list(after=file.id)
    assert client.files.retrieve(file.id) == file


@pytest.mark.parametrize(
    ("wanted", "part", "content_range"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
    ],
)
def test_a_range_of_the_content_is_served(client: OpenAI, wanted: str, part: bytes, content_range: str) -> None:
    file = client.files.create(file=("in.jsonl", b"0123456789"), purpose="batch")
    answer = client.files.with_raw_response.content(file.id, extra_headers={"range": wanted})
    assert (answer.http_response.status_code, answer.content) == (206, part)
    assert answer.headers["content-range"] == content_range
    assert answer.headers["content-length"] == str(len(part))


def test_a_range_behind_the_end_is_a_416_that_names_the_size(client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", b"0123456789"), purpose="batch")
    with pytest.raises(openai.APIStatusError) as caught:
        client.files.content(file.id, extra_headers={"range": "bytes=10-"})
    assert (caught.value.status_code, caught.value.code) == (416, "invalid_range")
    assert caught.value.response.headers["content-range"] == "bytes */10"


def test_a_part_of_another_object_is_not_mixed_in(client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", b"0123456789"), purpose="batch")
    etag = client.files.with_raw_response.content(file.id).headers["etag"]
    for only_if, part in [(etag, b"789"), ('"file_other"', b"0123456789")]:
        assert client.files.content(file.id, extra_headers={"range": "bytes=7-", "if-range": only_if}).read() == part


def test_a_file_whose_object_is_lost_is_a_503_and_no_broken_download(
    client: OpenAI, deployment: Any, stored_objects: Callable[[], set[str]]
) -> None:
    before = stored_objects()
    file = client.files.create(file=("in.jsonl", b"0123456789"), purpose="batch")
    (lost,) = stored_objects() - before
    (deployment.objects / lost).unlink()
    with pytest.raises(openai.InternalServerError) as caught:
        client.files.content(file.id)
    assert (caught.value.status_code, caught.value.code) == (503, "service_unavailable")
    assert lost not in caught.value.message


def test_an_upload_to_a_full_store_says_so_and_leaves_nothing(
    client: OpenAI, stored_objects: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GenericError("Unable to copy data to file: No space left on device (os error 28)")

    before, listed = stored_objects(), len(client.files.list().data)
    monkeypatch.setattr("jobs.storage.object_writer.obstore.put", refuse)
    with pytest.raises(openai.InternalServerError, match="object store is full, and nothing") as caught:
        client.with_options(max_retries=0).files.create(file=("in.jsonl", b"{}"), purpose="batch")
    assert (caught.value.status_code, caught.value.code) == (503, "storage_full")
    assert (stored_objects(), len(client.files.list().data)) == (before, listed)


def test_a_download_carries_the_name_of_the_file(client: OpenAI) -> None:
    file = client.files.create(file=('é "x".jsonl', b"{}"), purpose="batch")
    assert file.filename == 'é "x".jsonl'
    disposition = client.files.content(file.id).response.headers["content-disposition"]
    assert disposition == "attachment; filename*=UTF-8''%C3%A9%20%22x%22.jsonl"


def test_a_form_without_a_file_or_purpose_is_refused_by_name(http: httpx.Client) -> None:
    forms: list[tuple[dict[str, Any], str]] = [({"purpose": (None, "batch")}, "file"), ({"file": b"{}"}, "purpose")]
    for form, missing in forms:
        answer = http.post("/v1/files", files=form)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == missing
        assert answer.json()["error"]["code"] == "missing_required_parameter"
    answer = http.post("/v1/files", json={"purpose": "batch"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")


def test_fields_after_the_file_are_accepted(http: httpx.Client) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{"a": 1}\r\n'
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    )
    answer = http.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    assert (answer.status_code, json.loads(answer.text)["bytes"]) == (200, 8)


def test_a_tenants_room_is_refused_before_and_after_the_upload_and_leaves_nothing(deploy: Callable[..., Any]) -> None:
    deployment = deploy(tenant_stored_bytes=100, tenant_files=2)
    with OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.new_key(), max_retries=0) as client:
        for size in (60, 40):
            with pytest.raises(openai.APIStatusError) as caught:
                client.files.create(file=("a.bin", bytes(101)), purpose="user_data")
            assert (caught.value.status_code, caught.value.code) == (413, "stored_bytes_exceeded")
            client.files.create(file=("a.bin", bytes(size)), purpose="user_data")
        with pytest.raises(openai.APIStatusError) as caught:
            client.files.create(file=("a.bin", b""), purpose="user_data")
        assert (caught.value.status_code, caught.value.code) == (413, "too_many_files")
        assert "You keep 2 files and 2 are allowed" in caught.value.message
        assert len(deployment.object_names()) == 2
