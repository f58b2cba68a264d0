"""Tests of control workers at one extraction: killed at any effect, two at once, one whose claim was taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.documents import lifecycle, outputs, stages
from features.documents.collections import documents
from features.documents.extraction.course.job import Passes
from features.documents.extraction.scoring import reviews as scoring
from features.documents.recipe import ExtractionRecipe
from features.documents.reviewing import reviews
from features.documents.stages import STAGES
from features.documents.tables import Extraction
from flows import nodes
from jobs.batches import made_inputs
from jobs.settings import Settings
from jobs.storage import Storage
from tests.features.documents.answering import FLAKY
from tests.features.documents.builders import records_of
from tests.features.documents.papers import GOOD, PAPERS
from tests.flows.advancers import Extractions, extractions_of

Run = Callable[[Extraction], Extraction]


EFFECTS = [
    (made_inputs, "write_input"),
    (stages, "begin"),
    (documents, "note_read"),
    (nodes, "note_ended"),
    (outputs, "write"),
    (outputs, "write_provisional"),
    (reviews, "insert"),
    (lifecycle.EXTRACTIONS, "move"),
]


@pytest.mark.parametrize(("module", "name"), EFFECTS, ids=[name for _module, name in EFFECTS])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_killed_before_or_after_any_effect_another_worker_goes_on(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: Any,
    name: str,
    is_after: bool,
) -> None:
    """Each call of the effect is killed once, by something that is not an Exception, so that no worker cleans up."""
    effect = getattr(module, name)
    killed: set[int] = set()
    calls: list[int] = []

    def deadly(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) % 2 == 1:
            if is_after:
                effect(*given, **named)
            killed.add(len(calls))
            raise KeyboardInterrupt
        return effect(*given, **named)

    monkeypatch.setattr(module, name, deadly)
    monkeypatch.setattr(scoring, "SAMPLED", 1.0)
    passes = Passes(second_reading=True, cover=True)
    extraction = make_extraction({"a.txt": GOOD, "b.txt": PAPERS["b.txt"]}, plan={"passes": passes})
    for _ in range(40):
        try:
            run(extraction)
        except KeyboardInterrupt:
            session.rollback()
            session.execute(text("UPDATE flow SET claimed_until = now() - interval '1 second'"))
            session.commit()
        else:
            break
    assert killed
    assert [record["fields"]["vendor"] for record in records_of(session, storage, extraction)] == [
        "Ash Ltd",
        f"Birch {FLAKY} Ltd",
    ]
    assert session.scalar(text("SELECT count(*) FROM batch")) == len(STAGES)
    assert session.scalar(text("SELECT sum(num_completed) FROM batch")) == 2 + 4 + 2 + 1 + 1 + 2 + 2
    kept = text("SELECT count(*) FROM file WHERE deleted_at IS NULL AND filename LIKE '%provisional%'")
    assert session.scalar(kept) == 0
    reviewed = session.execute(text("SELECT document, path FROM review ORDER BY document, path")).all()
    assert [tuple(row) for row in reviewed] == [
        (name, path) for name in ("a.txt", "b.txt") for path in ("total", "vendor")
    ]


def test_two_workers_are_never_at_one_extraction(
    session: Session, maker: sessionmaker[Session], storage: Storage, settings: Settings, make_extraction: Any
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    others: list[bool] = []

    class Watching(ExtractionRecipe):
        def begin(self, *given: Any) -> bool:
            others.append(extractions_of(maker, storage, settings).advance(extraction.id))
            return super().begin(*given)

    assert extractions_of(maker, storage, settings, recipe=Watching).advance(extraction.id) is True
    assert others == [False]
    assert session.scalar(text("SELECT count(*) FROM batch")) == 1


def test_a_worker_whose_claim_was_taken_changes_nothing(
    session: Session,
    maker: sessionmaker[Session],
    extractions: Extractions,
    make_extraction: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    write = made_inputs.write_input

    def overtaken(*given: Any, **named: Any) -> Any:
        with maker.begin() as other:
            other.execute(text("UPDATE flow SET claim_fence = claim_fence + 1, claimed_by = 'other'"))
        return write(*given, **named)

    monkeypatch.setattr(made_inputs, "write_input", overtaken)
    assert extractions.advance(extraction.id) is False
    assert session.scalar(text("SELECT count(*) FROM batch")) == 0
    assert session.scalar(text("SELECT count(*) FROM flow_node")) == 0
