"""Tests of an operator's commands: keys, tenants and their limits, the store, the audit and the schema."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from jobs.access import SERVICE
from jobs.database import head_revision
from jobs.errors import AuthenticationError, InputError, NotFoundError, ServiceError
from tests.cli.service import Tokenmill, run
from tests.database_roles import as_owner


def test_a_revoked_key_opens_nothing(server: Tokenmill, database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    secret = run("keys", "create", "acme", **admin).stdout.strip()
    assert server("batch", "list", TOKENMILL_API_KEY=secret).exit_code == 0
    assert run("keys", "revoke", secret, **admin).stdout.startswith("revoked key_")
    with pytest.raises(AuthenticationError, match="revoked"):
        server("batch", "list", TOKENMILL_API_KEY=secret)
    listed = run("keys", "list", "acme", **admin).stdout
    assert secret[:10] in listed
    assert secret not in listed


def test_a_budget_is_set_and_lifted(database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    run("tenants", "create", "budgeted", "--budget", "700", **admin)
    assert run("tenants", "budget", "budgeted", **admin).stdout.startswith("limit 700")
    assert run("tenants", "budget", "budgeted", "500", **admin).stdout.startswith(
        "limit 500, available 500, reserved 0"
    )
    assert run("tenants", "budget", "budgeted", **admin).stdout.startswith("limit 500"), "looking changes nothing"
    with pytest.raises(InputError, match="give a whole number, or `none`"):
        run("tenants", "budget", "budgeted", "5e3", **admin)
    assert run("tenants", "budget", "budgeted", "none", **admin).stdout.startswith("no limit")
    with pytest.raises(NotFoundError, match="tenants create nobody"):
        run("tenants", "budget", "nobody", "5", **admin)


def test_limits_of_a_tenant_are_shown_set_and_given_back(database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database, "TOKENMILL_TENANT_FILES": "77"}
    run("tenants", "create", "limited", **admin)

    def shown(*changes: str) -> dict[str, tuple[str, str]]:
        lines = run("tenants", "limits", "limited", *changes, **admin).stdout.splitlines()
        return {limit: (value, origin) for limit, value, origin in (line.split("\t") for line in lines)}

    assert shown()["files"] == ("77", "default")
    changed = shown("--set", "files=5", "--set", "open_batches=0")
    assert (changed["files"], changed["open_batches"]) == (("5", "set"), ("0", "set"))
    assert shown("--set", "files=default")["files"] == ("77", "default")
    for wrong in ("files", "files=-1", "colour=1", "files=1.5"):
        with pytest.raises(InputError, match=r"LIMIT is one of .*open_batches, enqueued_tokens"):
            run("tenants", "limits", "limited", "--set", wrong, **admin)


def test_a_tenant_has_a_retention_of_its_own_and_can_be_deleted(server: Tokenmill, database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    made = run("tenants", "create", "leaving", **admin).stdout
    secret = run("keys", "create", "leaving", **admin).stdout.strip()
    assert run("tenants", "retention", "leaving", "7", **admin).stdout == "7 days\n"
    assert run("tenants", "retention", "leaving", **admin).stdout == "7 days\n", "looking changes nothing"
    with pytest.raises(InputError, match="give a whole number, or `default`"):
        run("tenants", "retention", "leaving", "soon", **admin)
    assert "TOKENMILL_RETENTION_DAYS" in run("tenants", "retention", "leaving", "default", **admin).stdout
    assert run("tenants", "delete", "leaving", "--yes", **admin).stdout == f"deleted {made}"
    assert "leaving" not in run("tenants", "list", **admin).stdout
    with pytest.raises(AuthenticationError, match="revoked"):
        server("batch", "list", TOKENMILL_API_KEY=secret)


def test_a_new_tenant_may_not_be_urgent_until_the_operator_says_so(database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}

    def best(name: str) -> str:
        rows = [line.split("\t") for line in run("tenants", "list", **admin).stdout.splitlines()]
        return next(row[3] for row in rows if row[1] == name)

    run("tenants", "create", "patient", **admin)
    run("tenants", "create", "hasty", "--best-priority", "urgent", **admin)
    assert (best("patient"), best("hasty")) == ("normal", "urgent")
    assert run("tenants", "priority", "patient", "urgent", **admin).stdout == "patient may ask for urgent at best\n"
    assert best("patient") == "urgent"


def test_the_class_that_nobody_asks_for_is_not_offered_by_any_command(batch_file: Path) -> None:
    for command in (
        ("batch", "create", batch_file, "--priority"),
        ("batch", "change", "batch_1", "--priority"),
        ("tenants", "create", "new", "--best-priority"),
        ("tenants", "priority", "acme"),
    ):
        refused = run(*command, "overflow")
        assert refused.exit_code == 2
        assert "'overflow' is not one of 'urgent', 'normal', 'bulk'" in refused.stderr


def test_a_store_is_adopted_by_the_database_that_shall_sweep_it(database: str, tmp_path: Path) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database, "TOKENMILL_STORAGE_URL": tmp_path.as_uri()}
    (tmp_path / ".swept-by").write_text("7/16384")
    assert "and 7/16384 no longer does" in run("db", "adopt-storage", **admin).stdout
    assert "no longer" not in run("db", "adopt-storage", **admin).stdout, "it is ours by now"
    with pytest.raises(InputError, match="TOKENMILL_STORAGE_URL"):
        run("db", "adopt-storage", TOKENMILL_DATABASE_URL=database)


def test_no_store_is_adopted_by_a_database_without_a_schema(empty_database: str, tmp_path: Path) -> None:
    (tmp_path / ".swept-by").write_text("7/16384")
    admin = {"TOKENMILL_DATABASE_URL": empty_database, "TOKENMILL_STORAGE_URL": tmp_path.as_uri()}
    with pytest.raises(ServiceError, match="tokenmill db upgrade"):
        run("db", "adopt-storage", **admin)
    assert (tmp_path / ".swept-by").read_text() == "7/16384"


def test_an_audit_of_good_data_is_clean_and_bad_data_is_a_failure(database: str, api_key: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    tenant_id = run("tenants", "create", "audited", **admin).stdout.strip()
    assert run("audit", **admin).stdout == "clean\n"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE budget SET spent_tokens = 7 WHERE tenant_id = %s", [tenant_id])
        found = run("audit", **admin)
        connection.execute("UPDATE budget SET spent_tokens = 0 WHERE tenant_id = %s", [tenant_id])
    assert found.exit_code == 1
    assert tenant_id in found.stdout


def test_an_upgraded_schema_is_named_by_its_revision(database: str) -> None:
    answer = run("db", "upgrade", TOKENMILL_DATABASE_URL=database, TOKENMILL_DATABASE_OWNER_URL=as_owner(database))
    assert answer.stdout.startswith(f"the schema is at revision {head_revision()}\n")
    assert SERVICE in answer.stdout
