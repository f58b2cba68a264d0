"""The endpoints of lines: the kind of work, who may request it, and the parser of its bodies.

The only such list: a further endpoint is one more row here.
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
    """Which kind of worker runs the lines of an endpoint."""

    GENERATE = "generate"  # an engine, which generates tokens
    POOL = "pool"  # a model that returns vectors
    RERANK = "rerank"  # a model that returns scores of documents
    PREPARE = "prepare"  # a worker without an engine: documents and passage lookups


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Properties of the lines of one `url`."""

    path: str
    kind: LineKind
    parse: Callable[[Mapping[str, Any]], Request]
    """Returns the parsed request of a body, or raises BodyError."""
    is_public: bool = True
    """Whether users may submit batches of it; otherwise only the service creates them."""
    max_chunk_lines: int | None = None
    """Most lines of a chunk; None: the default for lines of their kind."""


QUERY_LINES = 256
"""Lines per chunk of queries: each takes milliseconds, so that a chunk's fixed cost is small beside its lines."""

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
"""Endpoints that users may name."""
PREPARED = tuple(endpoint.path for endpoint in _ALL if endpoint.kind is LineKind.PREPARE)
"""Endpoints whose lines have no tokens."""


def paths_of(kind: LineKind) -> tuple[str, ...]:
    """Return the public endpoints of a kind."""
    return tuple(path for path in ENDPOINTS if BY_PATH[path].kind is kind)


def kind_of(path: str) -> LineKind:
    """Return the kind of a batch's endpoint."""
    return BY_PATH[path].kind


def parse_request(path: str, body: Mapping[str, Any]) -> Request:
    """Parse the body of a line whose endpoint validation has checked. Raises BodyError naming the parameter."""
    return BY_PATH[path].parse(body)


def require_endpoint(path: str, *, is_ours: bool = False) -> None:
    """Raise InputError for an endpoint that a batch may not use; `is_ours`: the service creates the batch."""
    endpoint = BY_PATH.get(path)
    if endpoint is not None and (endpoint.is_public or is_ours):
        return
    why = "" if endpoint is None else ", which the service's own batches alone have"
    raise InputError(
        f"Invalid endpoint: {path[:80]!r}{why}. Supported are {', '.join(ENDPOINTS)}.",
        param="endpoint",
        code="invalid_value",
    )
