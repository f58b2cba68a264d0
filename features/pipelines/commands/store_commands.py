"""`tokenmill stores …`: folders and buckets that a tenant's pipelines may use. Connects to Postgres."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import AsJson
from cli.service.options import say
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.errors import InputError

app = typer.Typer(help="Stores: folders and buckets that a tenant's pipelines may use.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Name or id.")]


@app.command("add")
def add(
    tenant: Tenant,
    name: Annotated[str, typer.Argument(help="Name of the store in pipelines.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="file:///absolute/folder or s3://bucket/prefix.")],
    *,
    writable: Annotated[bool, typer.Option("--writable", help="Allow pipelines to write outputs to it.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Such as access_key_id=env:NIGHTLY_KEY_ID for a bucket; env: reads it on the control workers.",
        ),
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Add it although it cannot be used from this machine.")
    ] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Allow a tenant's pipelines to use a folder or bucket; they can use no other.

    It is listed first, and with --writable a small file is written and deleted.
    """
    from features.pipelines import registered_stores as stores
    from features.pipelines.external.trial import try_store, unset_variables
    from jobs.accounts import tenants

    options = dict(_pair(each) for each in option or [])
    unset = unset_variables(options)
    if unset:
        say(f"the store is not tried: {', '.join(unset)} is not set here, but must be for the control workers")
    elif not unchecked:
        try_store(name, url, options, is_writable=writable)
    with administration(data_dir) as admin:
        owner = tenants.find_tenant(admin.session, tenant)
        stores.add(admin, owner.id, name, url, options=options, is_writable=writable)
    print(f"store {name} of {tenant}: {url}, for {'reading and writing' if writable else 'reading'}")


@app.command("list")
def list_(tenant: Tenant, as_json: AsJson = False, data_dir: DataDirOption = None) -> None:
    """List a tenant's stores, with the names of their options; values such as credentials are never shown."""
    from features.pipelines import stores
    from jobs.accounts import tenants

    with admin_transaction(data_dir) as session:
        listed = stores.list_stores(session, tenants.find_tenant(session, tenant).id)
        rows = [(each.name, each.url, "yes" if each.is_writable else "no", ", ".join(each.options)) for each in listed]
    print_table(("name", "url", "writable", "options"), rows, as_json=as_json)


@app.command("remove")
def remove(tenant: Tenant, name: Annotated[str, typer.Argument()], data_dir: DataDirOption = None) -> None:
    """Remove a store from a tenant: runs that need it fail. Its content is kept."""
    from features.pipelines import registered_stores as stores
    from jobs.accounts import tenants

    with administration(data_dir) as admin:
        stores.remove(admin, tenants.find_tenant(admin.session, tenant).id, name)
    print(f"removed {name}")


def _pair(option: str) -> tuple[str, str]:
    key, separator, value = option.partition("=")
    if not separator or not key:
        raise InputError(f"--option is {option!r}; give KEY=VALUE, such as region=eu-central-1")
    return key, value
