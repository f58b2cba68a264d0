"""`tokenmill tenants …`: who owns files, batches and a budget, and what they may have and do."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.counted import counted
from jobs.errors import InputError
from jobs.states import AskedPriority

app = typer.Typer(help="Tenants: who owns files, batches and a budget.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name or id.")]


@app.command("create")
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
    from features.administration import tenants

    with administration(data_dir) as admin:
        tenant = tenants.create(admin, name, weight=weight, limit_tokens=budget, best_priority=best_priority)
    print(tenant.id)


@app.command("budget")
def tenants_budget(
    name: Name,
    tokens: Annotated[str | None, typer.Argument(metavar="[TOKENS|none]", help="Leave out to see it.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show or set a tenant's token budget; what was accepted keeps its reservation."""
    from features.administration import tenants
    from jobs.accounts import budgets
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        if tokens is not None:
            limit = _whole_number(tokens, name="TOKENS", unset="none", meaning="no limit")
            tenants.change(admin, tenant, limit_tokens=limit)
        quota = budgets.quota(admin.session, tenant.id)
    shown = "no limit" if quota.limit is None else f"limit {quota.limit}, available {quota.available}"
    print(f"{shown}, reserved {quota.reserved}, spent {quota.spent}")


@app.command("limits")
def tenants_limits(
    *,
    name: Name,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LIMIT=N", help="May be given again; LIMIT=default goes back to the setting."),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show what a tenant may have and do at once, or change it; API processes know within a request."""
    from features.administration import tenants
    from jobs.accounts import limits
    from jobs.accounts.tenants import find_tenant
    from jobs.settings import load_settings

    changes = dict(_limit_of(given) for given in change or [])
    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        if changes:
            tenants.change(admin, tenant, limits=changes)
        holding = limits.limits_of(tenant, load_settings())
        rows = [
            (limit, "none" if value is None else value, "default" if getattr(tenant, f"max_{limit}") is None else "set")
            for limit, value in asdict(holding).items()
        ]
    print_table(("limit", "value", "from"), rows, numbers=("value",))


def _limit_of(given: str) -> tuple[str, int | None]:
    from jobs.accounts.limits import NAMES

    limit, _, value = given.partition("=")
    if limit not in NAMES or not (value == "default" or (value.isascii() and value.isdecimal())):
        raise InputError(f"--set is {given!r}; give LIMIT=N or LIMIT=default, where LIMIT is one of {', '.join(NAMES)}")
    return limit, None if value == "default" else int(value)


@app.command("retention")
def tenants_retention(
    name: Name,
    days: Annotated[str | None, typer.Argument(metavar="[DAYS|default]", help="Leave out to see them.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show or set for how many days a tenant's results can be read one by one."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        if days is not None:
            kept = _whole_number(days, name="DAYS", unset="default", meaning="TOKENMILL_RETENTION_DAYS")
            tenants.change(admin, tenant, retention_days=kept)
        kept = tenant.retention_days
    print("as TOKENMILL_RETENTION_DAYS says" if kept is None else counted(kept, "day"))


def _whole_number(given: str, *, name: str, unset: str, meaning: str) -> int | None:
    """Return the number that was given, None for the word that unsets it."""
    if given == unset:
        return None
    try:
        return int(given)
    except ValueError:
        message = f"{name} is {given!r}; give a whole number, or `{unset}` for {meaning}"
        raise InputError(message, param=name.lower()) from None


@app.command("delete")
def tenants_delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Revoke a tenant's keys, cancel its batches and delete its batches, results and files; its bills stay.

    A running service deletes them within a minute, and what still runs as it ends.
    """
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with admin_transaction(data_dir) as session:
        tenant_id = find_tenant(session, name).id
    if not yes:
        typer.confirm(f"Delete tenant {name} ({tenant_id}) with all of its batches and files?", abort=True)
    with administration(data_dir) as admin:
        tenants.delete(admin, find_tenant(admin.session, tenant_id))
    print(f"deleted {tenant_id}")


@app.command("disable")
def tenants_disable(
    name: Name,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel its open batches, too.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Accept nothing more of a tenant: it may read what it has, and what was accepted runs on. Its schedules rest."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        tenant_id = tenant.id
        tenants.disable(admin, tenant)
    if not cancel:
        print(f"disabled {name}; what was accepted runs on")
        return
    num_cancelled = tenants.cancel_batches(partial(administration, data_dir), tenant_id)
    print(f"disabled {name} and cancelled {counted(num_cancelled, 'batch', 'batches')}")


@app.command("enable")
def tenants_enable(name: Name, data_dir: DataDirOption = None) -> None:
    """Accept what a tenant submits again; its schedules go on as each of them says about missed runs."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenants.enable(admin, find_tenant(admin.session, name))
    print(f"enabled {name}")


@app.command("priority")
def tenants_priority(
    name: Name,
    best: Annotated[AskedPriority, typer.Argument(help="The best class its batches may ask for.")],
    data_dir: DataDirOption = None,
) -> None:
    """Set how urgent a tenant's coming batches may be; accepted ones keep their class."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenants.change(admin, find_tenant(admin.session, name), best_priority=best)
    print(f"{name} may ask for {best.value} at best")


class Overflow(StrEnum):
    ON = "on"
    OFF = "off"


@app.command("overflow")
def tenants_overflow(
    name: Name,
    wanted: Annotated[Overflow, typer.Argument(metavar="on|off")],
    data_dir: DataDirOption = None,
) -> None:
    """Let batches that a tenant's token budget does not cover run on spare capacity, in class overflow, or refuse them.

    What they use does not count against the budget; accepted batches stay as they are.
    """
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    is_allowed = wanted is Overflow.ON
    with administration(data_dir) as admin:
        tenants.change(admin, find_tenant(admin.session, name), may_overflow=is_allowed)
    print(f"batches of {name} beyond its token budget {'run on spare capacity' if is_allowed else 'are refused'}")


@app.command("list")
def tenants_list(data_dir: DataDirOption = None) -> None:
    """List tenants with their budgets."""
    from jobs.accounts import budgets, tenants
    from jobs.accounts.refused_input import refused_input

    with admin_transaction(data_dir) as session:
        rows = []
        for tenant in tenants.list_tenants(session):
            quota = budgets.quota(session, tenant.id)
            refused = refused_input(session, tenant.id)
            amounts = (quota.limit, quota.reserved, quota.spent, refused.lines, refused.size_bytes)
            rows.append((tenant.id, tenant.name, tenant.weight, tenant.best_priority, *amounts, tenant.disabled_at))
    numbers = ("budget", "reserved", "spent", "refused lines", "refused bytes")
    print_table(("id", "name", "weight", "best priority", *numbers, "disabled"), rows, numbers=("weight", *numbers))
