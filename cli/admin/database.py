"""`tokenmill db …` and `tokenmill audit`: the schema, the object store's owner, and the proof that nothing is lost."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.admin.transactions import DataDirOption, admin_transaction, administration, storage_url
from jobs.counted import counted
from jobs.errors import InputError

db_app = typer.Typer(help="The database: its schema, and its object store.", no_args_is_help=True)


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
    from jobs.database import connect, sessions
    from jobs.storage import Storage, store_owner

    url = storage_url(data_dir)
    if url is None:
        raise InputError("the object store is not known; set TOKENMILL_STORAGE_URL as the service does, or --data-dir")
    engine = connect(running_database_url(data_dir))
    try:
        former = store_owner.adopt(sessions(engine), Storage(url))
    finally:
        engine.dispose()
    if former is not None:
        with administration(data_dir) as admin:
            admin.note("storage.adopt", url, tenant_id=None, before={"swept_by": former}, after={"swept_by": "this"})
    print(f"this database sweeps {url}" + ("" if former is None else f", and {former} no longer does"))


def audit(
    batch: Annotated[str | None, typer.Option(help="Id of one batch [default: all, and the budgets]")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Prove that no result is missing, repeated or billed wrongly; exit status 1 with findings.

    Output files are read and counted too where the object store is known: TOKENMILL_STORAGE_URL, or --data-dir.
    """
    from jobs.audit import audit as audits
    from jobs.storage import Storage

    url = storage_url(data_dir)
    with admin_transaction(data_dir) as session:
        findings = audits.audit(session, batch_id=batch, storage=None if url is None else Storage(url))
    for finding in findings:
        print(f"{finding.subject}: {finding.message}")
    print(counted(len(findings), "finding") if findings else "clean")
    if findings:
        raise typer.Exit(1)
