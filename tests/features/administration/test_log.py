"""Tests of the admin log: every change by an operator has its entry, and no entry can change."""

from __future__ import annotations

import ast
import itertools
import json
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session, sessionmaker

from features.administration import budgets, keys, models, tenants
from features.pipelines import registered_stores as stores
from jobs.accounts.window_budgets import NewBudget
from jobs.admin_log import Actor, Admin, Administration, entries
from jobs.batches import deletion
from jobs.database import transaction
from jobs.states import AskedPriority, BatchState, BudgetUnit, BudgetWindow, Scope
from jobs.tables import AdminEntry, Batch, Deletion, Tenant

MakeBatch = Callable[..., Batch]
ROOT = Path(__file__).resolve().parents[3]
CHANGES = {
    "jobs.accounts.tenants": {"create_tenant", "set_retention", "set_disabled"},
    "jobs.accounts.limits": {"set_limits", "set_best_priority", "set_overflow", "set_leaving"},
    "jobs.accounts.budgets": {"set_limit"},
    "jobs.accounts.window_budgets": {"set_budget", "remove_budget"},
    "jobs.accounts.keys": {"create_key", "rotate_key", "revoke_key", "revoke_keys"},
    "jobs.batches.deletion": {"delete_tenant", "cancel_open"},
    "features.pipelines.stores": {"add_store", "remove_store"},
    "jobs.served_models": {"add_model", "set_prices", "remove_model"},
}
"""Functions of those that only `features.administration` may call: they change what operators change, but write no
entry."""


@pytest.fixture
def admin(session: Session) -> Admin:
    return Admin(session=session, actor=Actor.of_key("key_operator"))


@pytest.fixture
def administration(maker: sessionmaker[Session], admin: Admin) -> Administration:
    @contextmanager
    def begin() -> Iterator[Admin]:
        with transaction(maker) as session:
            yield replace(admin, session=session)

    return begin


def last(session: Session) -> AdminEntry:
    return entries(session, limit=1)[0]


def told(entry: AdminEntry) -> tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]:
    return entry.actor, entry.action, entry.before, entry.after


def test_a_change_says_who_what_and_from_what_to_what(session: Session, admin: Admin, tenant: Tenant) -> None:
    tenants.change(admin, tenant, limit_tokens=500, limits={"files": 3}, best_priority=AskedPriority.BULK)
    before = {"limit_tokens": None, "files": None, "best_priority": "urgent"}
    after = {"limit_tokens": 500, "files": 3, "best_priority": "bulk"}
    assert told(last(session)) == ("key:key_operator", "tenant.change", before, after)
    assert (last(session).subject, last(session).tenant_id) == (tenant.id, tenant.id)
    tenants.change(admin, tenant, limit_tokens=500, may_overflow=False)
    assert len(entries(session, limit=10)) == 1, "nothing was changed"


def test_disabling_a_tenant_cancels_its_open_batches_on_a_wish_and_nobody_elses(
    session: Session, admin: Admin, administration: Administration, *, tenant: Tenant, make_batch: MakeBatch
) -> None:
    other = tenants.create(admin, "other")
    running, ended = make_batch(state=BatchState.IN_PROGRESS), make_batch(state=BatchState.COMPLETED)
    others = make_batch(tenant_id=other.id, state=BatchState.IN_PROGRESS)
    tenants.disable(admin, tenant)
    session.commit()
    assert running.state == BatchState.IN_PROGRESS, "what was accepted runs on"
    assert tenants.cancel_batches(administration, tenant.id) == 1
    session.expire_all()
    assert running.state == BatchState.CANCELLING
    assert (ended.state, others.state) == (BatchState.COMPLETED, BatchState.IN_PROGRESS)
    after = {"cancelled_batches": 1}
    assert told(last(session)) == ("key:key_operator", "tenant.cancel_batches", {}, after)


def test_batches_are_cancelled_in_portions_that_stay_where_a_later_one_fails(
    session: Session,
    administration: Administration,
    monkeypatch: pytest.MonkeyPatch,
    *,
    tenant: Tenant,
    make_batch: MakeBatch,
) -> None:
    monkeypatch.setattr(deletion, "_BLOCK", 2)
    batches = [make_batch(state=BatchState.IN_PROGRESS) for _ in range(5)]
    begun = itertools.count()

    @contextmanager
    def cut_short() -> Iterator[Admin]:
        if next(begun) == 2:
            raise KeyboardInterrupt
        with administration() as admin:
            yield admin

    with pytest.raises(KeyboardInterrupt):
        tenants.cancel_batches(cut_short, tenant.id)
    session.expire_all()
    assert [batch.state for batch in batches].count(BatchState.CANCELLING) == 4
    assert tenants.cancel_batches(administration, tenant.id) == 1
    session.expire_all()
    assert {batch.state for batch in batches} == {BatchState.CANCELLING}
    assert [entry.after for entry in entries(session, limit=9)] == [{"cancelled_batches": n} for n in (1, 2, 2)]
    assert tenants.cancel_batches(administration, tenant.id) == 0


def every_change(admin: Admin) -> Iterator[tuple[str, Callable[[], object]]]:
    team = tenants.create(admin, "team")
    yield "tenant.create", lambda: None
    yield "tenant.change", lambda: tenants.change(admin, team, retention_days=3)
    yield "tenant.disable", lambda: tenants.disable(admin, team)
    yield "tenant.enable", lambda: tenants.enable(admin, team)
    key, secret = keys.create(admin, team.id, scopes=[Scope.READ], lifetime=timedelta(days=1))
    yield "key.create", lambda: None
    yield "key.rotate", lambda: keys.rotate(admin, key, overlap=timedelta(hours=1))
    yield "key.revoke", lambda: keys.revoke(admin, key)
    wanted = NewBudget(unit=BudgetUnit.TOKENS, window=BudgetWindow.DAY, limit=5)
    made = budgets.put(admin, team.id, wanted)
    yield "budget.set", lambda: None
    yield "budget.remove", lambda: budgets.remove(admin, made.budget_id)
    yield "model.add", lambda: models.add(admin, "m", "org/m", is_checked=True)
    yield "model.set_prices", lambda: models.set_prices(admin, "m", input_price_picos=7)
    yield "model.remove", lambda: models.remove(admin, "m")
    options = {"access_key_id": "id", "secret_access_key": secret}
    yield (
        "store.add",
        lambda: stores.add(admin, team.id, "s", "s3://bucket/a", options=options, is_writable=False),
    )
    yield "store.remove", lambda: stores.remove(admin, team.id, "s")
    yield "tenant.delete", lambda: tenants.delete(admin, team)
    assert secret[:10] not in json.dumps([[row.before, row.after] for row in entries(admin.session, limit=99)])


def test_every_change_has_one_entry_and_no_entry_has_a_secret(session: Session, admin: Admin) -> None:
    expected = []
    for action, act in every_change(admin):
        act()
        expected.append(action)
        assert last(session).action == action
    assert [entry.action for entry in reversed(entries(session, limit=99))] == expected


def test_a_deletion_over_http_is_the_keys_and_at_the_terminal_the_operators(
    session: Session, admin: Admin, tenant: Tenant
) -> None:
    tenants.delete(admin, tenant)
    other = tenants.create(admin, "other")
    tenants.delete(Admin(session=session, actor=Actor.of_process()), other)
    deleted_by = {row.subject_id: row.deleted_by for row in session.query(Deletion)}
    assert deleted_by == {tenant.id: "key_operator", other.id: "operator"}


def test_a_process_acts_as_its_user_whatever_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setenv("USER", "somebody")
    assert Actor.of_process() == Actor(kind="user", name=pwd.getpwuid(os.getuid()).pw_name)


@pytest.mark.parametrize(
    "statement", ["UPDATE admin_log SET actor = 'nobody'", "DELETE FROM admin_log", "TRUNCATE admin_log"]
)
@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.changes_schema
def test_no_entry_is_changed_or_deleted_by_whatever_code(
    session: Session, admin: Admin, statement: str, role: str
) -> None:
    tenants.create(admin, "team")
    # a role in which ordinary triggers do not run
    session.execute(text(f"SET LOCAL session_replication_role = {role}"))
    with pytest.raises(ProgrammingError, match="admin_log is append-only"):
        session.execute(text(statement))


def test_entries_are_read_from_the_newest_on(session: Session, admin: Admin) -> None:
    for number in range(3):
        tenants.create(admin, f"team-{number}")
    newest, *_ = found = entries(session, limit=2)
    assert [row.after["name"] for row in found if row.after] == ["team-2", "team-1"]
    assert len(entries(session, before_id=newest.id, limit=9)) == 2


def test_the_api_and_the_command_line_change_these_things_through_the_log_alone() -> None:
    past = [
        f"{path.relative_to(ROOT)}:{line} calls {name}"
        for package in ("api", "cli", "features")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.parts[-2] != "administration" and path.name != "registered_stores.py"
        for name, line in called(path)
        if any(name in names for names in CHANGES.values())
    ]
    assert past == []


def called(path: Path) -> Iterator[tuple[str, int]]:
    """Yield what a file imports or uses of modules imported from `jobs.accounts` and the like."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {module.rpartition(".")[2] for module in CHANGES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in CHANGES:
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield node.attr, node.lineno
