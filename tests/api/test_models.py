"""Tests of models and keys through the official client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from sqlalchemy import delete
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.served_models import put_model, remove_model
from jobs.tables import Worker


def test_models_are_listed_and_found_by_a_name_with_a_slash(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["org/tiny"]
    model = client.models.retrieve("org/tiny")  # sent as org%2Ftiny
    assert (model.id, model.object, model.owned_by) == ("org/tiny", "model", "tokenmill")


def test_a_model_says_how_long_a_context_its_workers_have(client: OpenAI, deployment: Any) -> None:
    def context() -> Any:
        told = [client.models.retrieve("org/tiny"), *client.models.list()]
        return [getattr(model, "max_model_len", "missing") for model in told]

    assert context() == [None, None]
    with Session(deployment.engine) as session, session.begin():
        for worker_id, max_model_len in (("first", 512), ("second", 2048)):
            fleet.register(session, worker_id=worker_id, model="org/tiny", max_chunks=1, max_model_len=max_model_len)
    try:
        assert context() == [2048, 2048]
    finally:
        with Session(deployment.engine) as session, session.begin():
            session.execute(delete(Worker))


def test_a_model_that_no_worker_has_loaded_is_not_there(client: OpenAI, deployment: Any) -> None:
    with Session(deployment.engine) as session, session.begin():
        put_model(session, "org/broken", "/models/broken")
    try:
        assert [model.id for model in client.models.list()] == ["org/tiny"]
        with pytest.raises(openai.NotFoundError, match="'org/broken' does not exist; known are: org/tiny"):
            client.models.retrieve("org/broken")
    finally:
        with Session(deployment.engine) as session, session.begin():
            remove_model(session, "org/broken")


def test_an_unknown_model_is_a_404_that_names_the_known_ones(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="org/tiny") as caught:
        client.models.retrieve("org/huge")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/org/tiny"),
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/file_1"),
        ("DELETE", "/v1/files/file_1"),
        ("GET", "/v1/files/file_1/content"),
        ("GET", "/v1/batches"),
        ("GET", "/v1/batches/batch_1"),
        ("POST", "/v1/batches/batch_1/cancel"),
    ],
)
def test_no_endpoint_answers_without_a_valid_key(http: httpx.Client, method: str, path: str) -> None:
    cases = [
        (None, "missing_api_key"),
        ("Bearer", "invalid_api_key"),
        ("Basic dXNlcjpwYXNz", "invalid_api_key"),
        ("Bearer tm-nobody", "invalid_api_key"),
    ]
    for header, code in cases:
        request = http.build_request(method, path)
        del request.headers["authorization"]
        if header is not None:
            request.headers["authorization"] = header
        answer = http.send(request)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), header
        assert answer.json()["error"]["code"] == code, header
        assert answer.json()["error"]["type"] == "invalid_request_error", header


def test_the_client_raises_its_own_class_for_a_wrong_key(new_client: Callable[..., OpenAI]) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        new_client().with_options(api_key="tm-wrong").models.list()
    assert caught.value.code == "invalid_api_key"
    assert "tm-wrong" not in caught.value.message
