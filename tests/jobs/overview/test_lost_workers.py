"""Tests of lost workers: silent ones that no other worker has replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.overview import fleet

_INSERT = text("""
    INSERT INTO worker (id, model, hostname, pid, max_chunks, max_model_len, started_at, heartbeat_at, stopped_at,
        draining_at)
    VALUES (:id, :model, 'h', 1, 6, 64, now() - CAST(:started AS interval), now() - CAST(:seen AS interval),
        CASE WHEN :is_stopped THEN now() END, CASE WHEN :is_draining THEN now() END)
""")


@dataclass(frozen=True, slots=True)
class W:
    """A worker that started, and was last seen, so many minutes ago; 0 means alive."""

    name: str
    started: int
    seen: int = 0
    model: str = "m"
    is_stopped: bool = False
    is_draining: bool = False


LOST = W("lost", 90, 30)


def lost_of(session: Session, workers: Sequence[W]) -> set[str]:
    number = count()
    for one in workers:
        minutes = {"started": timedelta(minutes=one.started), "seen": timedelta(minutes=one.seen)}
        kinds = {"model": one.model, "is_stopped": one.is_stopped, "is_draining": one.is_draining}
        session.execute(_INSERT, {"id": f"{one.name}_{next(number)}", **minutes, **kinds})
    seen = fleet.workers(session, most=100)
    lost = {one.worker_id.partition("_")[0] for one in seen if not one.is_live}
    counted = fleet.count_workers(session)
    assert (counted.num_lost, counted.num_all) == (len(lost), len(seen))
    of_models = [one.num_lost for one in fleet.by_model(session)]
    assert sum(of_models) == sum(not one.is_live for one in seen if one.model != PREPARE_MODEL)
    return lost


@pytest.mark.parametrize(
    ("others", "lost"),
    [
        ([], {"lost"}),
        ([W("successor", 29)], set()),
        ([W("before", 31)], {"lost"}),
        ([W("other", 29, model="other")], {"lost"}),
        ([W("drained", 29, is_draining=True)], {"lost"}),
        ([W("signed off", 29, 5, is_stopped=True)], {"lost"}),
        ([W("second", 80, 20)], {"lost", "second"}),
        ([W("second", 80, 20), W("successor", 10)], {"second"}),
        ([W("second", 80, 20), W("successor", 25)], {"second"}),
        ([W("second", 80, 20), W("successor", 25), W("next", 15)], set()),
        ([W("successor", 29, 10)], {"successor"}),
        ([W("successor", 29, 10), W("next", 9)], set()),
        ([W("successor", 29), W("one more", 28)], set()),
        ([W("forgotten", 200, 61), W("successor", 40)], {"lost"}),
    ],
    ids=lambda value: str(sorted(value, key=str)),  # sorted sets: processes share the tests by name
)
def test_a_worker_is_lost_until_another_of_its_model_has_its_place(
    session: Session, others: Sequence[W], lost: set[str]
) -> None:
    assert lost_of(session, [LOST, *others]) == lost


def test_a_worker_of_documents_is_replaced_as_others_are(session: Session) -> None:
    lost = W("reader", 90, 30, model=PREPARE_MODEL)
    assert lost_of(session, [lost]) == {"reader"}
    assert lost_of(session, [W("successor", 3, model=PREPARE_MODEL)]) == set()


def test_after_an_hour_nobody_is_lost(session: Session) -> None:
    assert lost_of(session, [W("forgotten", 90, 61)]) == set()
