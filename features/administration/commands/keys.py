"""`tokenmill keys …`: API keys of tenants and of operators."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.errors import InputError
from jobs.states import Scope

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

app = typer.Typer(help="API keys of tenants and operators.", no_args_is_help=True)

Owner = Annotated[str | None, typer.Argument(metavar="[TENANT]", help="Name or id; not with --operator.")]
Operator = Annotated[bool, typer.Option("--operator", help="A key of an operator, for /v1/admin.")]
Key = Annotated[str, typer.Argument(help="Id, the key itself, or its first characters.")]
Expires = Annotated[str | None, typer.Option(metavar="DURATION", help="Lifetime of the key, such as 90d.")]
Overlap = Annotated[str, typer.Option(metavar="DURATION", help="How long the old secret still works; 0: not at all.")]


@app.command("create")
def keys_create(
    tenant: Owner = None,
    *,
    operator: Operator = False,
    scope: Annotated[list[Scope] | None, typer.Option(help="May be given again [default: both scopes]")] = None,
    name: Annotated[str | None, typer.Option(help="Name in lists.")] = None,
    expires: Expires = None,
    data_dir: DataDirOption = None,
) -> None:
    """Create a key and print it: it cannot be shown again.

    The scopes of a tenant's key are `submit`, `read` or both; an operator's key has the scope `admin`, for /v1/admin
    only.
    """
    from features.administration import keys

    lifetime = None if expires is None else _duration("--expires", expires)
    with administration(data_dir) as admin:
        owner_id = _owner_id(admin.session, tenant, is_operator=operator)
        _, secret = keys.create(admin, owner_id, scopes=scope, name=name, lifetime=lifetime)
    print(secret)


@app.command("list")
def keys_list(
    tenant: Owner = None, operator: Operator = False, as_json: AsJson = False, data_dir: DataDirOption = None
) -> None:
    """List the keys of a tenant or of operators, by id and first characters; last use is to the minute."""
    from jobs.accounts.keys import list_keys

    with admin_transaction(data_dir) as session:
        rows = [
            (key.id, f"{key.hint}…", key.name, " ".join(key.scopes), key.created_at, key.last_used_at, key.expires_at,
             key.revoked_at)
            for key in list_keys(session, _owner_id(session, tenant, is_operator=operator))
        ]  # fmt: skip
    print_table(("id", "key", "name", "scopes", "created", "last used", "expires", "revoked"), rows, as_json=as_json)


@app.command("rotate")
def keys_rotate(
    key: Key,
    *,
    overlap: Overlap = "24h",
    expires: Expires = None,
    data_dir: DataDirOption = None,
) -> None:
    """Give a key a new secret and print it: it cannot be shown again. Its budgets and usage are kept.

    A secret from before the last rotation stops working at once, and browsers that signed in with the key are signed
    out; without --expires the key keeps its expiry.
    """
    from features.administration import keys
    from jobs.accounts.keys import find_key

    lifetime = None if expires is None else _duration("--expires", expires)
    with administration(data_dir) as admin:
        rotated, secret = keys.rotate(
            admin, find_key(admin.session, key), overlap=_duration("--overlap", overlap), lifetime=lifetime
        )
    until = rotated.previous_until
    ends = "no longer works" if until is None else f"works until {until:%Y-%m-%d %H:%M} UTC"
    print(f"{rotated.id}: the old secret {ends}", file=sys.stderr)
    print(secret)


@app.command("revoke")
def keys_revoke(key: Key, data_dir: DataDirOption = None) -> None:
    """Revoke a key with all its secrets, and sign out the browsers that signed in with it."""
    from features.administration import keys
    from jobs.accounts.keys import find_key

    with administration(data_dir) as admin:
        revoked = keys.revoke(admin, find_key(admin.session, key))
    print(f"revoked {revoked.id}")


def _owner_id(session: Session, tenant: str | None, *, is_operator: bool) -> str | None:
    from jobs.accounts.tenants import find_tenant

    if is_operator == (tenant is not None):
        raise InputError("give either a TENANT or --operator: an operator's key belongs to no tenant")
    return None if tenant is None else find_tenant(session, tenant).id


_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def _duration(option: str, text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,6})([mhd])|0", text)
    if match is None:
        raise InputError(f"{option} is {text!r}; give a number followed by m, h or d, such as 30m, 24h or 90d")
    return timedelta() if text == "0" else timedelta(**{_UNITS[match[2]]: int(match[1])})
