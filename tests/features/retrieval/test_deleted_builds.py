"""Tests of indexes, collections and tenants that are deleted while an index is built, by workers that may be killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from features.documents.collections.collection import delete_collection
from features.retrieval import lifecycle
from jobs.accounts.tenants import create_tenant
from jobs.audit.audit import audit
from jobs.batches.deletion import delete_left, delete_tenant
from jobs.errors import ConflictError, NotFoundError
from jobs.tables import Tenant
from tests.features.retrieval.builds import Builds, MakeBuilds
from tests.features.retrieval.places import AFTER, BEFORE, STORED, Moments, Places


@pytest.fixture
def new_tenant(session: Session) -> Callable[[], Tenant]:
    def new() -> Tenant:
        tenant = create_tenant(session, "short-lived")
        session.commit()
        return tenant

    return new


@pytest.mark.parametrize(
    ("has_model", "kinds", "most"), [(False, AFTER - STORED, 8), (True, STORED, 2)], ids=["words", "vectors"]
)
def test_an_index_that_is_deleted_at_any_moment_ends_and_leaves_what_was_billed(
    make_builds: MakeBuilds, kinds: frozenset[str], most: int, *, has_model: bool
) -> None:
    """Without a model behind any of the last commits, with one behind any of the last objects that are stored."""
    builds, moments = make_builds(has_model=has_model), Moments(kinds)
    objects, index_id = builds.objects(), builds.new()
    builds.finish(index_id, moments)
    _delete_index(builds, index_id)
    num_moments = len(moments.seen)
    assert num_moments >= 4
    for number in range(max(1, num_moments - most + 1), num_moments + 1):
        index_id = builds.new()
        builds.finish(index_id, Moments(kinds, number, partial(_delete_index, builds, index_id)))
        with pytest.raises(NotFoundError):
            _delete_index(builds, index_id)
    _purge(builds)
    _check_gone(builds, objects)


def test_killed_at_any_effect_once_an_index_is_deleted_it_ends_and_leaves_what_was_billed(
    make_builds: MakeBuilds,
) -> None:
    builds, places = make_builds(), Places(BEFORE | AFTER)
    objects, index_id = builds.objects(), builds.new()
    _wait_for(builds, 3)
    _delete_index(builds, index_id)
    builds.finish(index_id, places)
    _purge(builds, places)
    assert places.num_acts >= 6
    _check_gone(builds, objects)


def test_a_tenant_that_is_deleted_at_any_moment_takes_its_index_along(
    make_builds: MakeBuilds, new_tenant: Callable[[], Tenant]
) -> None:
    """Behind any object that is stored, and at last when the index is complete."""
    for number in count(1):
        builds = make_builds(owner=new_tenant(), has_model=False)
        index_id, moments = builds.new(), Moments(STORED, number, partial(_delete_tenant, builds))
        _end(builds, index_id, moments)
        if not moments.has_acted:
            break
    assert number >= 3
    assert builds.row(index_id)["state"] == "completed"
    _delete_tenant(builds)
    _purge(builds)
    _check_gone(builds, set())


@pytest.mark.parametrize("num_batches", [0, 2])
def test_killed_at_any_effect_once_a_tenant_is_deleted_its_index_goes_with_it(
    make_builds: MakeBuilds, new_tenant: Callable[[], Tenant], num_batches: int
) -> None:
    builds, places = make_builds(owner=new_tenant()), Places(BEFORE | AFTER)
    index_id = builds.new()
    _wait_for(builds, num_batches)
    _delete_tenant(builds)
    _end(builds, index_id, places)
    _purge(builds, places)
    assert places.num_acts >= 4
    _check_gone(builds, set())


def test_a_collection_cannot_be_deleted_at_any_moment_before_its_index_has_ended(make_builds: MakeBuilds) -> None:
    builds = make_builds(has_model=False)
    wanted, index_id = builds.wanted(), builds.new()
    refusals: set[str | None] = set()

    def delete() -> None:
        with builds.maker.begin() as session:
            delete_collection(session, builds.collection.tenant_id, builds.collection.id, by="key_1")

    def is_refused() -> None:
        if not builds.has_ended(index_id):
            with pytest.raises(ConflictError) as caught:
                delete()
            refusals.add(caught.value.code)

    builds.finish(index_id, Places(AFTER, is_refused))
    delete()
    assert refusals == {"collection_in_use"}
    assert builds.outcome(index_id).found == wanted.found


def _wait_for(builds: Builds, num_batches: int) -> None:
    """Build until the index waits for its batch of this number; 0: it is only accepted."""
    for number in range(num_batches):
        if number:
            builds.work()
        builds.advance()


def _delete_index(builds: Builds, index_id: str) -> None:
    with builds.maker.begin() as session:
        lifecycle.delete_index(session, builds.collection.tenant_id, index_id, by="key_1")


def _delete_tenant(builds: Builds) -> None:
    with builds.maker.begin() as session:
        delete_tenant(session, session.get_one(Tenant, builds.collection.tenant_id), by="operator")


def _end(builds: Builds, index_id: str, control: Moments | Places) -> None:
    """Let control workers end the index, and delete what is left of its tenant."""

    def delete_rest() -> None:
        delete_left(builds.maker)

    builds.finish(index_id, control, then=delete_rest)


def _purge(builds: Builds, control: Places | None = None) -> None:
    """Let control workers purge what is deleted; its batches leave files that are purged next."""
    for _ in range(2):
        while not builds.attempt(lambda: builds.clean(control), control):
            pass
        delete_left(builds.maker)


def _check_gone(builds: Builds, objects: set[str]) -> None:
    """Check that nothing is left but bills and these objects, and that the books are right."""
    assert builds.objects() == objects
    with builds.maker() as session:
        assert [session.scalar(query) for query in _LEFT] == [0, 0, 0]
    with builds.maker() as session:
        assert audit(session, storage=builds.storage) == []


_LEFT = [
    text("SELECT count(*) FROM passage_index"),
    text("SELECT count(*) FROM index_segment"),
    text("SELECT count(*) FROM batch WHERE deleted_at IS NULL"),
]
