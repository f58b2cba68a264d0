"""Commands for whoever runs the service: schema, tenants, keys, audit. They talk to Postgres directly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.errors import InputError
from jobs.states import AskedPriority

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

db_app = typer.Typer(help="The database: its schema, and its object store.", no_args_is_help=True)
tenants_app = typer.Typer(help="Tenants: who owns files, batches and a budget.", no_args_is_help=True)
keys_app = typer.Typer(help="API keys of tenants.", no_args_is_help=True)

DataDirOption = Annotated[
    Path | None, typer.Option(help="Use the running `tokenmill up` of this folder, not TOKENMILL_DATABASE_URL.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(db_app, name="db")
    app.add_typer(tenants_app, name="tenants")
    app.add_typer(keys_app, name="keys")
    app.command()(audit)


@contextmanager
def admin_transaction(data_dir: Path | None) -> Iterator[Session]:
    """Run one transaction on the database of the environment, or of a running `tokenmill up`."""
    from cli.up_command import running_database_url
    from jobs.database import connect, sessions, transaction

    engine = connect(running_database_url(data_dir))
    try:
        with transaction(sessions(engine)) as session:
            yield session
    finally:
        engine.dispose()


@db_app.command("upgrade")
def db_upgrade(data_dir: DataDirOption = None) -> None:
    """Bring the schema to this version; harmless to repeat."""
    from cli.up_command import running_database_url
    from jobs.database import head_revision, upgrade

    upgrade(running_database_url(data_dir))
    print(f"the schema is at revision {head_revision()}")


@db_app.command("adopt-storage")
def db_adopt_storage(data_dir: DataDirOption = None) -> None:
    """Let this database, and no other, sweep the object store of files that no row names.

    For a database that was restored or moved to another server: control workers of a copy sweep nothing and say so.
    """
    from cli.up_command import running_database_url
    from jobs import store_owner
    from jobs.database import connect, sessions
    from jobs.storage import Storage

    url = storage_url(data_dir)
    if url is None:
        raise InputError("the object store is not known; set TOKENMILL_STORAGE_URL as the service does, or --data-dir")
    engine = connect(running_database_url(data_dir))
    try:
        former = store_owner.adopt(sessions(engine), Storage(url))
    finally:
        engine.dispose()
    print(f"this database sweeps {url}" + ("" if former is None else f", and {former} no longer does"))


@tenants_app.command("create")
def tenants_create(
    name: Annotated[str, typer.Argument()],
    weight: Annotated[float, typer.Option(help="Share of the GPUs against other tenants.")] = 1.0,
    budget: Annotated[int | None, typer.Option(metavar="TOKENS", help="Token budget [default: no limit]")] = None,
    best_priority: Annotated[
        AskedPriority, typer.Option(help="The best class its batches may ask for.")
    ] = AskedPriority.NORMAL,
    data_dir: DataDirOption = None,
) -> None:
    """Create a tenant and print its id; `tokenmill keys create NAME` gives it a key."""
    from jobs.accounts import tenants

    with admin_transaction(data_dir) as session:
        tenant = tenants.create_tenant(session, name, weight=weight, limit_tokens=budget, best_priority=best_priority)
        print(tenant.id)


@tenants_app.command("budget")
def tenants_budget(
    name: Annotated[str, typer.Argument(help="Name or id.")],
    tokens: Annotated[str | None, typer.Argument(metavar="[TOKENS|none]", help="Leave out to see it.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show or set a tenant's token budget; what was accepted keeps its reservation."""
    from jobs.accounts import budgets, tenants

    with admin_transaction(data_dir) as session:
        tenant_id = tenants.find_tenant(session, name).id
        if tokens is not None:
            limit = _whole_number(tokens, name="TOKENS", unset="none", meaning="no limit")
            budgets.set_limit(session, tenant_id, limit)
        quota = budgets.quota(session, tenant_id)
    shown = "no limit" if quota.limit is None else f"limit {quota.limit}, available {quota.available}"
    print(f"{shown}, reserved {quota.reserved}, spent {quota.spent}")


@tenants_app.command("limits")
def tenants_limits(
    *,
    name: Annotated[str, typer.Argument(help="Name or id.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LIMIT=N", help="May be given again; LIMIT=default goes back to the setting."),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show what a tenant may have and do at once, or change it; API processes know within a request."""
    from cli.table import print_table
    from jobs.accounts import limits, tenants
    from jobs.settings import load_settings

    changes = dict(_limit_of(given) for given in change or [])
    with admin_transaction(data_dir) as session:
        limits.set_limits(session, tenants.find_tenant(session, name).id, changes)
        tenant = tenants.find_tenant(session, name)
        session.refresh(tenant)
        holding = limits.limits_of(tenant, load_settings())
        rows = [
            (limit, getattr(holding, limit), "default" if getattr(tenant, f"max_{limit}") is None else "set")
            for limit in limits.NAMES
        ]
    print_table(("limit", "value", "from"), rows)


def _limit_of(given: str) -> tuple[str, int | None]:
    from jobs.accounts.limits import NAMES

    limit, _, value = given.partition("=")
    if limit not in NAMES or not (value == "default" or (value.isascii() and value.isdecimal())):
        raise InputError(f"--set is {given!r}; give LIMIT=N or LIMIT=default, where LIMIT is one of {', '.join(NAMES)}")
    return limit, None if value == "default" else int(value)


@tenants_app.command("retention")
def tenants_retention(
    name: Annotated[str, typer.Argument(help="Name or id.")],
    days: Annotated[str | None, typer.Argument(metavar="[DAYS|default]", help="Leave out to see them.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show or set for how many days a tenant's results can be read one by one."""
    from jobs.accounts import tenants

    with admin_transaction(data_dir) as session:
        tenant = tenants.find_tenant(session, name)
        if days is not None:
            kept = _whole_number(days, name="DAYS", unset="default", meaning="TOKENMILL_RETENTION_DAYS")
            tenants.set_retention(session, tenant, kept)
        kept = tenant.retention_days
    print("as TOKENMILL_RETENTION_DAYS says" if kept is None else f"{kept} days")


def _whole_number(given: str, *, name: str, unset: str, meaning: str) -> int | None:
    """Return the number that was given, None for the word that unsets it."""
    if given == unset:
        return None
    try:
        return int(given)
    except ValueError:
        message = f"{name} is {given!r}; give a whole number, or `{unset}` for {meaning}"
        raise InputError(message, param=name.lower()) from None


@tenants_app.command("delete")
def tenants_delete(
    name: Annotated[str, typer.Argument(help="Name or id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Revoke a tenant's keys, cancel its batches and delete its batches, results and files; its bills stay.

    A running service deletes them within a minute, and what still runs as it ends.
    """
    from jobs.accounts import tenants
    from jobs.batches import deletion

    with admin_transaction(data_dir) as session:
        tenant_id = tenants.find_tenant(session, name).id
    if not yes:
        typer.confirm(f"Delete tenant {name} ({tenant_id}) with all of its batches and files?", abort=True)
    with admin_transaction(data_dir) as session:
        deletion.delete_tenant(session, tenants.find_tenant(session, tenant_id))
    print(f"deleted {tenant_id}")


@tenants_app.command("priority")
def tenants_priority(
    name: Annotated[str, typer.Argument(help="Name or id.")],
    best: Annotated[AskedPriority, typer.Argument(help="The best class its batches may ask for.")],
    data_dir: DataDirOption = None,
) -> None:
    """Set how urgent a tenant's coming batches may be; accepted ones keep their class."""
    from jobs.accounts import limits, tenants

    with admin_transaction(data_dir) as session:
        limits.set_best_priority(session, tenants.find_tenant(session, name).id, best)
    print(f"{name} may ask for {best.value} at best")


class Overflow(StrEnum):
    ON = "on"
    OFF = "off"


@tenants_app.command("overflow")
def tenants_overflow(
    name: Annotated[str, typer.Argument(help="Name or id.")],
    wanted: Annotated[Overflow, typer.Argument(metavar="on|off")],
    data_dir: DataDirOption = None,
) -> None:
    """Let batches that a tenant's token budget does not cover run on spare capacity, in class overflow, or refuse them.

    What they use does not count against the budget; accepted batches stay as they are.
    """
    from jobs.accounts import limits, tenants

    is_allowed = wanted is Overflow.ON
    with admin_transaction(data_dir) as session:
        limits.set_overflow(session, tenants.find_tenant(session, name).id, is_allowed=is_allowed)
    print(f"batches of {name} beyond its token budget {'run on spare capacity' if is_allowed else 'are refused'}")


@tenants_app.command("list")
def tenants_list(data_dir: DataDirOption = None) -> None:
    """List tenants with their budgets."""
    from cli.table import print_table
    from jobs.accounts import budgets, tenants

    with admin_transaction(data_dir) as session:
        rows = []
        for tenant in tenants.list_tenants(session):
            quota = budgets.quota(session, tenant.id)
            refused = budgets.refused_input(session, tenant.id)
            amounts = (quota.limit, quota.reserved, quota.spent, refused.lines, refused.size_bytes)
            rows.append((tenant.id, tenant.name, tenant.weight, tenant.best_priority, *amounts))
    columns = ("id", "name", "weight", "best priority", "budget", "reserved", "spent", "refused lines", "refused bytes")
    print_table(columns, rows)


@keys_app.command("create")
def keys_create(tenant: Annotated[str, typer.Argument(help="Name or id.")], data_dir: DataDirOption = None) -> None:
    """Create a key and print it: it cannot be shown again."""
    from jobs.accounts import keys, tenants

    with admin_transaction(data_dir) as session:
        _, secret = keys.create_key(session, tenants.find_tenant(session, tenant).id)
    print(secret)


@keys_app.command("list")
def keys_list(tenant: Annotated[str, typer.Argument(help="Name or id.")], data_dir: DataDirOption = None) -> None:
    """List a tenant's keys by id and first characters."""
    from cli.table import print_table
    from jobs.accounts import keys, tenants

    with admin_transaction(data_dir) as session:
        found = keys.list_keys(session, tenants.find_tenant(session, tenant).id)
        rows = [(key.id, f"{key.hint}…", key.created_at, key.revoked_at) for key in found]
    print_table(("id", "key", "created", "revoked"), rows)


@keys_app.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="Id, the key itself, or its first characters.")],
    data_dir: DataDirOption = None,
) -> None:
    """Revoke a key."""
    from jobs.accounts import keys

    with admin_transaction(data_dir) as session:
        print(f"revoked {keys.revoke_key(session, keys.find_key(session, key)).id}")


def audit(
    batch: Annotated[str | None, typer.Option(help="Id of one batch [default: all, and the budgets]")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Prove that no result is missing, repeated or billed wrongly; exit status 1 with findings.

    Output files are read and counted too where the object store is known: TOKENMILL_STORAGE_URL, or --data-dir.
    """
    from jobs import audit as audits
    from jobs.storage import Storage

    url = storage_url(data_dir)
    with admin_transaction(data_dir) as session:
        findings = audits.audit(session, batch_id=batch, storage=None if url is None else Storage(url))
    for finding in findings:
        print(f"{finding.subject}: {finding.message}")
    print(f"{len(findings)} findings" if findings else "clean")
    if findings:
        raise typer.Exit(1)


def storage_url(data_dir: Path | None) -> str | None:
    from cli.data_dir import DataDir
    from cli.up_command import default_data_dir

    given = os.environ.get("TOKENMILL_STORAGE_URL")
    if data_dir is None and (given or os.environ.get("TOKENMILL_DATABASE_URL")):
        return given
    return DataDir(root=(data_dir or default_data_dir()).absolute()).objects.as_uri()
