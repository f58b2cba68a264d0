"""Tests of a batch whose workers are killed between any two effects: each line exists exactly once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.webhooks.tables import WebhookDelivery
from jobs.audit.audit import audit
from jobs.batches import lost_leases, sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, leasing
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, File
from tests.effects import Effects, Killed, WatchedMaker, WatchedStorage
from tests.features.webhooks.builders import add_endpoint
from tests.workers.chunks.builders import Bench, FakeHost, MakeLine, SubmitLines

NUM_LINES = 6
REFUSED = 1
NUM_DEATHS = 10
SETTINGS = Settings(chunk_lines=3, flush_results=2, flush_seconds=100, heartbeat_seconds=100, lease_seconds=600)
"""Nothing is due by time: the effects are the same in every life."""
_LEASES_END = "UPDATE chunk SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'leased'"
_CLAIMS_END = "UPDATE batch SET claimed_until = clock_timestamp() - interval '1 s' WHERE claimed_by <> ''"
_BILLED = "SELECT sum(num_results), sum(input_tokens), sum(output_tokens) FROM ledger WHERE batch_id = :batch_id"


class Life:
    """One batch, and its workers in one process that may die."""

    def __init__(self, bench: Bench, storage: Storage, submit: SubmitLines, line: MakeLine) -> None:
        self._bench, self._storage = bench, storage
        lines = [line(number) for number in range(NUM_LINES)]
        lines[REFUSED]["url"] = "/nowhere"
        self.batch_id = submit(lines, invalid_lines=InvalidLines.SKIP)

    def go_on(self, effects: Effects) -> None:
        """Do the remaining work of the batch; what is killed on the way is not rolled back."""
        maker: Any = WatchedMaker(self._bench.maker, effects)
        storage = WatchedStorage(self._storage, effects)
        self._bench.change_parts(sessions=maker, settings=SETTINGS)
        if self.batch.state == BatchState.VALIDATING:
            validate_batch(maker, storage, self.batch_id, settings=SETTINGS, hold_sessions=self._bench.maker)
        while claim := self._claim(maker):
            self._bench.run(claim)
        with maker.begin() as session:
            sweeps.finish_ready(session)
        if self.batch.state == BatchState.FINALIZING:
            finalise_batch(maker, storage, self.batch_id, settings=SETTINGS, hold_sessions=self._bench.maker)

    def _claim(self, maker: sessionmaker[Session]) -> leasing.ClaimedChunk | None:
        with maker.begin() as session:
            return claiming.claim_next(session, model="demo", worker_id="w", lease=SETTINGS.lease)

    def die(self, effects: Effects) -> None:
        """Continue until the effect at which everything is killed; then let the dead workers' claims expire."""
        with pytest.raises(Killed):
            self.go_on(effects)
        with self._bench.maker.begin() as session:
            session.execute(text(_LEASES_END))
            session.execute(text(_CLAIMS_END))
            lost_leases.reap_expired(session, lease=timedelta())
        lost_leases.reap_suspects(self._bench.maker, self._storage, lease=timedelta())
        with self._bench.maker() as session:
            assert audit(session, batch_id=self.batch_id) == [], "nobody sees half of anything"

    @property
    def batch(self) -> Batch:
        with self._bench.maker() as session:
            return session.get_one(Batch, self.batch_id)

    def check(self, *, num_answers: int | None = None) -> None:
        """Check that every line is in one of two files, each answer is billed once, and the end is reported once."""
        with self._bench.maker() as session:
            batch = session.get_one(Batch, self.batch_id)
            assert batch.state == BatchState.COMPLETED
            keys = session.scalars(select(File.object_key).where(File.filename.startswith(self.batch_id))).all()
            told = select(WebhookDelivery.event_type).where(WebhookDelivery.event_data["id"].astext == self.batch_id)
            assert session.scalars(told).all() == ["batch.completed"]
            billed = tuple(map(int, session.execute(text(_BILLED), {"batch_id": self.batch_id}).one()))
        rows = [json.loads(row) for key in keys for row in b"".join(self._storage.iter_chunks(key)).splitlines()]
        assert Counter(row["custom_id"] for row in rows) == Counter(f"c{number}" for number in range(NUM_LINES))
        answers = [row["response"]["body"]["usage"] for row in rows if row["error"] is None]
        assert num_answers in (None, len(answers))
        assert billed == (
            len(answers),
            sum(usage["prompt_tokens"] for usage in answers),
            sum(usage["completion_tokens"] for usage in answers),
        )
        with self._bench.maker() as session:
            assert audit(session, batch_id=self.batch_id, storage=self._storage) == []


@pytest.fixture
def new_life(
    bench: Bench, host: FakeHost, storage: Storage, submit: SubmitLines, line: MakeLine, tenant: Any
) -> Callable[[], Life]:
    host.instant = True
    with bench.maker() as session:
        add_endpoint(session, tenant.id)
    return lambda: Life(bench, storage, submit, line)


def test_killed_between_any_two_effects_a_batch_is_done_once(new_life: Callable[[], Life], bench: Bench) -> None:
    life, effects = new_life(), Effects()
    life.go_on(effects)
    life.check(num_answers=NUM_LINES - 1)
    assert len(effects.seen) > 20
    assert {*effects.seen} == {"commit", "committed", "object"}
    for at in range(1, len(effects.seen) + 1):
        life = new_life()
        life.die(Effects(at))
        life.go_on(Effects())
        life.check(num_answers=NUM_LINES - 1)
    with bench.maker() as session:
        assert audit(session) == []


@pytest.mark.parametrize("seed", range(3))
def test_killed_ten_times_a_batch_is_done_once(new_life: Callable[[], Life], seed: int) -> None:
    """With so many deaths a line may be given up as one that kills engines: then it is in the error file, unbilled."""
    rng, life, num_deaths = random.Random(seed), new_life(), 0
    while num_deaths < NUM_DEATHS and life.batch.state not in TERMINAL_BATCH_STATES:
        life.die(Effects(rng.randint(1, 4)))
        num_deaths += 1
    assert num_deaths == NUM_DEATHS
    life.go_on(Effects())
    life.check()
