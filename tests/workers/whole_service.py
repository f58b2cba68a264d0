"""A whole service in one process: its dispatcher, control workers and workers do what is due when a test says so.

The processes can be killed between any two effects. Kill tests know only this file's functions, not those that the
processes call.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.retrieval.purging import purge_fills, purge_indexes, sweep_index_objects
from features.retrieval.searching import Searcher
from flows.due import Due, find_due
from jobs import served_models
from jobs.audit.audit import audit
from jobs.batches import sweeps
from jobs.batches.deletion import delete_left
from jobs.batches.sweeps import DueBatch
from jobs.chunks import claiming, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.errors import FencedOutError, InputError, ServiceError
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.lines.endpoints import LineKind
from jobs.lines.output_lines import output_line
from jobs.lines.passage_bodies import FIND_ENDPOINT, find_request
from jobs.lines.reading import RawLine
from jobs.retention.purging import purge_files, sweep_objects
from jobs.served_models import ModelEmbedding
from jobs.states import LIVE_BATCH_STATES
from jobs.storage import Storage
from jobs.storage.store_owner import may_sweep
from jobs.tables.base import one_of
from tests.all_settings import Settings
from tests.effects import Effects, Killed, WatchedMaker, WatchedReads, WatchedStorage
from tests.features.retrieval.answering import vector_of
from tests.features.retrieval.stored_indexes import VECTORS
from tests.flows.advancers import fills_of
from tests.workers.dispatcher.builders import RecordedHints
from workers.control import Control
from workers.dispatcher import Dispatcher
from workers.preparing import results
from workers.preparing.passages import PassageAnswers

CHAT_MODEL, EMBEDDING_MODEL = "demo", "minilm"
QUESTION_TOKENS = 5
PROMPT_TOKENS, ANSWER_TOKENS = 7, 3
_EMBEDDING = ModelEmbedding(
    model_sha256=VECTORS.model_sha256,
    tokenizer_sha256="t",
    pooling=VECTORS.pooling,
    dimensions=VECTORS.dimensions,
    max_tokens=256,
)
_SETTINGS = Settings(heartbeat_seconds=100, lease_seconds=600)
"""Claims are not renewed: the effects are the same in every life."""
_MAX_RESTARTS = 150
_IS_OPEN = one_of("state", LIVE_BATCH_STATES)
_NONE_OPEN = "none"
_STANDING = f"""
    SELECT coalesce(string_agg(id || ' ' || state, ', ' ORDER BY id), '{_NONE_OPEN}') FROM (
        SELECT id, state FROM batch WHERE {_IS_OPEN} UNION ALL SELECT id, state FROM flow WHERE ended_at IS NULL
    ) AS unended
"""
_TIME_PASSES = (
    "UPDATE chunk SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'leased'",
    f"""UPDATE batch SET claimed_until = clock_timestamp() - interval '1 s'
        WHERE claimed_until IS NOT NULL AND {_IS_OPEN}""",
    """UPDATE batch SET deferred_until = clock_timestamp() - interval '1 s',
        input_missed_at = input_missed_at - interval '1 hour' WHERE deferred_until IS NOT NULL""",
    """UPDATE flow SET look_at = NULL, claimed_until = least(claimed_until, clock_timestamp() - interval '1 s')
        WHERE ended_at IS NULL""",
)
_READY = "SELECT DISTINCT model FROM chunk WHERE state = 'ready'"


class Service:
    """Processes on one database and one store, with two models and the prepare workers."""

    def __init__(self, maker: sessionmaker[Session], storage: Storage) -> None:
        self.maker, self.storage, self.settings = maker, storage, _SETTINGS
        self.watches_reads = False
        self.num_units = 0
        """Units of work that are done."""
        with maker.begin() as session:
            served_models.add_model(session, CHAT_MODEL, "/models/demo", input_price_picos=10, output_price_picos=20)
            served_models.add_model(
                session, EMBEDDING_MODEL, "/models/minilm", serves=LineKind.POOL, input_price_picos=30
            )
            served_models.note_embedding(session, EMBEDDING_MODEL, _EMBEDDING)
        may_sweep(maker, storage)  # the first time only marks the store

    def work(self, effects: Effects | None = None) -> None:
        """Do everything that is due now; what is killed on the way is not rolled back."""
        processes = _Processes(self, effects or Effects())
        is_over = False
        while not is_over:
            while processes.take_turns():
                pass
            is_over = not (self.is_any_open and (processes.dispatch() or processes.take_turns()))

    def finish(self, effects: Effects | None = None, *, on_death: Callable[[], None] = lambda: None) -> None:
        """Work until everything has ended, in new processes after each death, and later where something waits."""
        for _ in range(_MAX_RESTARTS):
            try:
                self.work(effects)
            except Killed:
                on_death()
            if not self.is_any_open:
                return
            self.let_time_pass()
        raise AssertionError(f"batches do not end: {self.standing}")

    def check(self, *, storage: Storage | None = None) -> None:
        """Check by an audit that nothing is missing, repeated or billed twice; with the store also its files."""
        with self.maker() as session:
            assert audit(session, storage=storage) == []

    def take_over(self) -> None:
        """Let other processes do what is due, as if those at work had lost their claims while they hang."""
        self.let_time_pass()
        others = _Processes(self, Effects())
        others.dispatch()
        others.take_turns()

    def let_time_pass(self) -> None:
        """Let claims, leases and pauses expire, but no window."""
        with self.maker.begin() as session:
            for statement in _TIME_PASSES:
                session.connection().exec_driver_sql(statement)

    def end_window(self, batch_id: str) -> None:
        """Let the window of a batch end now."""
        with self.maker.begin() as session:
            session.execute(text("UPDATE batch SET expires_at = now() WHERE id = :id"), {"id": batch_id})

    def purge(self) -> None:
        """Delete what was deleted, for good."""
        delete_left(self.maker)
        purge_fills(self.maker)
        purge_indexes(self.maker, self.storage)
        purge_files(self.maker, self.storage)

    def sweep(self) -> None:
        """Delete objects that nothing names: all are old by now."""
        sweep_objects(self.maker, self.storage, age=timedelta(), unused=timedelta(days=1))
        sweep_index_objects(self.maker, self.storage, age=timedelta())

    @property
    def standing(self) -> str:
        """Return the ids and states of the open batches and flows."""
        with self.maker() as session:
            return str(session.connection().exec_driver_sql(_STANDING).scalar())

    def is_put_off(self, flow_id: str) -> bool:
        """Return whether a flow is tried again later."""
        with self.maker() as session:
            return bool(session.scalar(text("SELECT look_at IS NOT NULL FROM flow WHERE id = :id"), {"id": flow_id}))

    @property
    def is_any_open(self) -> bool:
        """Return whether any batch or flow has not ended."""
        return self.standing != _NONE_OPEN


class _Processes:
    """One of each process, which work one after another and die together."""

    def __init__(self, service: Service, effects: Effects) -> None:
        self._service, self._effects = service, effects
        maker: Any = WatchedMaker(service.maker, effects)
        self._maker = maker
        storage = (WatchedReads if service.watches_reads else WatchedStorage)(service.storage, effects)
        self._dispatcher = Dispatcher(self._maker, storage, hints=RecordedHints(), settings=service.settings)
        self._control = Control(self._maker, storage, service.settings, hold_sessions=service.maker)
        self._fills = fills_of(self._maker, storage, service.settings, hold_sessions=service.maker)
        searcher = Searcher(service.storage, max_bytes=0)
        self._passages = PassageAnswers(sessions=service.maker, searcher=searcher)

    def dispatch(self) -> bool:
        """Let the dispatcher tick; return whether a batch has moved."""
        before = self._service.standing
        self._begin("dispatch")
        self._dispatcher.tick()
        has_moved = self._service.standing != before
        self._service.num_units += has_moved
        return has_moved

    def take_turns(self) -> bool:
        """Let control workers do what is due, or workers if there is nothing; return whether anything was done."""
        with self._service.maker() as session:
            due, due_flows = sweeps.due_batches(session), find_due(session, ["fill"])
        num_done = sum(self._control_one(batch) for batch in due) + sum(self._advance(flow) for flow in due_flows)
        return num_done > 0 or self._answer_chunks()

    def _control_one(self, batch: DueBatch) -> bool:
        self._begin(batch.batch_id)
        try:
            is_done = self._control.do(batch)
        except ServiceError:  # logged, and tried again later
            return False
        self._service.num_units += is_done
        return is_done

    def _advance(self, flow: Due) -> bool:
        self._begin(flow.id)
        is_done = self._fills.advance(flow.id) and not self._service.is_put_off(flow.id)
        self._service.num_units += is_done
        return is_done

    def _answer_chunks(self) -> bool:
        with self._service.maker() as session:
            models = session.connection().exec_driver_sql(_READY).scalars().all()
        before = self._service.num_units
        for model in models:
            self._begin(f"answer {model}")
            while self._answer_chunk(model):
                self._service.num_units += 1
        return self._service.num_units > before

    def _begin(self, name: str) -> None:
        """Begin a unit of work: after a death it has the same name, which no other one has."""
        self._effects.begin(f"{self._service.num_units} {name}")

    def _answer_chunk(self, model: str) -> bool:
        lease = self._service.settings.lease
        with self._maker.begin() as session:
            claim = claiming.claim_next(session, model=model, worker_id="worker", lease=lease)
        if claim is None:
            return False
        lines = [self._answer(claim, line) for line in claim.split(claim.read(self._service.storage))]
        with suppress(FencedOutError), self._maker.begin() as session:
            if not leasing.flush(session, claim, lines, flush_no=1, lease=lease, is_last=True).batch_wanted:
                leasing.release(session, claim)
        return True

    def _answer(self, claim: ClaimedChunk, raw: RawLine) -> LineResult:
        line = orjson.loads(raw.content or b"")
        if claim.endpoint == FIND_ENDPOINT:
            return self._find(claim, raw.line_no, line)
        body, num_in, num_out = _embed(line) if claim.endpoint == EMBEDDING_ENDPOINT else _complete(line)
        content = output_line(claim.batch_id, raw.line_no, line["custom_id"], status_code=200, body=body)
        return LineResult(
            line_no=raw.line_no, line=content, status_code=200, input_tokens=num_in, output_tokens=num_out
        )

    def _find(self, claim: ClaimedChunk, line_no: int, line: Any) -> LineResult:
        try:
            body = self._passages.answer(find_request(line["body"]), tenant_id=claim.tenant_id)
        except InputError as error:
            return results.refused(claim.batch_id, line_no, line["custom_id"], error)
        return results.answered(claim.batch_id, line_no, line["custom_id"], body)


def _embed(line: Any) -> tuple[dict[str, Any], int, int]:
    vector = base64.b64encode(vector_of(line["body"]["input"]).tobytes()).decode()
    return {"object": "list", "data": [{"embedding": vector}]}, QUESTION_TOKENS, 0


def _complete(line: Any) -> tuple[dict[str, Any], int, int]:
    """Return an answer that repeats the prompt, with the passages in it."""
    body = {"object": "chat.completion", "prompt": line["body"]["messages"], "context": line.get("context")}
    return body, PROMPT_TOKENS, ANSWER_TOKENS
