"""Tests of extractions whose next stage has no room: they wait, write nothing permanent, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from jobs.accounts.limits import set_limits
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.features.documents.answering import Answering
from tests.features.documents.papers import GOOD
from tests.flows.advancers import Extractions

Look = Callable[[Extraction], None]


@pytest.fixture
def look(session: Session, extractions: Extractions) -> Look:
    """Let a control worker check an extraction now."""

    def look(extraction: Extraction) -> None:
        session.execute(text("UPDATE flow SET look_at = NULL"))
        session.commit()
        extractions.advance(extraction.id)
        session.refresh(extraction)

    return look


def test_an_extraction_waits_for_room_as_long_as_its_time_lasts(
    session: Session,
    storage: Storage,
    tenant: Tenant,
    make_extraction: Any,
    answering: Answering,
    look: Look,
    run: Callable[[Extraction], Extraction],
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    look(extraction)
    answering.work_off()
    set_limits(session, tenant.id, {"open_batches": 0})
    kept = {found.name for found in storage.iter_objects()}
    for _ in range(8):
        look(extraction)
        assert (extraction.state, extraction.num_tries) == (ExtractionState.IN_PROGRESS, 0)
        assert extraction.look_at is not None
    assert "open batches" in (extraction.reason or "")
    assert {found.name for found in storage.iter_objects()} == kept
    set_limits(session, tenant.id, {"open_batches": None})
    session.commit()
    assert (run(extraction).state, extraction.num_done) == (ExtractionState.COMPLETED, 1)


def test_an_extraction_looks_for_room_ever_later(
    session: Session, tenant: Tenant, make_extraction: Any, look: Look
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    set_limits(session, tenant.id, {"open_batches": 0})
    pauses = []
    for waited in (1, 60, 3600):
        extraction.created_at = func.now() - timedelta(seconds=waited)
        look(extraction)
        now = session.scalar(select(func.clock_timestamp()))
        assert now is not None
        assert extraction.look_at is not None
        pauses.append((extraction.look_at - now).total_seconds())
    assert pauses == pytest.approx([30, 60, 600], abs=8)


def test_an_extraction_that_never_has_room_fails_at_once_with_both_numbers(
    session: Session, tenant: Tenant, make_extraction: Any, answering: Answering, look: Look
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    look(extraction)
    answering.work_off()
    set_limits(session, tenant.id, {"enqueued_tokens": 5})
    look(extraction)
    assert extraction.state == ExtractionState.FAILED
    assert "open batches together may have 5" in (extraction.reason or "")


def test_an_extraction_without_room_fails_with_the_limit_once_its_time_is_over(
    session: Session, tenant: Tenant, make_extraction: Any, look: Look
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    set_limits(session, tenant.id, {"open_batches": 0})
    extraction.expires_at = func.now() - timedelta(seconds=1)
    look(extraction)
    assert extraction.state == ExtractionState.FAILED
    assert "open batches" in (extraction.reason or "")
