"""`tokenmill sessions …`: browser sessions of the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import AsJson
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.errors import InputError

app = typer.Typer(help="Browser sessions of the dashboard.", no_args_is_help=True)

Key = Annotated[
    str | None, typer.Option(metavar="KEY", help="Only of this key: its id, the key itself, or its first characters.")
]


@app.command("list")
def sessions_list(
    key: Key = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of sessions.")] = 100,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only sessions older than this one.")] = None,
    as_json: AsJson = False,
    data_dir: DataDirOption = None,
) -> None:
    """List the browsers that are signed in and their keys, newest first; last seen is to five minutes.

    A session ends twelve hours after its last request, and seven days after its first.
    """
    from jobs.accounts.browser_sessions import list_sessions
    from jobs.accounts.keys import find_key

    with admin_transaction(data_dir) as session:
        key_id = None if key is None else find_key(session, key).id
        rows = [
            (each.id, of.id, of.tenant_id, each.created_at, each.last_seen_at, each.expires_at, each.user_agent)
            for each, of in list_sessions(session, key_id=key_id, before_id=before, limit=limit)
        ]
    print_table(("id", "key", "tenant", "created", "last seen", "expires", "browser"), rows, as_json=as_json)


@app.command("end")
def sessions_end(
    session_id: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Id of the session.")] = None,
    *,
    key: Key = None,
    everybody: Annotated[bool, typer.Option("--all", help="The sessions of all keys, also of operators.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """End one session, those of a key, or all: the browser must sign in again at its next request."""
    from features.administration import browser_sessions
    from jobs.accounts.keys import find_key

    if [session_id is not None, key is not None, everybody].count(True) != 1:
        raise InputError("give one of SESSION, --key and --all")
    with administration(data_dir) as admin:
        if session_id is not None:
            ended = browser_sessions.end(admin, session_id)
        elif key is not None:
            owner = find_key(admin.session, key)
            ended = f"{browser_sessions.end_of_key(admin, owner)} of {owner.id}"
        else:
            ended = f"{browser_sessions.end_all(admin)}"
    print(f"ended {ended}")
