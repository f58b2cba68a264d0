"""Tests of `tokenmill keys`, `tenants disable`, `workers` and `admin log` on a real database."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session
from typer.testing import CliRunner, Result

from cli.app import app
from jobs.accounts import browser_sessions, spill_days
from jobs.accounts.keys import authenticate
from jobs.accounts.tenants import find_tenant
from jobs.batches import deletion
from jobs.chunks import fleet
from jobs.database import connect, sessions, transaction
from jobs.engines.engine import ServingEngine, Spill
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.ids import new_id
from jobs.states import BatchState
from jobs.tables import Batch, File, Tenant

Tokenmill = Callable[..., Result]


@pytest.fixture
def tokenmill(database_url: str) -> Tokenmill:
    def run(*arguments: str) -> Result:
        variables = {"TOKENMILL_DATABASE_URL": database_url}
        return CliRunner().invoke(app, arguments, env=variables, catch_exceptions=False)

    run("tenants", "create", "acme")
    return run


def table(result: Result) -> list[dict[str, str]]:
    header, *rows = [line.split("\t") for line in result.stdout.splitlines()]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_key_has_a_name_scopes_and_an_end_and_is_rotated_and_revoked(tokenmill: Tokenmill) -> None:
    asked = ("--scope", "read", "--name", "report", "--expires", "90d")
    first = tokenmill("keys", "create", "acme", *asked).stdout.strip()
    (listed,) = table(tokenmill("keys", "list", "acme"))
    assert (listed["key"], listed["name"], listed["scopes"]) == (f"{first[:10]}…", "report", "read")
    assert listed["expires"] > listed["created"]
    assert (listed["last used"], listed["revoked"]) == ("", "")
    rotated = tokenmill("keys", "rotate", first, "--overlap", "12h")
    assert rotated.stdout.startswith("tm-")
    assert rotated.stderr.startswith(f"{listed['id']}: the old secret works until 20")
    at_once = tokenmill("keys", "rotate", listed["id"], "--overlap", "0")
    assert at_once.stderr == f"{listed['id']}: the old secret no longer works\n"
    assert tokenmill("keys", "revoke", listed["id"]).stdout == f"revoked {listed['id']}\n"
    with pytest.raises(ConflictError, match="was revoked"):
        tokenmill("keys", "rotate", listed["id"])


def test_sessions_are_listed_and_ended_one_by_one_of_a_key_and_all(tokenmill: Tokenmill, database_url: str) -> None:
    engine = connect(database_url)
    secrets = [tokenmill("keys", "create", *owner).stdout.strip() for owner in (("acme",), ("--operator",))]
    with transaction(sessions(engine)) as session:
        for secret in secrets * 2:
            caller = authenticate(session, secret)
            browser_sessions.begin(session, key_id=caller.key_id, key_hash=caller.key_hash, user_agent="Firefox")
    engine.dispose()
    listed = table(tokenmill("sessions", "list"))
    of_acme = table(tokenmill("sessions", "list", "--key", secrets[0]))
    assert (len(listed), len(of_acme), {row["browser"] for row in listed}) == (4, 2, {"Firefox"})
    assert table(tokenmill("sessions", "list", "--limit", "2", "--before", listed[1]["id"])) == listed[2:]
    assert all(row["expires"] > row["last seen"] >= row["created"] for row in listed)
    one = of_acme[0]["id"]
    assert tokenmill("sessions", "end", one).stdout == f"ended {one}\n"
    assert tokenmill("sessions", "end", "--key", secrets[0]).stdout == f"ended 1 of {of_acme[0]['key']}\n"
    assert tokenmill("sessions", "end", "--all").stdout == "ended 2\n"
    assert table(tokenmill("sessions", "list")) == []
    logged = [row["action"] for row in table(tokenmill("admin", "log", "--limit", "3"))]
    assert logged == ["session.end_all", "key.end_sessions", "session.end"]
    with pytest.raises(NotFoundError, match="no open session"):
        tokenmill("sessions", "end", one)


@pytest.mark.parametrize("arguments", [(), ("session_x", "--all"), ("--key", "key_x", "--all")])
def test_which_sessions_are_to_end_has_to_be_said_once(tokenmill: Tokenmill, arguments: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="one of SESSION, --key and --all"):
        tokenmill("sessions", "end", *arguments)


def test_an_operators_key_is_of_no_tenant(tokenmill: Tokenmill) -> None:
    tokenmill("keys", "create", "--operator", "--name", "dashboard")
    (listed,) = table(tokenmill("keys", "list", "--operator"))
    assert (listed["name"], listed["scopes"]) == ("dashboard", "admin")
    assert table(tokenmill("keys", "list", "acme")) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("create",), "either a TENANT or --operator"),
        (("create", "acme", "--operator"), "either a TENANT or --operator"),
        (("list",), "either a TENANT or --operator"),
        (("create", "acme", "--scope", "admin"), "a tenant's key may have submit and read"),
        (("create", "--operator", "--scope", "read"), "an operator's key has admin"),
        (("create", "acme", "--expires", "90"), "--expires is '90'; give a number followed by m, h or d"),
        (("create", "acme", "--expires", "0"), "lifetime"),
        (("create", "acme", "--name", " "), "the key's name"),
    ],
)
def test_a_wrong_key_command_says_what_is_allowed(
    tokenmill: Tokenmill, arguments: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        tokenmill("keys", *arguments)


def test_a_tenant_is_disabled_and_enabled(tokenmill: Tokenmill) -> None:
    assert tokenmill("tenants", "disable", "acme").stdout == "disabled acme; accepted batches run on\n"
    (listed,) = table(tokenmill("tenants", "list"))
    assert listed["disabled"].startswith("20")
    (as_json,) = json.loads(tokenmill("tenants", "list", "--json").stdout)
    assert (as_json["name"], as_json["disabled"]) == ("acme", listed["disabled"])
    assert tokenmill("tenants", "disable", "acme", "--cancel").stdout == "disabled acme and cancelled 0 batches\n"
    assert tokenmill("tenants", "enable", "acme").stdout == "enabled acme\n"
    assert table(tokenmill("tenants", "list"))[0]["disabled"] == ""
    with pytest.raises(NotFoundError, match="no tenant 'nobody'"):
        tokenmill("tenants", "disable", "nobody")


def test_open_batches_are_cancelled_in_short_transactions_and_counted_together(
    tokenmill: Tokenmill, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_BLOCK", 2)
    engine = connect(database_url)
    with transaction(sessions(engine)) as session:
        add_open_batches(session, find_tenant(session, "acme"), count=3)
    engine.dispose()
    assert tokenmill("tenants", "disable", "acme", "--cancel").stdout == "disabled acme and cancelled 3 batches\n"
    assert [row["action"] for row in table(tokenmill("admin", "log", "--limit", "3"))] == [
        "tenant.cancel_batches",
        "tenant.cancel_batches",
        "tenant.disable",
    ]


def add_open_batches(session: Session, tenant: Tenant, *, count: int) -> None:
    file = File(
        id=new_id("file"), tenant_id=tenant.id, filename="in.jsonl", purpose="batch", size_bytes=1, object_key="in"
    )
    session.add(file)
    session.flush()
    now = datetime.now(UTC)
    for _ in range(count):
        batch = Batch(
            id=new_id("batch"),
            tenant_id=tenant.id,
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            fingerprint=new_id("fp"),
            state=BatchState.IN_PROGRESS,
            expires_at=now + timedelta(hours=24),
            created_at=now,
        )
        session.add(batch)


def test_a_worker_is_listed_drained_and_resumed(tokenmill: Tokenmill, database_url: str) -> None:
    engine = connect(database_url)
    with transaction(sessions(engine)) as session:
        fleet.register(session, worker_id="worker_a", model="demo", max_chunks=1, max_model_len=64)
        fleet.register(session, worker_id="worker_o", model="demo", max_chunks=1, max_model_len=64)
        fleet.heartbeat(session, "worker_o", out_reason="no numbers")
    assert [each["out, because"] for each in table(tokenmill("workers", "list"))] == ["", "no numbers"]
    with transaction(sessions(engine)) as session:
        fleet.stop(session, "worker_o")
    engine.dispose()
    (listed,) = table(tokenmill("workers", "list"))
    assert (listed["id"], listed["model"], listed["draining since"]) == ("worker_a", "demo", "")
    assert listed["out, because"] == ""
    drained = tokenmill("workers", "drain", "worker_a").stdout
    assert (
        drained
        == "worker_a finishes what it has and claims nothing more; `tokenmill workers resume worker_a` undoes it\n"
    )
    (drained_one,) = table(tokenmill("workers", "list"))
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", drained_one["draining since"])
    assert tokenmill("workers", "resume", "worker_a").stdout == "worker_a claims again\n"
    assert table(tokenmill("workers", "list"))[0]["draining since"] == ""
    assert [row["action"] for row in table(tokenmill("admin", "log"))[:2]] == ["worker.resume", "worker.drain"]
    with pytest.raises(NotFoundError, match="no worker 'worker_b'; `tokenmill workers list` shows"):
        tokenmill("workers", "drain", "worker_b")


@contextmanager
def opened(database_url: str) -> Iterator[Session]:
    engine = connect(database_url)
    try:
        with transaction(sessions(engine)) as session:
            yield session
    finally:
        engine.dispose()


def test_a_tenants_late_lines_may_leave_the_house_once_an_operator_says_so(
    tokenmill: Tokenmill, database_url: str
) -> None:
    def may_leave() -> bool:
        with opened(database_url) as session:
            return find_tenant(session, "acme").may_leave_house

    assert not may_leave()
    for state, may in (("on", True), ("off", False)):
        assert "acme" in tokenmill("tenants", "spill", "acme", state).stdout
        assert may_leave() == may
    assert tokenmill("tenants", "spill", "acme", "perhaps").exit_code == 2
    (entry, *_) = table(tokenmill("admin", "log"))
    assert "may_leave_house" in str(entry)


def test_a_worker_outside_the_house_is_listed_with_what_it_may_cost_and_has_cost(
    tokenmill: Tokenmill, database_url: str
) -> None:
    outside = ServingEngine(kind="vllm", version="0.32", spill=Spill(budget_picos=5 * 10**12))
    with opened(database_url) as session:
        fleet.register(session, worker_id="w_house", model="m", max_chunks=1, max_model_len=64)
        fleet.register(session, worker_id="w_out", model="m", max_chunks=1, max_model_len=64, engine=outside)
        asker = spill_days.Asker(model="m", batch_id="b", chunk_id=1, fence=1)
        spill_days.reserve(session, asker, [10**12], budget_picos=5 * 10**12)
    rows = {row["id"]: row for row in table(tokenmill("workers", "list"))}
    assert (rows["w_out"]["engine"], rows["w_out"]["spilled today"]) == (
        "vllm 0.32, outside the house",
        "1.00 of 5.00",
    )
    assert (rows["w_house"]["engine"], rows["w_house"]["spilled today"]) == ("tokenmill", "")


def test_the_admin_log_names_the_user_and_shows_the_newest_change_first(tokenmill: Tokenmill) -> None:
    secret = tokenmill("keys", "create", "acme").stdout.strip()
    tokenmill("tenants", "budget", "acme", "700")
    newest, key, tenant = table(tokenmill("admin", "log"))
    assert {row["by"] for row in (newest, key, tenant)} == {f"user:{pwd.getpwuid(os.getuid()).pw_name}"}
    assert [row["action"] for row in (newest, key, tenant)] == ["tenant.change", "key.create", "tenant.create"]
    assert json.loads(newest["before"]) == {"limit_tokens": None}
    assert json.loads(newest["after"]) == {"limit_tokens": 700}
    assert key["before"] == ""
    assert secret[:10] not in key["after"]
    assert table(tokenmill("admin", "log", "--limit", "1", "--before", newest["id"])) == [key]
