"""Tests of what a server is, by what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import InputError, ServiceError
from tests.workers.remote.fake_server import FakeServer
from workers.remote.checks import first_check
from workers.remote.dialects import LLAMA_CPP_PYTHON, LLAMA_SERVER, LM_STUDIO, OLLAMA, OTHER, SGLANG, VLLM, Dialect
from workers.remote.exchange import Address
from workers.remote.identity import api_url, identify

SERVERS: list[tuple[Dialect, dict[str, Any], dict[str, Any], tuple[str | None, int | None, int | None]]] = [
    (VLLM, {"owned_by": "vllm", "max_model_len": 512}, {"/version": {"version": "0.32.0"}}, ("0.32.0", 512, None)),
    (
        SGLANG,
        {"owned_by": "sglang", "max_model_len": 512},
        {"/get_server_info": {"version": "0.5.23"}},
        ("0.5.23", 512, None),
    ),
    (
        LLAMA_SERVER,
        {"owned_by": "llamacpp", "meta": {"n_ctx_train": 2048}},
        {"/props": {"build_info": "b9", "total_slots": 3, "default_generation_settings": {"n_ctx": 1024}}},
        ("b9", 1024, 3),
    ),
    (OLLAMA, {"owned_by": "library"}, {"/api/version": {"version": "0.9"}}, ("0.9", None, None)),
    (
        LM_STUDIO,
        {},
        {"/api/v0/models": {"data": [{"id": "served", "max_context_length": 4096}]}},
        (None, 4096, None),
    ),
    (
        LLAMA_CPP_PYTHON,
        {"owned_by": "me"},
        {"/openapi.json": {"info": {"title": "llama.cpp Python API", "version": "0.3"}}},
        ("0.3", None, None),
    ),
    (OTHER, {"owned_by": "x"}, {"/props": ["odd"], "/api/version": {"version": 7}}, (None, None, None)),
]


@pytest.mark.parametrize(("dialect", "model", "others", "facts"), SERVERS, ids=lambda one: getattr(one, "kind", ""))
def test_a_server_is_known_by_its_paths(
    server: FakeServer, dialect: Dialect, model: dict[str, Any], others: dict[str, Any], facts: tuple[Any, ...]
) -> None:
    server.models = [{"id": "served"} | model]
    server.others = others
    found = identify(Address(url=server.url), named=None, served=None)
    assert found.dialect is dialect
    assert (found.version, found.max_model_len, found.num_slots) == facts


def test_the_model_is_the_named_one_or_that_of_the_same_name_or_the_only_one(server: FakeServer) -> None:
    address = Address(url=server.url)
    assert identify(address, named=None, served="other").model == "served"
    server.models = [{"id": "a"}, {"id": "b"}]
    assert identify(address, named=None, served="b").model == "b"
    assert identify(address, named="a", served="b").model == "a"
    for named, served in (("c", None), (None, None), (None, "c")):
        with pytest.raises(InputError, match="a, b"):
            identify(address, named=named, served=served)


def test_a_server_that_does_not_answer_is_a_sentence(server: FakeServer) -> None:
    server.stop_listening()
    with pytest.raises(ServiceError, match="cannot be reached"):
        identify(Address(url=server.url), named=None, served=None)
    server.listen_again()


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("https://h/openai/v1", "https://h/openai/v1"),
        ("https://h/models", "https://h/models/v1"),
    ],
)
def test_an_address_may_be_given_with_or_without_its_version(url: str, api: str) -> None:
    assert api_url(url) == api


@pytest.mark.parametrize("url", ["h:8000", "ftp://h", "http://", "http://me:secret@h", "http://h/v1?key=secret"])
def test_an_address_that_is_none_or_shows_a_secret_is_refused(url: str) -> None:
    with pytest.raises(InputError) as error:
        api_url(url)
    assert "secret" not in str(error.value)


def test_a_plain_request_is_asked_first_and_tells_the_name_in_answers(server: FakeServer) -> None:
    identity = identify(Address(url=server.url), named=None, served=None)
    check, name = first_check(Address(url=server.url), identity, has_tokenizer=False)
    assert (check.path, name, check.expected.answers_as) == ("chat/completions", "served", "served")


def test_an_adapter_has_the_context_of_its_base_model(server: FakeServer) -> None:
    base = {"id": "base", "owned_by": "vllm", "max_model_len": 512}
    server.models = [base, {"id": "poems", "owned_by": "vllm", "parent": "base", "max_model_len": None}]
    identity = identify(Address(url=server.url), named="poems", served="poems")
    assert (identity.model, identity.max_model_len) == ("poems", 512)


def test_a_server_that_counts_nothing_needs_a_tokenizer(server: FakeServer) -> None:
    address = Address(url=server.url)
    identity = identify(address, named=None, served=None)
    server.behaviours["uncounted"] = server.behaviours["no-usage"]
    server.default = "uncounted"
    with pytest.raises(InputError, match="--tokenizer"):
        first_check(address, identity, has_tokenizer=False)
    assert first_check(address, identity, has_tokenizer=True)[1] == "served"


@pytest.mark.parametrize("refusal", ["400", "404"])
def test_a_model_without_chats_is_checked_by_a_completion_and_one_that_refuses_all_is_named(
    refusal: str, server: FakeServer
) -> None:
    address = Address(url=server.url)
    identity = identify(address, named=None, served=None)

    async def only_completions(request: Any) -> None:
        await server.behaviours[refusal if "messages" in request.body else "no-usage"](request)

    server.behaviours["only-completions"] = only_completions
    server.default = "only-completions"
    assert first_check(address, identity, has_tokenizer=True)[0].path == "completions"
    server.default = "400"
    with pytest.raises(InputError, match="top_k is wrong"):
        first_check(address, identity, has_tokenizer=True)
