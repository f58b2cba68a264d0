"""What a line of `/v1/rerank` may ask for, and what it is estimated at."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.body_checks import MAX_PROMPTS, BodyError
from jobs.lines.endpoints import LineKind, kind_of, parse_request, paths_of
from jobs.lines.input_estimate import InputEstimator
from jobs.lines.rerank_bodies import RERANK_ENDPOINT, RerankRequest

ASKED: dict[str, Any] = {"query": "q", "documents": ["a", "b"]}


def parsed(**body: Any) -> RerankRequest:
    found = parse_request(RERANK_ENDPOINT, {"model": "m"} | body)
    assert isinstance(found, RerankRequest)
    return found


def test_documents_are_texts_or_objects_with_one() -> None:
    assert parsed(query="q", documents=["a", {"text": "b"}, ""]).documents == ("a", "b", "")


def test_what_is_not_given_is_all_documents_with_their_texts() -> None:
    assert parsed(**ASKED, top_n=None, user="u") == RerankRequest(query="q", documents=("a", "b"))
    asked = parsed(**ASKED, top_n=1, return_documents=False)
    assert (asked.top_n, asked.return_documents) == (1, False)
    assert kind_of(RERANK_ENDPOINT) is LineKind.RERANK
    assert paths_of(LineKind.RERANK) == (RERANK_ENDPOINT,)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"query": None}, "query", "query is missing; give the text to look for"),
        ({"documents": None}, "documents", "documents is missing; give a list of texts"),
        ({"query": " \n"}, "query", "query has no words"),
        ({"query": ["q"]}, "query", "a string"),
        ({"documents": []}, "documents", "documents is []; it must be at least one document"),
        ({"documents": "a"}, "documents", 'a list of strings or of {"text": …}'),
        ({"documents": ["a", 5]}, "documents[1]", 'documents[1] is 5; it must be a string or {"text": …}'),
        ({"documents": [{"text": None}]}, "documents[0].text", "documents[0].text is null"),
        ({"documents": [{"text": "a", "title": "b"}]}, "documents[0].title", "is not a field of documents[0]"),
        ({"documents": ["a"] * (MAX_PROMPTS + 1)}, "documents", "documents holds 2049 texts; 2048 are allowed"),
        ({"top_n": 0}, "top_n", "a whole number from 1"),
        ({"return_documents": "yes"}, "return_documents", "true or false"),
        ({"max_tokens": 5}, "max_tokens", "max_tokens is not a parameter of this endpoint"),
    ],
)
def test_a_wrong_body_is_refused_by_its_parameter(body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(BodyError) as caught:
        parsed(**ASKED | body)
    assert caught.value.param == param
    assert message in str(caught.value)


def test_an_estimate_counts_the_query_with_each_document_and_no_output() -> None:
    estimator = InputEstimator(default_max_tokens=100)
    estimator.feed(b'{"body": {"model": "m", "query": "1234", "documents": ["12345678", {"text": "1234"}]}}\n')
    found = estimator.finish()
    assert (found.estimated_input_tokens, found.estimated_output_tokens) == (2 + 1 + 2 * (1 + 8), 0)


def test_an_estimate_of_what_cannot_be_read_is_by_its_bytes() -> None:
    estimator = InputEstimator(default_max_tokens=100)
    line = b'{"body": {"model": "m", "documents": [7]}}'
    estimator.feed(line + b"\n")
    found = estimator.finish()
    assert (found.num_requests, found.estimated_input_tokens) == (1, -(-len(line) // 4))
