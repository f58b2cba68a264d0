"""Lines of `/v1/rerank`: tokenises the query with each document and returns the sorted scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from engine.errors import InvalidRequestError
from engine.pooling.pair_tokens import QueryTooLongError, TokenizedPair
from engine.pooling.reranker import Reranker
from jobs.lines.body_checks import BodyError
from jobs.lines.endpoints import LineKind, Request
from jobs.lines.rerank_bodies import RerankRequest
from jobs.lines.responses import rerank_body
from workers.pooling.lines import Numbers, PoolLine
from workers.prompt_lengths import Unwanted

_MAX_LINE_TOKENS = 2**21
"""The query counts with every document: otherwise a short line with 2,048 documents could fill the memory."""

_PIECE_DOCUMENTS = 32
"""Documents tokenised between two checks of `is_wanted`."""


class ScoreModel:
    """A `PoolModel` that reranks."""

    kind = LineKind.RERANK

    def __init__(self, reranker: Reranker) -> None:
        self._reranker = reranker
        self.max_tokens = reranker.max_tokens

    def tokenize(self, request: Request, *, is_wanted: Callable[[], bool]) -> Iterator[TokenizedPair]:
        assert isinstance(request, RerankRequest), "served_models.note_kind keeps others away"
        num_tokens = 0
        for start in range(0, len(request.documents), _PIECE_DOCUMENTS):
            if not is_wanted():
                raise Unwanted
            for index, pair in enumerate(self._pairs(request, start), start):
                num_tokens += len(pair.token_ids)
                self._check(pair, index, num_tokens=num_tokens)
                yield pair

    def _pairs(self, request: RerankRequest, start: int) -> Sequence[TokenizedPair]:
        try:
            return self._reranker.tokenize(request.query, request.documents[start : start + _PIECE_DOCUMENTS])
        except QueryTooLongError as error:
            raise BodyError("query", str(error), code="context_length_exceeded") from None
        except InvalidRequestError as error:
            raise BodyError("documents", f"query and documents cannot be tokenised: {error}") from None

    def _check(self, pair: TokenizedPair, index: int, *, num_tokens: int) -> None:
        if pair.is_truncated:
            message = f"documents[{index}] and the query have more than {self.max_tokens:,} tokens together"
            advice = "which is what this model reads at most. Cut it into several documents"
            raise BodyError("documents", f"{message}, {advice}", code="context_length_exceeded")
        if num_tokens > _MAX_LINE_TOKENS:
            message = f"documents have more than {_MAX_LINE_TOKENS:,} tokens, each with the query, up to documents"
            raise BodyError("documents", f"{message}[{index}]; a line may have no more. Use more lines")

    def compute(self, inputs: Sequence[TokenizedPair]) -> Numbers:
        return self._reranker.score_tokens(inputs)

    def reload(self) -> None:
        self._reranker.reload()

    def body(self, line: PoolLine, numbers: Numbers, *, response_id: str, name: str) -> dict[str, Any]:
        request = line.request
        assert isinstance(request, RerankRequest), "tokenize accepted it"
        best = np.argsort(-numbers, kind="stable")[: request.top_n]
        return rerank_body(
            response_id,
            [(int(index), _sigmoid(float(numbers[index]))) for index in best],
            model=name,
            num_tokens=line.most_tokens,
            documents=request.documents if request.return_documents else None,
        )


def _sigmoid(logit: float) -> float:
    """Return the sigmoid in float64, so that scores near 1 stay distinct, without overflow far from 0."""
    return 1.0 / (1.0 + math.exp(-logit)) if logit > 0 else 1.0 - 1.0 / (1.0 + math.exp(logit))
