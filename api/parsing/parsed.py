"""Parses a JSON body into its model."""

from __future__ import annotations

import json
from email.message import Message
from typing import TypeVar

from pydantic import ValidationError

from api.errors import describe_problem
from api.fields import StrictModel
from jobs.errors import InputError

Body = TypeVar("Body", bound=StrictModel)


def parsed(model: type[Body], content: bytes, kind: str) -> Body:
    """Return a body as its model. Raise InputError with the message that FastAPI's own parsing would give."""
    try:
        value = json.loads(content) if content and _is_json(kind) else None
    except (ValueError, RecursionError):
        raise _refused({"type": "json_invalid", "loc": ("body",)}) from None
    try:
        return model.model_validate(value).prepared()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _refused({**first, "loc": ("body", *first["loc"])}) from None


def _refused(problem: dict[str, object]) -> InputError:
    message, param, code = describe_problem(problem)
    return InputError(message, param=param, code=code)


def _is_json(kind: str) -> bool:
    message = Message()
    message["content-type"] = kind
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
