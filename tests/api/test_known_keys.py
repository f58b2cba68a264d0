"""Tests of the cache of keys, kept for two seconds: lookups and notifications over a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session, sessionmaker

from api.admission import known_keys
from api.admission.known_keys import KEPT_SECONDS, KnownKeys
from jobs.accounts import key_changes
from jobs.accounts import keys as accounts_keys
from jobs.accounts.keys import create_key, get_key, look_up, revoke_key, rotate_key
from jobs.accounts.limits import set_limits
from jobs.accounts.secret_hashes import hash_secret
from jobs.accounts.tenants import create_tenant, find_tenant, set_disabled
from jobs.database import connect, sessions
from jobs.errors import AuthenticationError, ServiceError

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture(scope="module")
def engine(url: str) -> Iterator[Engine]:
    engine = connect(url)
    yield engine
    engine.dispose()


@pytest.fixture
def maker(engine: Engine) -> sessionmaker[Session]:
    return sessions(engine)


@pytest.fixture
def num_looks(engine: Engine) -> Iterator[list[str]]:
    """One entry for each query that looked up keys."""
    looks: list[str] = []

    def note(_c: Any, _r: Any, statement: str, *_: Any) -> None:
        if "LEFT OUTER JOIN tenant" in statement:
            looks.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield looks
    event.remove(engine, "before_cursor_execute", note)


def new_key(maker: sessionmaker[Session], name: str) -> tuple[str, str]:
    """Return a key's id and the hash of its secret; `name` is its tenant's."""
    with maker.begin() as session:
        key, secret = create_key(session, create_tenant(session, name).id)
        return key.id, hash_secret(secret)


def run(keys: KnownKeys, steps: Callable[[], Awaitable[None]], *, hears: str | None = None) -> None:
    """Run steps while keys are looked up, and changes are received from the database with the URL `hears`."""

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keys.keep_looking)
            if hears is not None:
                tasks.start_soon(keys.keep_listening, hears)
                while not keys.is_listening:
                    await anyio.sleep(0.01)
            with anyio.fail_after(60):
                await steps()
            tasks.cancel_scope.cancel()

    asyncio.run(main())


async def opens(keys: KnownKeys, key_hash: str) -> bool:
    try:
        await keys.caller(key_hash)
    except AuthenticationError:
        return False
    return True


async def until(keys: KnownKeys, key_hash: str, *, is_open: bool) -> None:
    while await opens(keys, key_hash) is not is_open:
        await anyio.sleep(0.01)


def test_a_known_key_is_looked_up_once_and_again_after_two_seconds(
    maker: sessionmaker[Session], num_looks: list[str]
) -> None:
    clock = Clock()
    keys = KnownKeys(maker, monotonic=clock)
    _, key_hash = new_key(maker, "once")

    async def steps() -> None:
        for _ in range(3):
            assert (await keys.caller(key_hash)).owner().name == "once"
        assert len(num_looks) == 1
        clock.now += KEPT_SECONDS
        assert await opens(keys, key_hash)
        assert len(num_looks) == 2

    run(keys, steps)


def test_hashes_that_wait_are_looked_up_in_one_query(maker: sessionmaker[Session], num_looks: list[str]) -> None:
    keys = KnownKeys(maker)
    _, key_hash = new_key(maker, "crowded")

    async def steps() -> None:
        wrong = [hash_secret(f"tm-{number}") for number in range(400)]
        found = await asyncio.gather(*(opens(keys, each) for each in (*wrong, key_hash, key_hash)))
        assert found == [False] * 400 + [True, True]
        assert len(num_looks) <= 2

    run(keys, steps)


@pytest.mark.parametrize("change", ["revoke", "rotate"])
def test_a_notification_ends_what_is_kept(maker: sessionmaker[Session], url: str, change: str) -> None:
    clock = Clock()  # stands still: only a notification can end it
    keys = KnownKeys(maker, monotonic=clock)
    key_id, key_hash = new_key(maker, change)

    async def steps() -> None:
        assert await opens(keys, key_hash)
        with maker.begin() as session:
            key = get_key(session, key_id)
            if change == "revoke":
                revoke_key(session, key)
            else:
                rotate_key(session, key, overlap=timedelta())
        await until(keys, key_hash, is_open=False)

    run(keys, steps, hears=url)


def test_a_disabled_tenant_and_new_limits_are_heard_of(maker: sessionmaker[Session], url: str) -> None:
    keys = KnownKeys(maker, monotonic=Clock())
    _, key_hash = new_key(maker, "disabled")

    async def steps() -> None:
        assert (await keys.caller(key_hash)).owner().disabled_at is None
        with maker.begin() as session:
            tenant = find_tenant(session, "disabled")
            set_disabled(session, tenant, is_disabled=True)
            set_limits(session, tenant.id, {"bytes_per_minute": 5})
        while (owner := (await keys.caller(key_hash)).owner()).disabled_at is None:
            await anyio.sleep(0.01)
        assert owner.max_bytes_per_minute == 5

    run(keys, steps, hears=url)


def test_without_a_notification_a_revoked_key_opens_for_two_seconds_at_most(maker: sessionmaker[Session]) -> None:
    clock = Clock()
    keys = KnownKeys(maker, monotonic=clock)
    key_id, key_hash = new_key(maker, "unheard")

    async def steps() -> None:
        assert await opens(keys, key_hash)
        with maker.begin() as session:
            revoke_key(session, get_key(session, key_id))
        clock.now += KEPT_SECONDS - 0.001
        assert await opens(keys, key_hash)
        clock.now += 0.001
        assert not await opens(keys, key_hash)

    run(keys, steps)


def test_a_key_that_expires_meanwhile_is_kept_no_longer(maker: sessionmaker[Session]) -> None:
    clock = Clock()
    keys = KnownKeys(maker, monotonic=clock)
    with maker.begin() as session:
        tenant = create_tenant(session, "expiring")
        _, secret = create_key(session, tenant.id, lifetime=timedelta(seconds=1))

    async def steps() -> None:
        assert await opens(keys, hash_secret(secret))
        assert keys.seconds_kept(hash_secret(secret)) <= 1.0

    run(keys, steps)


def test_unknown_hashes_are_kept_until_a_key_is_made(
    maker: sessionmaker[Session], url: str, num_looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KnownKeys(maker, monotonic=Clock())
    monkeypatch.setattr(accounts_keys, "_new_secret", lambda: "tm-" + "x" * 43)

    async def steps() -> None:
        key_hash = hash_secret("tm-" + "x" * 43)
        assert not await opens(keys, key_hash)
        assert not await opens(keys, key_hash)
        assert len(num_looks) == 1
        new_key(maker, "late")
        await until(keys, key_hash, is_open=True)

    run(keys, steps, hears=url)


def test_unknown_hashes_are_not_kept_while_nothing_is_heard(maker: sessionmaker[Session], num_looks: list[str]) -> None:
    keys = KnownKeys(maker, monotonic=Clock())

    async def steps() -> None:
        for _ in range(2):
            assert not await opens(keys, hash_secret("tm-nobody"))
        assert len(num_looks) == 2

    run(keys, steps)


def test_without_postgres_who_is_kept_gets_in_and_others_hear_that_it_is_away(
    maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KnownKeys(maker, monotonic=Clock())
    _, key_hash = new_key(maker, "kept")
    away = connect(NOWHERE)

    async def steps() -> None:
        assert await opens(keys, key_hash)
        monkeypatch.setattr(keys, "_sessions", sessions(away))
        assert await opens(keys, key_hash)
        with pytest.raises(ServiceError):
            await keys.caller(hash_secret("tm-other"))
        monkeypatch.setattr(keys, "_sessions", maker)
        assert not await opens(keys, hash_secret("tm-other"))

    run(keys, steps)
    away.dispose()


def test_what_changes_during_a_lookup_is_not_kept(
    maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch, num_looks: list[str]
) -> None:
    keys = KnownKeys(maker, monotonic=Clock())
    _, key_hash = new_key(maker, "overtaken")

    def overtaken(session: Session, key_hashes: list[str]) -> Any:
        found = look_up(session, key_hashes)
        keys.forget()
        return found

    async def steps() -> None:
        monkeypatch.setattr(known_keys, "look_up", overtaken)
        assert await opens(keys, key_hash)
        assert keys.seconds_kept(key_hash) == 0
        monkeypatch.setattr(known_keys, "look_up", look_up)
        assert await opens(keys, key_hash)
        assert len(num_looks) == 2

    run(keys, steps)


def test_of_too_many_the_least_used_are_forgotten(
    maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_keys, "_MOST", 2)
    keys = KnownKeys(maker, monotonic=Clock())
    hashes = [new_key(maker, f"many-{number}")[1] for number in range(3)]

    async def steps() -> None:
        for key_hash in (hashes[0], hashes[1], hashes[0], hashes[2]):
            assert await opens(keys, key_hash)
        assert [keys.seconds_kept(key_hash) > 0 for key_hash in hashes] == [True, False, True]

    run(keys, steps)


def test_listening_goes_on_after_the_database_was_away(
    maker: sessionmaker[Session],
    url: str,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(known_keys, "_PAUSE_SECONDS", 0.01)
    keys = KnownKeys(maker, monotonic=Clock())
    key_id, key_hash = new_key(maker, "interrupted")

    async def steps() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'tokenmill keys' AND datname = current_database()"
            )
        while not caplog.records or not keys.is_listening:
            await anyio.sleep(0.01)
        assert await opens(keys, key_hash)
        with maker.begin() as session:
            revoke_key(session, get_key(session, key_id))
        await until(keys, key_hash, is_open=False)

    run(keys, steps, hears=url)


def test_that_changes_are_not_heard_is_logged_once(
    maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    async def away(url: str) -> AsyncIterator[None]:
        tries.append(url)
        raise ServiceError("away")
        yield

    monkeypatch.setattr(known_keys, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(key_changes, "changes", away)
    keys = KnownKeys(maker, monotonic=Clock())

    async def listen() -> None:
        with anyio.move_on_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keys.keep_listening, NOWHERE)
                while len(tries) < 5:
                    await anyio.sleep(0.001)
                tasks.cancel_scope.cancel()

    asyncio.run(listen())
    assert len([record for record in caplog.records if record.name == known_keys.__name__]) == 1
