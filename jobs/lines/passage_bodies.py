"""Bodies of the service's own passage lookups for other lines' prompts, and their answers.

Pure. Users send none of them, yet every field is checked: a later release may read lines that were written today.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.lines.body_checks import BodyError, Check, object_, refuse_unknown, text, whole
from jobs.lines.body_context import MAX_TOP_K, ContextRequest
from jobs.lines.document_bodies import PREPARE_MODEL
from protocol.passages import ShownPassage

FIND_ENDPOINT = "/v1/passages/find"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest:
    """A query to a tenant's index."""

    index: str
    query: str
    max_tokens: int
    top_k: int
    vector: bytes | None = None
    """The query's vector, float32 in little endian; None: search by words alone."""
    error: Mapping[str, Any] | None = None
    """Code and message of the reason why the query has no vector, and therefore no answer."""


def find_body(
    context: ContextRequest, *, vector: str | None = None, error: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the body that `find_request` parses; the vector in base64, as in an embedding model's answer."""
    body: dict[str, Any] = {"model": PREPARE_MODEL, "index": context.index, "query": context.query}
    body |= {"max_tokens": context.max_tokens, "top_k": context.top_k}
    return body | {key: value for key, value in (("vector", vector), ("error", error)) if value is not None}


def find_request(body: Mapping[str, Any]) -> FindRequest:
    """Parse the body of a line of FIND_ENDPOINT. Raises BodyError."""
    values = _checked("body", {key: value for key, value in body.items() if key != "model"}, _FIND)
    return FindRequest(**_required(values, "index", "query", "max_tokens", "top_k"))


def shown_passages(answer: Mapping[str, Any]) -> list[ShownPassage]:
    """Return the passages of an answer as they appear in a prompt."""
    return [ShownPassage(document=one["document"], shown=one["shown"]) for one in answer["passages"]]


def citations(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the passages' metadata for the model's answer, without their text, by their numbers in the prompt."""
    numbered = enumerate(answer["passages"], start=1)
    passages = [
        {"number": number} | {key: value for key, value in one.items() if key != "shown"} for number, one in numbered
    ]
    return {"index": answer["index"], "num_tokens": answer["num_tokens"], "passages": passages}


def _checked(name: str, value: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    refuse_unknown(name, value, set(checks))
    return {key: checks[key](key, one) for key, one in value.items() if one is not None}


def _required(values: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        if name not in values:
            raise BodyError(name, f"{name} is missing", code="missing_required_parameter")
    return values


def _error(name: str, value: Any) -> Mapping[str, Any]:
    return _required(_checked(name, object_(name, value), {"code": text, "message": text}), "code", "message")


def _vector(name: str, value: Any) -> bytes:
    try:
        vector = base64.b64decode(text(name, value), validate=True)
    except binascii.Error:
        raise BodyError(name, f"{name} is no base64") from None
    if not vector or len(vector) % 4:
        raise BodyError(name, f"{name} has {len(vector)} bytes; it must be float32 numbers")
    return vector


_FIND: dict[str, Check] = {
    "index": text,
    "query": text,
    "max_tokens": whole(1),
    "top_k": whole(1, MAX_TOP_K),
    "vector": _vector,
    "error": _error,
}
