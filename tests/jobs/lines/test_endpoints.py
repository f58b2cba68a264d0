"""Endpoints: what users may submit, what the service alone makes, and what its own lines must say."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import InputError
from jobs.lines.body_checks import BodyError
from jobs.lines.document_bodies import (
    GROUND_ENDPOINT,
    PREPARE_MODEL,
    READ_ENDPOINT,
    AskedLines,
    GroundRequest,
    ReadRequest,
)
from jobs.lines.endpoints import BY_PATH, ENDPOINTS, LineKind, parse_request, require_endpoint

READ = {"model": PREPARE_MODEL, "name": "a.pdf", "file_id": "file_1"}
ASKED: dict[str, Any] = {"batch_id": "batch_1", "first_line": 2, "num_lines": 3}
GROUND: dict[str, Any] = {
    "model": PREPARE_MODEL,
    "object_key": "tenant_1/documents/v/abc.doc",
    "plan_key": "tenant_1/object_1",
    "name": "a.pdf",
    "sha256": "abc",
    "number": 0,
    "first": ASKED,
}


def test_users_may_name_the_public_endpoints_alone() -> None:
    for path in ENDPOINTS:
        require_endpoint(path)
    with pytest.raises(InputError, match=r"'/v1/documents/read', which the service's own batches alone have") as caught:
        require_endpoint(READ_ENDPOINT)
    assert (caught.value.param, caught.value.code) == ("endpoint", "invalid_value")


def test_the_service_may_name_every_endpoint_that_there_is() -> None:
    for path in BY_PATH:
        require_endpoint(path, is_ours=True)
    with pytest.raises(InputError, match=r"Supported are /v1/chat/completions, /v1/completions, /v1/embeddings"):
        require_endpoint("/v1/strangers", is_ours=True)


def test_documents_are_prepared_and_texts_generated() -> None:
    assert {path: endpoint.kind for path, endpoint in BY_PATH.items() if path in (READ_ENDPOINT, GROUND_ENDPOINT)} == {
        READ_ENDPOINT: LineKind.PREPARE,
        GROUND_ENDPOINT: LineKind.PREPARE,
    }
    assert BY_PATH[ENDPOINTS[0]].kind is LineKind.GENERATE


def test_a_document_is_a_file_or_an_object_of_a_store() -> None:
    assert parse_request(READ_ENDPOINT, READ) == ReadRequest(name="a.pdf", file_id="file_1")
    stored = {"name": "a.pdf", "store": "lake", "key": "in/a.pdf", "etag": None}
    assert parse_request(READ_ENDPOINT, stored) == ReadRequest(name="a.pdf", store="lake", key="in/a.pdf")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "a.pdf"}, "file_id"),
        ({"name": "a.pdf", "store": "lake"}, "file_id"),
        (READ | {"store": "lake", "key": "a"}, "file_id"),
        (READ | {"etag": "1"}, "file_id"),
        ({"file_id": "file_1"}, "name"),
        (READ | {"name": 7}, "name"),
        (READ | {"page": 1}, "page"),
    ],
)
def test_a_body_that_names_no_one_document_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BodyError) as caught:
        parse_request(READ_ENDPOINT, body)
    assert caught.value.param == param


def test_a_grounding_line_says_where_the_answers_of_each_round_are() -> None:
    asked = parse_request(GROUND_ENDPOINT, GROUND)
    assert isinstance(asked, GroundRequest)
    where = AskedLines(**ASKED)
    assert (asked.first, asked.again, asked.covered) == (where, (), None)
    again = parse_request(GROUND_ENDPOINT, GROUND | {"again": [ASKED, None], "covered": ASKED})
    assert isinstance(again, GroundRequest)
    assert (again.again, again.covered) == ([where, None], where)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"plan_key": None}, "plan_key"),
        ({"number": -1}, "number"),
        ({"first": []}, "first"),
        ({"first": {}}, "batch_id"),
        ({"first": ASKED | {"num_lines": 0}}, "num_lines"),
        ({"first": ASKED | {"last_line": 4}}, "last_line"),
        ({"again": ASKED}, "again"),
        ({"again": [1]}, "again[0]"),
    ],
)
def test_answers_of_another_shape_are_refused(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BodyError) as caught:
        parse_request(GROUND_ENDPOINT, GROUND | changes)
    assert caught.value.param == param
