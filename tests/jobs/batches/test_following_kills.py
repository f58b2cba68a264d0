"""Tests of batches that start after another one, killed at any moment: each starts once that is completed, or fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.errors import ConflictError
from jobs.storage import Storage
from tests.effects import EffectsOfUnits, Killed
from tests.workers.owners import AtMoment, Moment, Owner, chat_line
from tests.workers.whole_service import ANSWER_TOKENS, CHAT_MODEL, PROMPT_TOKENS, Service

EARLIER = {"first": None, "second": "first", "third": "second", "other": "first"}
"""The batches of a chain and a fork, each with the one that it starts after."""
WAITING = dict.fromkeys(["second", "third", "other"], "validating")
GOOD = [chat_line("a", "one"), chat_line("b", "two")]
BAD = [chat_line("a", "one"), {"custom_id": "b"}]
BEGUN = ("in_progress", "completed")
ENDED = ("completed", "failed", "expired", "cancelled", "deleted")
FAILED = dict.fromkeys(WAITING, "failed")
CODES = dict.fromkeys(WAITING, "earlier_batch_failed")


class Chain:
    """The owner of a chain and a fork of batches, whose processes die again and again."""

    def __init__(self, service: Service, *, first: list[dict[str, Any]] = GOOD) -> None:
        self.service, self.owner = service, Owner(service, "owner")
        self.ids: dict[str, str] = {}
        self._reserved: dict[str, int] = {}
        for name, earlier in EARLIER.items():
            before = self.owner.quota()[0]
            after = None if earlier is None else self.ids[earlier]
            self.ids[name] = self.owner.submit(GOOD if earlier else first, name=name, after=after)
            self._reserved[name] = self.owner.quota()[0] - before

    def die_at(self, **states: str) -> None:
        """Work until batches have these states, all others being as submitted."""
        effects = AtMoment(self.owner, Moment(states=WAITING | states))
        with pytest.raises(Killed):
            self.service.work(effects)

    def finish(self, *, numbers: range = range(1, 100)) -> None:
        """Work until all batches have ended, and check what holds for any end.

        Before that die before every commit and object that has one of these numbers in its unit of work.
        """
        effects = EffectsOfUnits("commit", "object", numbers=numbers, do=self._look_and_die)
        self.service.finish(effects)
        assert effects.num_acts > 3
        self.owner.check_ends()
        self.service.check(storage=self.service.storage)
        self.service.purge()
        self.service.sweep()
        named, stored = self.owner.objects()
        assert stored == named

    def _look_and_die(self) -> None:
        """Budget and order are exact at any moment."""
        statuses = {**dict.fromkeys(EARLIER, "deleted"), **self.owner.statuses()}
        for name, earlier in EARLIER.items():
            assert earlier is None or statuses[name] not in BEGUN or statuses[earlier] in ("completed", "deleted")
        still_open = [name for name, status in statuses.items() if status not in ENDED]
        if all(statuses[name] == "validating" for name in still_open):  # none has used some of it
            assert self.owner.quota()[0] == sum(self._reserved[name] for name in still_open)
        raise Killed

    def failures(self) -> dict[str, str]:
        """Return the codes of the errors of the batches that failed."""
        return {
            name: error.code
            for name, batch in self.owner.batches().items()
            if batch.errors is not None
            for error in batch.errors.data
        }

    def num_answers(self) -> int:
        """Return the number of billed answers."""
        num, num_in, num_out, _ = self.owner.bill().get(CHAT_MODEL, (0, 0, 0, 0))
        assert (num_in, num_out) == (PROMPT_TOKENS * num, ANSWER_TOKENS * num)
        return num


@pytest.fixture
def service(maker: sessionmaker[Session], storage: Storage) -> Service:
    return Service(maker, storage)


def test_killed_at_any_effect_each_batch_starts_once_the_earlier_one_is_completed(service: Service) -> None:
    chain = Chain(service)
    chain.finish()
    assert chain.owner.statuses() == dict.fromkeys(EARLIER, "completed")
    assert all(chain.owner.results(name).keys() == {"a", "b"} for name in EARLIER)
    assert chain.num_answers() == 8


def test_killed_at_any_effect_all_batches_after_a_bad_one_fail_once(service: Service) -> None:
    chain = Chain(service, first=BAD)
    chain.finish()
    assert chain.owner.statuses() == FAILED | {"first": "failed"}
    assert chain.failures().items() >= CODES.items()
    assert chain.num_answers() == 0


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_killed_at_any_effect_all_batches_after_one_that_is_stopped_fail_once(service: Service, end: str) -> None:
    chain = Chain(service)
    chain.die_at(first="in_progress")
    stop: Callable[[str], None] = chain.owner.cancel if end == "cancelled" else service.end_window
    stop(chain.ids["first"])
    chain.finish()
    assert chain.owner.statuses() == FAILED | {"first": end}
    assert chain.failures() == CODES
    assert chain.num_answers() == 0


def test_killed_at_any_effect_all_batches_after_one_that_is_deleted_fail_once(service: Service) -> None:
    chain = Chain(service)
    chain.die_at(first="completed")
    chain.owner.delete(chain.ids["first"])
    chain.finish()
    assert chain.owner.statuses() == FAILED
    assert chain.failures() == CODES
    assert chain.num_answers() == 2


def test_a_batch_that_has_begun_goes_on_where_the_earlier_one_is_deleted(service: Service) -> None:
    chain = Chain(service)
    chain.die_at(first="completed", second="in_progress")
    chain.owner.delete(chain.ids["first"])
    chain.finish(numbers=range(2, 3))
    assert chain.owner.statuses() == {"second": "completed", "third": "completed", "other": "failed"}
    assert chain.num_answers() == 6


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_killed_at_any_effect_a_waiting_batch_that_is_stopped_ends_once_and_only_those_after_it_fail(
    service: Service, end: str
) -> None:
    chain = Chain(service)
    chain.die_at(first="in_progress")
    with pytest.raises(ConflictError):
        chain.owner.delete(chain.ids["second"])
    stop: Callable[[str], None] = chain.owner.cancel if end == "cancelled" else service.end_window
    stop(chain.ids["second"])
    chain.finish(numbers=range(2, 3))
    assert chain.owner.statuses() == {"first": "completed", "second": end, "third": "failed", "other": "completed"}
    assert chain.failures() == {"third": "earlier_batch_failed"}
    assert chain.owner.batches()["second"].in_progress_at is None
    assert set(chain.owner.results("second").values()) == {f"batch_{end}"}
    assert chain.num_answers() == 4
