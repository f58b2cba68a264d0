"""Tests of many small files in one request: all of them are stored, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from api.files import several

LIMIT = 3000


@pytest.fixture(scope="module")
def small(deploy: Callable[..., Any]) -> Any:
    """A deployment that allows 5 files of 3,000 bytes."""
    return deploy(max_file_bytes=LIMIT, tenant_files=5)


@pytest.fixture
def plain(small: Any) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {small.new_key()}"}
    with httpx.Client(base_url=small.url, headers=headers, timeout=120) as client:
        yield client


def post(client: httpx.Client, contents: list[bytes], **fields: str) -> httpx.Response:
    parts = [("files", (f"{number}.txt", content)) for number, content in enumerate(contents)]
    return client.post("/v1/files/several", data={"purpose": "user_data", **fields}, files=parts)


def test_files_come_back_in_the_order_sent_and_byte_for_byte(plain: httpx.Client) -> None:
    contents = [b"one", b"", b"\r\n--x\r\n\x00\xff", b"x" * LIMIT]
    answer = post(plain, contents)
    files = answer.json()["data"]
    assert answer.status_code == 200
    assert [(file["filename"], file["bytes"]) for file in files] == [
        (f"{number}.txt", len(content)) for number, content in enumerate(contents)
    ]
    assert {file["purpose"] for file in files} == {"user_data"}
    assert [plain.get(f"/v1/files/{file['id']}/content").content for file in files] == contents


def test_a_form_may_be_larger_than_a_body_of_json(http: httpx.Client) -> None:
    answer = post(http, [b"x" * 50_000] * 4)
    assert [file["bytes"] for file in answer.json()["data"]] == [50_000] * 4


def test_they_are_files_like_others(small: Any, plain: httpx.Client) -> None:
    ids = [file["id"] for file in post(plain, [b"a", b"b"]).json()["data"]]
    key = plain.headers["Authorization"].removeprefix("Bearer ")
    with OpenAI(base_url=f"{small.url}/v1", api_key=key) as client:
        assert {file.id for file in client.files.list(purpose="user_data")} == set(ids)
        assert client.files.delete(ids[0]).deleted
        assert [file.id for file in client.files.list()] == ids[1:]


@pytest.mark.parametrize(
    ("contents", "fields", "status", "code", "param"),
    [
        ([b"a"] * 6, {}, 413, "too_many_files", "file"),
        ([b"a", b"x" * (LIMIT + 1), b"b"], {}, 413, "file_too_large", "files"),
        ([b"a"], {"purpose": "batch"}, 400, "invalid_value", "purpose"),
        ([b"a"], {"expires": "1"}, 400, "unknown_parameter", "expires"),
        ([], {"x": "1"}, 400, "invalid_form", None),
    ],
)
def test_a_refusal_leaves_nothing(
    small: Any,
    plain: httpx.Client,
    contents: list[bytes],
    fields: dict[str, str],
    status: int,
    code: str,
    param: str | None,
) -> None:
    before = small.object_names()
    answer = post(plain, contents, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert small.object_names() == before
    assert plain.get("/v1/files").json()["data"] == []


def test_a_form_without_files_or_purpose_is_refused(plain: httpx.Client) -> None:
    one = [("files", ("a.txt", b"a"))]
    none = [("purpose", (None, "user_data"))]
    for parts, param in ((one, "purpose"), (none, "files")):
        answer = plain.post("/v1/files/several", files=parts)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "missing_required_parameter", param)


def test_more_files_or_bytes_than_a_request_may_have_leave_nothing(
    small: Any, plain: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "MAX_FILES", 2)
    monkeypatch.setattr(several, "MAX_BYTES", 2 * LIMIT)
    before = small.object_names()
    for contents, status, code in (([b"a"] * 3, 400, "invalid_value"), ([b"x" * 6000] * 2, 413, "file_too_large")):
        error = post(plain, contents)
        assert (error.status_code, error.json()["error"]["code"]) == (status, code)
        assert small.object_names() == before
    assert len(post(plain, [b"a"] * 2).json()["data"]) == 2


def test_a_form_that_ends_early_leaves_nothing(small: Any, plain: httpx.Client) -> None:
    before = small.object_names()
    part = '--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nabc\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = plain.post("/v1/files/several", content=(part * 3).encode(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    assert small.object_names() == before
