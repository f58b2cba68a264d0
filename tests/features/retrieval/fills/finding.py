"""The workers' part in the lookups of a batch, without index and encoder: passages by the words of a query."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents.collections.embedders import Embedder
from features.retrieval.tables import FillNode, PassageFill
from jobs import files
from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.errors import NotFoundError
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.lines.endpoints import parse_request
from jobs.lines.output_lines import output_line
from jobs.lines.passage_bodies import FIND_ENDPOINT, FindRequest
from jobs.lines.responses import error_body
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import Batch
from tests.flows.advancers import fills_of

LEASE = timedelta(seconds=60)
EMBEDDING_MODEL = "minilm"
CATS, DOGS = "Cats purr when they are content.", "Dogs bark at night."
MOST_READ = 256
"""Tokens of a text that the model reads."""


def line(custom_id: str, query: str | None = "cats", *, index: str = "index_1", **body: Any) -> str:
    """Return a line that requests passages for a query; without a query it is an ordinary one."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "Answer from {{context}}"}], "max_tokens": 10}
    wanted = {} if query is None else {"context": {"index": index, "query": query, "max_tokens": 50, "top_k": 2}}
    whole = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked | wanted | body}
    return orjson.dumps(whole).decode()


class LineFailure(Exception):
    """A line that is refused."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Finding:
    """A tenant's indexes, and all processing of its batches except their own lines."""

    maker: sessionmaker[Session]
    storage: Storage
    settings: Settings
    passages: dict[str, dict[str, str]]
    """For each index, texts by the names of their documents."""
    embedded: frozenset[str] = frozenset()
    """Indexes whose queries become vectors."""
    asked: list[FindRequest] = field(default_factory=list)
    embedded_inputs: list[str] = field(default_factory=list)
    cut_inputs: list[str] = field(default_factory=list)
    """Indexes whose passages may be truncated."""

    def validate(self, batch_id: str) -> BatchState | None:
        """Validate a batch, and advance what fills it as far as possible."""
        state = validate_batch(self.maker, self.storage, batch_id, settings=self.settings)
        if state is BatchState.VALIDATING:
            self.advance(batch_id)
        return state

    def advance(self, batch_id: str) -> PassageFill:
        """Advance what fills a batch as far as possible."""
        with self.maker() as session:
            fill = session.scalars(select(PassageFill).where(PassageFill.for_batch_id == batch_id)).one()
        fills_of(self.maker, self.storage, self.settings, embedder_of=self._embedder_of).advance(fill.id)
        return fill

    def prepare(self, batch_id: str) -> BatchState | None:
        """Validate a batch and complete its lookups until it moves on."""
        for _ in range(4):
            state = self.validate(batch_id)
            if state not in (BatchState.VALIDATING, None):
                return state
            self.look_up(batch_id)
        raise AssertionError("it is still validating")

    def look_up(self, batch_id: str) -> None:
        """Complete the lookups of a batch that have begun, and advance what fills it."""
        for lookup_id in self.lookup_ids(batch_id):
            self.work_off(lookup_id)
        self.advance(batch_id)

    def lookups(self, batch_id: str) -> list[FillNode]:
        with self.maker() as session:
            fill_ids = select(PassageFill.id).where(PassageFill.for_batch_id == batch_id)
            return list(
                session.scalars(select(FillNode).where(FillNode.flow_id.in_(fill_ids)).order_by(FillNode.number))
            )

    def lookup_ids(self, batch_id: str) -> list[str]:
        """Return the ids of the lookups' batches."""
        return [str(lookup.batch_id) for lookup in self.lookups(batch_id)]

    def work_off(self, batch_id: str) -> None:
        """Answer a lookup's lines and write its files."""
        if self.validate(batch_id) is None:
            return
        with self.maker() as session:
            query = text("SELECT id FROM chunk WHERE batch_id = :id AND state = 'ready' ORDER BY id")
            chunk_ids = session.scalars(query, {"id": batch_id}).all()
        for chunk_id in chunk_ids:
            with self.maker.begin() as session:
                claim = claiming.claim_chunk(session, chunk_id, worker_id="worker", lease=LEASE)
            assert claim is not None
            lines = [(raw.line_no, orjson.loads(raw.content or b"")) for raw in claim.split(claim.read(self.storage))]
            results = [self._result(claim, line_no, line) for line_no, line in lines]
            with self.maker.begin() as session:
                leasing.flush(session, claim, results, flush_no=1, lease=LEASE)
                leasing.complete(session, claim)
        self.finalise(batch_id)

    def finalise(self, batch_id: str) -> BatchState | None:
        with self.maker.begin() as session:
            sweeps.finish_ready(session)
        return finalise_batch(self.maker, self.storage, batch_id, settings=self.settings)

    def filled_lines(self, batch_id: str) -> list[dict[str, Any]]:
        """Return the lines of a batch as they run; a blank one is empty."""
        return [orjson.loads(line) if line else {} for line in self.content(batch_id).splitlines()]

    def content(self, batch_id: str) -> bytes:
        """Return the input of a batch as it runs."""
        with self.maker() as session:
            batch = session.get_one(Batch, batch_id)
            assert batch.source_file_id is not None, "nothing was put in"
            key = files.get_file(session, batch.tenant_id, batch.input_file_id).object_key
        return b"".join(self.storage.iter_chunks(key))

    def errors(self, batch_id: str) -> dict[str, tuple[str, str]]:
        """Return code and message of the lines whose result is an error, by custom_id."""
        with self.maker() as session:
            query = text("SELECT line FROM result WHERE batch_id = :id AND is_error ORDER BY line_no")
            lines = [orjson.loads(line) for line in session.scalars(query, {"id": batch_id})]
        return {line["custom_id"]: (line["error"]["code"], line["error"]["message"]) for line in lines}

    def _embedder_of(self, _session: Session, _tenant_id: str, index_id: str) -> Embedder | None:
        if index_id not in self.passages:
            raise NotFoundError(f"No index found with id {index_id!r}.")
        if index_id not in self.embedded:
            return None
        return Embedder(model=EMBEDDING_MODEL, query_prefix="query: ", max_tokens=MOST_READ)

    def _result(self, claim: ClaimedChunk, line_no: int, line: Mapping[str, Any]) -> LineResult:
        answer = self._embed if claim.endpoint == EMBEDDING_ENDPOINT else self._find
        try:
            body, status = answer(line["body"]), 200
        except LineFailure as error:
            body, status = error_body(str(error), code=error.code, param=None), 400
        content = output_line(claim.batch_id, line_no, line["custom_id"], status_code=status, body=body)
        tokens = 5 if status == 200 and claim.endpoint == EMBEDDING_ENDPOINT else 0
        return LineResult(line_no=line_no, line=content, status_code=status, input_tokens=tokens)

    def _embed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.embedded_inputs.append(body["input"])
        if body.get("truncate"):
            self.cut_inputs.append(body["input"])
        if "too long" in body["input"] and not body.get("truncate"):
            raise LineFailure("input has 900 tokens and 256 are read", "context_length_exceeded")
        vector = base64.b64encode(struct.pack("<2f", 1.0, 0.5)).decode()
        return {"object": "list", "data": [{"embedding": vector}]}

    def _find(self, body: Mapping[str, Any]) -> dict[str, Any]:
        request = parse_request(FIND_ENDPOINT, body)
        assert isinstance(request, FindRequest)
        self.asked.append(request)
        if request.error is not None:
            raise LineFailure(request.error["message"], request.error["code"])
        if request.index not in self.passages:
            raise LineFailure(f"No index found with id {request.index!r}.", "index_not_found")
        words = request.query.lower().split()
        found = [
            {"document": name, "document_id": f"document_{name}", "start": 0, "end": len(content), "shown": content}
            for name, content in self.passages[request.index].items()
            if any(word in content.lower() for word in words)
        ]
        return {"object": "passages", "index": request.index, "num_tokens": 7, "passages": found[: request.top_k]}
