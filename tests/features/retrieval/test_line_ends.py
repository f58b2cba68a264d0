"""Tests of batches with passages that are cancelled, expire, or lose something while a worker is at any stage."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.errors import ConflictError
from jobs.storage import Storage
from tests.effects import EffectsOfUnits
from tests.features.retrieval.line_lives import ANSWERED, ANSWERED_TOO, PLAIN, QUESTIONS, Life, Lives
from tests.workers.owners import Moment
from tests.workers.whole_service import CHAT_MODEL

UNAVAILABLE = "context_unavailable"
NOT_FOUND = ("index_not_found", "index_gone")


def at(kind: str = "committed", number: int = 1, **states: str) -> Moment:
    return Moment(states=states, kind=kind, number=number)


QUESTIONS_ARE_WRITTEN = at("object", batch="validating")
EMBEDDING = at(batch="validating", embed="in_progress", number=2)
SEARCHING = at(batch="validating", find="in_progress", number=2)
"""The second effect: a worker has claimed the lines."""
INPUT_IS_FILLED = at("object", batch="validating", find="completed")
MOMENTS = (QUESTIONS_ARE_WRITTEN, EMBEDDING, SEARCHING, INPUT_IS_FILLED)


@pytest.fixture
def lives(maker: sessionmaker[Session], storage: Storage) -> Lives:
    return Lives(maker, storage)


def test_a_batch_that_is_cancelled_at_any_stage_runs_no_line(lives: Lives) -> None:
    for moment in MOMENTS:
        life = lives.new(embeds=moment is EMBEDDING)
        life.finish_with(partial(life.owner.cancel, life.batch_id), moment)
        open_then = [name for name, status in moment.states.items() if status != "completed"]
        assert life.owner.statuses() == moment.states | dict.fromkeys(open_then, "cancelled"), moment
        assert {*life.documents().values()} == {"batch_cancelled"}, moment
        assert CHAT_MODEL not in life.owner.bill(), moment
    lives.check()


def test_a_batch_that_expires_at_any_stage_has_a_result_for_every_line(lives: Lives) -> None:
    for moment in (EMBEDDING, INPUT_IS_FILLED):
        life = lives.new(embeds=moment is EMBEDDING)
        life.finish_with(partial(lives.service.end_window, life.batch_id), moment)
        assert life.owner.statuses()["batch"] == "expired", moment
        documents = life.documents()
        answered = {name: cited for name, cited in documents.items() if cited != "batch_expired"}
        assert answered.items() <= (ANSWERED | ANSWERED_TOO).items(), moment
        assert len(answered) == life.owner.bill().get(CHAT_MODEL, (0,))[0], moment
    lives.check()


def test_an_index_that_is_deleted_fails_the_lines_that_are_not_answered_from_it_yet(lives: Lives) -> None:
    for moment in (EMBEDDING, SEARCHING, INPUT_IS_FILLED):
        life = lives.new(embeds=moment is EMBEDDING)
        life.finish_with(life.delete_indexes, moment)
        documents = life.documents()
        assert life.owner.statuses()["batch"] == "completed", moment
        assert documents.pop(PLAIN) is None
        if moment is INPUT_IS_FILLED:
            assert documents == {name: [cited] for name, cited in QUESTIONS.items()}, moment
        else:
            assert {*documents.values()} <= {*NOT_FOUND}, moment
    lives.check()


def test_a_search_that_is_cancelled_or_expires_fails_only_the_lines_that_need_it(lives: Lives) -> None:
    def end_one(life: Life, stage: str) -> None:
        stage_id = life.owner.batches()[stage].id
        (life.owner.cancel if stage == "embed" else lives.service.end_window)(stage_id)

    for moment, stage, needing in (
        (EMBEDDING, "embed", ANSWERED_TOO),
        (SEARCHING, "find", {name: ANSWERED[name] for name in QUESTIONS}),
    ):
        life = lives.new(embeds=stage == "embed")
        life.finish_with(partial(end_one, life, stage), moment)
        documents = life.documents()
        assert {name: documents.pop(name) for name in needing} in (
            dict.fromkeys(needing, UNAVAILABLE),
            needing,  # its worker had answered them
        )
        assert documents == {name: cited for name, cited in ANSWERED.items() if name not in needing}
        assert life.owner.statuses()["batch"] == "completed", moment
    lives.check()


@pytest.mark.parametrize("stage", ["embed", "find"])
def test_a_search_whose_results_are_deleted_before_they_are_used_fails_only_the_lines_that_need_it(
    lives: Lives, stage: str
) -> None:
    life = lives.new(embeds=stage == "embed")
    moment = Moment(states={"batch": "validating", stage: "completed"})
    life.finish_with(lambda: life.owner.delete(life.owner.batches()[stage].id), moment)
    expected = ANSWERED | dict.fromkeys(ANSWERED_TOO, UNAVAILABLE)
    if stage == "find":
        expected = dict.fromkeys(QUESTIONS, UNAVAILABLE) | {PLAIN: None}
    assert life.documents() == expected
    assert life.owner.statuses()["batch"] == "completed"
    lives.check()


def test_a_batch_can_be_deleted_once_it_has_ended_and_so_can_its_search(lives: Lives) -> None:
    life = lives.new()

    def refused() -> None:
        for batch in life.owner.batches().values():
            if batch.status != "completed":
                with pytest.raises(ConflictError):
                    life.owner.delete(batch.id)

    effects = EffectsOfUnits("committed", "object", do=refused)
    lives.service.finish(effects)
    assert effects.num_acts > 10
    assert life.documents() == ANSWERED
    used = life.owner.bill()
    life.owner.delete(life.batch_id)
    assert life.owner.statuses() == {}
    assert life.owner.filenames() == ["batch.jsonl"]
    lives.check()
    assert life.owner.bill() == used


def test_a_tenant_that_is_deleted_at_any_stage_leaves_nothing(lives: Lives) -> None:
    def leave(life: Life) -> None:
        life.owner.leave()
        lives.service.purge()

    owners = []
    for moment in (QUESTIONS_ARE_WRITTEN, EMBEDDING, INPUT_IS_FILLED):
        life = lives.new(embeds=moment is EMBEDDING)
        owners.append(life.owner)
        life.finish_with(partial(leave, life), moment)
        assert CHAT_MODEL not in life.owner.bill(), moment
    lives.check()
    assert [(owner.statuses(), owner.filenames()) for owner in owners] == [({}, [])] * len(owners)
    assert [each.name for each in lives.service.storage.iter_objects() if "object_" in each.name] == []
