"""`tokenmill db …` and `tokenmill audit`: schema, ownership of the object store, and the audit of results."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.database import backup as backup_commands
from cli.database import move as move_command
from cli.transactions import (
    DataDirOption,
    administration,
    database_sessions,
    given_logins,
    owner_database_url,
    storage_url,
)
from jobs.counted import counted
from jobs.errors import InputError

app = typer.Typer(help="The database: its schema, backups and object store.", no_args_is_help=True)


@app.command("upgrade")
def db_upgrade(
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for Postgres, which may still be starting.")] = 0,
    data_dir: DataDirOption = None,
) -> None:
    """Upgrade the schema, the database roles and their rights to this version; can be repeated."""
    from jobs.access import SERVICE, arrange
    from jobs.database import connect, upgrade, wait_until_ready
    from jobs.storage import Storage, store_marker

    owner_url = owner_database_url(data_dir)
    waited = connect(owner_url)
    try:
        wait_until_ready(waited, wait)
    finally:
        waited.dispose()
    print(f"the schema is at revision {upgrade(owner_url)}")
    refusal = arrange(owner_url, logins=given_logins(data_dir))
    print(refusal or f"services can log in as {SERVICE}, which owns nothing: docs/database_roles.md")
    url = storage_url(data_dir)
    if url is not None:
        with database_sessions(data_dir) as maker:
            store_marker.bind(maker, Storage(url, is_marked=True))


@app.command("adopt-storage")
def db_adopt_storage(data_dir: DataDirOption = None) -> None:
    """Make this database the owner of the object store: it writes its marker, and only this database sweeps the store.

    For a database that was restored or moved to another server, and for a store that was moved or lost.
    """
    from jobs.storage import Storage, store_owner

    url = storage_url(data_dir)
    if url is None:
        raise InputError("the object store is not known; set TOKENMILL_STORAGE_URL as the service does, or --data-dir")
    with database_sessions(data_dir) as maker:
        former = store_owner.adopt(maker, Storage(url))
    if former is not None:
        with administration(data_dir) as admin:
            admin.note("storage.adopt", url, tenant_id=None, before={"swept_by": former}, after={"swept_by": "this"})
    print(f"this database sweeps {url}" + ("" if former is None else f", and {former} no longer does"))


def audit(
    batch: Annotated[str | None, typer.Option(help="Id of a batch [default: all batches and the budgets]")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Check that no result is missing, repeated or billed wrongly; exit status 1 with findings.

    Output files are read and counted too if the object store is known: TOKENMILL_STORAGE_URL, or --data-dir.
    """
    from jobs.audit import audit as audits
    from jobs.database import transaction
    from jobs.storage import Storage, store_marker

    url = storage_url(data_dir)
    storage = None if url is None else Storage(url, is_marked=True)
    with database_sessions(data_dir) as maker:
        if storage is not None:
            store_marker.bind(maker, storage)
        with transaction(maker) as session:
            findings = audits.audit(session, batch_id=batch, storage=storage)
    for finding in findings:
        print(f"{finding.subject}: {finding.message}")
    print(counted(len(findings), "finding") if findings else "clean")
    if findings:
        raise typer.Exit(1)


backup_commands.register(app)
move_command.register(app)
