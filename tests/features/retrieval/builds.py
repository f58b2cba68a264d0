"""Builds of indexes of one collection, by control workers that can be killed, and what their tenant sees of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import null, select, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents.tables import Collection, CollectionDocument
from features.retrieval import creating
from features.retrieval.creating import CreateIndex
from features.retrieval.objects import vectors_key
from features.retrieval.parts import parts_of
from features.retrieval.purging import purge_indexes, sweep_index_objects
from features.retrieval.searching import Found, Query, Searcher
from features.retrieval.tables import IndexSegment, PassageIndex
from jobs.audit.audit import audit
from jobs.batches import lost_leases
from jobs.retention.purging import purge_files, sweep_objects
from jobs.states import TERMINAL_BATCH_STATES
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.all_settings import Settings
from tests.effects import Effects, Killed
from tests.features.retrieval import executing
from tests.features.retrieval.answering import NO_WORDS, UNKNOWN, IndexAnswering, vector_of
from tests.features.retrieval.places import Places, WatchedSessions, WatchedStore

_MOST_ATTEMPTS = 200
FEW = {
    "boats.md": "# Ferries\n\nA ferry leaves the harbour at nine.\n\n# Tickets\n\nThe harbour has tickets for bays.\n",
    "trees.txt": "Oaks grow slowly above the harbour.",
}
"""One segment of three passages."""
SEVERAL = FEW | {
    "empty.txt": "",
    f"{NO_WORDS}.txt": "cannot be cut",
    "birds.txt": "Gulls above the harbour.",
    "clubs.txt": "A club at the harbour.",
    "oaks.txt": "An oak near the harbour.",
}
"""Three segments of two documents; two documents are in none."""
ODD = SEVERAL | {"oaks.txt": f"An oak {UNKNOWN} near the harbour."}
"""The same, but the model refuses a passage: the other one of its request is embedded again."""
QUESTIONS = ("harbour", "ferry tickets", "gulls")
_SHOWN = (
    *("state", "reason", "num_documents", "num_indexed", "failed_codes", "failures", "num_passages"),
    *("num_without_vector", "size_bytes", "signature"),
)
_READ = ("sha256", "object_key", "num_pages", "num_characters", "error")
"""Columns of a document with the result of reading it."""
_OLD = timedelta(seconds=-60)
"""Everything is older."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A build as its tenant sees it, apart from ids and times, and its objects."""

    index: dict[str, Any]
    segments: list[tuple[Any, ...]]
    """Numbers of documents, passages and bytes, and hashes of the objects."""
    found: list[Found]
    """Answers to `QUESTIONS`, by words or by words and vectors."""
    documents: list[tuple[Any, ...]]
    """Of the collection, with the results of reading."""
    batches: list[tuple[Any, ...]]
    """By endpoint and state: lines that completed and failed, tokens, cost."""
    bills: list[tuple[Any, ...]]
    """By endpoint: billed results, tokens, cost."""
    files: list[tuple[Any, ...]]
    """By purpose: inputs and results of batches, and their bytes."""


@dataclass
class Builds:
    """Indexes of a collection, their control workers, and workers that answer their batches."""

    maker: sessionmaker[Session]
    storage: Storage
    settings: Settings
    answering: IndexAnswering
    collection: Collection
    wishes: dict[str, Any] = field(default_factory=dict)
    """Of the create call."""

    def new(self) -> str:
        """Accept an index of documents that nobody has read; return its id."""
        wanted = CreateIndex(collection_id=self.collection.id, **{"max_tokens": 64, "overlap_tokens": 0} | self.wishes)
        with self.maker.begin() as session:
            for document in self._documents(session):
                for column in _READ:
                    setattr(document, column, null() if column == "error" else None)
            tenant = session.get_one(Tenant, self.collection.tenant_id)
            return creating.create_index(session, tenant, wanted, self.settings, key_id="key_1").id

    def advance(self, effects: Effects | None = None) -> None:
        """Act as one control worker: advance all that is due; its effects are watched."""
        maker, storage = self._watched(effects)
        executing.advance_due(maker, storage, self.settings, unwatched=self.maker)

    def work(self, effects: Effects | None = None) -> None:
        """Act as the workers of the open batches; their effects are watched."""
        maker, storage = self._watched(effects)
        is_open = Batch.state.not_in([state.value for state in TERMINAL_BATCH_STATES])
        with self.maker() as session:
            batch_ids = session.scalars(select(Batch.id).where(is_open).order_by(Batch.id)).all()
        for batch_id in batch_ids:
            replace(self.answering, maker=maker, storage=storage).run(batch_id)

    def _watched(self, effects: Effects | None) -> tuple[Any, Storage]:
        if effects is None:
            return self.maker, self.storage
        return WatchedSessions(self.maker, effects), WatchedStore(self.storage, effects)

    def finish(
        self,
        index_id: str,
        control: Effects | None = None,
        *,
        workers: Effects | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Build an index to its end; `then` is called after each attempt of a control worker."""
        for _ in range(_MOST_ATTEMPTS):
            has_survived = self.attempt(lambda: self.advance(control), control)
            then()
            if self.has_ended(index_id):
                return
            if has_survived:
                self._work(workers)
        raise AssertionError(f"it does not end: {self.row(index_id)}")

    def attempt(self, do: Callable[[], None], effects: Effects | None) -> bool:
        """Let a fresh control worker do something; return whether it has survived that."""
        with self.maker.begin() as session:
            executing.let_time_pass(session)
            _start(session, effects)
        return _survives(do)

    def _work(self, effects: Effects | None) -> None:
        with self.maker.begin() as session:
            if effects is not None:
                session.execute(_END_BATCH_CLAIMS)
                lost_leases.return_leases(session)
            _start(session, effects)
        _survives(lambda: self.work(effects))

    # --- what can be seen --------------------------------------------------------------------------------------------

    def wanted(self, control: Effects | None = None) -> Outcome:
        """Return the outcome of a build that nothing disturbs: each passage is there once."""
        index_id = self.new()
        self.finish(index_id, control)
        outcome = self.outcome(index_id)
        places = [(passage.document_id, passage.start) for passage in outcome.found[0].chosen]
        assert len(places) == len({*places}) == outcome.index["num_passages"] > 1
        assert {batch[1] for batch in outcome.batches} == {"completed"}
        return outcome

    def outcome(self, index_id: str) -> Outcome:
        with self.maker() as session:
            since = {"since": session.get_one(PassageIndex, index_id).created_at}
            return Outcome(
                index=self.row(index_id),
                segments=self._segments(session, index_id),
                found=self._found(session, index_id),
                documents=[tuple(getattr(one, name) for name in _READ) for one in self._documents(session)],
                batches=[tuple(row) for row in session.execute(_BATCHES, since)],
                bills=[tuple(row) for row in session.execute(_BILLS, since)],
                files=[tuple(row) for row in session.execute(_FILES, since)],
            )

    def row(self, index_id: str) -> dict[str, Any]:
        with self.maker() as session:
            index = session.get_one(PassageIndex, index_id)
            return {column: getattr(index, column) for column in _SHOWN}

    def has_ended(self, index_id: str) -> bool:
        with self.maker() as session:
            return session.get_one(PassageIndex, index_id).ended_at is not None

    def _segments(self, session: Session, index_id: str) -> list[tuple[Any, ...]]:
        mine = select(IndexSegment).where(IndexSegment.index_id == index_id).order_by(IndexSegment.number)
        return [
            (one.number, one.num_documents, one.num_passages, one.size_bytes, *self._hashes(one.object_key))
            for one in session.scalars(mine)
        ]

    def _hashes(self, key: str) -> list[str]:
        keys = [key, vectors_key(key)] if "embedding_model" in self.wishes else [key]
        return [hashlib.sha256(b"".join(self.storage.iter_chunks(each))).hexdigest() for each in keys]

    def _found(self, session: Session, index_id: str) -> list[Found]:
        parts = parts_of(session, session.get_one(PassageIndex, index_id))
        has_vectors = parts.embedding_model is not None
        queries = [Query(text=each, vector=vector_of(each) if has_vectors else None) for each in QUESTIONS]
        return Searcher(self.storage, max_bytes=0).search(parts, queries, top_k=50, max_tokens=None)

    def _documents(self, session: Session) -> Sequence[CollectionDocument]:
        mine = CollectionDocument.collection_id == self.collection.id
        return session.scalars(select(CollectionDocument).where(mine).order_by(CollectionDocument.number)).all()

    def stored(self) -> list[str]:
        """Return all that is stored of all indexes and batches, claims apart, and the objects that rows name."""
        with self.maker() as session:
            rows = [str(tuple(row)) for query in _STORED for row in session.execute(query)]
            named = session.scalars(_NAMED).all()
        objects = ((key, self.storage.exists(key) and b"".join(self.storage.iter_chunks(key))) for key in named)
        return sorted([*rows, *map(str, objects)])

    # --- what is left ------------------------------------------------------------------------------------------------

    def objects(self) -> set[str]:
        """Return all objects but read documents, which expire, and the store's own."""
        names = {each.name for each in self.storage.iter_objects()}
        return {name for name in names if "/documents/" not in name and not name.startswith(".")}

    def clean(self, effects: Effects | None = None) -> None:
        """Purge what is deleted, and sweep objects of any age that no row names: nobody is at work."""
        maker, storage = self._watched(effects)
        purge_indexes(maker, storage)
        purge_files(maker, storage)
        sweep_index_objects(maker, storage, age=_OLD)
        sweep_objects(maker, storage, age=_OLD, unused=timedelta(days=1))

    def check_clean(self) -> None:
        """Check that no object is left that no row names, and that the books are right."""
        self.clean()
        with self.maker() as session:
            named = set(session.scalars(_NAMED))
        assert self.objects() <= named
        with self.maker() as session:
            assert audit(session, storage=self.storage) == []


def _start(session: Session, effects: Effects | None) -> None:
    if isinstance(effects, Places):
        effects.start(tuple(session.execute(_PROGRESS).one()))


def _survives(do: Callable[[], None]) -> bool:
    with suppress(Killed):
        do()
        return True
    return False


_END_BATCH_CLAIMS = text("UPDATE batch SET claimed_until = clock_timestamp() WHERE claimed_by IS NOT NULL")

_PROGRESS = text("SELECT count(*), count(completed_at) FROM batch")

_BATCHES = text("""
    SELECT endpoint, state, sum(num_completed), sum(num_failed), sum(input_tokens), sum(output_tokens), sum(cost_picos)
    FROM batch WHERE created_at >= :since GROUP BY endpoint, state ORDER BY endpoint, state
""")

_BILLS = text("""
    SELECT batch.endpoint, sum(ledger.num_results), sum(ledger.input_tokens), sum(ledger.cost_picos)
    FROM ledger JOIN batch ON batch.id = ledger.batch_id WHERE batch.created_at >= :since
    GROUP BY batch.endpoint ORDER BY batch.endpoint
""")

_FILES = text("""
    SELECT purpose, count(*), sum(size_bytes) FROM file WHERE created_at >= :since GROUP BY purpose ORDER BY purpose
""")

_NAMED = text(f"""
    SELECT object_key FROM file WHERE purged_at IS NULL
    UNION ALL SELECT object_key || '.lines' FROM file WHERE purged_at IS NULL AND purpose = 'batch_output'
    UNION ALL {executing.SNAPSHOTS}
    UNION ALL SELECT object_key FROM index_segment
    UNION ALL SELECT object_key || '.vectors' FROM index_segment
""")

_STORED = [
    text(f"SELECT id, {', '.join(_SHOWN)}, ended_at, deleted_at FROM flow JOIN passage_index USING (id)"),
    *(
        text(f"SELECT '{table}', row.* FROM {table} AS row")
        for table in ("index_segment", "batch", "chunk", "file", "ledger", "collection_document")
    ),
]


MakeBuilds = Callable[..., Builds]
"""Makes a collection, and builds of its indexes."""
