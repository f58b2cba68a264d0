"""Tests of index builds whose workers are killed or overtaken: each passage is there once, and billed once."""

from __future__ import annotations

from contextlib import suppress

from tests.effects import Killed
from tests.features.retrieval import executing
from tests.features.retrieval.builds import ODD, SEVERAL, Builds, MakeBuilds
from tests.features.retrieval.places import AFTER, BEFORE, STORED, Moments, Places


def test_killed_at_any_effect_of_a_control_worker_an_index_is_the_same(make_builds: MakeBuilds) -> None:
    """Killed once before, and in another build once after, each commit and each request that changes the store.

    The model refuses a passage, so that another one is embedded again.
    """
    builds, effects = make_builds(ODD), Moments(BEFORE)
    wanted = builds.wanted(effects)
    assert len(effects.seen) >= 12
    for kinds in (BEFORE, AFTER):
        index_id, places = builds.new(), Places(kinds)
        builds.finish(index_id, places)
        assert places.num_acts >= (len(effects.seen) if kinds is BEFORE else 12)
        builds.check_clean()
        assert builds.outcome(index_id) == wanted


def test_swept_whenever_a_worker_is_killed_an_index_without_a_model_is_the_same(make_builds: MakeBuilds) -> None:
    builds = make_builds(SEVERAL, has_model=False)
    wanted, index_id, places = builds.wanted(), builds.new(), Places(BEFORE | AFTER)
    builds.finish(index_id, places, then=builds.clean)
    assert places.num_acts >= 12
    builds.check_clean()
    assert builds.outcome(index_id) == wanted


def test_killed_at_any_effect_of_the_workers_of_its_batches_an_index_is_the_same(make_builds: MakeBuilds) -> None:
    """Killed while they validate, run and finalise a batch."""
    builds = make_builds()
    wanted, index_id, places = builds.wanted(), builds.new(), Places(BEFORE | AFTER)
    builds.finish(index_id, workers=places)
    assert places.num_acts >= 40
    builds.check_clean()
    assert builds.outcome(index_id) == wanted


def test_a_worker_that_another_one_has_overtaken_writes_nothing(make_builds: MakeBuilds) -> None:
    """The other one claims the index and dies at once: what the first one would write is still to be written."""
    builds = make_builds()
    wanted, index_id = builds.wanted(), builds.new()
    stored: list[list[str]] = []

    def overtake() -> None:
        _take_claims(builds)
        with suppress(Killed):
            builds.advance(Moments(AFTER, 1))
        stored.append(builds.stored())

    def check() -> None:
        if stored:
            assert stored == [builds.stored()] * len(stored)
            stored.clear()

    places = Places(AFTER | {"object"}, overtake)
    builds.finish(index_id, places, then=check)
    assert places.num_acts >= 10
    builds.check_clean()
    assert builds.outcome(index_id) == wanted


def test_a_worker_that_wakes_up_when_another_one_is_done_writes_nothing(make_builds: MakeBuilds) -> None:
    """It sleeps behind an object that it has stored: the lines of a batch, which no row names yet, or vectors."""
    builds, all_moments = make_builds(), Moments(STORED)
    wanted = builds.wanted(all_moments)
    num_moments = len(all_moments.seen)
    assert num_moments >= 4
    for number in (2, num_moments):
        index_id = builds.new()
        stored: list[list[str]] = []

        def take_over(index_id: str = index_id, stored: list[list[str]] = stored) -> None:
            _take_claims(builds)
            builds.finish(index_id)
            stored.append(builds.stored())

        builds.finish(index_id, Moments(STORED, number, take_over))
        assert [builds.stored()] == stored
        assert builds.outcome(index_id) == wanted
    builds.check_clean()


def _take_claims(builds: Builds) -> None:
    with builds.maker.begin() as session:
        executing.take_claims(session)
