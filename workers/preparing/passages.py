"""Answers one line: searches a tenant's index with a query and returns the passages for the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy.orm import Session, sessionmaker

from features.retrieval.fills.results import INDEX_NOT_FOUND
from features.retrieval.lifecycle import INDEXES
from features.retrieval.parts import IndexParts, parts_of
from features.retrieval.searching import Found, FoundPassage, Query, Searcher
from jobs.database import transaction
from jobs.errors import NotFoundError
from jobs.lines.filled_lines import UNAVAILABLE
from jobs.lines.passage_bodies import FindRequest
from workers.preparing.line_errors import LineError


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageAnswers:
    """Answers queries. Safe to use from several threads, which share the indexes in memory.

    Raises InputError if a line has no answer, and ServiceError if a retry may have one.
    """

    sessions: sessionmaker[Session]
    searcher: Searcher

    def answer(self, request: FindRequest, *, tenant_id: str) -> dict[str, Any]:
        """Return the body of a line's response. Raise LineError if the index, or the query's vector, is missing."""
        if request.error is not None:
            raise LineError(str(request.error["message"]), code=str(request.error["code"]))
        parts = self._parts(request, tenant_id)
        if parts.embedding_model is not None and request.vector is None:
            raise LineError(f"index {parts.id!r} has vectors, and the query has none; retry the line", code=UNAVAILABLE)
        vector = None if request.vector is None else np.frombuffer(request.vector, "<f4")
        query = Query(text=request.query, vector=vector)
        (result,) = self.searcher.search(parts, [query], top_k=request.top_k, max_tokens=request.max_tokens)
        return _body(request, result)

    def _parts(self, request: FindRequest, tenant_id: str) -> IndexParts:
        try:
            with transaction(self.sessions) as session:
                return parts_of(session, INDEXES.get(session, tenant_id, request.index))
        except NotFoundError as error:
            raise LineError(error.message, code=INDEX_NOT_FOUND) from None


def _body(request: FindRequest, result: Found) -> dict[str, Any]:
    passages = [_passage(one) for one in result.chosen]
    return {"object": "passages", "index": request.index, "num_tokens": result.num_tokens, "passages": passages}


def _passage(one: FoundPassage) -> dict[str, Any]:
    names = ("document", "document_id", "start", "end", "rank", "score", "num_tokens", "shown")
    return {name: getattr(one, name) for name in names}
