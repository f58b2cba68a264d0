"""Tests of how much a run asks of Postgres until its first batch is validated: thousands may be due in one minute."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import event, text

from features.pipelines import lifecycle
from jobs.batches.validation import validate_batch
from jobs.database import connect, sessions
from tests.features.pipelines.work.run_builders import House

STATEMENTS, TRANSACTIONS = 27, 4
"""Most of a run, from its claim to its release with a batch; see `tokenmill bench schedules`."""
STATEMENTS_TO_VALIDATE, TRANSACTIONS_TO_VALIDATE = 13, 3


def test_a_run_hands_in_its_first_batch_and_this_is_validated_with_few_statements(
    house: House, request: pytest.FixtureRequest
) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "two"})
    run_ids = [house.trigger(house.make()) for _ in range(2)]
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    sent = Counter[str]()
    engine = house.maker.kw["bind"]
    renewing = sessions(connect(engine.url.render_as_string(hide_password=False)))
    request.addfinalizer(renewing.kw["bind"].dispose)
    runs = house.runs(hold_sessions=renewing)
    runs.advance(run_ids[0])  # connections and caches
    event.listen(engine, "before_cursor_execute", lambda *_: sent.update(["statement"]))
    event.listen(engine, "commit", lambda _: sent.update(["transaction"]))
    runs.advance(run_ids[1])
    assert sent["statement"] <= STATEMENTS, sent
    assert sent["transaction"] <= TRANSACTIONS, sent
    with house.maker() as session:
        batches = session.scalars(text("SELECT id FROM batch ORDER BY created_at")).all()
        assert session.scalars(text("SELECT id FROM flow WHERE claimed_by IS NOT NULL")).all() == []
    sent.clear()
    validate_batch(house.maker, house.storage, batches[1], settings=house.settings, hold_sessions=renewing)
    assert sent["statement"] <= STATEMENTS_TO_VALIDATE, sent
    assert sent["transaction"] <= TRANSACTIONS_TO_VALIDATE, sent
