"""Lines that a server answers with vectors or scores: the request to send, what an answer must be, our result of it.

Vectors are shortened and written, and scores ordered and cut, here: every server gives them whole.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.lines.body_checks import BodyError
from jobs.lines.embedding_bodies import EmbeddingRequest, Encoding
from jobs.lines.rerank_bodies import RerankRequest
from jobs.lines.responses import embeddings_body, rerank_body
from workers.remote.dialects import VLLM, Dialect
from workers.remote.logprobs import is_number
from workers.remote.reading import NotAnAnswerError

PoolRequest = EmbeddingRequest | RerankRequest
EMBEDDINGS, RERANK = "embeddings", "rerank"
"""Paths below a server's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExpected:
    """What an answer must be."""

    num_items: int
    """Inputs or documents."""
    is_rerank: bool
    answers_as: str | None = None
    most_prompt_tokens: int
    most_completion_tokens: int = 0

    def read(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the checked parts of a body, in the order of the request. Raise NotAnAnswerError."""
        return {"scores": self._scores(body)} if self.is_rerank else {"vectors": self._vectors(body)}

    def _vectors(self, body: Mapping[str, Any]) -> Sequence[Sequence[float]]:
        vectors: list[Any] = [one.get("embedding") for one in self._in_order(body.get("data"))]
        if not all(isinstance(vector, list) and vector and all(map(is_number, vector)) for vector in vectors):
            raise NotAnAnswerError("has a vector that is no list of numbers")
        if len({len(vector) for vector in vectors}) > 1:
            raise NotAnAnswerError("has vectors of different sizes")
        return vectors

    def _scores(self, body: Mapping[str, Any]) -> Sequence[float]:
        scores: list[Any] = [one.get("relevance_score") for one in self._in_order(body.get("results"))]
        if not all(map(is_number, scores)):
            raise NotAnAnswerError("has a score that is no number")
        return scores

    def _in_order(self, items: Any) -> Sequence[Mapping[str, Any]]:
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise NotAnAnswerError("has no list of results")
        by_index = {item.get("index"): item for item in items}
        if len(items) != self.num_items or by_index.keys() != set(range(self.num_items)):
            raise NotAnAnswerError(f"has not one result for each of {self.num_items} texts")
        return [by_index[index] for index in range(self.num_items)]


def num_items(request: PoolRequest) -> int:
    """Return how many vectors or scores a request asks for."""
    return len(request.inputs if isinstance(request, EmbeddingRequest) else request.documents)


def pool_body(
    request: PoolRequest, dialect: Dialect, *, model: str, tokens: Sequence[Sequence[int]] | None
) -> dict[str, Any]:
    """Return the body to send, with `tokens` in place of texts unless None. Raise BodyError for what it cannot say."""
    if isinstance(request, RerankRequest):
        return {"model": model, "query": request.query, "documents": list(request.documents)}
    body: dict[str, Any] = {"model": model, "encoding_format": Encoding.FLOAT.value}
    body["input"] = [list(prompt) for prompt in tokens] if tokens is not None else list(request.inputs)
    if request.truncate:
        if dialect is not VLLM:
            message = f"truncate is not offered by the engine that serves this model ({dialect.kind}); remove it"
            raise BodyError("truncate", message, code="unsupported_parameter")
        body["truncate_prompt_tokens"] = -1  # to the model's limit
    return body


def pool_answer(
    request: PoolRequest, found: Mapping[str, Any], *, response_id: str, model: str, num_tokens: int
) -> dict[str, Any]:
    """Return the result's body of what `PoolExpected.read` found. Raise BodyError for too many dimensions."""
    if isinstance(request, EmbeddingRequest):
        vectors = [_written(_shortened(vector, request.dimensions), request.encoding) for vector in found["vectors"]]
        return embeddings_body(vectors, model=model, num_tokens=num_tokens)
    scores: Sequence[float] = found["scores"]
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    return rerank_body(
        response_id,
        [(index, float(scores[index])) for index in best],
        model=model,
        num_tokens=num_tokens,
        documents=request.documents if request.return_documents else None,
    )


def _shortened(vector: Sequence[float], dimensions: int | None) -> npt.NDArray[np.float32]:
    """Return the leading dimensions, of the whole vector's length if that is one."""
    whole = np.asarray(vector, dtype=np.float32)
    if dimensions is None:
        return whole
    if dimensions > len(whole):
        raise BodyError("dimensions", f"dimensions is {dimensions}; this model has vectors of 1 to {len(whole)}")
    part = whole[:dimensions]
    is_normalized = abs(float(np.linalg.norm(whole)) - 1.0) < 1e-3
    length = float(np.linalg.norm(part))
    return (part / length).astype(np.float32) if is_normalized and length else part


def _written(vector: npt.NDArray[np.float32], encoding: Encoding) -> list[float] | str:
    if encoding is Encoding.BASE64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
