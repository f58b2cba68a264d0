"""Every endpoint that lines may have: what kind of work it is, who may ask for it, and what reads its bodies.

The one list of them; a further endpoint is a row here. Knows no queue and no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jobs.errors import InputError
from jobs.lines.bodies import (
    CHAT_ENDPOINT,
    COMPLETION_ENDPOINT,
    ChatRequest,
    CompletionRequest,
    chat_request,
    completion_request,
)
from jobs.lines.document_bodies import (
    CUT_ENDPOINT,
    GROUND_ENDPOINT,
    READ_ENDPOINT,
    CutRequest,
    GroundRequest,
    ReadRequest,
    cut_request,
    ground_request,
    read_request,
)
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT, EmbeddingRequest, embedding_request
from jobs.lines.passage_bodies import FIND_ENDPOINT, FindRequest, find_request
from jobs.lines.rerank_bodies import RERANK_ENDPOINT, RerankRequest, rerank_request

Request = (
    ChatRequest
    | CompletionRequest
    | EmbeddingRequest
    | RerankRequest
    | ReadRequest
    | GroundRequest
    | CutRequest
    | FindRequest
)


class LineKind(StrEnum):
    """Who runs the lines of an endpoint."""

    GENERATE = "generate"  # an engine, which answers with new tokens
    POOL = "pool"  # a model that answers with vectors
    RERANK = "rerank"  # a model that answers with scores of documents
    PREPARE = "prepare"  # a worker without an engine: documents, and what is found in them


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What lines of one `url` are."""

    path: str
    kind: LineKind
    parse: Callable[[Mapping[str, Any]], Request]
    """Return what a line's body asks for, or raise BodyError."""
    is_public: bool = True
    """Whether users may submit batches of it; else the service alone makes them."""
    max_chunk_lines: int | None = None
    """Of a chunk; None: as usual for lines of their kind."""


QUERY_LINES = 256
"""Of a chunk: each takes milliseconds, so that what a chunk costs is little beside its lines."""

_ALL = (
    Endpoint(path=CHAT_ENDPOINT, kind=LineKind.GENERATE, parse=chat_request),
    Endpoint(path=COMPLETION_ENDPOINT, kind=LineKind.GENERATE, parse=completion_request),
    Endpoint(path=EMBEDDING_ENDPOINT, kind=LineKind.POOL, parse=embedding_request),
    Endpoint(path=RERANK_ENDPOINT, kind=LineKind.RERANK, parse=rerank_request),
    Endpoint(path=READ_ENDPOINT, kind=LineKind.PREPARE, parse=read_request, is_public=False),
    Endpoint(path=GROUND_ENDPOINT, kind=LineKind.PREPARE, parse=ground_request, is_public=False),
    Endpoint(
        path=FIND_ENDPOINT, kind=LineKind.PREPARE, parse=find_request, is_public=False, max_chunk_lines=QUERY_LINES
    ),
    Endpoint(path=CUT_ENDPOINT, kind=LineKind.PREPARE, parse=cut_request, is_public=False),
)
BY_PATH: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in _ALL}
ENDPOINTS = tuple(endpoint.path for endpoint in _ALL if endpoint.is_public)
"""Those that users may name."""
PREPARED = tuple(endpoint.path for endpoint in _ALL if endpoint.kind is LineKind.PREPARE)
"""Those whose lines have no tokens."""


def paths_of(kind: LineKind) -> tuple[str, ...]:
    """Return the endpoints of a kind that users may name."""
    return tuple(path for path in ENDPOINTS if BY_PATH[path].kind is kind)


def kind_of(path: str) -> LineKind:
    """Return the kind of an endpoint that a batch has."""
    return BY_PATH[path].kind


def parse_request(path: str, body: Mapping[str, Any]) -> Request:
    """Read the body of a line whose endpoint validation has checked. Raises BodyError naming the parameter."""
    return BY_PATH[path].parse(body)


def require_endpoint(path: str, *, is_ours: bool = False) -> None:
    """Raise InputError for an endpoint whose requests no batch may have; `is_ours`: the service makes it."""
    endpoint = BY_PATH.get(path)
    if endpoint is not None and (endpoint.is_public or is_ours):
        return
    why = "" if endpoint is None else ", which the service's own batches alone have"
    raise InputError(
        f"Invalid endpoint: {path[:80]!r}{why}. Supported are {', '.join(ENDPOINTS)}.",
        param="endpoint",
        code="invalid_value",
    )
