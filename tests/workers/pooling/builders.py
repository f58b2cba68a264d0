"""Batches of embeddings for a tiny encoder, their results, and their worker without its process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from engine.pooling.embedder import Embedder
from jobs.chunks import claiming
from jobs.chunks.leasing import ClaimedChunk
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from workers.chunks.run import ChunkRun
from workers.chunks.services import Services
from workers.drain import Drain
from workers.pooling.answerer import PoolLines, PoolParts
from workers.pooling.lines import PoolModel
from workers.pooling.pool_answers import PoolAnswers
from workers.pooling.vectors import VectorModel

MODEL = "tiny"


def line(number: int, given: Any, **body: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "input": given} | body
    return {"custom_id": f"c{number}", "method": "POST", "url": EMBEDDING_ENDPOINT, "body": asked}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A tenant's batches of embeddings, and one worker for them."""

    submit_valid: Callable[..., str]
    sessions: sessionmaker[Session]
    storage: Storage
    settings: Settings
    embedder: Embedder

    def submit(self, lines: list[dict[str, Any]], **wishes: Any) -> str:
        return self.submit_valid(lines, endpoint=EMBEDDING_ENDPOINT, **wishes)

    def run_next(self, *, embedder: Any = None, drain: Drain | None = None) -> bool:
        """Claim the next chunk and run it; return whether it was finished."""
        return self.run(self.claim(), VectorModel(embedder or self.embedder), drain=drain)

    def claim(self) -> ClaimedChunk:
        with self.sessions.begin() as session:
            claim = claiming.claim_next(session, model=MODEL, worker_id="w", lease=self.settings.lease)
        assert claim is not None, "no chunk is ready"
        return claim

    def run(self, claim: ClaimedChunk, model: PoolModel[Any], *, drain: Drain | None = None) -> bool:
        lines, services = self.open(claim, model, drain=drain)
        return ChunkRun(lines, services).run()

    def open(
        self,
        claim: ClaimedChunk,
        model: PoolModel[Any],
        *,
        drain: Drain | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> tuple[PoolLines, Services]:
        """Return the lines of a chunk, none of which is submitted, and their environment."""
        services = Services(
            sessions=self.sessions,
            hold_sessions=self.sessions,
            storage=self.storage,
            settings=self.settings,
            drain=drain or Drain(),
            meters=Meters(WORKER),
            monotonic=monotonic,
        )
        answers = PoolAnswers(model, name=MODEL)
        return PoolLines(claim, PoolParts(services=services, model=model, answers=answers)), services

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.sessions() as session:
            return [tuple(row) for row in session.execute(text(sql))]

    def results(self, batch_id: str) -> dict[str, dict[str, Any]]:
        """Return the lines of the results by custom_id."""
        found = self.rows(f"SELECT line FROM result WHERE batch_id = '{batch_id}' ORDER BY line_no")
        lines = [orjson.loads(row[0]) for row in found]
        return {each["custom_id"]: each for each in lines}

    def bodies(self, batch_id: str) -> dict[str, dict[str, Any]]:
        return {name: each["response"]["body"] for name, each in self.results(batch_id).items()}
