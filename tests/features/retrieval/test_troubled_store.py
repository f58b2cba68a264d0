"""Tests of index builds whose object store refuses requests, is away, or has lost an object."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.retrieval import lifecycle
from jobs.storage import Storage, store_marker
from tests.features.retrieval import executing
from tests.features.retrieval.builds import Builds, MakeBuilds
from tests.features.retrieval.places import REQUESTS, Always, Moments, RequestPlaces, be_away, refuse

Fail = Callable[[Storage], None]


@pytest.fixture
def storage(maker: sessionmaker[Session]) -> Storage:
    """A store that carries a marker, as those of services do: an answer of 404 may mean that it is away."""
    storage = Storage("memory://", is_marked=True)
    store_marker.bind(maker, storage)
    return storage


@pytest.mark.parametrize(("fail", "has_model"), [(refuse, True), (be_away, False)], ids=["503", "404"])
def test_whichever_request_fails_it_is_made_again_and_the_index_is_the_same(
    make_builds: MakeBuilds, storage: Storage, fail: Fail, *, has_model: bool
) -> None:
    builds = make_builds(has_model=has_model)
    requests, places = Moments(REQUESTS), RequestPlaces(lambda: fail(storage))
    wanted, index_id = builds.wanted(requests), builds.new()
    builds.finish(index_id, places, then=lambda: _forget_tries(builds))
    assert places.num_acts >= len(requests.seen) >= 10
    builds.check_clean()
    assert builds.outcome(index_id) == wanted


@pytest.mark.parametrize(
    ("fail", "num_batches"), [(refuse, 0), (be_away, 3)], ids=["503 at the start", "404 at the end"]
)
def test_while_requests_keep_failing_an_index_waits_and_then_fails(
    make_builds: MakeBuilds, storage: Storage, fail: Fail, num_batches: int
) -> None:
    builds = make_builds()
    index_id = _built(builds, num_batches)
    builds.advance(Always(REQUESTS, lambda: fail(storage)))
    assert builds.row(index_id)["state"] == "in_progress"
    builds.finish(index_id, Always(REQUESTS, lambda: fail(storage)))
    _check_failed(builds, index_id)


@pytest.mark.parametrize(("num_batches", "lost"), [(1, "documents"), (2, "segment"), (3, "output")])
def test_without_an_object_that_the_store_has_lost_an_index_fails(
    make_builds: MakeBuilds, num_batches: int, lost: str
) -> None:
    builds = make_builds()
    index_id = _built(builds, num_batches)
    with builds.maker() as session:
        key = session.scalars(_KEYS[lost]).one()
    builds.storage.delete(key)
    builds.finish(index_id)
    _check_failed(builds, index_id)


_KEYS = {
    "documents": text(executing.SNAPSHOTS),
    "output": text("""
        SELECT object_key FROM file JOIN batch ON file.id = output_file_id ORDER BY batch.created_at DESC LIMIT 1
    """),
    "segment": text("SELECT object_key FROM index_segment"),
}


def _built(builds: Builds, num_batches: int) -> str:
    """Build a new index until so many of its batches have ended; return its id."""
    index_id = builds.new()
    for _ in range(num_batches):
        builds.advance()
        builds.work()
    return index_id


def _check_failed(builds: Builds, index_id: str) -> None:
    """Check that an index has failed for a reason, and that nothing is left of it once it is deleted."""
    row = builds.row(index_id)
    assert (row["state"], bool(row["reason"])) == ("failed", True)
    with builds.maker.begin() as session:
        lifecycle.delete_index(session, builds.collection.tenant_id, index_id, by="key_1")
    builds.check_clean()


def _forget_tries(builds: Builds) -> None:
    with builds.maker.begin() as session:
        executing.forget_tries(session)
