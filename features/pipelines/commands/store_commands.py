"""`tokenmill stores …`: which folders and buckets an operator opens to a tenant's pipelines. Talks to Postgres."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.errors import InputError

app = typer.Typer(help="Stores that operators register for a tenant's pipelines.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Name or id.")]


@app.command("add")
def add(
    tenant: Tenant,
    name: Annotated[str, typer.Argument(help="By which its pipelines name it.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="file:///absolute/folder or s3://bucket/prefix.")],
    *,
    writable: Annotated[bool, typer.Option("--writable", help="Outputs may be written to it.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Of a bucket, such as access_key_id=env:NIGHTLY_KEY_ID: env: takes it from the control workers.",
        ),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Open a folder or bucket to a tenant's pipelines; they reach no other."""
    from features.pipelines import registered_stores as stores
    from jobs.accounts import tenants

    options = dict(_pair(each) for each in option or [])
    with administration(data_dir) as admin:
        owner = tenants.find_tenant(admin.session, tenant)
        stores.add(admin, owner.id, name, url, options=options, is_writable=writable)
    print(f"store {name} of {tenant}: {url}, for {'reading and writing' if writable else 'reading'}")


@app.command("list")
def list_(tenant: Tenant, data_dir: DataDirOption = None) -> None:
    """List a tenant's stores; their options, credentials among them, are shown to nobody."""
    from features.pipelines import stores
    from jobs.accounts import tenants

    with admin_transaction(data_dir) as session:
        found = stores.list_stores(session, tenants.find_tenant(session, tenant).id)
        rows = [(each.name, each.url, "yes" if each.is_writable else "no", ", ".join(each.options)) for each in found]
    print_table(("name", "url", "writable", "options"), rows)


@app.command("remove")
def remove(tenant: Tenant, name: Annotated[str, typer.Argument()], data_dir: DataDirOption = None) -> None:
    """Take a store from a tenant: its runs that need it fail. What is in it stays."""
    from features.pipelines import registered_stores as stores
    from jobs.accounts import tenants

    with administration(data_dir) as admin:
        stores.remove(admin, tenants.find_tenant(admin.session, tenant).id, name)
    print(f"removed {name}")


def _pair(given: str) -> tuple[str, str]:
    key, separator, value = given.partition("=")
    if not separator or not key:
        raise InputError(f"--option is {given!r}; give KEY=VALUE, such as region=eu-central-1")
    return key, value
