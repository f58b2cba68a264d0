"""Parse the bodies of `/v1/rerank`: each parameter is supported, ignored as harmless, or refused by name.

The format is Jina's, which vLLM serves too. Pure: the parsed body in, a frozen request out; no SQL, no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.lines.body_checks import (
    MAX_PROMPTS,
    BodyError,
    Check,
    flag,
    only_known,
    refuse_unknown,
    text,
    whole,
    wrong,
)

RERANK_ENDPOINT = "/v1/rerank"


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest:
    """A query, and the documents to rank for it."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    """How many of the best are returned; None: all."""
    return_documents: bool = True
    """Whether each is returned with its text."""


def rerank_request(body: Mapping[str, Any]) -> RerankRequest:
    """Parse the body of a line of RERANK_ENDPOINT; a null means "not given". Raises BodyError."""
    values = only_known(body, _PARAMETERS)
    for name, advice in (("query", "give the text to look for"), ("documents", "give a list of texts")):
        if name not in values:
            raise BodyError(name, f"{name} is missing; {advice}", code="missing_required_parameter")
    return RerankRequest(
        query=values["query"],
        documents=values["documents"],
        top_n=values.get("top_n"),
        return_documents=values.get("return_documents", True),
    )


def _query(name: str, value: Any) -> str:
    if not text(name, value).strip():
        raise BodyError(name, f"{name} has no words; give the text to look for")
    return str(value)


def _documents(name: str, value: Any) -> tuple[str, ...]:
    if type(value) is not list:
        raise wrong(name, value, 'a list of strings or of {"text": …}', code="invalid_type")
    if not value:
        raise wrong(name, value, "at least one document")
    if len(value) > MAX_PROMPTS:
        raise BodyError(name, f"{name} holds {len(value)} texts; {MAX_PROMPTS} are allowed in a line. Use more lines")
    return tuple(_document(f"{name}[{index}]", one) for index, one in enumerate(value))


def _document(name: str, value: Any) -> str:
    if type(value) is dict:
        refuse_unknown(name, value, {"text"})
        name, value = f"{name}.text", value.get("text")
    if type(value) is not str:
        raise wrong(name, value, 'a string or {"text": …}', code="invalid_type")
    return value


_PARAMETERS: dict[str, Check] = {
    "model": text,  # matched with the batch by validation
    "query": _query,
    "documents": _documents,
    "top_n": whole(1),
    "return_documents": flag,
    "user": text,
}
