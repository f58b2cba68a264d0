"""Batches that read a tenant's documents, their results, and a prepare worker without its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.documents.extraction.documents.limits import Limits
from features.retrieval.searching import Searcher
from jobs import files
from jobs.accounts import tenants
from jobs.batches import lifecycle, made_inputs
from jobs.batches.submission import CreateBatch
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.files import NewFile, new_object_key
from jobs.lines.document_bodies import PREPARE_MODEL, READ_ENDPOINT
from jobs.storage import Storage
from jobs.tables import Tenant
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from tests.all_settings import Settings
from workers.chunks.run import ChunkRun
from workers.chunks.services import Services
from workers.drain import Drain
from workers.preparing.documents import DocumentAnswers
from workers.preparing.lines import DocumentLines, PrepareParts
from workers.preparing.meters import PREPARE
from workers.preparing.passages import PassageAnswers
from workers.preparing.readers import ReaderPool
from workers.preparing.sources import Sources
from workers.preparing.tokenizers import Tokenizers

LIMITS = Limits(seconds=5, memory_bytes=1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A tenant's documents, and the batches that read them."""

    sessions: sessionmaker[Session]
    storage: Storage
    settings: Settings
    tenant: Tenant
    prepare_sessions: sessionmaker[Session] | None = None
    """Those of a prepare worker; None if they are not needed."""

    def add(self, name: str, content: bytes) -> str:
        """Upload a document; return the id of its file."""
        key = new_object_key(self.tenant.id)
        size_bytes = self.storage.put(key, content)
        with self.sessions.begin() as session:
            new = NewFile(object_key=key, filename=name, purpose="user_data", size_bytes=size_bytes)
            return files.create_file(session, self.tenant.id, new).id

    def read(self, documents: Mapping[str, bytes]) -> str:
        """Upload documents, and submit the batch that reads them; return its id."""
        named = [{"file_id": self.add(name, content), "name": name} for name, content in documents.items()]
        return self.submit(READ_ENDPOINT, named)

    def submit(self, endpoint: str, bodies: Sequence[Mapping[str, Any]]) -> str:
        """Submit a batch as the service does, validated: its chunks are ready."""
        lines = [
            orjson.dumps(
                {"custom_id": f"d{n}", "method": "POST", "url": endpoint, "body": {"model": PREPARE_MODEL, **body}}
            )
            for n, body in enumerate(bodies)
        ]
        key = new_object_key(self.tenant.id)
        new = made_inputs.write_input(self.storage, key, lines, filename="in.jsonl", settings=self.settings)
        with self.sessions.begin() as session:
            file = files.create_file(session, self.tenant.id, new)
            wanted = CreateBatch(input_file_id=file.id, endpoint=endpoint, completion_window="24h", is_ours=True)
            batch_id = lifecycle.create_batch(session, self.tenant, wanted, self.settings).id
        validate_batch(self.sessions, self.storage, batch_id, settings=self.settings)
        return batch_id

    def answered(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Run a batch with these result lines; return where they are, as in the body of a grounding line."""
        batch_id = self.submit(READ_ENDPOINT, [{"name": "a.txt", "file_id": "file_1"} for _ in lines])
        with self.sessions.begin() as session:
            query = text("SELECT id FROM chunk WHERE batch_id = :id")
            claim = claiming.claim_chunk(
                session, session.scalars(query, {"id": batch_id}).one(), worker_id="w", lease=self.settings.lease
            )
            assert claim is not None
            results = [
                LineResult(line_no=line_no, line=orjson.dumps(line), status_code=200)
                for line_no, line in enumerate(lines)
            ]
            leasing.flush(session, claim, results, flush_no=1, lease=self.settings.lease)
            leasing.complete(session, claim)
        return {"batch_id": batch_id, "first_line": 0, "num_lines": len(lines)}

    def results(self, batch_id: str) -> dict[str, dict[str, Any]]:
        """Return the lines of the results by custom_id."""
        with self.sessions() as session:
            rows = session.scalars(
                text("SELECT line FROM result WHERE batch_id = :id ORDER BY line_no"), {"id": batch_id}
            )
            lines = [orjson.loads(line) for line in rows]
        return {line["custom_id"]: line for line in lines}

    def bodies(self, batch_id: str) -> list[dict[str, Any]]:
        """Return the bodies of all answers, in the order of the lines."""
        return [line["response"]["body"] for line in self.results(batch_id).values()]

    def errors(self, batch_id: str) -> dict[str, tuple[str, int | None]]:
        """Return code and page of the lines that failed, by custom_id."""
        found = {name: line["response"]["body"].get("error") for name, line in self.results(batch_id).items()}
        return {name: (error["code"], error["page"]) for name, error in found.items() if error}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.sessions() as session:
            return [tuple(row) for row in session.execute(text(sql))]


def library_of(library: Library, name: str) -> Library:
    with library.sessions.begin() as session:
        other = tenants.create_tenant(session, name)
    return Library(sessions=library.sessions, storage=library.storage, settings=library.settings, tenant=other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparer:
    """Runs the next chunk, as a prepare worker does."""

    parts: PrepareParts

    @classmethod
    def of(cls, library: Library, pool: ReaderPool, *, parsers: str, drain: Drain | None = None) -> Preparer:
        maker, storage, settings = library.prepare_sessions, library.storage, library.settings
        assert maker is not None
        services = Services(
            sessions=maker,
            hold_sessions=maker,
            storage=storage,
            settings=settings,
            drain=drain or Drain(),
            meters=Meters((*WORKER, *PREPARE)),
        )
        sources = Sources(sessions=maker, storage=storage, settings=settings)
        answers = DocumentAnswers(
            sources=sources, storage=storage, tokenizers=Tokenizers(storage), parsers=parsers, limits=LIMITS
        )
        passages = PassageAnswers(sessions=maker, searcher=Searcher(storage, max_bytes=1 << 20))
        parts = PrepareParts(services=services, pool=pool, answers=answers, passages=passages)
        return cls(parts=parts)

    def run_next(self) -> bool:
        """Claim the next chunk and run it; return whether it was finished."""
        return self.run(self.claim())

    def claim(self) -> ClaimedChunk:
        services = self.parts.services
        with services.sessions.begin() as session:
            claim = claiming.claim_next(session, model=PREPARE_MODEL, worker_id="w", lease=services.settings.lease)
        assert claim is not None, "no chunk is ready"
        return claim

    def run(self, claim: ClaimedChunk) -> bool:
        return ChunkRun(self.lines(claim), self.parts.services).run()

    def lines(self, claim: ClaimedChunk) -> DocumentLines:
        return DocumentLines(claim, self.parts)

    def with_settings(self, **changes: Any) -> Preparer:
        """Return one with other settings."""
        services = self.parts.services
        changed = replace(services, settings=services.settings.model_copy(update=changes))
        return Preparer(parts=replace(self.parts, services=changed))
