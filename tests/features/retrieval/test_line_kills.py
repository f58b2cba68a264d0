"""Tests of batches with passages whose processes are killed, taken over or refused by the store at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import connect, sessions
from jobs.errors import ServiceError
from jobs.storage import Storage
from tests.effects import EffectsOfUnits, Killed
from tests.features.retrieval.line_lives import ANSWERED, ANSWERED_TOO, PLAIN, QUESTIONS, Life, Lives
from tests.workers.owners import Moment
from tests.workers.whole_service import ANSWER_TOKENS, PROMPT_TOKENS, QUESTION_TOKENS

LASTING = ("committed", "object")
"""A process that is killed before a commit leaves what the last of these effects has left."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A life that nothing disturbs."""

    life: Life
    record: Any


@pytest.fixture
def lives(maker: sessionmaker[Session], storage: Storage) -> Lives:
    return Lives(maker, storage)


@pytest.fixture(scope="module")
def undisturbed(new_database: Callable[[], str]) -> Iterator[dict[bool, Undisturbed]]:
    """A life with vectors, and one without."""
    engine = connect(new_database(), connections=20)
    lives = Lives(sessions(engine), Storage("memory://"))
    pair = {embeds: lives.new(embeds=embeds) for embeds in (True, False)}
    lives.service.finish()
    lives.check()
    yield {embeds: Undisturbed(life, life.record()) for embeds, life in pair.items()}
    engine.dispose()


def disturb(lives: Lives, disturbances: Sequence[EffectsOfUnits], expected: Undisturbed, **wishes: bool) -> int:
    """Disturb a life by each of these, and compare their ends; return how often they were disturbed."""
    for effects in disturbances:
        life = lives.new(**wishes)
        lives.service.finish(effects, on_death=lives.service.check)
        assert life.record() == expected.record, effects
    lives.check()
    return sum(effects.num_acts for effects in disturbances)


def test_each_line_and_each_question_is_answered_and_billed_once(undisturbed: dict[bool, Undisturbed]) -> None:
    life, other = (undisturbed[embeds].life for embeds in (True, False))
    assert life.documents() == ANSWERED | ANSWERED_TOO
    assert life.owner.statuses() == dict.fromkeys(["batch", "embed", "find"], "completed")
    prompts, answers, questions = PROMPT_TOKENS * 5, ANSWER_TOKENS * 5, QUESTION_TOKENS * 2
    assert life.owner.bill() == {
        "demo": (5, prompts, answers, 10 * prompts + 20 * answers),
        "minilm": (2, questions, 0, 30 * questions),
        None: (4, 0, 0, 0),
    }
    assert other.documents() == ANSWERED
    assert other.owner.statuses() == {"batch": "completed", "find": "completed"}


def test_killed_after_every_effect_a_batch_is_done_once(lives: Lives, undisturbed: dict[bool, Undisturbed]) -> None:
    assert disturb(lives, [EffectsOfUnits(*LASTING)], undisturbed[True], embeds=True) > 20


def test_killed_before_every_commit_a_batch_after_another_one_asks_only_then(lives: Lives) -> None:
    life = lives.new(follows=True)

    def look_and_die() -> None:
        statuses = life.owner.statuses()
        assert statuses["earlier"] == "completed" or statuses.keys() == {"earlier", "batch"}
        raise Killed

    effects = EffectsOfUnits("commit", do=look_and_die)
    lives.service.finish(effects)
    assert effects.num_acts > 15
    assert life.documents() == ANSWERED
    assert life.owner.statuses() == dict.fromkeys(["earlier", "batch", "find"], "completed")
    lives.check()


def test_a_worker_that_was_taken_for_dead_adds_nothing(lives: Lives, undisturbed: dict[bool, Undisturbed]) -> None:
    """The other worker does the whole unit of work, so each life meets one effect of a unit; the first is the claim."""
    turns = [
        EffectsOfUnits(*LASTING, numbers=numbers, do=lives.service.take_over)
        for numbers in (range(2, 3), range(3, 100))
    ]
    assert disturb(lives, turns, undisturbed[False]) > 4


def test_a_store_that_refuses_any_request_once_delays_a_batch_only(
    lives: Lives, undisturbed: dict[bool, Undisturbed]
) -> None:
    def refuse() -> None:
        raise ServiceError("503 Service Unavailable")

    lives.service.watches_reads = True
    refusals = EffectsOfUnits("read", "object", do=refuse)
    assert disturb(lives, [refusals], undisturbed[True], embeds=True) > 5


def test_an_input_that_the_store_has_lost_fails_the_batch_that_reads_it(lives: Lives) -> None:
    for name, states in {
        "batch": {"batch": "validating", "find": "completed"},
        "find": {"batch": "validating", "find": "validating"},
    }.items():
        life = lives.new()

        def lose(life: Life = life, name: str = name) -> None:
            life.owner.lose(life.owner.batches()[name].input_file_id)

        life.finish_with(lose, Moment(states=states))
        failed = life.owner.batches()[name]
        assert failed.errors is not None
        assert [error.code for error in failed.errors.data] == ["file_not_found"]
        if name == "batch":
            assert failed.status == "failed"
        else:
            assert life.documents() == dict.fromkeys(QUESTIONS, "context_unavailable") | {PLAIN: None}
        life.owner.check_ends()
    lives.service.check()
