"""What a line of embeddings may ask for, and what it is answered with."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.body_checks import MAX_PROMPTS, BodyError
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT, EmbeddingRequest, Encoding
from jobs.lines.endpoints import LineKind, kind_of, parse_request
from jobs.lines.input_estimate import InputEstimator


def parsed(**body: Any) -> EmbeddingRequest:
    found = parse_request(EMBEDDING_ENDPOINT, {"model": "m"} | body)
    assert isinstance(found, EmbeddingRequest)
    return found


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a text", ("a text",)),
        (["a", "b"], ("a", "b")),
        ([5, 6], ((5, 6),)),
        ([[5, 6], [7]], ((5, 6), (7,))),
    ],
)
def test_an_input_is_a_text_or_token_ids_or_several(given: Any, inputs: tuple[Any, ...]) -> None:
    assert parsed(input=given).inputs == inputs


def test_what_is_not_given_is_all_dimensions_as_numbers() -> None:
    assert parsed(input="a", dimensions=None, user="u") == EmbeddingRequest(inputs=("a",))
    asked = parsed(input="a", dimensions=64, encoding_format="base64")
    assert (asked.dimensions, asked.encoding) == (64, Encoding.BASE64)
    assert (asked.truncate, parsed(input="a", truncate=True).truncate) == (False, True)
    assert kind_of(EMBEDDING_ENDPOINT) is LineKind.POOL


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input is missing"),
        ({"input": []}, "input", "input is []; it must be at least one input"),
        ({"input": ""}, "input", "input is an empty string"),
        ({"input": ["a", ""]}, "input", "input[1] is an empty string"),
        ({"input": [[]]}, "input[0]", "at least one token id"),
        ({"input": [1, -1]}, "input", "whole numbers from 0"),
        ({"input": {"text": "a"}}, "input", "a string, a list of strings"),
        ({"input": ["a"] * (MAX_PROMPTS + 1)}, "input", "input holds 2049 inputs; 2048 are allowed in a line"),
        ({"input": "a", "dimensions": 0}, "dimensions", "a whole number from 1"),
        ({"input": "a", "dimensions": 1.5}, "dimensions", "a whole number from 1"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "it must be float or base64"),
        ({"input": "a", "encoding_format": []}, "encoding_format", "it must be float or base64"),
        ({"input": "a", "truncate": 1}, "truncate", "true or false"),
        ({"input": "a", "user": 7}, "user", "a string"),
        ({"input": "a", "max_tokens": 5}, "max_tokens", "max_tokens is not a parameter of this endpoint"),
    ],
)
def test_a_wrong_body_is_refused_by_its_parameter(body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(BodyError) as caught:
        parsed(**body)
    assert caught.value.param == param
    assert message in str(caught.value)


def test_an_estimate_counts_inputs_and_no_output() -> None:
    estimator = InputEstimator(default_max_tokens=100)
    estimator.feed(b'{"body": {"model": "m", "input": ["12345678", "1234"]}}\n{"body": {"input": [[1, 2, 3]]}}\n')
    found = estimator.finish()
    assert (found.num_requests, found.estimated_input_tokens, found.estimated_output_tokens) == (2, 6, 0)
