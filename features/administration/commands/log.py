"""`tokenmill admin log`: changes by operators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction

if TYPE_CHECKING:
    from jobs.tables import AdminEntry

app = typer.Typer(help="The log of changes by operators.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("log")
def log(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of entries.")] = 50,
    before: Annotated[int | None, typer.Option(metavar="ID", help="Only entries older than this one.")] = None,
    as_json: AsJson = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show who changed tenants, keys, budgets, models and stores, newest first. Entries are kept forever.

    `user:` is a user of this operating system, `key:` an operator's key over HTTP.
    """
    from jobs.admin_log import entries

    with admin_transaction(data_dir) as session:
        rows = [
            (entry.id, entry.at, entry.actor, entry.action, entry.subject, entry.tenant_id, *_changed(entry))
            for entry in entries(session, before_id=before, limit=limit)
        ]
    print_table(("id", "at", "by", "action", "subject", "tenant", "before", "after"), rows, as_json=as_json)


def _changed(entry: AdminEntry) -> Iterator[str | None]:
    for values in (entry.before, entry.after):
        yield None if values is None else json.dumps(values, ensure_ascii=False, sort_keys=True)
