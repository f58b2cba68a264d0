"""Bodies of lines, read or refused."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT, ChatRequest, CompletionRequest, parse_body
from jobs.lines.body_checks import BodyError

MESSAGES = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatRequest:
    request = parse_body(CHAT_ENDPOINT, {"model": "m", "messages": MESSAGES} | fields)
    assert isinstance(request, ChatRequest)
    return request


def complete(**fields: Any) -> CompletionRequest:
    request = parse_body(COMPLETION_ENDPOINT, {"model": "m", "prompt": "Hello"} | fields)
    assert isinstance(request, CompletionRequest)
    return request


def refusal(endpoint: str = CHAT_ENDPOINT, **fields: Any) -> BodyError:
    start = {"messages": MESSAGES} if endpoint == CHAT_ENDPOINT else {"prompt": "Hello"}
    with pytest.raises(BodyError) as caught:
        parse_body(endpoint, {"model": "m"} | start | fields)
    return caught.value
