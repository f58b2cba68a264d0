"""What a line says of the passages that it wants, where they go, and how they are written there."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.bodies import ChatRequest, chat_request, completion_request
from jobs.lines.body_checks import BodyError
from jobs.lines.body_context import ContextRequest, with_passages
from jobs.lines.embedding_bodies import embedding_request
from jobs.lines.input_estimate import estimate_input_tokens
from protocol.passages import ShownPassage

WANTED = {"index": "index_1", "query": "cats"}
PASSAGES = [
    ShownPassage(document="cats.txt", shown="On cats\nCats purr."),
    ShownPassage(document="a\nb.txt", shown="{{context}}"),
]
WRITTEN = "[1] cats.txt\nOn cats\nCats purr.\n\n[2] a b.txt\n{{context}}"


def chat(*contents: Any, context: Any = WANTED) -> dict[str, Any]:
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": "m", "messages": messages, "context": context}


def complaint(body: dict[str, Any]) -> tuple[str | None, str | None]:
    with pytest.raises(BodyError) as caught:
        chat_request(body)
    return caught.value.param, caught.value.code


def test_a_chat_says_what_it_wants_and_where() -> None:
    request = chat_request(chat("Read this.\n{{context}}", "What do cats do?"))
    assert isinstance(request, ChatRequest)
    assert request.context == ContextRequest(index="index_1", query="cats", max_tokens=1024, top_k=5)


def test_a_completion_takes_none_as_documents_could_forge_its_special_tokens() -> None:
    with pytest.raises(BodyError, match="special tokens"):
        completion_request({"model": "m", "prompt": "{{context}} Cats", "context": WANTED})


@pytest.mark.parametrize(
    ("context", "found"),
    [
        ("index_1", ("context", "invalid_type")),
        ({"query": "cats"}, ("context.index", "missing_required_parameter")),
        ({"index": "index_1"}, ("context.query", "missing_required_parameter")),
        (WANTED | {"top_k": 0}, ("context.top_k", "invalid_value")),
        (WANTED | {"top_k": 101}, ("context.top_k", "invalid_value")),
        (WANTED | {"truncate": "yes"}, ("context.truncate", "invalid_type")),
        (WANTED | {"max_tokens": "many"}, ("context.max_tokens", "invalid_type")),
        (WANTED | {"passages": []}, ("context.passages", "unknown_parameter")),
    ],
)
def test_a_wrong_context_is_named(context: Any, found: tuple[str, str]) -> None:
    assert complaint(chat("{{context}}", context=context)) == found


@pytest.mark.parametrize("contents", [("Read this.",), ("{{context}}", "{{context}}"), ("{{context}}{{context}}",)])
def test_passages_have_one_place(contents: tuple[str, ...]) -> None:
    assert complaint(chat(*contents)) == ("context", "invalid_value")


def test_without_a_context_the_placeholder_is_text() -> None:
    assert chat_request(chat("{{context}}", context=None)).context is None


def test_an_embedding_takes_no_context() -> None:
    with pytest.raises(BodyError, match="context is not a parameter"):
        embedding_request({"model": "m", "input": "a", "context": WANTED})


def test_passages_are_numbered_in_their_order_where_the_body_says() -> None:
    given = chat("Read this: {{context}}. Answer.", "What do cats do?")
    filled = with_passages(given, PASSAGES)
    assert filled["messages"][0]["content"] == f"Read this: {WRITTEN}. Answer."
    assert filled["messages"][1] == given["messages"][1]
    assert "context" not in filled
    assert given == chat("Read this: {{context}}. Answer.", "What do cats do?")


def test_the_place_may_be_in_a_part() -> None:
    parts = [{"type": "text", "text": "Read this:"}, {"type": "text", "text": "{{context}}"}]
    assert with_passages(chat(parts), PASSAGES)["messages"][0]["content"][1]["text"] == WRITTEN
    asked: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{}]}
    assert with_passages({"messages": [asked]}, PASSAGES) == {"messages": [asked]}


def test_the_most_that_passages_may_have_is_estimated() -> None:
    plain = chat("{{context}}", context=None)
    wanted = chat("{{context}}", context=WANTED | {"max_tokens": 300, "top_k": 2})
    assert estimate_input_tokens(b"", wanted) - estimate_input_tokens(b"", plain) == 300 + 2 * 16
