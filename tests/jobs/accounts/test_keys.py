"""Tests of keys: the owner of a secret, its scopes, and its end."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobs.accounts import keys, tenants
from jobs.errors import AuthenticationError, ConflictError, ForbiddenError, InputError, NotFoundError
from jobs.states import Scope
from jobs.tables import ApiKey, Tenant

DAY = timedelta(days=1)


def end_now(session: Session, column: str) -> None:
    session.execute(text(f"UPDATE api_key SET {column} = now() - interval '1 second'"))
    session.expire_all()


def test_a_key_opens_its_tenant_and_is_stored_as_a_hash_only(session: Session, tenant: Tenant) -> None:
    key, secret = keys.create_key(session, tenant.id)
    assert secret.startswith("tm-")
    assert len(secret) == 46
    assert keys.authenticate(session, secret).owner().id == tenant.id
    stored = str(session.execute(text("SELECT api_key::text FROM api_key")).scalar())
    assert secret not in stored
    assert secret[10:] not in stored
    assert key.hint == secret[:10]


@pytest.mark.parametrize("secret", ["", "tm-wrong", "x" * 10_000])
def test_a_wrong_key_is_refused_without_repeating_it(session: Session, tenant: Tenant, secret: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        keys.authenticate(session, secret)
    assert caught.value.status == 401
    assert not secret or secret not in caught.value.message


def test_a_revoked_key_is_refused_and_the_others_work(session: Session, tenant: Tenant) -> None:
    (first, first_secret), (_, second_secret) = (keys.create_key(session, tenant.id) for _ in range(2))
    keys.revoke_key(session, keys.find_key(session, first.id))
    with pytest.raises(AuthenticationError, match="was revoked at"):
        keys.authenticate(session, first_secret)
    assert keys.authenticate(session, second_secret).owner().id == tenant.id


def test_a_key_is_revoked_by_id_secret_or_the_beginning_that_lists_show(session: Session, tenant: Tenant) -> None:
    for choose in (lambda key, _: key.id, lambda _, secret: secret, lambda key, _: key.hint):
        key, secret = keys.create_key(session, tenant.id)
        revoked = keys.revoke_key(session, keys.find_key(session, choose(key, secret)))
        assert revoked.id == key.id
        first_time = revoked.revoked_at
        assert first_time is not None
        session.commit()
        assert keys.revoke_key(session, keys.find_key(session, choose(key, secret))).revoked_at == first_time


def test_a_beginning_that_fits_two_keys_is_a_conflict(session: Session, tenant: Tenant) -> None:
    made = [keys.create_key(session, tenant.id)[0] for _ in range(2)]
    session.execute(text("UPDATE api_key SET hint = 'tm-aaaaaaa'"))
    with pytest.raises(ConflictError, match=made[0].id):
        keys.find_key(session, "tm-aaaaaaa")


@pytest.mark.parametrize("key", ["key_nowhere", "tm-", "tm-aaaaaaab", ""])
def test_an_unknown_key_is_not_found(session: Session, tenant: Tenant, key: str) -> None:
    keys.create_key(session, tenant.id)
    with pytest.raises(NotFoundError):
        keys.find_key(session, key)


def test_a_key_of_nobody_is_not_made(session: Session) -> None:
    with pytest.raises(NotFoundError):
        keys.create_key(session, "tenant_nobody")


def test_a_key_may_submit_and_read_unless_it_is_given_less(session: Session, tenant: Tenant) -> None:
    _, both = keys.create_key(session, tenant.id)
    _, reading = keys.create_key(session, tenant.id, scopes=[Scope.READ], name="a report")
    assert keys.authenticate(session, both).scopes == {Scope.SUBMIT, Scope.READ}
    reader = keys.authenticate(session, reading)
    reader.require(Scope.READ)
    with pytest.raises(ForbiddenError, match="needs a key with scope submit; your key has read") as caught:
        reader.require(Scope.SUBMIT)
    assert caught.value.code == "insufficient_scope"


def test_an_operators_key_belongs_to_no_tenant_and_acts_for_none(session: Session, tenant: Tenant) -> None:
    key, secret = keys.create_key(session, None)
    caller = keys.authenticate(session, secret)
    caller.require(Scope.ADMIN)
    assert caller.tenant is None
    assert caller.scopes == {Scope.ADMIN}
    for scope in keys.TENANT_SCOPES:
        with pytest.raises(ForbiddenError, match=f"scope {scope.value}"):
            caller.require(scope)
    with pytest.raises(ForbiddenError, match="acts for no tenant"):
        caller.owner()
    assert [found.id for found in keys.list_keys(session, None)] == [key.id]
    assert list(keys.list_keys(session, tenant.id)) == []


@pytest.mark.parametrize(
    ("is_operator", "scopes"),
    [(False, [Scope.ADMIN]), (False, [Scope.READ, Scope.ADMIN]), (False, []), (True, [Scope.READ])],
)
def test_a_tenants_key_is_never_an_operators(
    session: Session, tenant: Tenant, is_operator: bool, scopes: list[Scope]
) -> None:
    tenant_id = None if is_operator else tenant.id
    with pytest.raises(InputError, match="scopes are"):
        keys.create_key(session, tenant_id, scopes=scopes)
    key, _ = keys.create_key(session, tenant_id)
    with pytest.raises(IntegrityError, match="api_key_scopes_check"):
        session.execute(text("UPDATE api_key SET scopes = :scopes WHERE id = :id"), {"scopes": scopes, "id": key.id})


def test_an_expired_key_is_refused_and_says_since_when(session: Session, tenant: Tenant) -> None:
    key, secret = keys.create_key(session, tenant.id, lifetime=DAY)
    assert keys.authenticate(session, secret).key_id == key.id
    end_now(session, "expires_at")
    with pytest.raises(AuthenticationError, match="expired at"):
        keys.authenticate(session, secret)


@pytest.mark.parametrize("options", [{"lifetime": timedelta()}, {"lifetime": 99_999 * DAY}, {"name": " "}])
def test_a_key_with_no_name_or_no_end_that_can_be_is_refused(
    session: Session, tenant: Tenant, options: dict[str, timedelta]
) -> None:
    with pytest.raises(InputError, match="give"):
        keys.create_key(session, tenant.id, **options)  # type: ignore[arg-type]  # one of them each time


def test_both_secrets_of_a_rotated_key_work_until_the_overlap_is_over(session: Session, tenant: Tenant) -> None:
    key, first = keys.create_key(session, tenant.id)
    _, second = keys.rotate_key(session, key, overlap=DAY)
    assert {keys.authenticate(session, secret).key_id for secret in (first, second)} == {key.id}
    assert [keys.find_key(session, named).id for named in (first, second, second[:10])] == [key.id] * 3
    end_now(session, "previous_until")
    with pytest.raises(AuthenticationError, match="was rotated; this secret ended at"):
        keys.authenticate(session, first)
    assert keys.authenticate(session, second).key_id == key.id


def test_without_an_overlap_and_at_the_next_rotation_a_secret_stops_at_once(session: Session, tenant: Tenant) -> None:
    key, first = keys.create_key(session, tenant.id)
    _, second = keys.rotate_key(session, key, overlap=timedelta())
    _, third = keys.rotate_key(session, key, overlap=DAY)
    _, fourth = keys.rotate_key(session, key, overlap=DAY)
    for gone in (first, second):
        with pytest.raises(AuthenticationError, match="is not known"):
            keys.authenticate(session, gone)
    assert {keys.authenticate(session, secret).key_id for secret in (third, fourth)} == {key.id}


def test_a_revoked_key_opens_with_none_of_its_secrets_and_is_not_rotated(session: Session, tenant: Tenant) -> None:
    key, first = keys.create_key(session, tenant.id)
    _, second = keys.rotate_key(session, key, overlap=DAY)
    keys.revoke_key(session, key)
    for secret in (first, second):
        with pytest.raises(AuthenticationError, match="was revoked at"):
            keys.authenticate(session, secret)
    with pytest.raises(ConflictError, match="was revoked"):
        keys.rotate_key(session, key, overlap=DAY)


def test_an_expired_key_is_rotated_only_with_a_new_end(session: Session, tenant: Tenant) -> None:
    key, _ = keys.create_key(session, tenant.id, lifetime=DAY)
    end_now(session, "expires_at")
    with pytest.raises(ConflictError, match="give it a new end"):
        keys.rotate_key(session, key, overlap=DAY)
    _, secret = keys.rotate_key(session, key, overlap=DAY, lifetime=DAY)
    assert keys.authenticate(session, secret).key_id == key.id


@pytest.mark.parametrize("overlap", [-DAY, 31 * DAY])
def test_an_overlap_has_bounds(session: Session, tenant: Tenant, overlap: timedelta) -> None:
    key, _ = keys.create_key(session, tenant.id)
    with pytest.raises(InputError, match="give 0 to 30 days"):
        keys.rotate_key(session, key, overlap=overlap)


def test_the_last_use_is_noted_once_a_minute(session: Session, tenant: Tenant) -> None:
    key, secret = keys.create_key(session, tenant.id)

    def used(seconds_ago: int) -> timedelta:
        ago = timedelta(seconds=seconds_ago)
        session.execute(text("UPDATE api_key SET last_used_at = now() - :ago"), {"ago": ago})
        keys.authenticate(session, secret)
        left = session.execute(text("SELECT now() - last_used_at FROM api_key")).scalar_one()
        assert isinstance(left, timedelta)
        return left

    assert key.last_used_at is None
    keys.authenticate(session, secret)
    assert session.scalars(text("SELECT count(last_used_at) FROM api_key")).one() == 1
    assert used(59) == timedelta(seconds=59)
    assert used(61) == timedelta()


def test_a_use_that_somebody_else_notes_waits_for_nobody(session: Session, tenant: Tenant) -> None:
    key, secret = keys.create_key(session, tenant.id)
    session.commit()
    with Session(session.get_bind()) as other:
        other.execute(text("SELECT FROM api_key FOR UPDATE"))
        session.execute(text("SET LOCAL lock_timeout = 1"))
        assert keys.authenticate(session, secret).key_id == key.id


def test_the_key_of_a_disabled_tenant_reads_and_submits_nothing(session: Session, tenant: Tenant) -> None:
    _, secret = keys.create_key(session, tenant.id)
    tenants.set_disabled(session, tenant, is_disabled=True)
    caller = keys.authenticate(session, secret)
    caller.require(Scope.READ)
    with pytest.raises(ForbiddenError, match="is disabled") as caught:
        caller.require(Scope.SUBMIT)
    assert caught.value.code == "tenant_disabled"


def test_no_sentence_about_a_key_repeats_it(session: Session, tenant: Tenant) -> None:
    _, secret = keys.create_key(session, tenant.id, scopes=[Scope.READ])
    with pytest.raises(ForbiddenError) as caught:
        keys.authenticate(session, secret).require(Scope.ADMIN)
    assert re.search("tm-.{4}", caught.value.message) is None
    assert session.get_one(ApiKey, keys.find_key(session, secret).id).key_hash not in caught.value.message
